"""DistributedDataParallel and ElasticState over pccl, with members that are threads.

Each has a process group of its own that torch.distributed does not know of, which is all that DDP
needs. With processes, and what a loss does: test_torch_elastic.py.
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pccl_torch
import pytest
import torch
import torch.distributed
from pccl_torch import ddp as wrappers
from pccl_torch import elastic
from pccl_torch.ahead import entries_to_come
from pccl_torch.errors import torch_error
from pccl_torch.start import LoneStore
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

import pccl_py as pccl

# Its types are those of C++.
dist: Any = torch.distributed


def group_of(comm: pccl.Communicator, **options: Any) -> Any:
    asked = pccl_torch.Options(**options)
    return pccl_torch.ProcessGroupPccl(
        comm, comm.members, comm.rank, "test", asked, None, comm.close
    )


_seeded = threading.Lock()


def model(seed: int = 0) -> nn.Sequential:
    with _seeded:  # the generator is that of all threads
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def wrapped(group: Any, hook: Any = None, module: nn.Module | None = None) -> Any:
    made = DistributedDataParallel(module or model(), process_group=group, init_sync=False)
    if hook is not None:
        made.register_comm_hook(group, hook)
    return made


def gradients(module: nn.Module) -> list[Tensor]:
    return [
        parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None
    ]


def inputs_of(rank: int, step: int = 0) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * step + rank))


class Slope(nn.Module):
    """Its gradient is what it is given."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))

    def forward(self, slope: Tensor) -> Tensor:
        return (self.weights * slope).sum()


# ---- the hook


def test_the_hook_gives_the_gradients_that_ddp_without_it_gives(three: pccl.LocalWorld) -> None:
    def run(comm: pccl.Communicator) -> list[list[Tensor]]:
        group, made = group_of(comm), []
        hook = pccl_torch.average_hook()
        for used in (None, hook):
            wrapper = wrapped(group, used)
            for step in range(3):  # DDP rebuilds its buckets before the second
                wrapper.zero_grad()
                wrapper(inputs_of(comm.rank, step)).square().sum().backward()
            made.append(gradients(wrapper))
        (outcome,) = hook.outcomes
        assert outcome.ranks == (0, 1, 2)
        return made

    for plain, hooked in three.run(run):
        torch.testing.assert_close(hooked, plain)


def test_the_hook_averages_gradients_whose_sum_f16_does_not_hold(three: pccl.LocalWorld) -> None:
    def run(comm: pccl.Communicator) -> list[float]:
        module = Slope(3).half()
        slope = torch.full((3,), 60000.0, dtype=torch.float16)
        wrapped(group_of(comm), pccl_torch.average_hook(), module)(slope).backward()
        (gradient,) = gradients(module)
        return gradient.tolist()

    assert three.run(run) == [[60000.0] * 3] * 3


def test_the_hook_averages_what_no_sync_has_gathered(world: pccl.LocalWorld) -> None:
    def run(comm: pccl.Communicator) -> list[float]:
        wrapper = wrapped(group_of(comm), pccl_torch.average_hook(), Slope(3))
        with wrapper.no_sync():
            wrapper(torch.full((3,), 10.0 * comm.rank)).backward()
        wrapper(torch.full((3,), 1.0)).backward()
        grad: Any = wrapper.module.weights.grad
        return list(grad.tolist())

    assert world.run(run) == [[6.0] * 3] * 2


@pytest.mark.parametrize("feeds_back", [True, False])
def test_error_feedback_makes_up_for_what_a_codec_rounds_away(
    world: pccl.LocalWorld, feeds_back: bool
) -> None:
    steps, count = 40, 4096

    def run(comm: pccl.Communicator) -> float:
        codec = pccl.Codec("int4", rotate=False)
        hook = pccl_torch.average_hook(codec, error_feedback=feeds_back)
        wrapper = wrapped(group_of(comm), hook, Slope(count))
        slope = torch.randn(count, generator=torch.Generator().manual_seed(comm.rank))
        total = torch.zeros(count)
        for _ in range(steps):
            wrapper.zero_grad()
            wrapper(slope).backward()
            total += wrapper.module.weights.grad
        mean = sum(
            torch.randn(count, generator=torch.Generator().manual_seed(rank)) for rank in range(2)
        )
        return float((total / steps - mean / 2).abs().mean())

    errors = world.run(run)
    assert errors[0] == errors[1]
    assert (errors[0] < 0.01) == feeds_back, errors


