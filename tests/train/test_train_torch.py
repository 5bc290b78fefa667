"""DiLoCo of PyTorch modules: what is exchanged, what is counted, and its checkpoints."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pccl_train import SGD, Adam, Exchange, Nesterov
from problems import Entry, outer_bytes, with_a_newcomer

import pccl_py as pccl

pytest.importorskip("torch")
import pccl_train.torch
import torch
from torch import nn


def draw(module: Any, seed: int) -> Any:
    """Ranks are threads, which share the generator of torch."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


class Net(nn.Module):
    """Two linear maps with one weight, a frozen parameter, and a buffer."""

    calls: torch.Tensor

    def __init__(self, seed: int, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, dtype=dtype)
        self.second = nn.Linear(6, 6, bias=False, dtype=dtype)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.zeros(6, dtype=dtype), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))
        draw(self, seed)

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        return self.second(torch.tanh(self.first(x))) + self.frozen


def loss_of(net: Any, rank: int, step: int) -> Any:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(4, 6, generator=generator)
    out = net(x.to(next(net.parameters()).dtype))
    return ((out.float() - x.flip(1)) ** 2).mean()


def trained(
    comm: pccl.Communicator, net: Any, steps: int, **settings: Any
) -> pccl_train.torch.DiLoCo:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    with pccl_train.torch.DiLoCo(comm, net, optimizer, **settings) as diloco:
        for step in range(steps):
            loss_of(net, comm.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        diloco.finish()
    return diloco


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_workers_train_one_model_and_shared_parameters_travel_once(dtype: Any) -> None:
    def program(comm: pccl.Communicator) -> tuple[list[str], bytes, float, float]:
        net = Net(comm.rank, dtype)
        first = loss_of(net, 0, 999).item()
        diloco = trained(comm, net, 60, sync_every=5, fragments=2, fragment_sync_delay=2)
        for name, value in diloco.outer_parameters.items():
            own = dict(net.named_parameters())[name].detach()
            assert torch.equal(own, torch.from_numpy(value).to(dtype))
        return [*diloco.outer_parameters], outer_bytes(diloco), first, loss_of(net, 0, 999).item()

    with pccl.LocalWorld(3) as world:
        results = world.run(program)
    assert results[0][0] == ["first.weight", "first.bias"]
    assert len({outer for _, outer, _, _ in results}) == 1
    assert all(last < first for _, _, first, last in results)


def test_the_outer_step_is_that_of_torchs_sgd(tmp_path: Path) -> None:
    """To rounding: DiLoCo by hand, with torch.optim.SGD(nesterov=True)."""

    def program(comm: pccl.Communicator) -> None:
        net = Net(0)
        shared = copy.deepcopy(net)
        by_hand = torch.optim.SGD(
            [p for p in shared.parameters() if p.requires_grad], lr=0.7, momentum=0.9, nesterov=True
        )
        diloco = trained(comm, net, 12, sync_every=4)
        local = copy.deepcopy(shared)
        inner = torch.optim.AdamW(local.parameters(), lr=1e-2)
        for step in range(12):
            loss_of(local, comm.rank, step).backward()
            inner.step()
            inner.zero_grad()
            if step % 4 == 3:
                pairs = [*zip(shared.parameters(), local.parameters(), strict=True)]
                for outer, own in pairs:
                    if outer.requires_grad:
                        outer.grad = outer.detach() - own.detach()
                        comm.all_reduce(outer.grad, op="avg")
                by_hand.step()
                with torch.no_grad():
                    for outer, own in pairs:
                        own.copy_(outer)
        for name, value in diloco.outer_parameters.items():
            expected = dict(shared.named_parameters())[name].detach().numpy()
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)

    with pccl.LocalWorld(2) as world:
        world.run(program)


def test_accumulated_gradients_a_scheduler_and_steps_that_a_scaler_skips() -> None:
    """The steps of the optimizer count, whatever the program does between them."""

    def program(comm: pccl.Communicator) -> tuple[int, int, bytes]:
        net = Net(comm.rank)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        told: list[Exchange] = []
        settings: dict[str, Any] = {"sync_every": 3, "on_exchange": told.append}
        steps = turn = 0
        with pccl_train.torch.DiLoCo(comm, [net], optimizer, **settings) as diloco:
            while steps < 9:
                for micro in range(2):
                    scaler.scale(loss_of(net, comm.rank, 2 * turn + micro)).backward()
                if comm.rank == 1 and turn == 4:
                    assert net.first.bias.grad is not None
                    net.first.bias.grad[0] = float("inf")
                scaler.step(optimizer)
                steps += not (comm.rank == 1 and turn == 4)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad()
                turn += 1
        return len(told), turn, outer_bytes(diloco)

    with pccl.LocalWorld(2) as world:
        first, second = world.run(program)
    assert first[:2] == (3, 9) and second[:2] == (3, 10)
    assert first[2] == second[2]


