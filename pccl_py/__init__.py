"""PCCL for Python: reduce arrays among peers that come and go, over the public internet.

    import pccl_py as pccl

    with pccl.connect(token, group="train") as comm:
        for step in range(steps):
            comm.admit()                               # newcomers enter here
            outcome = comm.all_reduce(gradients, op="avg")   # in place; every peer gets equal bytes

This file only lists what is public. Membership is in communicator.py, the collectives are in
collectives.py with their options in call.py, operations in flight in work.py, codecs in codec.py,
shared state in shared_state.py, the loop of a program that goes on after failures in elastic.py,
what counts as an array in buffers.py, errors in errors.py, where a C compiler finds the library in
paths.py, the command line in cli/. No array library is imported here, nor typer, nor rich.
"""

from __future__ import annotations

try:
    from pccl_py import _pccl
except ImportError:
    from pathlib import Path

    from pccl_py import _unbuilt

    why = _unbuilt.reason(Path(__file__).parent)
    if why is None:
        raise
    raise ImportError(why) from None
from pccl_py._lifecycle import exit_on_sigterm
from pccl_py.buffers import Array, Buffer
from pccl_py.codec import Codec, CodecKind, CodecName, ErrorFeedback, Rounding, RoundingName
from pccl_py.communicator import Communicator, Group, GroupInfo, GroupPlan, Run, connect
from pccl_py.coordinator import Coordinator, Token, run_status, token_create, token_parse
from pccl_py.elastic import Step, steps
from pccl_py.errors import (
    Aborted,
    AuthenticationFailed,
    Cancelled,
    CoordinatorUnreachable,
    DeadlineExceeded,
    Expelled,
    InDoubt,
    InvalidArgument,
    InvalidUsage,
    Mismatch,
    OutOfMemory,
    PcclError,
    StateUnavailable,
    SystemRefused,
    TooFewPeers,
    VersionMismatch,
)
from pccl_py.local_world import LocalWorld
from pccl_py.outcome import Admission, Outcome, Range, Roster, SyncOutcome
from pccl_py.paths import include_dir, library_dir
from pccl_py.shared_state import SharedState
from pccl_py.words import (
    Congestion,
    CongestionName,
    DType,
    OpName,
    PeerId,
    Plan,
    PlanName,
    Plans,
    PlansName,
    Probe,
    ProbeName,
    Recovery,
    RecoveryName,
    ReduceOp,
    StateRule,
    StateRuleName,
    Strategy,
    StrategyName,
)
from pccl_py.work import Work

__version__: str = _pccl.version_string()

__all__ = [
    "Aborted",
    "Admission",
    "Array",
    "AuthenticationFailed",
    "Buffer",
    "Cancelled",
    "Codec",
    "CodecKind",
    "CodecName",
    "Communicator",
    "Congestion",
    "CongestionName",
    "Coordinator",
    "CoordinatorUnreachable",
    "DType",
    "DeadlineExceeded",
    "ErrorFeedback",
    "Expelled",
    "Group",
    "GroupInfo",
    "GroupPlan",
    "InDoubt",
    "InvalidArgument",
    "InvalidUsage",
    "LocalWorld",
    "Mismatch",
    "OpName",
    "OutOfMemory",
    "Outcome",
    "PcclError",
    "PeerId",
    "Plan",
    "PlanName",
    "Plans",
    "PlansName",
    "Probe",
    "ProbeName",
    "Range",
    "Recovery",
    "RecoveryName",
    "ReduceOp",
    "Roster",
    "Rounding",
    "RoundingName",
    "Run",
    "SharedState",
    "StateRule",
    "StateRuleName",
    "StateUnavailable",
    "Step",
    "Strategy",
    "StrategyName",
    "SyncOutcome",
    "SystemRefused",
    "Token",
    "TooFewPeers",
    "VersionMismatch",
    "Work",
    "__version__",
    "connect",
    "cpu_level",
    "exit_on_sigterm",
    "include_dir",
    "library_dir",
    "run_status",
    "steps",
    "token_create",
    "token_parse",
    "wire_version",
]

cpu_level = _pccl.cpu_level
wire_version = _pccl.wire_version
