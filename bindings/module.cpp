// module.cpp: the extension module pccl_py._pccl. It only calls one init function per topic; each
// binds functions of include/pccl.h one to one, without logic. Users see pccl_py/.
#include "common.h"

NB_MODULE(_pccl, module) {
  using namespace pccl_binding;
  module.doc() = "Native part of pccl_py: include/pccl.h, function by function. Use pccl_py.";
  // The library never prints: objects alive at exit are released by the process ending.
  nb::set_leak_warnings(false);
  init_status(module);
  init_runtime(module);
  init_token(module);
  init_buffer(module);
  init_log(module);
  init_coordinator(module);
  init_work(module);
  init_communicator(module);
  init_collective(module);
  init_handlers(module);
  init_state(module);
  init_kernels(module);
  init_training(module);
}
