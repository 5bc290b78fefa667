// init_collective.cpp: the collectives. Each begins the asynchronous form; with
// block it also waits, in slices, so that Ctrl-C works, and returns the finished work, whatever its
// status: the caller reads that with Work.wait. Buffers come as checked addresses.
#include "common.h"

#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <variant>

namespace pccl_binding {

namespace {

// Waits for a work nobody else knows of yet. A signal handler that raises withdraws the operation,
// and the buffers are free before its exception leaves.
void block_on(Work &work) {
  try {
    work.wait(UINT64_MAX);
  } catch (nb::python_error &) {
    work.destroy();
    throw;
  }
}

template <class Begin>
std::unique_ptr<Work> run(Comm &comm, nb::object buffers, bool block, Begin begin) {
  auto work = std::make_unique<Work>(comm.handle, std::move(buffers));
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = begin(comm.handle->native, &work->native);
  }
  check(status);
  if (block) block_on(*work);
  return work;
}

pccl_collective_options_t make_options(uint64_t tag, uint64_t deadline_ns, int recovery) {
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.tag = tag;
  options.deadline_ns = deadline_ns;
  options.recovery = static_cast<pccl_recovery_t>(recovery);
  return options;
}

// How what travels is encoded: kind, block, rotate, rounding, and the addresses of two residuals,
// or zeros.
using Codec = std::tuple<int, uint32_t, int, int, uintptr_t, uintptr_t>;

// What reductions and gathers have in common: op, tag, deadline_ns, recovery, plan, codec.
using Options = std::tuple<int, uint64_t, uint64_t, int, int, Codec>;

pccl_collective_options_t make_options(const Options &from) {
  const auto &[op, tag, deadline_ns, recovery, plan, codec] = from;
  pccl_collective_options_t options = make_options(tag, deadline_ns, recovery);
  options.op = static_cast<pccl_reduce_op_t>(op);
  options.plan = static_cast<pccl_plan_t>(plan);
  options.codec = static_cast<pccl_codec_t>(std::get<0>(codec));
  options.codec_block = std::get<1>(codec);
  options.codec_rotate = static_cast<pccl_rotate_t>(std::get<2>(codec));
  options.codec_rounding = static_cast<pccl_rounding_t>(std::get<3>(codec));
  options.residual_in = reinterpret_cast<const float *>(std::get<4>(codec));
  options.residual_out = reinterpret_cast<float *>(std::get<5>(codec));
  return options;
}

std::unique_ptr<Work> all_reduce(Comm &comm, uintptr_t send, uintptr_t recv, uint64_t count,
                                 int dtype, const Options &from, nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(from);
  return run(comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    return pccl_all_reduce_async(native, reinterpret_cast<const void *>(send),
                                 reinterpret_cast<void *>(recv), count,
                                 static_cast<pccl_dtype_t>(dtype), &options, work);
  });
}

std::unique_ptr<Work> broadcast(Comm &comm, uintptr_t address, uint64_t count, int dtype,
                                uint32_t root, uint64_t tag, uint64_t deadline_ns, int recovery,
                                nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(tag, deadline_ns, recovery);
  return run(comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    return pccl_broadcast_async(native, reinterpret_cast<void *>(address), count,
                                static_cast<pccl_dtype_t>(dtype), root, &options, work);
  });
}

std::unique_ptr<Work> reduce(Comm &comm, uintptr_t send, uintptr_t recv, uint64_t count, int dtype,
                             uint32_t root, const Options &from, nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(from);
  return run(comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    return pccl_reduce_async(native, reinterpret_cast<const void *>(send),
                             reinterpret_cast<void *>(recv), count,
                             static_cast<pccl_dtype_t>(dtype), root, &options, work);
  });
}

// Elements of each rank's shard: one number for all, or a list.
using Counts = std::variant<uint64_t, std::vector<uint64_t>>;

template <auto even, auto uneven>
std::unique_ptr<Work> sharded(Comm &comm, uintptr_t send, uintptr_t recv, const Counts &counts,
                              int dtype, const Options &from, nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(from);
  const void *source = reinterpret_cast<const void *>(send);
  void *target = reinterpret_cast<void *>(recv);
  auto type = static_cast<pccl_dtype_t>(dtype);
  return run(comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    if (const uint64_t *count = std::get_if<uint64_t>(&counts))
      return even(native, source, target, *count, type, &options, work);
    const auto &list = std::get<std::vector<uint64_t>>(counts);
    return uneven(native, source, target, list.data(), static_cast<uint32_t>(list.size()), type,
                  &options, work);
  });
}

