// init_buffer.cpp: the address of an exported buffer, which Python itself does not tell.
// pccl_py/buffers.py decides everything else about buffers: dtype, layout, who may write.
#include "common.h"

namespace pccl_binding {

namespace {

uintptr_t buffer_address(nb::handle exporter) {
  Py_buffer view;
  if (PyObject_GetBuffer(exporter.ptr(), &view, PyBUF_FULL_RO) != 0) throw nb::python_error();
  uintptr_t address = reinterpret_cast<uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

}  // namespace

void init_buffer(nb::module_ &module) {
  module.def("buffer_address", &buffer_address, nb::arg("exporter"),
             nb::sig("def buffer_address(exporter: memoryview) -> int"),
             "Address of the first element; the caller keeps the memoryview alive.");
}

}  // namespace pccl_binding