def test_each_module_of_a_list_is_a_fragment() -> None:
    def program(comm: pccl.Communicator) -> list[int]:
        net = draw(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), comm.rank)
        told: list[Exchange] = []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        parts = [net[0], torch.compile(net[2], backend="eager")]
        settings: dict[str, Any] = {"sync_every": 4, "on_exchange": told.append}
        with pccl_train.torch.DiLoCo(comm, parts, optimizer, **settings) as diloco:
            for step in range(8):
                loss_of(net, comm.rank, step).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert [*diloco.outer_parameters] == ["0.bias", "0.weight", "1.bias", "1.weight"]
        return [each.fragment for each in told]

    with pccl.LocalWorld(2) as world:
        assert world.run(program) == [[0, 1, 0, 1]] * 2


def test_a_run_goes_on_from_its_file_to_the_same_bytes(tmp_path: Path) -> None:
    """Parameters, buffers, the inner optimizer, and an exchange under way."""

    def run(comm: pccl.Communicator, begin: int, end: int, save_at: int = 0) -> bytes:
        net = Net(comm.rank, torch.bfloat16)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        file = tmp_path / f"{comm.rank}.pt"
        diloco = pccl_train.torch.DiLoCo(
            comm, net, optimizer, sync_every=4, fragments=2, fragment_sync_delay=3,
            fragment_update_alpha=0.5,
        )  # fmt: skip
        if begin:
            diloco.load(file)
        with diloco:
            for step in range(begin, end):
                loss_of(net, comm.rank, step).backward()
                optimizer.step()
                optimizer.zero_grad()
                if step + 1 == save_at:
                    diloco.save(file)
        own = b"".join(p.detach().float().numpy().tobytes() for p in net.parameters())
        return outer_bytes(diloco) + own + net.calls.numpy().tobytes()

    for at in (5, 6, 7, 8):
        with pccl.LocalWorld(2) as world:
            whole = world.run(lambda comm: run(comm, 0, 14, at))  # noqa: B023
        with pccl.LocalWorld(2) as world:
            assert world.run(lambda comm: run(comm, at, 14)) == whole  # noqa: B023
    net = Net(0)
    diloco = pccl_train.torch.DiLoCo(None, net, torch.optim.SGD(net.parameters(), lr=1))
    for junk in (b"junk", b"hello\n", b""):
        (tmp_path / "bad.pt").write_bytes(junk)
        with pytest.raises(pccl.InvalidArgument, match="bad.pt"):
            diloco.load(tmp_path / "bad.pt")


