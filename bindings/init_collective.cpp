// init_collective.cpp: the collectives. Each begins the asynchronous form in a Work that the caller
// has made. With block it also waits, in slices, so that Ctrl-C works, and answers true if the
// operation has committed; whatever else becomes of it, Work.wait tells. Buffers come as checked
// addresses.
#include "common.h"

#include <nanobind/stl/vector.h>

namespace pccl_binding {

namespace {

// The caller holds the work from before the operation begins, so that an exception of a signal
// handler, whenever it comes, leaves somebody to ask what became of it. One that comes while this
// waits withdraws the operation, and the buffers are free before it leaves.
//
// While a blocking call waits, nobody else has its work. So the GIL, for which other threads of the
// program may make this one wait, is given away once: for the call, its end and its outcome.
template <class Begin>
bool run(Work &work, Comm &comm, nb::object buffers, bool block, Begin begin) {
  if (work.native != nullptr || work.has_ended())
    throw nb::value_error("this Work has begun an operation already");
  std::shared_ptr<CommHandle> handle = comm.handle;
  pccl_work_t *native = nullptr;
  Ending ending;
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = begin(handle->native, &native);
    if (status == PCCL_OK && block) status = ending.finish(&native, slice_ns);
  }
  while (block && status == PCCL_TIMEOUT) {
    if (PyErr_CheckSignals() != 0) {
      nb::python_error raised;
      work.begin(native, std::move(handle), std::move(buffers));
      work.withdraw();
      throw raised;
    }
    Unlocked unlocked;
    status = ending.finish(&native, slice_ns);
  }
  if (native != nullptr) {
    work.begin(native, std::move(handle), std::move(buffers));
    return false;
  }
  check(status);
  work.ending = ending.to_tuple();
  return true;
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

// Options of all calls but a barrier: op, tag, deadline_ns, recovery, plan, codec, form.
using Options = std::tuple<int, uint64_t, uint64_t, int, int, Codec, uint64_t>;

pccl_collective_options_t make_options(const Options &from) {
  const auto &[op, tag, deadline_ns, recovery, plan, codec, form] = from;
  pccl_collective_options_t options = make_options(tag, deadline_ns, recovery);
  options.op = static_cast<pccl_reduce_op_t>(op);
  options.plan = static_cast<pccl_plan_t>(plan);
  options.codec = static_cast<pccl_codec_t>(std::get<0>(codec));
  options.codec_block = std::get<1>(codec);
  options.codec_rotate = static_cast<pccl_rotate_t>(std::get<2>(codec));
  options.codec_rounding = static_cast<pccl_rounding_t>(std::get<3>(codec));
  options.residual_in = reinterpret_cast<const float *>(std::get<4>(codec));
  options.residual_out = reinterpret_cast<float *>(std::get<5>(codec));
  options.form = form;
  return options;
}

// Addresses of what is sent and received, or 0, the elements, and the dtype.
using Array = std::tuple<uintptr_t, uintptr_t, uint64_t, int>;

pccl_array_t make_array(const Array &from) {
  const auto &[send, recv, count, dtype] = from;
  pccl_array_t array = {};
  array.send_buffer = reinterpret_cast<const void *>(send);
  array.recv_buffer = reinterpret_cast<void *>(recv);
  array.count = count;
  array.dtype = static_cast<pccl_dtype_t>(dtype);
  return array;
}

bool coalesced(Work &work, Comm &comm, int collective, const std::vector<Array> &arrays,
               uint32_t root, const Options &from, nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(from);
  std::vector<pccl_array_t> list;
  list.reserve(arrays.size());
  for (const Array &array : arrays) list.push_back(make_array(array));
  return run(work, comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **begun) {
    return pccl_coalesced_async(native, static_cast<pccl_collective_t>(collective), list.data(),
                                list.size(), root, &options, begun);
  });
}

// With a list of the elements of each rank's shard.
bool uneven(Work &work, Comm &comm, int collective, const Array &from,
            const std::vector<uint64_t> &counts, uint32_t root, const Options &given,
            nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(given);
  pccl_array_t array = make_array(from);
  const void *send = array.send_buffer;
  void *recv = array.recv_buffer;
  auto ranks = static_cast<uint32_t>(counts.size());
  return run(work, comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **begun) {
    switch (collective) {
      case PCCL_REDUCE_SCATTER:
        return pccl_reduce_scatter_v_async(native, send, recv, counts.data(), ranks, array.dtype,
                                           &options, begun);
      case PCCL_ALL_GATHER:
        return pccl_all_gather_v_async(native, send, recv, counts.data(), ranks, array.dtype,
                                       &options, begun);
      case PCCL_SCATTER:
        return pccl_scatter_v_async(native, send, recv, counts.data(), ranks, array.dtype, root,
                                    &options, begun);
      case PCCL_GATHER:
        return pccl_gather_v_async(native, send, recv, counts.data(), ranks, array.dtype, root,
                                   &options, begun);
      default:
        throw nb::value_error("no collective with a list of counts");
    }
  });
}