// The same with a root.
template <auto even, auto uneven>
std::unique_ptr<Work> rooted(Comm &comm, uintptr_t send, uintptr_t recv, const Counts &counts,
                             int dtype, uint32_t root, const Options &from, nb::object buffers,
                             bool block) {
  pccl_collective_options_t options = make_options(from);
  const void *source = reinterpret_cast<const void *>(send);
  void *target = reinterpret_cast<void *>(recv);
  auto type = static_cast<pccl_dtype_t>(dtype);
  return run(comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    if (const uint64_t *count = std::get_if<uint64_t>(&counts))
      return even(native, source, target, *count, type, root, &options, work);
    const auto &list = std::get<std::vector<uint64_t>>(counts);
    return uneven(native, source, target, list.data(), static_cast<uint32_t>(list.size()), type,
                  root, &options, work);
  });
}

std::unique_ptr<Work> all_to_all(Comm &comm, uintptr_t send, uintptr_t recv, uint64_t count,
                                 int dtype, const Options &from, nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(from);
  return run(comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    return pccl_all_to_all_async(native, reinterpret_cast<const void *>(send),
                                 reinterpret_cast<void *>(recv), count,
                                 static_cast<pccl_dtype_t>(dtype), &options, work);
  });
}

// One part of a message; the other rank calls the other one.
template <auto begin, class Address>
std::unique_ptr<Work> message(Comm &comm, uintptr_t address, uint64_t count, int dtype,
                              uint32_t rank, uint64_t tag, uint64_t deadline_ns, nb::object buffers,
                              bool block) {
  pccl_collective_options_t options = make_options(tag, deadline_ns, PCCL_RECOVERY_DEFAULT);
  return run(comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    return begin(native, reinterpret_cast<Address>(address), count,
                 static_cast<pccl_dtype_t>(dtype), rank, &options, work);
  });
}

std::unique_ptr<Work> barrier(Comm &comm, uint64_t tag, uint64_t deadline_ns, bool block) {
  pccl_collective_options_t options = make_options(tag, deadline_ns, PCCL_RECOVERY_DEFAULT);
  return run(comm, nb::none(), block, [&](pccl_comm_t *native, pccl_work_t **work) {
    return pccl_barrier_async(native, &options, work);
  });
}

}  // namespace

void init_collective(nb::module_ &module) {
  module.def("all_reduce", &all_reduce, nb::arg("comm"), nb::arg("send"), nb::arg("recv"),
             nb::arg("count"), nb::arg("dtype"), nb::arg("options"), nb::arg("buffers").none(),
             nb::arg("block"));
  module.def("broadcast", &broadcast, nb::arg("comm"), nb::arg("address"), nb::arg("count"),
             nb::arg("dtype"), nb::arg("root"), nb::arg("tag"), nb::arg("deadline_ns"),
             nb::arg("recovery"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("reduce", &reduce, nb::arg("comm"), nb::arg("send"), nb::arg("recv"),
             nb::arg("count"), nb::arg("dtype"), nb::arg("root"), nb::arg("options"),
             nb::arg("buffers").none(), nb::arg("block"));
  module.def("reduce_scatter", &sharded<&pccl_reduce_scatter_async, &pccl_reduce_scatter_v_async>,
             nb::arg("comm"), nb::arg("send"), nb::arg("recv"), nb::arg("counts"),
             nb::arg("dtype"), nb::arg("options"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("all_gather", &sharded<&pccl_all_gather_async, &pccl_all_gather_v_async>,
             nb::arg("comm"), nb::arg("send"), nb::arg("recv"), nb::arg("counts"),
             nb::arg("dtype"), nb::arg("options"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("scatter", &rooted<&pccl_scatter_async, &pccl_scatter_v_async>, nb::arg("comm"),
             nb::arg("send"), nb::arg("recv"), nb::arg("counts"), nb::arg("dtype"),
             nb::arg("root"), nb::arg("options"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("gather", &rooted<&pccl_gather_async, &pccl_gather_v_async>, nb::arg("comm"),
             nb::arg("send"), nb::arg("recv"), nb::arg("counts"), nb::arg("dtype"),
             nb::arg("root"), nb::arg("options"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("all_to_all", &all_to_all, nb::arg("comm"), nb::arg("send"), nb::arg("recv"),
             nb::arg("count"), nb::arg("dtype"), nb::arg("options"), nb::arg("buffers").none(),
             nb::arg("block"));
  module.def("send", &message<&pccl_send_async, const void *>, nb::arg("comm"), nb::arg("address"),
             nb::arg("count"), nb::arg("dtype"), nb::arg("dst"), nb::arg("tag"),
             nb::arg("deadline_ns"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("recv", &message<&pccl_recv_async, void *>, nb::arg("comm"), nb::arg("address"),
             nb::arg("count"), nb::arg("dtype"), nb::arg("src"), nb::arg("tag"),
             nb::arg("deadline_ns"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("barrier", &barrier, nb::arg("comm"), nb::arg("tag"), nb::arg("deadline_ns"),
             nb::arg("block"));
}

}  // namespace pccl_binding