class Normed(nn.Module):
    """With running statistics, a count of i64, and a buffer of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("own", torch.full((2,), float(seed)))
        self.register_buffer("table", torch.full((3,), seed, dtype=torch.int32))
        draw(self, seed)

    def forward(self, x: Any) -> Any:
        return self.norm(self.first(x))


SHARED: dict[str, Any] = {
    "sync_every": 4,
    "buffers": {"*.running_*": "averaged", "norm.num_*": "synced", "table": "synced", "*": "own"},
}


NORM = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def values(net: nn.Module) -> dict[str, list[float]]:
    return {name: buffer.flatten().tolist() for name, buffer in net.named_buffers()}


@pytest.mark.parametrize("delay", [0, 3])
def test_buffers_are_averaged_synced_or_own_by_name_and_a_newcomer_has_the_shared_ones(
    delay: int,
) -> None:
    settings = {**SHARED, "fragments": 2, "fragment_sync_delay": delay}
    before: list[list[float]] = [[], []]
    seen: list[dict[str, list[float]]] = []

    def train(
        comm: pccl.Communicator, net: Any, rank: int, entry: Entry, look: Any
    ) -> dict[str, list[float]]:
        """The buffers at the end of the last round."""
        ended: dict[str, list[float]] = {}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with pccl_train.torch.DiLoCo(comm, net, optimizer, **settings) as diloco:
            look(diloco)
            while entry.goes_on(diloco, newcomer=rank == 9):
                loss_of(net, rank, diloco.progress).backward()
                if diloco.progress == 3:
                    before[rank] = net.norm.running_mean.tolist()
                optimizer.step()
                optimizer.zero_grad()
                look(diloco)
                if diloco.position == 0:
                    ended = values(net)
        return ended

    def program(comm: pccl.Communicator, entry: Entry) -> dict[str, list[float]]:
        net = Normed(comm.rank)

        def look(diloco: Any) -> None:
            found = values(net)
            if diloco.progress == 0:
                assert found["table"] == [0, 0, 0]  # those of rank 0
            if diloco.progress == 4:
                average = np.mean(before, axis=0, dtype=np.float32)
                np.testing.assert_allclose(found["norm.running_mean"], average, rtol=1e-6)
                entry.call()

        return train(comm, net, comm.rank, entry, look)

    def newcomer(comm: pccl.Communicator, entry: Entry) -> dict[str, list[float]]:
        net = Normed(9)
        ended = train(comm, net, 9, entry, lambda _: seen.append(values(net)))
        # At its entry it has those of members, which have taken 5 steps or more.
        assert seen[0]["norm.num_batches_tracked"][0] >= 5
        assert seen[0]["table"] == [0, 0, 0] and seen[0]["norm.running_mean"] != [0] * 6
        return ended

    found = with_a_newcomer(program, newcomer, more=8)
    assert [each.pop("own") for each in found] == [[0, 0], [1, 1], [9, 9]]
    assert found[0] == found[1] == found[2] and set(found[0]) == {"table", *NORM}


def test_tensors_that_are_not_contiguous_are_exchanged_too() -> None:
    class Turned(nn.Module):
        """A parameter and a buffer whose rows are columns in memory."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 3).t())
            self.register_buffer("seen", torch.zeros(2, 3).t())

    def program(comm: pccl.Communicator) -> list[Any]:
        net = Turned()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        settings: dict[str, Any] = {"outer": "sgd", "buffers": {"seen": "averaged"}}
        with pccl_train.torch.DiLoCo(comm, net, optimizer, sync_every=1, **settings):
            places = torch.arange(6.0).view(3, 2)
            net.weight.grad = -2 * comm.rank * places
            dict(net.named_buffers())["seen"].copy_(2 * comm.rank * places)
            optimizer.step()
        assert not net.weight.is_contiguous()
        return [net.weight.tolist(), *values(net).values()]

    with pccl.LocalWorld(2) as world:
        for weight, seen in world.run(program):
            assert weight == [[0, 1], [2, 3], [4, 5]] and seen == [0, 1, 2, 3, 4, 5]


def test_a_newcomer_takes_over_the_inner_optimizer_of_a_member_if_it_asks_for_it() -> None:
    def train(comm: pccl.Communicator, entry: Entry, rank: int, *, inherits: bool) -> Any:
        """The moments after each progress."""
        net = Net(3)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        settings: dict[str, Any] = {"sync_every": 3, "inherit_optimizer": inherits}
        moments = {}
        with pccl_train.torch.DiLoCo(comm, net, optimizer, **settings) as diloco:
            while entry.goes_on(diloco, newcomer=rank == 9):
                state = optimizer.state.get(net.first.bias, {})
                moments[diloco.progress] = state["exp_avg"].tolist() if state else None
                loss_of(net, rank, diloco.progress).backward()
                optimizer.step()
                optimizer.zero_grad()
                if diloco.progress == 4:
                    entry.call()
        return moments

    def program(comm: pccl.Communicator, entry: Entry) -> Any:
        return train(comm, entry, comm.rank, inherits=False)

    for inherits in (True, False):

        def newcomer(comm: pccl.Communicator, entry: Entry) -> Any:
            return train(comm, entry, 9, inherits=inherits)  # noqa: B023

        first, second, third = with_a_newcomer(program, newcomer, more=2)
        at = min(third)
        assert third[at] in ((first[at], second[at]) if inherits else (None,))
        assert None not in (first[at], second[at]) and first[at] != second[at]


@pytest.mark.parametrize(
    ("buffers", "word"),
    [
        ({"*.mean": "averaged"}, "matches none of own, table, norm.running_mean"),
        ({"table": "averaged"}, "'table' must be of floats, not torch.int32; it may be 'synced'"),
        ({"own": "mean"}, "'averaged', 'synced' or 'own', not 'mean'"),
    ],
)
def test_buffers_that_cannot_be_shared_are_refused_by_name(
    buffers: dict[str, Any], word: str
) -> None:
    net = Normed(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=1)
    with pytest.raises(pccl.InvalidArgument, match=re.escape(word)):
        pccl_train.torch.DiLoCo(None, net, optimizer, buffers=buffers)


