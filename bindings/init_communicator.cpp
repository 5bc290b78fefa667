// init_communicator.cpp: membership of this process in a group: connect, join, admit, leave, info.
// Python's Group is in pccl_py/communicator.py; init_collective.cpp has the collectives.
#include "common.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <optional>
#include <string>

namespace pccl_binding {

namespace {

// Raises the exception of a signal handler that ran inside a call, or else the error of the call's
// status.
void check_interrupted(pccl_status_t status) {
  if (PyErr_Occurred()) throw nb::python_error();
  check(status);
}

std::unique_ptr<Comm> finish_create(pccl_status_t status, pccl_comm_t *native) {
  if (status == PCCL_OK && PyErr_Occurred()) {
    Unlocked unlocked;
    pccl_comm_destroy(native);
  }
  check_interrupted(status);
  return std::make_unique<Comm>(native);
}

std::unique_ptr<Comm> connect(const char *token, const std::string &group,
                              std::optional<std::string> bind,
                              std::optional<std::string> advertise,
                              std::optional<std::string> ports, uint32_t initial_world_size,
                              uint64_t deadline_ns, uint64_t connect_ns,
                              std::optional<nb::bytes> peer_id,
                              std::optional<std::string> label, uint64_t reconnect_timeout_ns,
                              std::optional<std::string> send_rates, uint32_t congestion,
                              uint32_t probe) {
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  options.group = group.c_str();
  options.bind = bind ? bind->c_str() : nullptr;
  options.advertise = advertise ? advertise->c_str() : nullptr;
  options.ports = ports ? ports->c_str() : nullptr;
  options.initial_world_size = initial_world_size;
  options.deadline_ns = deadline_ns;
  options.connect_ns = connect_ns;
  options.peer_id = peer_id ? reinterpret_cast<const pccl_peer_id_t *>(peer_id->c_str()) : nullptr;
  options.interrupted = interrupted;
  options.label = label ? label->c_str() : nullptr;
  options.reconnect_timeout_ns = reconnect_timeout_ns;
  options.send_rates = send_rates ? send_rates->c_str() : nullptr;
  options.congestion = static_cast<pccl_congestion_t>(congestion);
  options.probe = static_cast<pccl_probe_t>(probe);
  pccl_comm_t *native = nullptr;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_comm_create(token, &options, &native);
  }
  return finish_create(status, native);
}

uint64_t rate_parse(const std::string &text, const std::string &name) {
  uint64_t rate = 0;
  check(pccl_rate_parse(text.c_str(), name.c_str(), &rate));
  return rate;
}

std::unique_ptr<Comm> join(Comm &comm, const std::string &group, uint32_t initial_world_size,
                           uint64_t deadline_ns) {
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  options.group = group.c_str();
  options.initial_world_size = initial_world_size;
  options.deadline_ns = deadline_ns;
  options.interrupted = interrupted;
  pccl_comm_t *native = nullptr;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_comm_join(comm.handle->native, &options, &native);
  }
  return finish_create(status, native);
}

pccl_peer_id_t to_id(nb::bytes peer) {
  pccl_peer_id_t id = {};
  if (peer.size() != sizeof id.bytes) throw nb::value_error("a peer id has 16 bytes");
  std::memcpy(id.bytes, peer.data(), sizeof id.bytes);
  return id;
}

std::unique_ptr<Comm> subgroup(Comm &comm, const std::string &group, nb::list founders,
                               uint64_t deadline_ns) {
  std::vector<pccl_peer_id_t> ids(founders.size());
  for (size_t index = 0; index < ids.size(); index += 1)
    ids[index] = to_id(nb::cast<nb::bytes>(founders[index]));
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  options.group = group.c_str();
  options.deadline_ns = deadline_ns;
  options.interrupted = interrupted;
  pccl_comm_t *native = nullptr;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_comm_subgroup(comm.handle->native, ids.data(), ids.size(), &options, &native);
  }
  return finish_create(status, native);
}

void set_deadline(Comm &comm, uint64_t deadline_ns) {
  check(pccl_comm_set_deadline(comm.handle->native, deadline_ns));
}

void close(Comm &comm) {
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_comm_close(comm.handle->native);
  }
  check(status);
}

using ListIds = uint32_t (*)(pccl_comm_t *, pccl_peer_id_t *, uint32_t);

// Calls `list` until the ids fit, as their number may grow between two calls.
nb::list ids(Comm &comm, ListIds list) {
  std::vector<pccl_peer_id_t> found(64);
  for (;;) {
    uint32_t count = list(comm.handle->native, found.data(), found.size());
    if (count <= found.size()) return to_list(found.data(), count);
    found.resize(count);
  }
}

nb::tuple admit(Comm &comm, uint64_t deadline_ns, bool together) {
  pccl_admission_t admission = PCCL_ADMISSION_INIT;
  auto function = together ? pccl_comm_admit_together : pccl_comm_admit;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = function(comm.handle->native, deadline_ns, &admission);
  }
  check_interrupted(status);
  bool changed = admission.changed != 0;
  return nb::make_tuple(admission.epoch, admission.rank, admission.world_size, changed,
                        changed ? ids(comm, pccl_comm_joined) : nb::list(),
                        changed ? ids(comm, pccl_comm_left) : nb::list());
}