bool all_to_all_v(Work &work, Comm &comm, const Array &from,
                  const std::vector<uint64_t> &send_counts,
                  const std::vector<uint64_t> &recv_counts, const Options &given,
                  nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(given);
  pccl_array_t array = make_array(from);
  return run(work, comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **begun) {
    return pccl_all_to_all_v_async(native, array.send_buffer, array.recv_buffer,
                                   send_counts.data(), recv_counts.data(),
                                   static_cast<uint32_t>(send_counts.size()), array.dtype,
                                   &options, begun);
  });
}

// One part of a message; the other rank calls the other one.
template <auto begin, class Address>
bool message(Work &work, Comm &comm, uintptr_t address, uint64_t count, int dtype, uint32_t rank,
             uint64_t tag, uint64_t deadline_ns, nb::object buffers, bool block) {
  pccl_collective_options_t options = make_options(tag, deadline_ns, PCCL_RECOVERY_DEFAULT);
  return run(work, comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **begun) {
    return begin(native, reinterpret_cast<Address>(address), count,
                 static_cast<pccl_dtype_t>(dtype), rank, &options, begun);
  });
}

bool barrier(Work &work, Comm &comm, uint64_t tag, uint64_t deadline_ns, int recovery, bool block) {
  pccl_collective_options_t options = make_options(tag, deadline_ns, recovery);
  return run(work, comm, nb::none(), block, [&](pccl_comm_t *native, pccl_work_t **begun) {
    return pccl_barrier_async(native, &options, begun);
  });
}

}  // namespace

void init_collective(nb::module_ &module) {
  module.def("coalesced", &coalesced, nb::arg("work"), nb::arg("comm"), nb::arg("collective"),
             nb::arg("arrays"), nb::arg("root"), nb::arg("options"), nb::arg("buffers").none(),
             nb::arg("block"));
  module.def("uneven", &uneven, nb::arg("work"), nb::arg("comm"), nb::arg("collective"),
             nb::arg("array"), nb::arg("counts"), nb::arg("root"), nb::arg("options"),
             nb::arg("buffers").none(), nb::arg("block"));
  module.def("all_to_all_v", &all_to_all_v, nb::arg("work"), nb::arg("comm"), nb::arg("array"),
             nb::arg("send_counts"), nb::arg("recv_counts"), nb::arg("options"),
             nb::arg("buffers").none(), nb::arg("block"));
  module.def("send", &message<&pccl_send_async, const void *>, nb::arg("work"), nb::arg("comm"),
             nb::arg("address"), nb::arg("count"), nb::arg("dtype"), nb::arg("dst"),
             nb::arg("tag"), nb::arg("deadline_ns"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("recv", &message<&pccl_recv_async, void *>, nb::arg("work"), nb::arg("comm"),
             nb::arg("address"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"),
             nb::arg("tag"), nb::arg("deadline_ns"), nb::arg("buffers").none(), nb::arg("block"));
  module.def("barrier", &barrier, nb::arg("work"), nb::arg("comm"), nb::arg("tag"),
             nb::arg("deadline_ns"), nb::arg("recovery"), nb::arg("block"));
  module.attr("FORM_BOOL") = PCCL_FORM_BOOL;
  module.attr("FORM_OBJECT") = PCCL_FORM_OBJECT;
}

}  // namespace pccl_binding
