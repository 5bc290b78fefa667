"""pccl_torch's functions: what is PyTorch's own: refusals, layouts, versions, complex numbers.

The duties of every frontend are in tests/frontends; gradients are in test_torch_gradients.py.
"""

from __future__ import annotations

import gc
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed", exc_type=ModuleNotFoundError)

import numpy as np
import pccl_torch as pt
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import pccl_py as pccl


def made_quietly(make: Callable[[], Any]) -> Any:
    """PyTorch warns of what it is about to change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(3)


def of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(3)


def of_vmap() -> torch.Tensor:
    """A wrapper that a function transform has left behind."""
    kept: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x

    torch.vmap(keep)(torch.zeros(2, 3))
    return kept[0]


# Each with the function that makes it, the error of reading it, and words of that.
NOT_READ: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "list": (lambda: [1.0], TypeError, "not list: pass torch.tensor.*pccl_torch.tree has"),
    "number": (lambda: 1.0, TypeError, r"a torch.Tensor, not float: pass torch.tensor\(x\)"),
    "string": (lambda: "x", TypeError, "not str: comm.all_gather_object"),
    "numpy": (lambda: np.zeros(3), TypeError, r"not ndarray: pass torch.as_tensor.*pccl_numpy"),
    "complex32": (lambda: torch.zeros(2, dtype=torch.complex32), TypeError, "complex32 is not"),
    "meta": (lambda: torch.zeros(2, device="meta"), RuntimeError, "device meta.*no data"),
    "sparse": (lambda: torch.eye(3).to_sparse(), NotImplementedError, "layout torch.sparse_coo"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), NotImplementedError, "layout torch.sparse_csr"),
    "mkldnn": (lambda: torch.eye(3).to_mkldnn(), NotImplementedError, "layout torch._mkldnn"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.quint8),
        NotImplementedError,
        "quantized",
    ),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        NotImplementedError,
        "nested",
    ),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        NotImplementedError,
        "NestedTensor stands for other tensors",
    ),
    "fake": (fake, NotImplementedError, "FakeTensor stands for other tensors"),
    "vmap": (of_vmap, NotImplementedError, "no memory of its own.*torch.vmap"),
    "conjugated": (
        lambda: torch.zeros(3, dtype=torch.complex64).conj(),
        RuntimeError,
        r"conjugated view.*resolve_conj\(\)",
    ),
    "negated": (
        lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
        RuntimeError,
        r"negated view.*resolve_neg\(\)",
    ),
}
NOT_WRITTEN: dict[str, tuple[Callable[[], Any], str]] = {
    "leaf": (lambda: torch.zeros(3, requires_grad=True), "a leaf Variable that requires grad"),
    "view of a leaf": (
        lambda: torch.zeros(3, requires_grad=True)[1:],
        "a view of a leaf Variable that requires grad",
    ),
    "expanded": (lambda: torch.zeros(1).expand(3), "more than one element of the written-to"),
    "inference": (of_inference, "Inplace update to inference tensor outside InferenceMode"),
}


def goes_on(world: pccl.LocalWorld) -> None:
    """Nothing of a refused call was sent: the next one of the same tag succeeds."""
    world.run(lambda comm: pt.barrier(comm))


@pytest.mark.parametrize("kind", NOT_READ)
def test_what_is_no_tensor_in_memory_of_the_cpu_is_refused(
    world: pccl.LocalWorld, kind: str
) -> None:
    make, error, said = NOT_READ[kind]
    x, comm = made_quietly(make), world.comms[0]
    calls: list[Callable[[], Any]] = [
        lambda: pt.all_reduce(comm, x),
        lambda: pt.all_reduce_(comm, x),
        lambda: pt.all_reduce(comm, torch.zeros(3), x),
        lambda: pt.broadcast(comm, x),
        lambda: pt.all_gather(comm, x),
        lambda: pt.send(comm, x, 1),
        lambda: pt.recv_(comm, x, 1),
    ]
    for call in calls:
        with pytest.raises(error, match=said):
            call()
    with pytest.raises(error, match=f"array 'w': .*{said}"):
        pt.shared_state(comm, {"w": x})
    if kind != "list":  # a tree of its own
        with pytest.raises(error, match=rf"leaf \['w'\]: .*{said}"):
            pt.tree.all_reduce(comm, {"v": torch.zeros(1), "w": x})
    with pytest.raises(error, match=rf"xs\[1\]: .*{said}"):
        pt.all_reduce_many(comm, [torch.zeros(1), x])
    goes_on(world)


def test_what_is_no_comm_is_refused_with_what_to_pass(world: pccl.LocalWorld) -> None:
    """A process group for example, whose `comm` it is; and arguments that are swapped."""
    comm, x = world.comms[0], torch.ones(3)
    dist: Any = torch.distributed  # whose types are those of C++
    other = dist.ProcessGroup(0, 1)
    ours = types.SimpleNamespace(comm=comm)  # as ProcessGroupPccl has it
    for given, kind, said in (
        (ours, "SimpleNamespace", r"pass the group behind it, dist\.group\.WORLD\.comm for"),
        (other, "ProcessGroup", r"pass dist\.group\.WORLD\.comm, which a process group of"),
        ("default", "str", r"it comes first, as pccl_py\.connect\(\) returns it"),
        (x, "Tensor", "it comes first"),
    ):
        wanted = f"comm must be a Communicator or a Group, not {kind}: {said}"
        calls: list[Callable[[Any], Any]] = [
            *(lambda no, name=name: getattr(pt.nn, name)(no, x) for name in pt.nn.__all__),
            lambda no: pt.all_reduce(no, x),
            lambda no: pt.recv(no, (3,), torch.float32, 1),
            lambda no: pt.shared_state(no, {"x": x}),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=wanted):
                call(given)
    with pytest.raises(TypeError, match="not Tensor: it comes first"):
        getattr(pt, "all_reduce")(x, comm)  # noqa: B009
    with pytest.raises(TypeError, match="not Communicator: comm comes first, then the tensor"):
        getattr(pt, "all_reduce")(comm, comm)  # noqa: B009
    with pytest.raises(TypeError, match="not NoneType: where it is the grad of.*pass zeros"):
        pt.all_reduce_(comm, torch.nn.Linear(1, 1).weight.grad)
    goes_on(world)


@pytest.mark.parametrize("kind", NOT_WRITTEN)
def test_what_pytorch_does_not_write_in_place_is_refused(world: pccl.LocalWorld, kind: str) -> None:
    make, said = NOT_WRITTEN[kind]
    x, comm = make(), world.comms[0]
    calls: list[Callable[[], Any]] = [
        lambda: pt.all_reduce_(comm, x),
        lambda: pt.all_reduce_many_(comm, [x]),
        lambda: pt.all_reduce(comm, torch.zeros(x.shape), x),
        lambda: pt.reduce_(comm, x),
        lambda: pt.broadcast_(comm, x, 1),
        lambda: pt.all_gather_(comm, x),
        lambda: pt.scatter(comm, None, x, 1),
        lambda: pt.recv_(comm, x, 1),
        lambda: pt.tree.all_reduce_(comm, {"w": x}),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=said):
            call()
    goes_on(world)


def test_what_is_not_written_is_read_all_the_same(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        for make, _ in NOT_WRITTEN.values():
            x = make()
            made = pt.all_reduce(comm, x)
            assert made.tolist() == [0.0] * len(x) and not made.requires_grad
            pt.broadcast_(comm, torch.ones(len(x)) if comm.rank else x)  # of rank 0, the root
            pt.reduce_(comm, x if comm.rank else torch.zeros(len(x)))

    world.run(program)


def test_parameters_are_written_under_no_grad_and_an_inference_tensor_in_its_mode(
    world: pccl.LocalWorld,
) -> None:
    def program(comm: pccl.Communicator) -> None:
        parameters = dict(torch.nn.Linear(2, 3).named_parameters())
        with torch.no_grad():
            for each in parameters.values():
                each.fill_(comm.rank + 1)
            pt.tree.all_reduce_(comm, parameters, op="avg")
        assert all((each == 1.5).all() and each.requires_grad for each in parameters.values())
        with torch.inference_mode():
            wide = torch.ones(2, 6)
            pt.all_reduce_(comm, wide[:, ::2])
            assert wide.tolist() == [[2.0, 1.0] * 3] * 2
            work = pt.all_reduce_(comm, wide[:, ::2], async_op=True)
        work.wait()  # outside of the mode
        assert wide[0, :2].tolist() == [4.0, 1.0]

    world.run(program)


def test_a_contiguous_tensor_is_not_copied(world: pccl.LocalWorld) -> None:
    """Goal: the core gets the tensor's own address, of what only moves and of pairs, too."""
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.float8_e5m2, torch.complex64):
        x = torch.zeros(2, 3, dtype=dtype)
        buffer = pt.tensors.TORCH.memory(x[1:])
        assert buffer.address == x.data_ptr() + 3 * x.element_size()
        assert buffer.count * buffer.dtype.size == 3 * x.element_size()
    comm = world.comms[0]
    x = torch.zeros(4)
    place = x.data_ptr()
    world.run(lambda each: pt.all_reduce_(each, x if each is comm else torch.ones(4)))
    assert x.data_ptr() == place and x.tolist() == [1.0] * 4


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "channels last": lambda x: x.reshape(1, 2, 3, 2).to(memory_format=torch.channels_last),
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "offset": lambda x: torch.cat([x[:1], x])[1:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides_are_packed_and_written_back(world: pccl.LocalWorld, layout: str) -> None:
    values = torch.arange(12.0).reshape(2, 6)

    def program(comm: pccl.Communicator) -> None:
        x = LAYOUTS[layout](values * (1 + comm.rank))
        assert layout == "offset" or not x.is_contiguous()
        made = pt.all_reduce(comm, x)
        assert made.is_contiguous() and made.shape == x.shape
        assert made.flatten().tolist() == (values * 3).flatten().tolist()
        strides = x.stride()
        pt.all_reduce_(comm, x)
        assert torch.equal(x, made) and x.stride() == strides
        out = LAYOUTS[layout](torch.zeros(2, 6))
        assert pt.broadcast(comm, x, 1).tolist() == x.tolist()
        assert pt.all_reduce(comm, made, out) is out and torch.equal(out, made * 2)

    world.run(program)


def test_a_failed_call_keeps_tensors_of_any_strides(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        wide = torch.arange(8.0).reshape(2, 4)
        version = wide._version
        with pytest.raises(pccl.Mismatch):
            pt.all_reduce_(comm, wide[:, :: 1 + comm.rank])
        assert wide.flatten().tolist() == list(range(8))
        # Only a packed copy was in use on rank 1.
        assert (wide._version > version) == (comm.rank == 0)

    world.run(program)


def test_interleaved_tensors_share_no_memory_and_overlapping_ones_do(
    world: pccl.LocalWorld,
) -> None:
    def program(comm: pccl.Communicator) -> None:
        table = torch.ones(4, 2)
        pt.tree.all_reduce_(comm, {"left": table[:, 0], "right": table[:, 1]})
        assert table.flatten().tolist() == [2.0] * 8
        with pytest.raises(ValueError, match=r"leaf \['a'\] and leaf \['b'\] share memory"):
            pt.tree.all_reduce_(comm, {"a": table[:, 0], "b": table[1:3]})
        tied = torch.ones(3)
        with pytest.raises(ValueError, match="share memory"):
            pt.tree.all_reduce_(comm, [tied, tied])
        # An out that overlaps its input otherwise than as its own place: x is copied first.
        line = torch.arange(6.0)
        pt.all_reduce(comm, line[:4], line[2:])
        assert line.tolist() == [0.0, 1.0, 0.0, 2.0, 4.0, 6.0]
        square = torch.arange(4.0).reshape(2, 2)
        pt.all_reduce(comm, square, square.t())
        assert square.tolist() == [[0.0, 4.0], [2.0, 6.0]]
        goes = torch.arange(4.0)
        assert pt.all_to_all(comm, goes, goes) is goes

    world.run(program)


def test_overlaps_are_found_behind_what_reaches_further_and_in_an_out(
    world: pccl.LocalWorld,
) -> None:
    """A column of a table reaches further than two parts of another one that share an element."""
    comm, table = world.comms[0], torch.ones(10, 2)
    nested = [table[:, 0], table[:3, 1], table[2:5, 1]]
    with pytest.raises(ValueError, match=r"leaf \[1\] and leaf \[2\] share memory"):
        pt.tree.all_reduce_(comm, nested)
    xs = [torch.ones(len(each)) for each in nested]
    with pytest.raises(ValueError, match=r"leaf \[1\] and leaf \[2\] share memory"):
        pt.tree.all_reduce(comm, xs, nested)
    twice = torch.zeros(3)
    with pytest.raises(ValueError, match=r"leaf \['a'\] and leaf \['b'\] share memory"):
        pt.tree.reduce(comm, {"a": xs[1], "b": xs[2]}, {"a": twice, "b": twice})
    assert (table == 1).all() and (twice == 0).all()
    goes_on(world)


def test_columns_and_rows_overlap_where_they_share_an_element() -> None:
    x, overlaps = torch.ones(8, 8), pt.tensors.TORCH.overlaps
    for i in range(8):
        for j in range(8):
            assert overlaps(x[:, i], x[:, j]) == (i == j)
            assert overlaps(x[:, i : i + 2], x[:, j]) == (j in (i, i + 1))
            assert overlaps(x[i::2], x[j::2]) == ((i - j) % 2 == 0)
            assert overlaps(x[:, i : i + 2], x[:, j : j + 3]) == (max(i, j) < min(i + 2, j + 3, 8))
            assert overlaps(x[i], x[:, j])
            assert overlaps(x[:i, 3], x[j:, 3]) == (i > j)


# ---- autograd's view of it


def test_a_backward_notices_that_a_saved_tensor_was_overwritten(world: pccl.LocalWorld) -> None:
    """Packed or not, by each way of writing; what is only read keeps its version."""

    def program(comm: pccl.Communicator) -> None:
        other = 1 - comm.rank
        writes: dict[str, Callable[[torch.Tensor], object]] = {
            "all_reduce_": lambda x: pt.all_reduce_(comm, x),
            "out": lambda x: pt.all_reduce(comm, torch.ones(x.shape), x),
            "many": lambda x: pt.all_reduce_many_(comm, [x]),
            "async": lambda x: pt.all_reduce_(comm, x, async_op=True).wait(),
            "all_gather_": lambda x: pt.all_gather_(comm, x),
            "reduce_scatter_": lambda x: pt.reduce_scatter_(comm, x),
        }
        for name, write in writes.items():
            for step in (1, 2):
                w, x = torch.ones(4, requires_grad=True), torch.ones(4 * step)[::step]
                loss = (w * x).sum()
                write(x)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()  # type: ignore[no-untyped-call]
                assert w.grad is None, name
        for root in (0, 1):
            x = torch.ones(3)
            pt.broadcast_(comm, x, root)
            assert (x._version > 0) == (comm.rank != root)
            x = torch.ones(3)
            pt.reduce_(comm, x, root)
            assert (x._version > 0) == (comm.rank == root)
        x, y = torch.ones(3), torch.ones(3)
        sending = pt.send(comm, x, other, async_op=True)
        pt.recv_(comm, y, other)
        sending.wait()
        pt.all_gather(comm, x)
        assert x._version == 0 and y._version > 0

    world.run(program)


def test_a_tensor_counts_as_written_though_nobody_asks_for_the_result(
    world: pccl.LocalWorld,
) -> None:
    """Its Work is asked for an error or an outcome alone, or not yet; or the call has failed."""

    def saved() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.ones(2)
        return x, (torch.ones(2, requires_grad=True) * x).sum()

    def refuses(loss: torch.Tensor) -> None:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()  # type: ignore[no-untyped-call]

    def program(comm: pccl.Communicator) -> None:
        asks: list[Callable[[pccl.Work[Any]], object]] = [
            lambda work: work.exception(),
            lambda work: work.outcome,
        ]
        for ask in asks:
            x, loss = saved()
            work = pt.all_reduce_(comm, x, async_op=True)
            assert work.exception() is None
            ask(work)
            assert x.tolist() == [2.0, 2.0]
            refuses(loss)
        x, loss = saved()
        work = pt.all_reduce_(comm, x, async_op=True)
        refuses(loss)
        work.wait()
        out, loss = saved()
        with pytest.raises(pccl.Mismatch):  # after which an out may hold anything
            pt.all_gather(comm, torch.ones(1), out, recovery=("raise", "restart")[comm.rank])
        refuses(loss)

    world.run(program)


def test_a_tensor_of_a_computation_is_read_without_its_graph(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        w = torch.tensor([2.0], requires_grad=True)
        loss = (w * w).sum()
        assert pt.all_reduce(comm, loss).item() == 8.0
        mean = pt.all_reduce(comm, loss, op="avg", async_op=True).wait()
        assert not mean.requires_grad
        loss.backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None and w.grad.tolist() == [4.0]
        pt.all_reduce_(comm, w.grad)
        assert w.grad.tolist() == [8.0]

    world.run(program)


# ---- dtypes


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_added_up_and_move(three: pccl.LocalWorld, dtype: torch.dtype) -> None:
    """Shapes and counts are of complex numbers, with any strides, no dimension, rows by counts."""

    def program(comm: pccl.Communicator) -> None:
        rank = comm.rank

        def of(shape: tuple[int, ...], start: int = 1) -> torch.Tensor:
            return torch.full(shape, complex(start, -2 * start), dtype=dtype)

        x = of((2, 2), 1 + rank)
        assert torch.equal(pt.all_reduce(comm, x), of((2, 2), 6))
        assert torch.equal(pt.all_reduce(comm, x.t(), op="avg"), of((2, 2), 2))
        strided = of((4, 2), 1 + rank)[::2]
        pt.all_reduce_(comm, strided)
        assert torch.equal(strided, of((2, 2), 6))
        assert torch.equal(pt.broadcast(comm, x, 2), of((2, 2), 3))
        gathered = pt.all_gather(comm, x[0, 0])
        assert gathered.tolist() == [complex(n, -2 * n) for n in (1, 2, 3)]
        counts = [2, 0, 1]
        part = of((counts[rank], 2), 1 + rank)
        whole = pt.all_gather(comm, part, counts=counts)
        assert whole[:, 0].tolist() == [1 - 2j, 1 - 2j, 3 - 6j]
        summed = pt.reduce_scatter(comm, whole, counts=counts)
        assert torch.equal(summed, 3 * whole[[0, 1] if rank == 0 else [2][: counts[rank]]])
        dealt = pt.scatter(comm, whole if rank == 1 else None, part, 1, counts)
        assert torch.equal(dealt, part)
        table = pt.gather(comm, part, counts=counts)
        assert (table is None) == (rank != 0)
        sent = [[1, 0, 1], [0, 1, 0], [0, 1, 1]]
        given = of((sum(sent[rank]),), 1 + rank)
        got = pt.all_to_all(
            comm, given, send_counts=sent[rank], recv_counts=[row[rank] for row in sent]
        )
        wanted = [complex(n + 1, -2 * n - 2) for n in range(3) for _ in range(sent[n][rank])]
        assert got.tolist() == wanted
        if rank == 0:
            pt.send(comm, x, 1)
        elif rank == 1:
            assert torch.equal(pt.recv(comm, (2, 2), dtype, 0), of((2, 2)))

    three.run(program)


@pytest.mark.parametrize("op", ["prod", "min", "max"])
def test_complex_numbers_have_no_order_and_no_product(world: pccl.LocalWorld, op: Any) -> None:
    x, comm = torch.ones(2, dtype=torch.complex64), world.comms[0]
    for call in (
        lambda: pt.all_reduce(comm, x, op=op),
        lambda: pt.all_reduce_(comm, x, op=op),
        lambda: pt.reduce_scatter(comm, x, op=op),
    ):
        with pytest.raises(ValueError, match=f"complex64 arrays have no {op}.*sum and avg"):
            call()
    goes_on(world)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather", "all_to_all"])
def test_complex_numbers_are_not_taken_for_twice_as_many_floats(
    world: pccl.LocalWorld, collective: str
) -> None:
    def program(comm: pccl.Communicator) -> None:
        x = torch.ones(2, dtype=torch.complex64) if comm.rank else torch.ones(4)
        with pytest.raises(pccl.Mismatch, match="kind of their elements"):
            getattr(pt, collective)(comm, x)

    world.run(program)


def test_complex_numbers_are_not_floats_in_a_shared_state(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        x = torch.ones(2, dtype=torch.complex64) if comm.rank else torch.ones(2, 2)
        said = r'"x \(complex64\)" is only on rank 1'
        with pt.shared_state(comm, {"x": x}) as state, pytest.raises(pccl.Mismatch, match=said):
            state.sync()

    world.run(program)


def test_a_buffer_of_complex_numbers_is_pairs_of_floats() -> None:
    for count, dtype in ((3, "f32"), (2, "i32"), (2, "bf16")):
        with pytest.raises(ValueError, match="complex numbers has an even count of f16, f32"):
            pccl.Buffer(64, count, dtype, paired=True)  # type: ignore[arg-type]


def test_every_small_float_of_pytorch_moves(world: pccl.LocalWorld) -> None:
    assert {torch.float4_e2m1fn_x2, torch.float8_e4m3fn} <= pt.tensors.OPAQUE.keys()

    def program(comm: pccl.Communicator) -> None:
        for dtype in pt.tensors.OPAQUE:
            kind = torch.bool if dtype == torch.bool else torch.uint8
            x = torch.tensor([1, comm.rank], dtype=kind).view(dtype)
            whole = pt.all_gather(comm, x)
            assert whole.dtype == dtype
            assert whole.view(torch.uint8).tolist() == [1, 0, 1, 1]
            tail = "; bool has op .*" if dtype == torch.bool else ""
            with pytest.raises(TypeError, match=f"is not added up, .*convert it first{tail}$"):
                pt.all_reduce(comm, x, op="sum")

    world.run(program)


def test_a_default_device_of_the_program_does_not_matter(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        x = torch.ones(4)
        with torch.device("meta"):
            assert pt.all_gather(comm, x[::2]).tolist() == [1.0] * 4
            assert pt.nn.all_reduce(comm, x).tolist() == [2.0] * 4
            pt.all_reduce_(comm, x[::2])
            pt.tree.all_reduce_(comm, [x[::2], x[1::2]])
        assert x.tolist() == [4.0, 2.0] * 2

    world.run(program)


# ---- trees, works, states


def test_gradients_of_a_model_are_one_operation(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        with torch.no_grad():
            pt.tree.broadcast_(comm, dict(model.named_parameters()))
        model(torch.full((1, 2), 1.0 + comm.rank)).sum().backward()
        gradients = {name: each.grad for name, each in model.named_parameters()}
        mean = pt.tree.all_reduce(comm, {**gradients, "none": None}, op="avg")
        outcome = pt.tree.all_reduce_(comm, gradients, op="avg")
        assert outcome.contributors == comm.members and mean.pop("none") is None
        reference = {name: torch.zeros(each.shape) for name, each in model.named_parameters()}
        for factor in (1.0, 2.0):
            model.zero_grad()
            model(torch.full((1, 2), factor)).sum().backward()
            for name, each in model.named_parameters():
                reference[name] += each.grad / 2 if each.grad is not None else 0
        for name, wanted in reference.items():
            torch.testing.assert_close(mean[name], wanted)
            torch.testing.assert_close(gradients[name], mean[name], rtol=0, atol=0)

    world.run(program)


def test_leaves_of_another_name_are_a_mismatch(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        name = "weight" if comm.rank else "bias"
        with pytest.raises(pccl.Mismatch, match=rf"this peer's are \['{name}'\]"):
            pt.tree.all_reduce(comm, {name: torch.ones(2)})

    world.run(program)


def test_a_dropped_work_goes_on_and_keeps_its_memory(world: pccl.LocalWorld) -> None:
    """The work, the tensor and its storage are dropped before the other member calls."""
    reached = {rank: torch.empty(0) for rank in range(2)}

    def program(comm: pccl.Communicator) -> None:
        if comm.rank == 0:
            kept = torch.ones(1 << 16)
            moved = torch.ones(1 << 16)
            pt.all_reduce_(comm, kept, tag=1, async_op=True)
            pt.all_reduce_(comm, moved, tag=2, async_op=True)
            moved.data = torch.zeros(1)  # its old memory belongs to the operation alone
            del moved
            gc.collect()
            reached[0] = kept
        pt.barrier(comm, tag=3)
        if comm.rank == 1:
            for tag in (1, 2):
                got = pt.all_reduce(comm, torch.ones(1 << 16), tag=tag)
                assert (got == 2).all()
        pt.barrier(comm, tag=3)
        if comm.rank == 0:
            # The next call of the tag comes after the dropped one.
            pt.all_reduce(comm, torch.zeros(1), tag=1)
            assert (reached[0] == 2).all()
        else:
            pt.all_reduce(comm, torch.zeros(1), tag=1)

    world.run(program)


def test_a_shared_state_of_parameters_and_strided_tensors(world: pccl.LocalWorld) -> None:
    """Writes raise versions, complex and bool tensors go along, and rank 0 wins."""

    def program(comm: pccl.Communicator) -> None:
        rank = comm.rank
        model = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for each in model.parameters():
                each.fill_(rank + 1)
        wide = torch.full((4, 4), 1.0 + rank)
        tensors = {
            **model.state_dict(keep_vars=True),
            "columns": wide[:, ::2],
            "phase": torch.full((3,), complex(rank, 1), dtype=torch.complex64),
            "mask": torch.tensor([rank == 0, True]),
            "own": torch.zeros(1).expand(3),
        }
        before = model.weight._version
        with pt.shared_state(comm, tensors, may_differ=["own"], name="torch") as state:
            state.sync(revision=5 - rank)
            assert (model.weight == 1).all() and (model.bias == 1).all()
            assert wide[0].tolist() == [1.0, 1.0 + rank] * 2
            assert tensors["phase"].tolist() == [1j] * 3
            assert tensors["mask"].tolist() == [True, True]
            moved = model.weight._version
            assert (moved > before) == (rank == 1)
            state.sync()  # all are equal: nothing is written
            assert model.weight._version == moved
            model.weight.data = torch.zeros(2, 3)
            with pytest.raises(pccl.InvalidUsage, match="array 'weight' is not where it was"):
                state.sync()

    world.run(program)


def test_a_sync_does_not_use_memory_that_a_resized_storage_has_freed(
    world: pccl.LocalWorld,
) -> None:
    """The tensor itself is as long as before, and mostly where it was."""

    def program(comm: pccl.Communicator) -> None:
        for size in (0, 4, 1 << 16):
            whole = torch.ones(1 << 10)
            with pt.shared_state(comm, {"w": whole[:8]}) as state:
                state.sync()
                whole.untyped_storage().resize_(size)
                with pytest.raises(pccl.InvalidUsage, match="array 'w' is not where it was"):
                    state.sync()

    world.run(program)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # used by dual_level
def test_tangents_of_forward_mode_are_not_dropped(world: pccl.LocalWorld) -> None:
    comm, x = world.comms[0], torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(2))  # type: ignore[no-untyped-call]
        calls: list[Callable[[], Any]] = [
            lambda: pt.all_reduce(comm, dual),
            lambda: pt.all_reduce_(comm, dual),
            lambda: pt.all_reduce(comm, x.clone(), dual),
            lambda: pt.nn.all_reduce(comm, dual),
            lambda: pt.tree.all_reduce(comm, [dual]),
            lambda: pt.send(comm, dual, 1),
        ]
        for call in calls:
            with pytest.raises(NotImplementedError, match="tangent of forward-mode"):
                call()

    def program(each: pccl.Communicator) -> None:
        with torch.no_grad():
            assert pt.all_reduce(each, torch.ones(2)).tolist() == [2.0, 2.0]

    world.run(program)


def test_completion_has_the_public_names_alone() -> None:
    """Modules are attributes of a package once they are imported, and none of these are for users
    but `nn` and `tree`."""
    assert "staging" in vars(pt)
    assert {name for name in dir(pt) if not name.startswith("__")} == set(pt.__all__)
    assert {"__doc__", "__file__", "__path__"} < set(dir(pt))


def test_every_public_name_is_documented() -> None:
    for name in pt.__all__:
        assert getattr(pt, name).__doc__, name
    for name in pt.nn.__all__:
        assert getattr(pt.nn, name).__doc__, name