class Bucket:
    """As DDP gives it to a hook."""

    def __init__(self, *parameters: Tensor) -> None:
        self._parameters = list(parameters)

    def parameters(self) -> list[Tensor]:
        return self._parameters

    def index(self) -> int:
        return 0


def test_error_feedback_begins_anew_when_buckets_are_rebuilt() -> None:
    a, b, c = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    buckets = wrappers._Buckets()
    first, other = buckets.of(Bucket(a, b)), buckets.of(Bucket(c))
    assert buckets.of(Bucket(a, b)) is first and buckets.of(Bucket(c)) is other
    rebuilt = buckets.of(Bucket(b, a))
    assert rebuilt is not first and rebuilt.feedback is not first.feedback
    assert buckets.of(Bucket(c)) is other
    assert buckets.of(Bucket(a, c)) is not other
    assert buckets.of(Bucket(b)) is not rebuilt


def test_the_form_of_a_bucket_tells_parameters_of_one_shape_apart() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    def forms(comm: pccl.Communicator) -> tuple[int, int]:
        pair = Pair()
        wrapper = wrapped(group_of(comm), module=pair)
        both = wrappers._Buckets()
        made = both.of(Bucket(pair.one, pair.two)).form, both.of(Bucket(pair.two, pair.one)).form
        del wrapper
        return made

    with pccl.LocalWorld(2) as world:
        first, second = world.run(forms)
    assert first == second and first[0] != first[1]


def test_the_hook_refuses_what_it_cannot_use() -> None:
    with pytest.raises(pccl.InvalidArgument, match="codec"):
        pccl_torch.average_hook("int3")  # type: ignore[arg-type]
    with pytest.raises(pccl.InvalidArgument, match="recovery"):
        pccl_torch.average_hook(recovery="never")  # type: ignore[arg-type]
    with pytest.raises(pccl.InvalidUsage, match="process group of pccl"):
        pccl_torch.average_hook()("gloo", Bucket())


def test_the_hook_logs_once_that_it_goes_on_without_a_lost_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pccl.torch")

    def run(comm: pccl.Communicator) -> Any:
        trained(wrapper := wrapped(group_of(comm), pccl_torch.average_hook()), comm.rank)
        return wrapper

    def lines() -> list[str]:
        said = (each.getMessage() for each in caplog.records)
        return [line for line in said if line.startswith("average_hook")]

    with pccl.LocalWorld(3) as world:
        wrappers_of = world.run(run)
        assert lines() == []
        lost = world.comms[2]
        name = lost.label(lost.peer_id)
        lost.close()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(trained, wrappers_of[:2], (0, 1)))
    first, second = lines()
    assert first == second and f"without rank 2 ({name}" in first
    assert "which has left or was lost: a bucket is the average over 2 of 3 members" in first


def test_average_hook_itself_is_refused_as_a_hook(world: pccl.LocalWorld) -> None:
    """Without parentheses it is no hook, which the registration says with the right line."""
    wrapper = wrapped(group_of(world.comms[0]))
    with pytest.raises(TypeError, match=r"so call it: .*hook\(None, pccl_torch\.average_hook\(\)"):
        wrapper.register_comm_hook(None, pccl_torch.average_hook)
    told = inspect.signature(pccl_torch.average_hook)
    assert str(told).startswith("(codec: ") and next(iter(told.parameters)) == "codec"
    with pytest.raises(KeyError):
        told.parameters["state"]


# ---- wrappers when the members have changed


def trained(wrapper: Any, rank: int, steps: int = 3) -> Any:
    for _ in range(steps):
        wrapper(inputs_of(rank)).sum().backward()
    return wrapper


def counting_hook() -> Any:
    """A hook of a program, which does another thing from its second call on."""
    calls: list[Any] = []

    def hook(group: Any, bucket: Any) -> Any:
        calls.append(bucket.index())
        op = dist.AllreduceOptions()
        op.reduceOp = dist.ReduceOp.AVG if len(calls) > 1 else op.reduceOp
        return group.allreduce([bucket.buffer()], op).get_future().then(lambda f: f.value()[0])

    hook.__annotations__ = {
        "bucket": dist.GradBucket,
        "return": torch.futures.Future[Tensor],
    }
    return hook


