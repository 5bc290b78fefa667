"""The backend of torch.distributed: values, works, groups, ends, and what PyTorch builds on it.

Each test is a check on three ranks (world.py): backend_checks.py, wrapper_checks.py,
random_checks.py say what each does.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pccl_torch.work  # noqa: F401  with what it puts in the place of one
import pytest
from torch._C import _distributed_c10d
from world import World

# On one worker, with one world of processes.
pytestmark = pytest.mark.xdist_group("torch")

KINDS = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "all_gather",
    "gather_and_scatter",
    "all_to_all",
    "messages",
)
CHECKS = (
    "values_that_gloo_lacks",
    "uneven_sizes",
    "empty_tensors",
    "scalars",
    "results_beside_inputs",
    "gradients_and_parameters",
    "objects",
    "functional_collectives",
    "differentiable_collectives",
    "works",
    "coalesced_and_batched",
    "many_messages",
    "receives_before_sends",
    "done_means_filled",
    "planned_sums",
    "refusals",
    "profiled",
    "groups_of_some_ranks",
    "options_of_a_group",
    "wrong_options",
    "timeouts",
    "deadlines_of_groups",
    "a_call_that_takes_long",
    "first_calls_that_time_out",
    "sixty_four_groups",
    "nine_groups_at_once",
    "ten_thousand_works",
    "workers_that_are_forked",
    "names",
    "other_shapes",
    "aborted_twice",
    "destroyed_with_works_in_flight",
    "begins_again_with_the_same_store",
)
WRAPPERS = (
    "ddp",
    "ddp_hooks",
    "ddp_with_power_sgd",
    "ddp_with_uneven_inputs",
    "dropped_works",
    "failed_futures",
    "waiting_callbacks",
    "device_meshes",
    "fsdp",
    "compiled",
    "ddp_whose_peer_leaves",
)
KEPT = (
    "joined_ddp",
    "hooks_of_cpp",
    "functional_works",
    "coalesced_works",
    "distributed_tensors",
    "pipeline",
    "saved_in_the_background",
    "states_of_rank_0",
)
STEPS = 200


@pytest.mark.parametrize("kind", KINDS)
def test_values_equal_those_of_gloo(ranks: World, kind: str) -> None:
    ranks.run("backend_checks:values", kind=kind)


@pytest.mark.parametrize("name", CHECKS)
def test_backend(ranks: World, name: str) -> None:
    ranks.run(f"backend_checks:{name}")


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_pytorch_builds_on_it(ranks: World, name: str) -> None:
    ranks.run(f"wrapper_checks:{name}")


@pytest.mark.parametrize("name", KEPT)
def test_works_that_pytorch_keeps(ranks: World, name: str) -> None:
    ranks.run(f"kept_checks:{name}")


def test_no_other_function_of_pytorch_takes_a_work() -> None:
    """A Reducer gets one that keeps its half in Python (work.py); the other function keeps it."""
    takes = re.compile(r"(\w+)\((?:self: [\w.]*\.(\w+), )?.*\b(?:c10d::|_c10d\.)Work\b.*\) ->")
    found = set()
    for name in dir(_distributed_c10d):
        member: Any = getattr(_distributed_c10d, name)
        members = [member, *(getattr(member, each) for each in dir(member))]
        for line in "\n".join(str(each.__doc__) for each in members).splitlines():
            match = takes.match(line)
            if match is not None and match[2] != "Work":
                found.add((match[2], match[1]))
    found.discard(("ProcessGroupNCCL", "_verify_work_timeout"))  # of builds for CUDA, for its own
    assert found == {("Reducer", "_set_forward_pass_work_handle"), (None, "_register_work")}


def test_random_steps_on_three_groups_equal_a_model(ranks: World) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    ranks.run("random_checks:steps", seed=seed, count=STEPS)
