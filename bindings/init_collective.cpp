// init_collective.cpp: the operations of a group. `call` begins an operation in a Work that the
// caller has made. With `block` the call also waits, in slices, so that Ctrl-C works, and returns
// true if the operation has committed; if not, Work.wait raises its error. Buffers are addresses
// that Python has checked.
#include "common.h"

#include <nanobind/stl/vector.h>

namespace pccl_binding {

namespace {

// Begins an operation. The caller has the Work before the operation begins, and can ask the Work
// how the operation ended if a signal handler raises at any time. An exception of a signal handler
// during the wait withdraws the operation, and the buffers are free before the exception leaves.
//
// While a blocking call waits, no other thread has its Work. So the GIL, for which other threads of
// the program may make this thread wait, is released only once: for the call, its end and its
// outcome.
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

// Kinds of calls that pccl_collective_t does not have; Kind of pccl_py/call.py has all kinds.
enum { kind_barrier = 16, kind_send = 17, kind_recv = 18 };

// (address of the input or 0, address of the output or 0, number of elements, dtype)
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

// Begins a call of `kind`. `counts`: number of elements of each rank's shard, empty if all shards
// are equal; in an all_to_all, of the shards for each rank, and `recv_counts` of the shards from
// each rank. `root`: the root, or the other rank of a message.
pccl_status_t begin(pccl_comm_t *comm, int kind, const std::vector<pccl_array_t> &arrays,
                    const std::vector<uint64_t> &counts, const std::vector<uint64_t> &recv_counts,
                    uint32_t root, const pccl_collective_options_t *options, pccl_work_t **work) {
  if (kind == kind_barrier) return pccl_barrier_async(comm, options, work);
  const pccl_array_t &one = arrays.at(0);
  const void *send = one.send_buffer;
  void *recv = one.recv_buffer;
  if (kind == kind_send)
    return pccl_send_async(comm, send, one.count, one.dtype, root, options, work);
  if (kind == kind_recv)
    return pccl_recv_async(comm, recv, one.count, one.dtype, root, options, work);
  if (counts.empty())
    return pccl_coalesced_async(comm, static_cast<pccl_collective_t>(kind), arrays.data(),
                                arrays.size(), root, options, work);
  auto ranks = static_cast<uint32_t>(counts.size());
  switch (kind) {
    case PCCL_REDUCE_SCATTER:
      return pccl_reduce_scatter_v_async(comm, send, recv, counts.data(), ranks, one.dtype,
                                         options, work);
    case PCCL_ALL_GATHER:
      return pccl_all_gather_v_async(comm, send, recv, counts.data(), ranks, one.dtype, options,
                                     work);
    case PCCL_SCATTER:
      return pccl_scatter_v_async(comm, send, recv, counts.data(), ranks, one.dtype, root, options,
                                  work);
    case PCCL_GATHER:
      return pccl_gather_v_async(comm, send, recv, counts.data(), ranks, one.dtype, root, options,
                                 work);
    case PCCL_ALL_TO_ALL:
      return pccl_all_to_all_v_async(comm, send, recv, counts.data(), recv_counts.data(), ranks,
                                     one.dtype, options, work);
    default:
      throw nb::value_error("no collective with a list of counts");
  }
}

// Makes a call of pccl_py/call.py; the arguments from op to form are fields of the options of
// pccl.h.
bool call(Work &work, Comm &comm, int kind, const std::vector<Array> &arrays,
          const std::vector<uint64_t> &counts, const std::vector<uint64_t> &recv_counts,
          uint32_t root, int op, uint64_t tag, uint64_t deadline_ns, int recovery, int plan,
          int codec, uint32_t codec_block, int codec_rotate, int codec_rounding,
          uintptr_t residual_in, uintptr_t residual_out, uint64_t form, nb::object buffers,
          bool block) {
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.op = static_cast<pccl_reduce_op_t>(op);
  options.tag = tag;
  options.deadline_ns = deadline_ns;
  options.recovery = static_cast<pccl_recovery_t>(recovery);
  options.plan = static_cast<pccl_plan_t>(plan);
  options.codec = static_cast<pccl_codec_t>(codec);
  options.codec_block = codec_block;
  options.codec_rotate = static_cast<pccl_rotate_t>(codec_rotate);
  options.codec_rounding = static_cast<pccl_rounding_t>(codec_rounding);
  options.residual_in = reinterpret_cast<const float *>(residual_in);
  options.residual_out = reinterpret_cast<float *>(residual_out);
  options.form = form;
  std::vector<pccl_array_t> list;
  list.reserve(arrays.size());
  for (const Array &array : arrays) list.push_back(make_array(array));
  return run(work, comm, std::move(buffers), block, [&](pccl_comm_t *native, pccl_work_t **begun) {
    return begin(native, kind, list, counts, recv_counts, root, &options, begun);
  });
}

}  // namespace

void init_collective(nb::module_ &module) {
  module.def("call", &call, nb::arg("work"), nb::arg("comm"), nb::arg("kind"), nb::arg("arrays"),
             nb::arg("counts"), nb::arg("recv_counts"), nb::arg("root"), nb::arg("op"),
             nb::arg("tag"), nb::arg("deadline_ns"), nb::arg("recovery"), nb::arg("plan"),
             nb::arg("codec"), nb::arg("codec_block"), nb::arg("codec_rotate"),
             nb::arg("codec_rounding"), nb::arg("residual_in"), nb::arg("residual_out"),
             nb::arg("form"), nb::arg("buffers").none(), nb::arg("block"));
  module.attr("FORM_BOOL") = PCCL_FORM_BOOL;
  module.attr("FORM_OBJECT") = PCCL_FORM_OBJECT;
}

}  // namespace pccl_binding
