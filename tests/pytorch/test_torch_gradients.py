"""pccl_torch.nn: gradients against those of one process that computes the losses of all members.

`alone` is what the collective makes on every rank, in plain PyTorch, of the inputs of all; the sum
of all losses is then differentiated without any communication.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed", exc_type=ModuleNotFoundError)

import pccl_torch as pt
import torch
from torch import Tensor

import pccl_py as pccl

RANKS = 3
ROOT = 1
COUNTS = [2, 0, 1]
SENT = [[1, 0, 2], [0, 1, 0], [1, 1, 0]]


def split(x: Tensor, counts: Sequence[int]) -> list[Tensor]:
    return list(torch.split(x, list(counts)))


@dataclass(frozen=True)
class Case:
    """Rows of each rank's input; the call; what it makes of all inputs, for each rank."""

    rows: Sequence[int]
    run: Callable[[pccl.Group, Tensor], Tensor]
    alone: Callable[[list[Tensor]], list[Tensor]]


def only_root(made: Tensor) -> list[Tensor]:
    return [made if rank == ROOT else torch.zeros_like(made) for rank in range(RANKS)]


CASES: dict[str, Case] = {
    "all_reduce": Case(
        (3,) * RANKS, lambda comm, x: pt.nn.all_reduce(comm, x), lambda xs: [sum_of(xs)] * RANKS
    ),
    "all_reduce avg": Case(
        (3,) * RANKS,
        lambda comm, x: pt.nn.all_reduce(comm, x, op="avg"),
        lambda xs: [sum_of(xs) / RANKS] * RANKS,
    ),
    "broadcast": Case(
        (3,) * RANKS, lambda comm, x: pt.nn.broadcast(comm, x, ROOT), lambda xs: [xs[ROOT]] * RANKS
    ),
    "reduce": Case(
        (3,) * RANKS, lambda comm, x: pt.nn.reduce(comm, x, ROOT), lambda xs: only_root(sum_of(xs))
    ),
    "all_gather": Case(
        (2,) * RANKS, lambda comm, x: pt.nn.all_gather(comm, x), lambda xs: [torch.cat(xs)] * RANKS
    ),
    "all_gather counts": Case(
        COUNTS,
        lambda comm, x: pt.nn.all_gather(comm, x, COUNTS),
        lambda xs: [torch.cat(xs)] * RANKS,
    ),
    "reduce_scatter": Case(
        (6,) * RANKS,
        lambda comm, x: pt.nn.reduce_scatter(comm, x),
        lambda xs: split(sum_of(xs), (2,) * RANKS),
    ),
    "reduce_scatter counts": Case(
        (3,) * RANKS,
        lambda comm, x: pt.nn.reduce_scatter(comm, x, COUNTS),
        lambda xs: split(sum_of(xs), COUNTS),
    ),
    "gather": Case(
        COUNTS,
        lambda comm, x: pt.nn.gather(comm, x, ROOT, COUNTS),
        lambda xs: only_root(torch.cat(xs)),
    ),
    "scatter": Case(
        (3,) * RANKS,
        lambda comm, x: pt.nn.scatter(comm, x, ROOT, COUNTS),
        lambda xs: split(xs[ROOT], COUNTS),
    ),
    "all_to_all": Case(
        (3,) * RANKS,
        lambda comm, x: pt.nn.all_to_all(comm, x),
        lambda xs: [torch.cat([x[rank : rank + 1] for x in xs]) for rank in range(RANKS)],
    ),
    "all_to_all counts": Case(
        [sum(counts) for counts in SENT],
        lambda comm, x: pt.nn.all_to_all(
            comm, x, SENT[comm.rank], [counts[comm.rank] for counts in SENT]
        ),
        lambda xs: [
            torch.cat([split(x, SENT[s])[rank] for s, x in enumerate(xs)]) for rank in range(RANKS)
        ],
    ),
}


def sum_of(xs: list[Tensor]) -> Tensor:
    return torch.stack(xs).sum(0)


def inputs(case: Case, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(rows, 2, generator=generator, dtype=torch.complex128).to(dtype)
        if dtype.is_complex
        else torch.randn(rows, 2, generator=generator, dtype=dtype)
        for rows in case.rows
    ]


def loss_of(made: Tensor, rank: int) -> Tensor:
    """Another function of each rank and of each element, and not linear."""
    weights = torch.arange(1.0, made.numel() + 1, dtype=torch.float64).reshape(made.shape)
    return (weights * (made.abs() ** 2) * (rank + 1)).sum()


