// common.h: what the init_<topic>.cpp files share: handles, raising, and the GIL. Operations and
// decisions are in the native library (include/pccl.h) and in pccl_py/. Start at module.cpp.
#pragma once

#include <cstdio>  // included first: see nb_all.cpp

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "pccl.h"

namespace pccl_binding {

namespace nb = nanobind;

// A native wait returns at least this often so that Python can run its signal handlers.
constexpr uint64_t slice_ns = 50'000'000;

void init_status(nb::module_ &module);
void init_runtime(nb::module_ &module);
void init_token(nb::module_ &module);
void init_buffer(nb::module_ &module);
void init_log(nb::module_ &module);
void init_coordinator(nb::module_ &module);
void init_work(nb::module_ &module);
void init_communicator(nb::module_ &module);
void init_collective(nb::module_ &module);
void init_handlers(nb::module_ &module);
void init_state(nb::module_ &module);
void init_kernels(nb::module_ &module);
void init_training(nb::module_ &module);

// Raises the Python exception of a status, with pccl_last_error() of this thread as its message.
[[noreturn]] void raise(pccl_status_t status);

inline void check(pccl_status_t status) {
  if (status != PCCL_OK) raise(status);
}

// Encloses code that may wait for the GIL inside C++ frames; the interpreter's exit waits while a
// GilWait lives (init_runtime.cpp). Up to Python 3.13 a thread that waits for the GIL of a
// finalised interpreter is unwound, and unwinding through C++ frames crashes. After the exit has
// gone on, a new GilWait parks its thread for good.
class GilWait {
 public:
  explicit GilWait(bool holds_gil);
  ~GilWait();
  GilWait(const GilWait &) = delete;
  GilWait &operator=(const GilWait &) = delete;
};

// Releases the GIL while an Unlocked lives. The interpreter's exit waits, with a bound, for threads
// inside an Unlocked; a thread that leaves an Unlocked later is parked.
class Unlocked {
 public:
  Unlocked();
  ~Unlocked();
  Unlocked(const Unlocked &) = delete;
  Unlocked &operator=(const Unlocked &) = delete;

 private:
  PyThreadState *state_;
};

// gil_wait_begin and gil_wait_end enclose a PyGILState_Ensure as a GilWait would, for threads that
// may come at any time, and do not park. False: the thread must not take the GIL any more.
bool gil_wait_begin();
void gil_wait_end();

// Whether the interpreter exits, so that blocking calls must end soon.
bool is_exiting();

// For pccl_comm_options_t.interrupted: non-zero when a Python signal handler raised (the exception
// is then pending on this thread) or when the interpreter exits.
int interrupted(void *context);

// One native communicator, shared by its Python object and by every work begun on it, because works
// must be destroyed first. The last owner must not hold the GIL (Unlocked).
struct CommHandle {
  pccl_comm_t *native = nullptr;
  uint64_t number = 0;  // handle; 0 until handle_of is called (init_handlers.cpp)
  ~CommHandle();
};

// The number that stands for a communicator in compiled programs (handlers.h).
uint64_t handle_of(const std::shared_ptr<CommHandle> &comm);
void handlers_fork_child();

struct Comm {
  std::shared_ptr<CommHandle> handle;

  explicit Comm(pccl_comm_t *native) : handle(std::make_shared<CommHandle>()) {
    handle->native = native;
  }
  ~Comm();
  Comm(const Comm &) = delete;
  Comm &operator=(const Comm &) = delete;
};

// How an operation ended, read without the GIL.
struct Ending {
  struct Part {
    uint64_t begin;
    uint64_t end;
    std::vector<pccl_peer_id_t> contributors;
  };

  pccl_outcome_t outcome = PCCL_OUTCOME_INIT;
  std::vector<Part> parts;

  // Waits. On PCCL_OK the outcome is read, the work is freed, and *work is null.
  pccl_status_t finish(pccl_work_t **work, uint64_t timeout_ns);
  // Reads the outcome of a committed work, which is not freed.
  pccl_status_t read(pccl_work_t *work);
  nb::tuple to_tuple() const;
};

// One operation, or none yet: Python makes a Work before the operation begins (init_collective.cpp).
struct Work {
  pccl_work_t *native = nullptr;
  std::shared_ptr<CommHandle> comm;
  nb::object buffers;  // keeps the memory alive while the native side may touch it
  nb::object ending;   // outcome of a committed blocking call; `native` is null then

  Work() = default;
  ~Work() { destroy(); }
  Work(const Work &) = delete;
  Work &operator=(const Work &) = delete;

  bool has_ended() const { return ending.is_valid(); }
  void begin(pccl_work_t *work, std::shared_ptr<CommHandle> handle, nb::object kept);
  // Cancels an unfinished operation, frees it, and only then releases the buffers. Idempotent.
  void destroy();
  // pccl_work_wait in slices; throws when a signal handler raised.
  pccl_status_t wait(uint64_t timeout_ns);
  // Cancels an unfinished operation, and waits for its end without running signal handlers.
  void withdraw();
};

nb::bytes to_bytes(const pccl_peer_id_t &id);
nb::list to_list(const pccl_peer_id_t *ids, size_t count);

}  // namespace pccl_binding
