// init_work.cpp: one operation in flight: waiting, cancelling, resolving, reading its outcome.
// Python's Work is in pccl_py/work.py. A Work holds the buffers of its operation until the
// operation is settled.
#include "common.h"

#include <chrono>
#include <limits>

namespace pccl_binding {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t forever_ns = std::numeric_limits<uint64_t>::max();

// Calls attempt(slice) until it answers something else than PCCL_TIMEOUT or timeout_ns has passed,
// letting Python run signal handlers between slices.
template <class Attempt>
pccl_status_t sliced(uint64_t timeout_ns, Attempt attempt) {
  Clock::time_point begin = Clock::now();
  for (;;) {
    uint64_t passed_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             Clock::now() - begin).count();
    uint64_t left_ns = timeout_ns == forever_ns ? forever_ns
                       : passed_ns < timeout_ns ? timeout_ns - passed_ns : 0;
    bool last = left_ns <= slice_ns;
    pccl_status_t status;
    {
      Unlocked unlocked;
      status = attempt(last ? left_ns : slice_ns);
    }
    if (status != PCCL_TIMEOUT) return status;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (last) return PCCL_TIMEOUT;
  }
}

// Releases the buffers of a settled operation. In doubt, resolve may still write to the buffers.
void let_go(Work &work, pccl_status_t status) {
  if (status != PCCL_TIMEOUT && status != PCCL_IN_DOUBT) work.buffers = nb::none();
}

void wait(Work &work, uint64_t timeout_ns) {
  if (work.has_ended()) return;
  pccl_status_t status = work.wait(timeout_ns);
  let_go(work, status);
  check(status);
}

bool poll(Work &work) {
  if (work.has_ended()) return true;
  int finished = 0;
  check(pccl_work_poll(work.native, &finished));
  return finished != 0;
}

// Whether the operation is in flight; false in a forked child for every operation of the parent.
bool in_flight(Work &work) {
  if (work.has_ended()) return false;
  int finished = 0;
  return pccl_work_poll(work.native, &finished) == PCCL_OK && finished == 0;
}

// Returns -1 for a blocking call that has committed: its descriptor is gone.
int fileno(Work &work) {
  if (work.has_ended()) return -1;
  int fd = -1;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_work_fd(work.native, &fd);
  }
  check(status);
  return fd;
}

void cancel(Work &work) {
  if (work.has_ended()) return;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_work_cancel(work.native);
  }
  check(status);
}

void resolve(Work &work, uint64_t timeout_ns, bool copy) {
  if (work.has_ended()) return;
  pccl_status_t status = sliced(timeout_ns, [&](uint64_t slice) {
    return pccl_work_resolve(work.native, slice, copy ? 1 : 0);
  });
  // Without `copy` the buffers stay, because a later call may ask for the result.
  if ((status == PCCL_OK && copy) || status == PCCL_ABORTED) work.buffers = nb::none();
  check(status);
}

nb::object outcome(Work &work) {
  if (work.has_ended()) return work.ending;
  Ending ending;
  check(ending.read(work.native));
  return ending.to_tuple();
}

pccl_status_t read_part(pccl_work_t *work, uint32_t index, Ending::Part &part) {
  pccl_outcome_range_t range = PCCL_OUTCOME_RANGE_INIT;
  pccl_status_t status = pccl_work_range(work, index, &range, nullptr, 0);
  if (status != PCCL_OK) return status;
  part = {range.begin, range.end, std::vector<pccl_peer_id_t>(range.contributor_count)};
  return pccl_work_range(work, index, &range, part.contributors.data(),
                         part.contributors.size());
}

}  // namespace

pccl_status_t Ending::finish(pccl_work_t **work, uint64_t timeout_ns) {
  constexpr uint32_t few = 16;  // contributors; read() takes more
  pccl_peer_id_t ids[few];
  pccl_outcome_range_t range = PCCL_OUTCOME_RANGE_INIT;
  pccl_status_t status = pccl_work_finish(work, timeout_ns, &outcome, &range, ids, few);
  if (status != PCCL_OK) return status;
  if (*work == nullptr) {
    if (outcome.range_count == 1)
      parts.push_back({range.begin, range.end, {ids, ids + range.contributor_count}});
    return status;
  }
  status = read(*work);
  pccl_work_destroy(*work);
  *work = nullptr;
  return status;
}

pccl_status_t Ending::read(pccl_work_t *work) {
  pccl_status_t status = pccl_work_outcome(work, &outcome);
  if (status != PCCL_OK) return status;
  parts.resize(outcome.range_count);
  uint32_t index = 0;
  for (Part &part : parts) {
    status = read_part(work, index, part);
    if (status != PCCL_OK) return status;
    index += 1;
  }
  return PCCL_OK;
}

nb::tuple Ending::to_tuple() const {
  nb::list ranges;
  for (const Part &part : parts) {
    const auto &ids = part.contributors;
    ranges.append(nb::make_tuple(part.begin, part.end, to_list(ids.data(), ids.size())));
  }
  nb::bytes digest(reinterpret_cast<const char *>(outcome.digest), sizeof outcome.digest);
  return nb::make_tuple(outcome.epoch, outcome.tag, outcome.sequence, outcome.attempts, digest,
                        outcome.bytes_sent, outcome.bytes_received, outcome.duration_ns,
                        outcome.plan, outcome.predicted_ns, outcome.bound_ns, ranges);
}

void Work::begin(pccl_work_t *work, std::shared_ptr<CommHandle> handle, nb::object kept) {
  native = work;
  comm = std::move(handle);
  buffers = std::move(kept);
}

void Work::withdraw() {
  if (has_ended()) return;
  pccl_status_t status;
  {
    Unlocked unlocked;
    pccl_work_cancel(native);
    status = pccl_work_wait(native, forever_ns);
  }
  let_go(*this, status);
}

void Work::destroy() {
  if (native != nullptr || comm != nullptr) {
    Unlocked unlocked;
    pccl_work_destroy(native);
    native = nullptr;
    comm.reset();
  }
  buffers.reset();
  ending.reset();
}

pccl_status_t Work::wait(uint64_t timeout_ns) {
  return sliced(timeout_ns, [&](uint64_t slice) { return pccl_work_wait(native, slice); });
}

void init_work(nb::module_ &module) {
  module.attr("FOREVER_NS") = forever_ns;
  nb::class_<Work>(module, "Work", "Owns a pccl_work_t and the buffers it borrows.")
      .def(nb::init<>())
      .def("wait", &wait, nb::arg("timeout_ns"), "Raises unless the operation has committed.")
      .def("poll", &poll, "True if wait would not block.")
      .def("in_flight", &in_flight, "The contrary of poll; never raises.")
      .def("fileno", &fileno,
           "Readable once wait would not block; -1 of a blocking call that has committed.")
      .def("cancel", &cancel)
      .def("withdraw", &Work::withdraw, "Cancels, and waits until it is done.")
      .def_prop_ro("begun",
                   [](const Work &work) { return work.native != nullptr || work.has_ended(); })
      .def("resolve", &resolve, nb::arg("timeout_ns"), nb::arg("copy"))
      .def("outcome", &outcome,
           nb::sig("def outcome(self) -> tuple[int, int, int, int, bytes, int, int, int, int, int, "
                   "int, list[tuple[int, int, list[bytes]]]]"),
           "(epoch, tag, sequence, attempts, digest, bytes_sent, bytes_received, duration_ns,\n"
           "plan, predicted_ns, bound_ns, ranges)");
}

}  // namespace pccl_binding
