// init_kernels.cpp: measuring the kernels. kernels/measure.zig says what is measured, and what it
// is compared with; pccl_py/measure.py runs kernels in turns and takes medians.
#include "common.h"

namespace pccl_binding {

namespace {

// The bytes of a writable buffer, which is held for one call.
class Writable {
 public:
  explicit Writable(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
  }
  ~Writable() { PyBuffer_Release(&view_); }
  Writable(const Writable &) = delete;
  Writable &operator=(const Writable &) = delete;
  void *data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

}  // namespace

void init_kernels(nb::module_ &module) {
  module.def(
      "kernel_names",
      [] {
        nb::list names;
        for (size_t index = 0; pccl_kernel_name(index) != nullptr; ++index) {
          names.append(pccl_kernel_name(index));
        }
        return names;
      },
      nb::sig("def kernel_names() -> list[str]"), "The kernels that kernel_run can measure.");
  module.def("kernel_memory", &pccl_kernel_memory, nb::arg("count"),
             "Bytes that kernel_run needs for so many elements; 0 if it cannot measure them.");
  module.def(
      "kernel_run",
      [](const char *name, int what, nb::handle memory, size_t count, uint32_t repeats) {
        Writable bytes(memory);
        if (bytes.size() < pccl_kernel_memory(count)) {
          throw nb::value_error("the memory is smaller than kernel_memory(count)");
        }
        uint64_t duration_ns = 0;
        pccl_status_t status;
        {
          Unlocked unlocked;
          status = pccl_kernel_run(name, static_cast<pccl_kernel_what_t>(what), bytes.data(), count,
                                   repeats, &duration_ns);
        }
        check(status);
        return duration_ns;
      },
      nb::arg("name"), nb::arg("what"), nb::arg("memory"), nb::arg("count"), nb::arg("repeats"),
      nb::sig("def kernel_run(name: str, what: int, memory: object, count: int, "
              "repeats: int) -> int"),
      "Processor time in ns of the kernel (what=1) or of its skeleton (2); 0 prepares the memory.");
}

}  // namespace pccl_binding
