// module.cpp: the extension module pccl_py._pccl. It calls one init function per topic; each init
// function binds functions of include/pccl.h one to one, without logic. Users import pccl_py.
#include "common.h"

NB_MODULE(_pccl, module) {
  using namespace pccl_binding;
  module.doc() = "Native part of pccl_py: include/pccl.h, function by function. Use pccl_py.";
  // nanobind must not warn of objects alive at exit, which end with the process.
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
