// init_status.cpp: status codes, versions, and how a status becomes a Python exception.
// pccl_py/errors.py decides which class belongs to which status, and installs its factory here.
#include "common.h"

#include <cstring>

namespace pccl_binding {

namespace {

// The factory is leaked on purpose: a static nb::object would be released after the interpreter is
// gone.
nb::object *error_factory = new nb::object();

}  // namespace

void raise(pccl_status_t status) {
  GilWait wait(true);  // the factory is Python code, which lets other threads have the GIL
  // The library writes UTF-8, whatever names are in it; "replace" is for an older library.
  const char *said = pccl_last_error();
  PyObject *text = PyUnicode_DecodeUTF8(said, std::strlen(said), "replace");
  if (text == nullptr) throw nb::python_error();
  nb::str message = nb::steal<nb::str>(text);
  if (!error_factory->is_valid()) {
    PyErr_SetString(PyExc_RuntimeError, message.c_str());
    throw nb::python_error();
  }
  nb::object error = (*error_factory)(static_cast<int>(status), message);
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void init_status(nb::module_ &module) {
  module.def(
      "set_error_factory", [](nb::object factory) { *error_factory = std::move(factory); },
      nb::arg("factory"),
      nb::sig("def set_error_factory("
              "factory: collections.abc.Callable[[int, str], BaseException]) -> None"),
      "factory(status, message) makes the exception that a failing call raises.");
  module.def(
      "status_name",
      [](int status) { return pccl_status_name(static_cast<pccl_status_t>(status)); },
      nb::arg("status"), "The name of a status, e.g. 'PCCL_MISMATCH'.");
  module.def("version", &pccl_version, "major * 10000 + minor * 100 + patch.");
  module.def("version_string", &pccl_version_string, "Version of the loaded native library.");
  module.def("wire_version", &pccl_wire_version, "Wire protocol version.");
  module.def("cpu_level", &pccl_cpu_level, "CPU level of the kernels in use.");
  module.def(
      "dtype_size",
      [](int dtype) { return pccl_dtype_size(static_cast<pccl_dtype_t>(dtype)); },
      nb::arg("dtype"), "Bytes per element; 0 for an unknown dtype.");
}

}  // namespace pccl_binding
