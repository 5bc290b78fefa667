"""PyTorch's own tests of backends, on three ranks of ours: own_checks.py runs them.

RUNS is what passes of `torch.testing._internal.distributed.distributed_test` on three ranks.
test_torch_suite.py runs all of it, on four, beside gloo.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from world import World

# On one worker, with one world of processes.
pytestmark = pytest.mark.xdist_group("torch")

RUNS = (
    "Backend_enum_class",
    "DistributedDataParallelCPU",
    "DistributedDataParallelCPU_grad_is_view",
    "DistributedDataParallel_requires_grad",
    "accumulate_gradients_no_sync",
    "accumulate_gradients_no_sync_allreduce_hook",
    "accumulate_gradients_no_sync_allreduce_with_then_hook",
    "accumulate_gradients_no_sync_grad_is_view",
    "all_gather",
    "all_gather_coalesced_complex",
    "all_gather_coalesced_full_group",
    "all_gather_coalesced_group",
    "all_gather_coalesced_simple",
    "all_gather_coalesced_with_empty",
    "all_gather_complex",
    "all_gather_full_group",
    "all_gather_group",
    "all_gather_object_default_pg",
    "all_gather_object_subgroup",
    "all_reduce_coalesced_full_group_max",
    "all_reduce_coalesced_full_group_min",
    "all_reduce_coalesced_full_group_product",
    "all_reduce_coalesced_full_group_sum",
    "all_reduce_coalesced_group_max",
    "all_reduce_coalesced_group_min",
    "all_reduce_coalesced_group_product",
    "all_reduce_coalesced_group_sum",
    "all_reduce_coalesced_max",
    "all_reduce_coalesced_max_complex_unsupported",
    "all_reduce_coalesced_min",
    "all_reduce_coalesced_product",
    "all_reduce_coalesced_sum",
    "all_reduce_complex_unsupported_ops",
    "all_reduce_full_group_max",
    "all_reduce_full_group_min",
    "all_reduce_full_group_product",
    "all_reduce_full_group_sum",
    "all_reduce_group_max",
    "all_reduce_group_min",
    "all_reduce_group_product",
    "all_reduce_group_sum",
    "all_reduce_max",
    "all_reduce_min",
    "all_reduce_product",
    "all_reduce_sum",
    "all_reduce_sum_async",
    "all_reduce_sum_complex",
    "all_to_all",
    "all_to_all_complex",
    "all_to_all_full_group",
    "all_to_all_group",
    "all_to_all_single_equal_split",
    "all_to_all_single_equal_split_complex",
    "all_to_all_single_equal_split_full_group",
    "all_to_all_single_equal_split_group",
    "all_to_all_single_unequal_split",
    "all_to_all_single_unequal_split_complex",
    "all_to_all_single_unequal_split_full_group",
    "all_to_all_single_unequal_split_group",
    "barrier",
    "barrier_full_group",
    "barrier_group",
    "batch_isend_irecv_gloo",
    "batch_isend_irecv_gloo_tags",
    "broadcast",
    "broadcast_full_group",
    "broadcast_group",
    "ddp_create_graph",
    "ddp_logging_data_cpu",
    "destroy_full_group",
    "destroy_group",
    "dump_DDP_relevant_env_vars",
    "gather",
    "gather_checks",
    "gather_full_group",
    "gather_group",
    "get_future",
    "get_rank",
    "get_rank_size_full_group",
    "get_rank_size_group",
    "grads_same_across_ranks_with_no_sync",
    "irecv",
    "isend",
    "isend_autograd_profiler",
    "isend_torch_profiler",
    "reduce_full_group_max",
    "reduce_full_group_min",
    "reduce_full_group_product",
    "reduce_full_group_sum",
    "reduce_group_max",
    "reduce_group_min",
    "reduce_group_product",
    "reduce_group_sum",
    "reduce_max",
    "reduce_min",
    "reduce_product",
    "reduce_sum",
    "reduce_sum_twice",
    "scatter",
    "scatter_checks",
    "scatter_complex",
    "scatter_full_group",
    "scatter_group",
    "scatter_object_list",
    "send_recv",
    "send_recv_autograd_profiler",
    "send_recv_torch_profiler",
    "send_recv_with_tag",
    "send_recv_with_tag_autograd_profiler",
    "send_recv_with_tag_torch_profiler",
    "static_graph_api_cpu",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the tests of PyTorch have their files."""
    made: Path = tmp_path_factory.mktemp("own")
    for name in ("barrier", "test_dir", "init_dir"):
        (made / name).mkdir()
    return str(made)


@pytest.mark.parametrize("name", RUNS)
def test_of_pytorch(ranks: World, folder: str, name: str) -> None:
    skipped = ranks.run("own_checks:run", name=f"test_{name}", folder=folder)
    assert skipped == [""] * ranks.size


def test_a_rank_that_skips_a_test_waits_until_all_are_in_the_group(
    ranks: World, folder: str
) -> None:
    skipped = ranks.run("own_checks:skip_on_rank_0", name="test_ddp_inference", folder=folder)
    assert "CUDA" in skipped[0]
