// init_handlers.cpp: communicators for code that runs without the interpreter, such as the handlers
// of JAX (jax_handlers.c): the table of their numbers, and the check for signals while a handler
// waits. handlers.h has the interface; Group.handle (pccl_py/communicator.py) is the number of a
// group.
#include "handlers.h"

#include <mutex>
#include <unordered_map>

#include "common.h"

namespace pccl_binding {

namespace {

struct Table {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<CommHandle>> comms;
};

// The table is never freed, like the runtime; a forked child gets an empty table.
Table *table = new Table();
// One counter serves all tables: no number is given twice, not even in a forked child.
std::atomic<uint64_t> next_number{1};
std::atomic<unsigned long> main_thread{0};
std::atomic<uint64_t> withdrawals{0};
// The exception that a signal handler raised inside a handler; the GIL guards it.
PyObject *kept_type = nullptr, *kept_value = nullptr, *kept_traceback = nullptr;

pccl_comm_t *acquire(uint64_t number, void **pin) {
  std::lock_guard<std::mutex> lock(table->mutex);
  auto found = table->comms.find(number);
  if (found == table->comms.end()) return nullptr;
  std::shared_ptr<CommHandle> comm = found->second.lock();
  if (comm == nullptr) return nullptr;
  pccl_comm_t *native = comm->native;
  *pin = new std::shared_ptr<CommHandle>(std::move(comm));
  return native;
}

void release(void *pin) { delete static_cast<std::shared_ptr<CommHandle> *>(pin); }

int raise_kept(void *) {
  if (kept_type == nullptr) return 0;
  PyErr_Restore(kept_type, kept_value, kept_traceback);
  kept_type = kept_value = kept_traceback = nullptr;
  return -1;
}

// Python runs signal handlers in the main thread alone, so other threads do not take the GIL here.
// XLA would replace an exception of a signal handler by an error of its own, so the interpreter
// raises the exception a moment later. A program on a thread of XLA notices no signal: Python
// withdraws the program's operations when an exception ends the wait for the program.
int handler_interrupted(uint64_t since) {
  if (PyThread_get_thread_ident() != main_thread) {
    bool is_beside = PyGILState_GetThisThreadState() == nullptr;
    return is_exiting() || (is_beside && withdrawals != since);
  }
  if (!gil_wait_begin()) return 1;
  PyGILState_STATE state = PyGILState_Ensure();
  int raised = PyErr_CheckSignals();
  if (raised != 0) {
    Py_XDECREF(kept_type);
    Py_XDECREF(kept_value);
    Py_XDECREF(kept_traceback);
    PyErr_Fetch(&kept_type, &kept_value, &kept_traceback);
    Py_AddPendingCall(raise_kept, nullptr);
  }
  PyGILState_Release(state);
  gil_wait_end();
  return raised != 0 || is_exiting();
}

uint64_t withdrawals_now() { return withdrawals; }

const pccl_handler_hooks_t hooks = {sizeof hooks, acquire, release, withdrawals_now,
                                    handler_interrupted};

}  // namespace

CommHandle::~CommHandle() {
  {
    std::lock_guard<std::mutex> lock(table->mutex);
    table->comms.erase(number);
  }
  pccl_comm_destroy(native);
}

uint64_t handle_of(const std::shared_ptr<CommHandle> &comm) {
  std::lock_guard<std::mutex> lock(table->mutex);
  if (comm->number == 0) comm->number = next_number++;
  table->comms[comm->number] = comm;
  return comm->number;
}

void handlers_fork_child() { table = new Table(); }

void init_handlers(nb::module_ &module) {
  module.def(
      "handler_hooks",
      [](unsigned long main_thread_ident) {
        main_thread = main_thread_ident;
        return reinterpret_cast<uintptr_t>(&hooks);
      },
      nb::arg("main_thread_ident"), "The address of bindings/handlers.h's hooks.");
  module.def("handlers_withdraw", [] { withdrawals += 1; },
             "Ends the operations of programs that run beside Python's threads.");
}

}  // namespace pccl_binding