uint32_t pending_agreed(Comm &comm, uint64_t deadline_ns) {
  uint32_t pending = 0;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_comm_pending_agreed(comm.handle->native, deadline_ns, &pending);
  }
  check_interrupted(status);
  return pending;
}

nb::tuple info(Comm &comm) {
  pccl_comm_info_t found = PCCL_COMM_INFO_INIT;
  check(pccl_comm_info(comm.handle->native, &found));
  return nb::make_tuple(found.epoch, found.attempt, found.rank, found.world_size, found.alive,
                        found.pending, found.operations_in_flight, to_bytes(found.peer_id),
                        found.bytes_sent, found.bytes_received, static_cast<int>(found.lost));
}

nb::tuple plan(Comm &comm) {
  pccl_comm_plan_t found = PCCL_COMM_PLAN_INIT;
  check(pccl_comm_plan(comm.handle->native, &found));
  nb::list order, shares, limits;
  for (uint32_t index = 0; index < found.order_count; index += 1) order.append(found.order[index]);
  for (uint32_t rank = 0; rank < found.world_size; rank += 1)
    shares.append(rank < PCCL_PLAN_SHARES_MAX ? found.shares[rank] : 0);
  for (uint32_t index = 0; index < found.limit_count; index += 1)
    limits.append(nb::make_tuple(found.limits[index].from, found.limits[index].to));
  return nb::make_tuple(found.epoch, found.attempt, found.kind, order, shares, found.small_bytes,
                        found.predicted_ns, found.bound_ns, limits);
}

void optimize_topology(Comm &comm, uint64_t deadline_ns) {
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_comm_optimize_topology(comm.handle->native, deadline_ns, nullptr);
  }
  check_interrupted(status);
}

std::string label(Comm &comm, nb::bytes peer) {
  pccl_peer_id_t id = to_id(peer);
  char text[PCCL_LABEL_BYTES_MAX + 1];
  check(pccl_comm_label(comm.handle->native, &id, text, sizeof text));
  return text;
}

}  // namespace

Comm::~Comm() {
  Unlocked unlocked;
  handle.reset();
}

nb::bytes to_bytes(const pccl_peer_id_t &id) {
  return nb::bytes(reinterpret_cast<const char *>(id.bytes), sizeof id.bytes);
}

nb::list to_list(const pccl_peer_id_t *ids, size_t count) {
  nb::list result;
  for (size_t index = 0; index < count; index += 1) result.append(to_bytes(ids[index]));
  return result;
}

void init_communicator(nb::module_ &module) {
  nb::class_<Comm>(module, "Comm", "Owns a pccl_comm_t.")
      .def_static("connect", &connect, nb::arg("token"), nb::arg("group"),
                  nb::arg("bind").none(), nb::arg("advertise").none(), nb::arg("ports").none(),
                  nb::arg("initial_world_size"), nb::arg("deadline_ns"), nb::arg("connect_ns"),
                  nb::arg("peer_id").none(), nb::arg("label").none(),
                  nb::arg("reconnect_timeout_ns"), nb::arg("send_rates").none(),
                  nb::arg("congestion"), nb::arg("probe"))
      .def("join", &join, nb::arg("group"), nb::arg("initial_world_size"),
           nb::arg("deadline_ns"))
      .def("subgroup", &subgroup, nb::arg("group"), nb::arg("founders"), nb::arg("deadline_ns"),
           nb::sig("def subgroup(self, group: str, founders: list[bytes], deadline_ns: int) -> "
                   "Comm"))
      .def("set_deadline", &set_deadline, nb::arg("deadline_ns"))
      .def("close", &close)
      .def("admit", &admit, nb::arg("deadline_ns"), nb::arg("together"),
           nb::sig("def admit(self, deadline_ns: int, together: bool) -> "
                   "tuple[int, int, int, bool, list[bytes], list[bytes]]"),
           "(epoch, rank, world_size, changed, joined, left)")
      .def("pending_agreed", &pending_agreed, nb::arg("deadline_ns"))
      .def("not_entered", [](Comm &comm) { return ids(comm, pccl_comm_not_entered); },
           nb::sig("def not_entered(self) -> list[bytes]"), "In rank order.")
      .def("info", &info,
           nb::sig("def info(self) -> "
                   "tuple[int, int, int, int, int, int, int, bytes, int, int, int]"),
           "(epoch, attempt, rank, world_size, alive, pending, operations_in_flight, peer_id,\n"
           "bytes_sent, bytes_received, lost)")
      .def("plan", &plan,
           nb::sig("def plan(self) -> tuple[int, int, int, list[int], list[int], int, int, int, "
                   "list[tuple[int, int]]]"),
           "(epoch, attempt, kind, order, shares, small_bytes, predicted_ns, bound_ns, limits)")
      .def("optimize_topology", &optimize_topology, nb::arg("deadline_ns"))
      .def("members", [](Comm &comm) { return ids(comm, pccl_comm_members); },
           nb::sig("def members(self) -> list[bytes]"), "In rank order.")
      .def_prop_ro("handle", [](Comm &comm) { return handle_of(comm.handle); },
                   "The number that stands for it in compiled programs.")
      .def("label", &label, nb::arg("peer"), "Empty if it is not known.");
  module.def("rate_parse", &rate_parse, nb::arg("text"), nb::arg("name"),
             nb::sig("def rate_parse(text: str, name: str) -> int"),
             "The rate for all peers together; raises what pccl_rate_parse says of the text.");
}

}  // namespace pccl_binding
