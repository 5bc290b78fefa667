// init_log.cpp: takes queued events out of the native library, which never prints. Events reach
// logging.getLogger("pccl") through pccl_py/_watcher.py.
#include "common.h"

#include <cstring>

namespace pccl_binding {

void init_log(nb::module_ &module) {
  module.def(
      "log_next",
      []() -> nb::object {
        char message[2048];
        pccl_log_level_t level;
        if (pccl_log_next(&level, message, sizeof message) != PCCL_OK) return nb::none();
        PyObject *text = PyUnicode_DecodeUTF8(message, std::strlen(message), "replace");
        if (text == nullptr) throw nb::python_error();
        return nb::make_tuple(static_cast<int>(level), nb::steal(text));
      },
      nb::sig("def log_next() -> tuple[int, str] | None"),
      "The oldest queued event as (level, message), or None.");
}

}  // namespace pccl_binding