def gradients_alone(case: Case, dtype: torch.dtype) -> list[Tensor]:
    xs = [x.requires_grad_() for x in inputs(case, dtype)]
    losses = [loss_of(made, rank) for rank, made in enumerate(case.alone(xs))]
    found = torch.autograd.grad(torch.stack(losses).sum(), xs, allow_unused=True)
    return [
        torch.zeros_like(x) if grad is None else grad for x, grad in zip(xs, found, strict=True)
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_one_process(
    three: pccl.LocalWorld, name: str, dtype: torch.dtype
) -> None:
    case = CASES[name]
    wanted, values = gradients_alone(case, dtype), case.alone(inputs(case, dtype))

    def program(comm: pccl.Communicator) -> None:
        x = inputs(case, dtype)[comm.rank].requires_grad_()
        made = case.run(comm, x)
        torch.testing.assert_close(made.detach(), values[comm.rank])
        loss_of(made, comm.rank).backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        torch.testing.assert_close(x.grad, wanted[comm.rank])

    three.run(program)


@pytest.mark.parametrize("name", CASES)
def test_a_member_whose_input_needs_no_gradient_takes_part_in_the_backward(
    three: pccl.LocalWorld, name: str
) -> None:
    """Without it the others would wait: rank 0 has constants, and under no_grad nobody waits."""
    case = CASES[name]
    wanted = gradients_alone(case, torch.float64)

    def program(comm: pccl.Communicator) -> None:
        x = inputs(case, torch.float64)[comm.rank].requires_grad_(comm.rank > 0)
        made = case.run(comm, x)
        assert made.requires_grad
        loss_of(made, comm.rank).backward()  # type: ignore[no-untyped-call]
        if comm.rank == 0:
            assert x.grad is None
        else:
            assert x.grad is not None
            torch.testing.assert_close(x.grad, wanted[comm.rank])
        with torch.no_grad():
            assert not case.run(comm, x).requires_grad

    three.run(program)


def test_second_gradients(three: pccl.LocalWorld) -> None:
    """That of the sum of squares of a gradient, through two collectives and their backwards."""

    def reference() -> list[Tensor]:
        xs = [torch.full((3,), rank + 1.0, dtype=torch.float64) for rank in range(RANKS)]
        xs = [x.requires_grad_() for x in xs]
        whole = torch.cat([sum_of(xs)[rank : rank + 1] for rank in range(RANKS)])
        loss = torch.stack([(whole**3).sum() * (rank + 1) for rank in range(RANKS)]).sum()
        first = torch.autograd.grad(loss, xs, create_graph=True)
        second = torch.stack([(each**2).sum() for each in first]).sum()
        return list(torch.autograd.grad(second, xs))

    wanted = reference()

    def program(comm: pccl.Communicator) -> None:
        x = torch.full((3,), comm.rank + 1.0, dtype=torch.float64).requires_grad_()
        whole = pt.nn.all_gather(comm, pt.nn.reduce_scatter(comm, x))
        loss = (whole**3).sum() * (comm.rank + 1)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), x)
        torch.testing.assert_close(second, wanted[comm.rank])

    three.run(program)


def test_a_model_of_which_each_rank_has_a_part_learns_as_a_whole_one(
    three: pccl.LocalWorld,
) -> None:
    """Columns and rows of two layers are shared out among the ranks, and so is the batch."""
    torch.manual_seed(3)
    first, second = torch.randn(4, 6).double(), torch.randn(6, 1).double()
    batch = torch.randn(6, 4).double()
    whole = [first.clone().requires_grad_(), second.clone().requires_grad_()]
    made = (batch @ whole[0]).relu() @ whole[1]
    made.square().sum().backward()  # type: ignore[no-untyped-call]
    assert whole[0].grad is not None and whole[1].grad is not None
    wanted = [whole[0].grad, whole[1].grad]

    def program(comm: pccl.Communicator) -> None:
        mine = slice(2 * comm.rank, 2 * comm.rank + 2)
        columns = first[:, mine].clone().requires_grad_()
        rows = second[mine].clone().requires_grad_()
        every = pt.nn.all_gather(comm, batch[mine])
        partial = (every @ columns).relu() @ rows
        made = pt.nn.reduce_scatter(comm, partial)
        made.square().sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(columns.grad, wanted[0][:, mine])
        torch.testing.assert_close(rows.grad, wanted[1][mine])

    three.run(program)


def test_only_linear_reductions_have_gradients(world: pccl.LocalWorld) -> None:
    comm, x = world.comms[0], torch.ones(2)
    for op in ("max", pccl.ReduceOp.PROD):
        with pytest.raises(ValueError, match="has no gradient here: sum and avg"):
            pt.nn.all_reduce(comm, x, op=op)
    options: dict[str, Any]
    for options in ({"async_op": True}, {"return_outcome": True}):
        for name in pt.nn.__all__:
            with pytest.raises(TypeError, match=f"nn.{name}.. has no option"):
                getattr(pt.nn, name)(comm, x, **options)
    with pytest.raises(TypeError, match="has no option 'opp'"):
        getattr(pt.nn, "all_gather")(comm, x, opp="sum")  # noqa: B009
    with pytest.raises(TypeError, match="expected a torch.Tensor"):
        getattr(pt.nn, "all_gather")(comm, [1.0])  # noqa: B009
    world.run(lambda each: pt.barrier(each))


def test_what_a_backward_would_refuse_is_refused_in_the_forward(world: pccl.LocalWorld) -> None:
    comm, x = world.comms[0], torch.ones(2)
    refused: dict[str, dict[str, Any]] = {
        "reduce": {"op": "max", "codec": "bf16", "plan": "ring"},
        "broadcast": {"op": "sum", "codec": "bf16", "plan": "ring"},
        "reduce_scatter": {"op": "avg"},
        "all_gather": {"op": "sum"},
    }
    for name, options in refused.items():
        for option, value in options.items():
            with pytest.raises(TypeError, match=f"nn.{name}.. has no option '{option}'; it has"):
                getattr(pt.nn, name)(comm, x, **{option: value})
    world.run(lambda each: pt.barrier(each))


