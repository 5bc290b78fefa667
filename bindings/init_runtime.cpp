// init_runtime.cpp: where native threads meet the interpreter: releasing the GIL, Ctrl-C, the exit,
// the fork, and the queue that tells pccl_py/_watcher.py which works have finished. Engine threads
// only ever push a number into that queue; none of them takes the GIL.
#include "common.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace pccl_binding {

namespace {

struct Runtime {
  std::mutex mutex;
  std::condition_variable inside_changed;
  std::condition_variable completed_changed;
  uint64_t unlocked_count = 0;        // threads inside an Unlocked
  uint64_t gil_waits = 0;             // threads inside a GilWait
  std::vector<uint64_t> completed;    // keys of finished works, in order
  bool woken = false;
  std::atomic<bool> exiting{false};   // the interpreter exits: blocking calls end soon
  bool gone = false;                  // only exit_thread may still take the GIL
  std::atomic<unsigned long> exit_thread{0};
};

// The runtime is never freed: engine threads may push until the process ends. A forked child gets a
// fresh runtime, as the parent's mutex may have been held at the fork.
Runtime *runtime = new Runtime();

[[noreturn]] void park() {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) never.wait(lock);
}

std::chrono::nanoseconds as_duration(uint64_t ns) {
  constexpr uint64_t day_ns = 86'400'000'000'000;  // wait_for overflows for very long times
  return std::chrono::nanoseconds(ns < day_ns ? ns : day_ns);
}

std::vector<uint64_t> completions_take(uint64_t timeout_ns) {
  Unlocked unlocked;
  std::unique_lock<std::mutex> lock(runtime->mutex);
  runtime->completed_changed.wait_for(lock, as_duration(timeout_ns), [] {
    return runtime->woken || !runtime->completed.empty();
  });
  runtime->woken = false;
  std::vector<uint64_t> keys;
  keys.swap(runtime->completed);
  return keys;
}

nb::list completions_wait(uint64_t timeout_ns) {
  nb::list keys;
  for (uint64_t key : completions_take(timeout_ns)) keys.append(key);
  return keys;
}

void completions_wake() {
  std::lock_guard<std::mutex> lock(runtime->mutex);
  runtime->woken = true;
  runtime->completed_changed.notify_one();
}

void on_finished(void *context) {
  std::lock_guard<std::mutex> lock(runtime->mutex);
  runtime->completed.push_back(reinterpret_cast<uintptr_t>(context));
  runtime->completed_changed.notify_one();
}

void notify(Work &work, uint64_t key) {
  void *context = reinterpret_cast<void *>(static_cast<uintptr_t>(key));
  if (work.has_ended()) return on_finished(context);
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_work_notify(work.native, on_finished, context);
  }
  check(status);
}

// Number of GilWaits of this thread, one inside the other: making an error may collect garbage, and
// works among it. The exit waits for the outermost GilWait, so inner ones must not park the thread.
thread_local uint64_t gil_wait_depth = 0;

bool exit_finish(uint64_t timeout_ns) {
  runtime->exit_thread = PyThread_get_thread_ident();
  PyThreadState *state = PyEval_SaveThread();
  bool all_left;
  {
    std::unique_lock<std::mutex> lock(runtime->mutex);
    all_left = runtime->inside_changed.wait_for(
        lock, as_duration(timeout_ns), [] { return runtime->unlocked_count == 0; });
    runtime->gone = true;
    // Without a bound: each GilWait gets the GIL before this thread takes it again.
    runtime->inside_changed.wait(lock, [] { return runtime->gil_waits == 0; });
  }
  PyEval_RestoreThread(state);
  return all_left;
}

}  // namespace

// Registers a thread that may wait for the GIL. False: the interpreter is gone for this thread.
bool gil_wait_begin() {
  std::lock_guard<std::mutex> lock(runtime->mutex);
  bool leaves = runtime->exit_thread == PyThread_get_thread_ident();
  if (runtime->gone && gil_wait_depth == 0 && !leaves) return false;
  gil_wait_depth += 1;
  runtime->gil_waits += 1;
  return true;
}

void gil_wait_end() {
  std::lock_guard<std::mutex> lock(runtime->mutex);
  gil_wait_depth -= 1;
  runtime->gil_waits -= 1;
  if (runtime->gil_waits == 0) runtime->inside_changed.notify_all();
}

bool is_exiting() { return runtime->exiting; }

GilWait::GilWait(bool holds_gil) {
  if (gil_wait_begin()) return;
  if (holds_gil) PyEval_SaveThread();
  park();
}

GilWait::~GilWait() { gil_wait_end(); }

Unlocked::Unlocked() {
  {
    std::lock_guard<std::mutex> lock(runtime->mutex);
    runtime->unlocked_count += 1;
  }
  state_ = PyEval_SaveThread();
}

Unlocked::~Unlocked() {
  GilWait wait(false);
  PyEval_RestoreThread(state_);
  std::lock_guard<std::mutex> lock(runtime->mutex);
  runtime->unlocked_count -= 1;
  if (runtime->unlocked_count == 0) runtime->inside_changed.notify_all();
}

int interrupted(void *) {
  if (!gil_wait_begin()) return 1;
  PyGILState_STATE state = PyGILState_Ensure();
  int raised = PyErr_CheckSignals();
  PyGILState_Release(state);
  gil_wait_end();
  return raised != 0 || runtime->exiting;
}

void init_runtime(nb::module_ &module) {
  module.def("completions_wait", &completions_wait, nb::arg("timeout_ns"),
             nb::sig("def completions_wait(timeout_ns: int) -> list[int]"),
             "Keys of works that finished since the last call; waits for one, or for a wake.");
  module.def("completions_wake", &completions_wake, "Ends completions_wait.");
  module.def("work_notify", &notify, nb::arg("work"), nb::arg("key"),
             "Puts key into completions_wait once the work is finished.");
  module.def("exit_begin", [] { runtime->exiting = true; },
             "The interpreter exits: connect and admit end with PCCL_CANCELLED.");
  module.def("exit_finish", &exit_finish, nb::arg("timeout_ns"),
             "Waits until no thread is inside the library; later ones are parked. True: none was.");
  module.def("fork_child",
             [] {
               runtime = new Runtime();
               handlers_fork_child();
             },
             "Called in a forked child: nothing of the parent's queue is used there.");
}

}  // namespace pccl_binding
