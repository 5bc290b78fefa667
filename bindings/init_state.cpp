// init_state.cpp: shared states. Python's SharedState is in pccl_py/shared_state.py. A State keeps
// the tensors alive that the native side may read and write until the state is closed.
#include "common.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>

namespace pccl_binding {

namespace {

// A native state, shared with the thread that is in sync, so that the state is not destroyed
// meanwhile.
struct StateHandle {
  pccl_state_t *native = nullptr;
  std::shared_ptr<CommHandle> comm;
  ~StateHandle() { pccl_state_destroy(native); }
};

struct State {
  std::shared_ptr<StateHandle> handle;
  nb::object tensors;  // keeps the memory alive while the native side may touch it

  State() = default;
  ~State() {
    Unlocked unlocked;
    handle.reset();
  }
  State(const State &) = delete;
  State &operator=(const State &) = delete;
};

// Most members of an epoch, as in engine/base/limits.zig.
constexpr uint32_t peers_max = 512;

// (name, address, shape, dtype, flags)
using Tensor = std::tuple<std::string, uintptr_t, std::vector<uint64_t>, int, uint32_t>;

std::unique_ptr<State> create(Comm &comm, const std::string &name,
                              const std::vector<Tensor> &tensors, uint64_t revision,
                              uint32_t flags, nb::object owners) {
  std::vector<pccl_tensor_t> native(tensors.size());
  for (size_t index = 0; index < tensors.size(); index += 1) {
    const auto &[tensor_name, address, shape, dtype, flags] = tensors[index];
    native[index] = pccl_tensor_t{};
    native[index].name = tensor_name.c_str();
    native[index].data = reinterpret_cast<void *>(address);
    native[index].shape = shape.data();
    native[index].dimensions = static_cast<uint32_t>(shape.size());
    native[index].dtype = static_cast<pccl_dtype_t>(dtype);
    native[index].flags = flags;
  }
  pccl_state_options_t options = PCCL_STATE_OPTIONS_INIT;
  options.name = name.c_str();
  options.tensors = native.data();
  options.tensor_count = native.size();
  options.revision = revision;
  options.flags = flags;
  auto handle = std::make_shared<StateHandle>();
  handle->comm = comm.handle;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_state_create(comm.handle->native, &options, &handle->native);
  }
  check(status);
  auto state = std::make_unique<State>();
  state->handle = std::move(handle);
  state->tensors = std::move(owners);
  return state;
}

nb::tuple sync(State &state, int strategy, std::optional<uint64_t> revision,
               uint64_t deadline_ns) {
  std::shared_ptr<StateHandle> handle = state.handle;
  nb::object tensors = state.tensors;  // kept even if another thread closes the state
  pccl_sync_options_t options = PCCL_SYNC_OPTIONS_INIT;
  options.strategy = static_cast<pccl_strategy_t>(strategy);
  options.deadline_ns = deadline_ns;
  if (revision) {
    options.revision = *revision;
    options.flags = PCCL_SYNC_AT_REVISION;
  }
  std::vector<pccl_peer_id_t> contributors(peers_max);
  std::vector<uint8_t> held(peers_max);
  options.contributors = contributors.data();
  options.holders = held.data();
  options.capacity = peers_max;
  pccl_sync_outcome_t outcome = PCCL_SYNC_OUTCOME_INIT;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_state_sync(handle->native, &options, &outcome);
  }
  // An exception of a signal handler that ran inside the call is raised instead of the call's
  // error.
  if (PyErr_Occurred()) throw nb::python_error();
  check(status);
  nb::list holders;
  for (uint32_t place = 0; place < outcome.contributor_count; place += 1)
    holders.append(held[place] == 1);
  return nb::make_tuple(
      nb::make_tuple(outcome.revision, outcome.elected_revision, outcome.epoch, outcome.sequence,
                     outcome.attempts, outcome.sources),
      nb::make_tuple(outcome.leaves, outcome.leaves_moved, outcome.leaves_early),
      nb::make_tuple(outcome.bytes_sent, outcome.bytes_received, outcome.hash_bytes_sent,
                     outcome.hash_bytes_received),
      nb::make_tuple(outcome.duration_ns, outcome.hash_ns),
      to_list(contributors.data(), outcome.contributor_count), holders);
}

uint64_t revision(State &state) {
  uint64_t found = 0;
  check(pccl_state_revision(state.handle->native, &found));
  return found;
}

void close(State &state) {
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_state_close(state.handle->native);
  }
  check(status);
  state.tensors = nb::none();
}

}  // namespace

void init_state(nb::module_ &module) {
  nb::class_<State>(module, "State", "Owns a pccl_state_t and the tensors it borrows.")
      .def_static("create", &create, nb::arg("comm"), nb::arg("name"), nb::arg("tensors"),
                  nb::arg("revision"), nb::arg("flags"), nb::arg("owners").none(),
                  nb::sig("def create(comm: Comm, name: str, "
                          "tensors: list[tuple[str, int, tuple[int, ...], int, int]], "
                          "revision: int, flags: int, owners: object | None) -> State"),
                  "Each tensor is (name, address, shape, dtype, flags). flags: STATE_PREFETCH,\n"
                  "and the numbers of rules.")
      .def("sync", &sync, nb::arg("strategy"), nb::arg("revision").none(), nb::arg("deadline_ns"),
           nb::sig("def sync(self, strategy: int, revision: int | None, deadline_ns: int) -> "
                   "tuple[tuple[int, int, int, int, int, int], tuple[int, int, int], "
                   "tuple[int, int, int, int], tuple[int, int], list[bytes], list[bool]]"),
           "((revision, elected_revision, epoch, sequence, attempts, sources),\n"
           "(leaves, leaves_moved, leaves_early),\n"
           "(bytes_sent, bytes_received, hash_bytes_sent, hash_bytes_received),\n"
           "(duration_ns, hash_ns), contributors, which of them held what was elected)")
      .def("revision", &revision)
      .def("close", &close);
  module.attr("TENSOR_MAY_DIFFER") = PCCL_TENSOR_MAY_DIFFER;
  module.attr("STATE_PREFETCH") = PCCL_STATE_PREFETCH;
}

}  // namespace pccl_binding