def test_a_wrapper_refuses_to_go_on_beside_a_newcomer_and_goes_on_after_a_loss(
    world: pccl.LocalWorld,
) -> None:
    def run(comm: pccl.Communicator) -> None:
        group, rank = group_of(comm), comm.rank
        wrapper = trained(wrapped(group), rank)
        wrappers.renew({group: False})
        trained(wrapper, rank)
        fresh = trained(wrapped(group), rank, 1)  # its buckets are as they were made
        own = trained(wrapped(group, pccl_torch.average_hook()), rank)  # notices itself
        hooked = trained(wrapped(group, counting_hook()), rank, 1)
        wrappers.renew({group: True})
        trained(fresh, rank)
        trained(own, rank)
        for refused in (wrapper, hooked) * 2:
            with pytest.raises(pccl.InvalidUsage, match="wrap the model anew"):
                refused(inputs_of(rank))

    world.run(run)


def test_cpp_asks_the_group_for_its_size_of_now(world: pccl.LocalWorld) -> None:
    def run(comm: pccl.Communicator) -> float:
        group = group_of(comm)
        wrapper = wrapped(group, module=Slope(3))
        sizes = group._peers
        group._peers = (*sizes, *sizes)  # as if it had twice as many members
        wrapper(torch.full((3,), 4.0)).backward()
        grad: Any = wrapper.module.weights.grad
        return float(grad[0])

    assert world.run(run) == [2.0, 2.0]


# ---- ElasticState

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, dampening=0.5),
    "plain SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "ASGD": lambda parameters: torch.optim.ASGD(parameters, lr=0.01),
    "Rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
}


def step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    module(inputs_of(seed)).square().sum().backward()
    optimizer.step()


def strategy(comm: pccl.Communicator) -> Any:
    return "send_only" if comm.rank == 0 else "receive_only"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_newcomer_gets_state_that_its_optimizer_has_not_made_yet(
    world: pccl.LocalWorld, name: str
) -> None:
    def run(comm: pccl.Communicator) -> list[str]:
        module = model(comm.rank)
        optimizer = OPTIMIZERS[name](module.parameters())
        state = pccl_torch.ElasticState(module, optimizer, group=group_of(comm), step=0)
        digests = []
        if comm.rank == 0:
            for number in range(3):
                step(module, optimizer, number)
            state.step = 3
            optimizer.param_groups[0]["lr"] = 0.003
        outcome = state.sync(strategy(comm))
        assert state.step == 3 and state.revision == outcome.revision == 1
        assert optimizer.param_groups[0]["lr"] == 0.003
        digests.append(state.digest())
        for number in range(2):
            step(module, optimizer, number)
        return [*digests, state.digest()]

    first, second = world.run(run)
    assert first == second and first[0] != first[1]


def test_the_newer_of_two_checkpoints_wins_whoever_has_it(world: pccl.LocalWorld) -> None:
    """Goal: peers that start together from different files go on from the newer file. Method: rank
    1 has gone on alone before, as the last one of a run does."""

    def run(comm: pccl.Communicator) -> tuple[str, float, int]:
        module = model(comm.rank)
        optimizer = torch.optim.AdamW(module.parameters())
        for number in range(1 + comm.rank):
            step(module, optimizer, number)
        state = pccl_torch.ElasticState(
            module, optimizer, group=group_of(comm), revision=40 + comm.rank, step=40 + comm.rank
        )
        before = state.digest()
        state.sync()
        assert (state.digest() == before) == (comm.rank == 1)
        return state.digest(), state.step, state.revision

    first, second = world.run(run)
    assert first == second and first[1:] == (41, 42)
    with pytest.raises(pccl.InvalidArgument, match="revision must be between 0 and 2"):
        pccl_torch.ElasticState(model(), revision=1 << 62)


def test_members_that_have_made_no_step_agree_and_make_nothing(world: pccl.LocalWorld) -> None:
    def run(comm: pccl.Communicator) -> str:
        module = model(comm.rank)
        optimizer = torch.optim.AdamW(module.parameters())
        state = pccl_torch.ElasticState(module, optimizer, group=group_of(comm))
        state.sync()
        state.sync()
        assert not optimizer.state
        return state.digest()

    first, second = world.run(run)
    assert first == second