def frozen() -> Any:
    return nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda: [nn.Linear(2, 2), frozen()], pccl.InvalidArgument, "module 1"),
        (lambda: [nn.Linear(2, 2), 3], TypeError, "modules, not int"),
        (lambda: nn.Tanh(), pccl.InvalidArgument, "module 0"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), pccl.InvalidArgument, "complex64"),
    ],
)
def test_modules_that_cannot_be_trained_are_refused_by_name(
    make: Callable[[], Any], error: type[Exception], word: str
) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)
    with pytest.raises(error, match=word):
        pccl_train.torch.DiLoCo(None, make(), optimizer)


def test_modules_are_fragments_or_one_is_divided() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)
    with pytest.raises(pccl.InvalidArgument, match="2 modules"):
        pccl_train.torch.DiLoCo(
            None, [nn.Linear(2, 2), nn.Linear(2, 2)], optimizer, fragments=2, sync_every=4
        )


def test_a_parameter_that_comes_later_is_refused_by_name() -> None:
    with pccl.LocalWorld(1) as world:
        net = nn.Sequential(nn.Linear(2, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pccl_train.torch.DiLoCo(world.comms[0], net, optimizer, sync_every=1):
            net.append(nn.Linear(2, 2))
            with pytest.raises(pccl.InvalidArgument, match=r"1\.weight"):
                optimizer.step()


def test_a_compiled_module_trains_under_autocast() -> None:
    def program(comm: pccl.Communicator) -> float:
        net: Any = torch.compile(Net(0), backend="eager")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        with pccl_train.torch.DiLoCo(comm, net, optimizer, sync_every=2, outer="sgd") as diloco:
            for _ in range(8):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(net, comm.rank, 0)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        assert set(diloco.outer_parameters) == {"first.weight", "first.bias"}
        return float(losses[-1] / losses[0])

    with pccl.LocalWorld(1) as world:
        assert world.run(program)[0] < 0.95


def test_arguments_of_torchft_are_taken_or_named() -> None:
    net = nn.Linear(2, 2)

    def outer(**options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), **{"lr": 0.7, **options})

    inner = torch.optim.AdamW(net.parameters())
    nesterov = outer(momentum=0.9, nesterov=True)
    for given, value in (
        (nesterov, Nesterov(0.7, 0.9)), ([nesterov, nesterov], Nesterov(0.7, 0.9)),
        (outer(), SGD(0.7)), ("adam", Adam()),
    ):  # fmt: skip
        options: Any = {"fragment_sync_delay": 5}
        diloco = pccl_train.torch.DiLoCo(None, [net], inner, given, 20, **options)
        assert diloco.method.outer == value and diloco.method.sync_every == 20
    wrongs: list[Any] = [outer(momentum=0.9), outer(weight_decay=0.1), inner]
    for wrong in (*wrongs, [nesterov, outer()], []):
        with pytest.raises(pccl.InvalidArgument, match="outer"):
            pccl_train.torch.DiLoCo(None, [net], inner, wrong)
    for name, word in (("should_quantize", "codec"), ("pin_memory", "leave it"), ("x", "'x'")):
        unknown: Any = {name: True}
        with pytest.raises(TypeError, match=word):
            pccl_train.torch.DiLoCo(None, [net], inner, nesterov, **unknown)


def test_an_optimizer_and_tokens_that_cannot_be_are_refused_by_name() -> None:
    net = nn.Linear(2, 2)
    other = torch.optim.SGD(Net(0).parameters(), lr=0.1)
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"inner_optimizer": other}, "inner_optimizer"), ({"inner_optimizer": 1}, "optimizer"),
        ({"tokens": 100}, "tokens"), ({"model_fragments": []}, "empty"),
    ]  # fmt: skip
    for wrong, word in wrongs:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        settings: Any = {"model_fragments": net, "inner_optimizer": optimizer, **wrong}
        with pytest.raises((TypeError, pccl.InvalidArgument), match=word):
            pccl_train.torch.DiLoCo(None, **settings)
    # It receives, and trains nothing.
    pccl_train.torch.DiLoCo(None, net, other, tokens=lambda: 0.0)