def test_a_backward_in_another_epoch_than_its_call_sends_nothing(three: pccl.LocalWorld) -> None:
    """Rank 1 is the root of the call, and another member is rank 1 in the epoch after it."""

    def program(comm: pccl.Communicator) -> None:
        x = torch.ones(1, requires_grad=True)
        made = pt.nn.broadcast(comm, x, 1)
        before = comm.epoch
        if comm.rank == 0:
            comm.close()
            return
        while not comm.admit(together=True).changed:
            continue
        assert comm.epoch > before
        said = f"call in epoch {before} of group 'default', which is in epoch {comm.epoch} now"
        with pytest.raises(pccl.InvalidUsage, match=said):
            made.sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is None
        pt.nn.broadcast(comm, x, 1).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None and x.grad.tolist() == [2.0 * comm.rank]

    three.run(program)


def lazily_conjugated(made: Tensor) -> Tensor:
    return torch.vdot(made, torch.tensor([1j, 2.0 + 0j])).real


def lazily_negated(made: Tensor) -> Tensor:
    return made.conj().imag.sum()


@pytest.mark.parametrize("loss", [lazily_conjugated, lazily_negated])
def test_gradients_that_pytorch_makes_lazily_are_taken(
    world: pccl.LocalWorld, loss: Callable[[Tensor], Tensor]
) -> None:
    values = torch.tensor([1 + 2j, 3 - 1j])
    alone = (2 * values).requires_grad_()
    loss(alone).backward()  # type: ignore[no-untyped-call]
    assert alone.grad is not None
    wanted = 2 * alone.grad.resolve_conj()

    def program(comm: pccl.Communicator) -> None:
        x = values.clone().requires_grad_()
        made = pt.nn.all_reduce(comm, x)
        loss(made).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(x.grad, wanted)

    world.run(program)


def test_a_sparse_gradient_is_made_dense(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        x = torch.ones(3, 1, requires_grad=True)
        rows = pt.nn.all_reduce(comm, x)
        picked = torch.nn.functional.embedding(torch.tensor([1, comm.rank]), rows, sparse=True)
        picked.sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None and x.grad.flatten().tolist() == [1.0, 3.0, 0.0]

    world.run(program)


def test_a_call_and_its_backward_have_one_tag(world: pccl.LocalWorld) -> None:
    """Another operation of the default tag is in flight all the while."""

    def program(comm: pccl.Communicator) -> None:
        other = torch.ones(2)
        if comm.rank == 0:
            work = pt.all_reduce(comm, other, async_op=True)
        x = torch.ones(2, requires_grad=True)
        pt.nn.all_reduce(comm, x, tag=9).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]
        if comm.rank == 1:
            work = pt.all_reduce(comm, other, async_op=True)
        assert work.wait().tolist() == [2.0, 2.0]

    world.run(program)


def test_an_error_in_a_backward_is_raised_by_it(world: pccl.LocalWorld) -> None:
    """A member that has left: all_gather's backward needs everybody, and says so."""

    def program(comm: pccl.Communicator) -> None:
        x = torch.ones(2, requires_grad=True)
        made = pt.nn.all_gather(comm, x)
        if comm.rank == 1:
            comm.close()
            return
        with pytest.raises(pccl.Aborted):
            made.sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is None

    world.run(program)


@pytest.mark.parametrize("calls_next", [False, True])
def test_a_backward_that_autograd_leaves_out_on_one_member_says_so_to_the_others(
    three: pccl.LocalWorld, calls_next: bool
) -> None:
    """Goal: it ends, at the deadline or at the other's next call, and tells of the cause."""

    def run(comm: pccl.Communicator) -> str:
        one, other = (torch.ones(2, requires_grad=True) for _ in range(2))
        x = other if comm.rank == 2 else one
        loss = pt.nn.all_reduce(comm, 2 * x, deadline=60 if calls_next else 0.5).sum() + one.sum()
        if comm.rank < 2:
            with pytest.raises(pccl.PcclError) as caught:
                torch.autograd.grad(loss, one)
            return str(caught.value)
        assert torch.autograd.grad(loss, one)[0].tolist() == [1, 1]
        if calls_next:
            with pytest.raises(pccl.Mismatch):
                pt.all_gather(comm, torch.ones(2))
        else:
            others_ended.wait()
        return ""

    others_ended = threading.Event()
    jobs = [functools.partial(run, comm) for comm in three.comms]
    with ThreadPoolExecutor(RANKS) as threads:
        *others, last = [threads.submit(job) for job in jobs]
        texts = [other.result(timeout=60) for other in others]
        others_ended.set()
        last.result(timeout=60)
    cause = "called different things" if calls_next else "deadline"
    for text in texts:
        assert cause in text and text.count("backward(inputs=...)") == 1, text