def test_counters_keep_their_types_and_values(world: pccl.LocalWorld) -> None:
    def run(comm: pccl.Communicator) -> tuple[float, float]:
        module = model()
        state = pccl_torch.ElasticState(module, group=group_of(comm), tokens=0, best=1.0)
        if comm.rank == 0:
            state.tokens, state.best = (1 << 62) + 1, 2
        state.sync(strategy(comm))
        assert isinstance(state.tokens, int) and isinstance(state.best, float)
        return state.tokens, state.best

    assert world.run(run) == [((1 << 62) + 1, 2.0)] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 20),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    ],
    ids=["step", "cosine", "lambda"],
)
def test_a_scheduler_goes_on_from_a_counter(
    world: pccl.LocalWorld, make: Callable[[Any], Any]
) -> None:
    """As the error says that refuses one."""

    def run(comm: pccl.Communicator) -> list[float]:
        module = model()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scheduler = make(optimizer)
        refused = r"no \w+LR: schedulers are not shared.*set scheduler\.last_epoch = state\.step"
        with pytest.raises(TypeError, match=f"takes a module and an optimizer, and {refused}"):
            pccl_torch.ElasticState(module, optimizer, scheduler)
        with pytest.raises(TypeError, match="'rate' must be an int or a float, not " + refused[3:]):
            pccl_torch.ElasticState(module, optimizer, rate=scheduler)
        state = pccl_torch.ElasticState(module, optimizer, group=group_of(comm), step=0)

        def train(steps: int) -> float:
            for number in range(steps):
                step(module, optimizer, number)
                scheduler.step()
                state.step += 1
            return float(optimizer.param_groups[0]["lr"])

        alone = train(3) if comm.rank == 0 else 0.1
        state.sync(strategy(comm))
        scheduler.last_epoch = state.step
        return [alone, train(1), train(3)]

    first, second = world.run(run)
    assert first[1:] == second[1:] and first[0] != second[0] and len(set(first)) >= 2


def test_a_scheduler_of_a_metric_names_what_to_share() -> None:
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scheduler: Any = lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(TypeError, match=r"optimizer, best=0\.0, num_bad_epochs=0\), and set those"):
        pccl_torch.ElasticState(module, optimizer, scheduler)
    with pytest.raises(TypeError, match="takes a module and an optimizer, and no dict$"):
        pccl_torch.ElasticState(module, optimizer, {})  # type: ignore[arg-type]


