// init_coordinator.cpp: a coordinator inside this process. Options are those of
// pccl_coordinator_options_t; pccl_py/coordinator.py gives them names, units and defaults.
#include "common.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

namespace pccl_binding {

namespace {

struct Coordinator {
  pccl_coordinator_t *native = nullptr;
  nb::str token;  // the only copy of the token except the library's own
  uint16_t port = 0;

  Coordinator() = default;
  ~Coordinator() { close(); }
  Coordinator(const Coordinator &) = delete;
  Coordinator &operator=(const Coordinator &) = delete;

  void close() {
    pccl_coordinator_t *taken = native;  // under the GIL: one thread alone takes it
    native = nullptr;
    if (taken == nullptr) return;
    Unlocked unlocked;
    pccl_coordinator_destroy(taken);
  }
};

void create(Coordinator *place, std::optional<std::string> bind,
            std::optional<std::string> advertise, std::optional<nb::bytes> run_id,
            uint32_t min_world_size, uint32_t initial_world_size, uint32_t lanes_per_link,
            uint32_t chunk_bytes, uint64_t window_bytes, uint64_t heartbeat_ns,
            uint64_t silence_ns, uint64_t prepare_ns, uint64_t stall_warning_ns,
            uint64_t stall_ns, std::optional<std::string> state_dir, uint64_t memory_bytes,
            uint32_t probe, uint32_t plans) {
  pccl_coordinator_options_t options = PCCL_COORDINATOR_OPTIONS_INIT;
  options.bind = bind ? bind->c_str() : nullptr;
  options.advertise = advertise ? advertise->c_str() : nullptr;
  options.run_id = run_id ? reinterpret_cast<const uint8_t *>(run_id->c_str()) : nullptr;
  options.min_world_size = min_world_size;
  options.initial_world_size = initial_world_size;
  options.lanes_per_link = lanes_per_link;
  options.chunk_bytes = chunk_bytes;
  options.window_bytes = window_bytes;
  options.heartbeat_ns = heartbeat_ns;
  options.silence_ns = silence_ns;
  options.prepare_ns = prepare_ns;
  options.stall_warning_ns = stall_warning_ns;
  options.stall_ns = stall_ns;
  options.state_dir = state_dir ? state_dir->c_str() : nullptr;
  options.memory_bytes = memory_bytes;
  options.probe = static_cast<pccl_probe_t>(probe);
  options.plans = static_cast<pccl_plans_t>(plans);
  pccl_coordinator_t *native = nullptr;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = pccl_coordinator_create(&options, &native);
  }
  check(status);
  new (place) Coordinator();
  place->native = native;
  place->token = nb::str(pccl_coordinator_token(native));
  place->port = pccl_coordinator_port(native);
}

}  // namespace

void init_coordinator(nb::module_ &module) {
  nb::class_<Coordinator>(module, "Coordinator", "Owns a pccl_coordinator_t.")
      .def("__init__", &create, nb::kw_only(), nb::arg("bind").none(),
           nb::arg("advertise").none(), nb::arg("run_id").none(), nb::arg("min_world_size"),
           nb::arg("initial_world_size"), nb::arg("lanes_per_link"), nb::arg("chunk_bytes"),
           nb::arg("window_bytes"), nb::arg("heartbeat_ns"), nb::arg("silence_ns"),
           nb::arg("prepare_ns"), nb::arg("stall_warning_ns"), nb::arg("stall_ns"),
           nb::arg("state_dir").none(), nb::arg("memory_bytes"), nb::arg("probe"),
           nb::arg("plans"))
      .def_ro("token", &Coordinator::token)
      .def_ro("port", &Coordinator::port)
      .def("close", &Coordinator::close, "Stops it. Idempotent.");
}

}  // namespace pccl_binding