def test_buffers_and_tied_parameters_are_shared_once(world: pccl.LocalWorld) -> None:
    class Tied(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.one, self.norm = model(seed), nn.BatchNorm1d(2)
            self.two = self.one
            self.register_buffer("own", torch.full((2,), float(seed)), persistent=False)
            self.register_buffer("turned", torch.randn(3, 2).t())

    def run(comm: pccl.Communicator) -> tuple[str, list[float]]:
        tied = Tied(comm.rank)
        tied.norm(torch.randn(4, 2))
        state = pccl_torch.ElasticState(tied, group=group_of(comm))
        state.sync(strategy(comm))
        own: Any = tied.own
        return state.digest(), own.tolist()

    (first, of_first), (second, of_second) = world.run(run)
    assert first == second and (of_first, of_second) == ([0.0, 0.0], [1.0, 1.0])


def test_modules_and_optimizers_that_differ_are_a_mismatch_that_names_them(
    world: pccl.LocalWorld,
) -> None:
    def modules(comm: pccl.Communicator) -> None:
        state = pccl_torch.ElasticState(nn.Linear(4, 2 + comm.rank), group=group_of(comm))
        with pytest.raises(pccl.Mismatch, match="module.weight"):
            state.sync()

    def optimizers(comm: pccl.Communicator) -> None:
        module = model()
        parameters = list(module.parameters())
        optimizer = torch.optim.AdamW(parameters[: 4 - comm.rank])
        step(module, optimizer, 0)
        state = pccl_torch.ElasticState(module, optimizer, group=group_of(comm))
        with pytest.raises(pccl.Mismatch, match=f"{3 + comm.rank} parameters, and that of this"):
            state.sync()

    world.run(optimizers)
    world.run(modules)


def test_what_cannot_be_shared_is_refused_by_name() -> None:
    class Extra(nn.Module):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    module = model()
    with pytest.raises(TypeError, match="_extra_state"):
        pccl_torch.ElasticState(Extra()).digest()
    optimizer: Any = torch.optim.LBFGS(module.parameters())

    def loss() -> float:
        value = module(inputs_of(0)).square().sum()
        value.backward()
        return float(value.detach())

    optimizer.step(loss)
    with pytest.raises(TypeError, match=r"LBFGS keeps .* as list"):
        pccl_torch.ElasticState(module, optimizer).digest()
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        pccl_torch.ElasticState({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Optimizer or None"):
        pccl_torch.ElasticState(module, module)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="counter 'step' must be an int or a float, not str"):
        pccl_torch.ElasticState(module, step="3")  # type: ignore[arg-type]
    with pytest.raises(pccl.InvalidArgument, match="'sync'"):
        pccl_torch.ElasticState(module, sync=3)
    state = pccl_torch.ElasticState(module, step=0)
    with pytest.raises(TypeError, match="counter 'step' is an int"):
        state.step = 0.5
    with pytest.raises(AttributeError, match="no counter 'stepp'; .*: step"):
        state.stepp = 1
    with pytest.raises(AttributeError, match="no counter 'epoch'"):
        _ = state.epoch
    with pytest.raises(pccl.InvalidUsage, match="process group of pccl"):
        pccl_torch.ElasticState(module, group="gloo").sync()


def test_a_state_with_prefetch_is_the_only_one_until_it_is_closed(world: pccl.LocalWorld) -> None:
    def run(comm: pccl.Communicator) -> None:
        module = nn.Linear(2, 2)
        one, two = (
            pccl_torch.ElasticState(module, group=group_of(comm), prefetch=True) for _ in range(2)
        )
        one.sync()
        assert one.sync().leaves_moved == 0
        with pytest.raises(pccl.InvalidUsage, match="close it first"):
            two.sync()
        one.close()
        module.weight.data = torch.full((2, 2), float(comm.rank))  # elsewhere
        two.sync()
        assert len(set(module.weight.flatten().tolist())) == 1
        module.bias.data = torch.full((2,), float(comm.rank))
        two.sync()
        assert len(set(module.bias.tolist())) == 1
        two.close()

    world.run(run)


class Insists(torch.optim.SGD):
    """An optimizer whose step needs a loss."""

    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise ValueError("a closure is needed")
        return super().step(closure)


def test_the_state_that_an_optimizer_will_have_is_known_before_its_first_step() -> None:
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    kinds = (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.SGD)
    for kind in kinds:
        optimizer = kind(module.parameters(), lr=0.1)
        made = elastic.ElasticState(module, optimizer)
        before, kept = made.digest(), len(optimizer.state)
        told = [elastic._entry(*each) for each in entries_to_come(optimizer, made._parameters())]
        assert (made.digest(), len(optimizer.state)) == (before, kept)  # it has only looked
        if kind is torch.optim.AdamW:
            assert [(each.key, each.shape) for each in told] == [
                ("step", ()),
                ("exp_avg", (2, 3)),
                ("exp_avg_sq", (2, 3)),
            ]
        module.weight.grad = torch.ones(2, 3)
        optimizer.step()
        known = [elastic._entry(*each) for each in made._optimizer_state()]
        # Adagrad has its state from the beginning, so there is nothing to guess.
        assert told == ([] if kept else known)
    insists = Insists(module.parameters(), lr=0.1, momentum=0.9)
    assert list(entries_to_come(insists, list(module.parameters()))) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"\xff", "words unknown"),
        (b"[4, []]", "words unknown"),
        (b"[4, [], true]", "ElasticState is False, and of another's True"),
        (b"{}x", "words unknown"),
        (b"[4, [[0, 1]], false]", "words unknown"),
        (b"[" * 100_000, "words unknown"),
        (b"[5, [], false]", "has 5 parameters"),
        (b'[4, [[4, "a", "float32", []]], false]', "parameter 4"),
        (b'[4, [[-1, "a", "float32", []]], false]', "parameter -1"),
        (b'[4, [[0, "a", "float32", [1000, 1000, 1000]]], false]', "not possible"),
        (b'[4, [[0, "a", "float32", [-1]]], false]', "not possible"),
        (b'[4, [[0, "a", "float32", [0, 9999999999999999999]]], false]', "not possible"),
        (b'[4, [[0, "a", "object", [1]]], false]', "not possible"),
        (b'[4, [[0, "' + b"a" * 300 + b'", "float32", [1]]], false]', "not possible"),
    ],
)
def test_what_a_member_says_of_its_optimizer_is_checked(text: bytes, what: str) -> None:
    with pytest.raises(pccl.Mismatch, match=what):
        elastic._parse(text, parameters=4, most=1000, prefetch=False)


def test_what_members_say_of_their_optimizers_is_bounded_in_sum(three: pccl.LocalWorld) -> None:
    """Each entry is possible, and all of one member are; those of all together are not."""
    most = 1000

    def run(comm: pccl.Communicator) -> None:
        count = elastic._STATES_MAX if comm.rank else 0
        entries = [(0, f"{comm.rank} {n}", "float32", (most // 2,)) for n in range(count)]
        text = json.dumps([1, entries, False]).encode()
        assert len(elastic._parse(text, parameters=1, most=most, prefetch=False)) == count
        made = elastic._plans(group_of(comm), text, 1, most, None)
        assert len(made) == 2 * elastic._STATES_MAX  # as much as possible
        more = [*entries, (0, "more", "float32", ())]
        one_more = json.dumps([1, more, False]).encode()
        with pytest.raises(pccl.Mismatch, match=r"peer .* describes, .* has 8001 elements"):
            elastic._plans(group_of(comm), one_more, 1, most, None)

    three.run(run)


def test_a_dtensor_is_shared_if_each_member_has_all_of_it() -> None:
    def replicated(x: Tensor, placement: Any) -> nn.Parameter:
        made = DTensor.from_local(x, mesh, [placement], run_check=False)
        return nn.Parameter(made)

    module = nn.Linear(2, 2)
    before = pccl_torch.ElasticState(module).digest()
    mesh = DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    weight, bias = module.weight.detach(), module.bias.detach()
    module.weight, module.bias = replicated(weight, Replicate()), replicated(bias, Replicate())
    assert pccl_torch.ElasticState(module).digest() == before
    module.bias = replicated(bias, Shard(0))
    with pytest.raises(TypeError, match=r"'bias' is a DTensor of which .*Hsdp\.sync"):
        pccl_torch.ElasticState(module).digest()


def test_the_last_error_is_told_from_errors_of_the_program(world: pccl.LocalWorld) -> None:
    lost = torch_error(pccl.Aborted("all_reduce was aborted"), world.comms[0])
    assert pccl_torch.last_error() is lost is pccl_torch.last_error(lost)
    assert pccl_torch.last_error(RuntimeError("Aborted: all_reduce was aborted\nAt:")) is lost
    assert pccl_torch.last_error(RuntimeError("mat1 and mat2 cannot be multiplied")) is None


def test_a_loss_names_the_safe_point_of_pytorch() -> None:
    """Where pccl_py says "call admit": a program of torch.distributed has another one to call."""
    with pccl.LocalWorld(2) as world:
        comm, gone = world.comms
        group = group_of(comm)
        gone.close()
        with pytest.raises(pccl_torch.PeerLost) as caught:
            group.allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()
    assert ": call pccl_torch.admit(), as all members must, and then" in str(caught.value)
    of_subgroup = torch_error(pccl.InvalidUsage("call admit on this communicator"), None)
    assert str(of_subgroup) == "call admit on this communicator"
    passed = torch_error(pccl.DeadlineExceeded("was not passed; call admit again"), None)
    assert str(passed) == "was not passed; call pccl_torch.admit() again"


def test_a_store_of_one_process_is_like_any_other_but_that_it_waits_for_nobody() -> None:
    alone = LoneStore()
    store = dist.PrefixStore("p", alone)  # as PyTorch calls it, from C++
    store.set("a", "b")
    assert store.get("a") == b"b" and store.check(["a"]) and not store.check(["a", "c"])
    assert [store.add("n", 2), store.add("n", 3), store.get("n")] == [2, 5, b"5"]
    assert store.compare_set("a", "b", "c") == store.get("a") == b"c"
    assert store.num_keys() == 2 and store.delete_key("a")
    for call in (store.get, alone.get, lambda key: store.wait([key])):
        with pytest.raises(pccl.InvalidUsage, match="no key .*'p?/?a'.* need init_method"):
            call("a")


def test_errors_of_the_start_are_those_of_torch_distributed(
    monkeypatch: pytest.MonkeyPatch, coordinator: pccl.Coordinator
) -> None:
    monkeypatch.setenv("PCCL_TOKEN", coordinator.token)
    monkeypatch.setenv("PCCL_CONNECT_TIMEOUT", "0.5")
    coordinator.close()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.init_process_group("pccl", init_method="pccl://")
    assert isinstance(caught.value, pccl.CoordinatorUnreachable)
    with pytest.raises(dist.DistBackendError) as caught:
        dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1)
    assert isinstance(caught.value, pccl.CoordinatorUnreachable)
