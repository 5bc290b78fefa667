"""The entry point of `import torch`: "pccl" is a backend without `import pccl_torch`, at no cost.

The question is what a process imports, so programs have fresh interpreters, or are forked from one
that has only imported torch. How a run starts: frontends/pccl_torch/start.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 120.0
# All that `import torch` may pay for it. The best of several counts, as others may run, too.
IMPORT_SECONDS_MAX = 0.005
LOOP = "in pccl.steps("


def run(program: str, *folders: Path, **environment: str) -> str:
    """The output of a program in a fresh interpreter that has this tree on its path."""
    return run_of([sys.executable, "-c", program], *folders, **environment)


def run_of(command: list[str], *folders: Path, **environment: str) -> str:
    """The output of a command with this tree on the path of Python."""
    paths = [*folders, ROOT, ROOT / "frontends", ROOT / "compat"]
    try:
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as late:
        late.add_note(f"It said until then: {late.stdout!r}, {late.stderr!r}")
        raise
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def installed(folder: Path) -> Path:
    """A folder for the path in which a distribution says what pyproject.toml says."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / "pccl_entry-0.dist-info"
    info.mkdir()
    points = project["entry-points"]["torch.backends"]
    named = "".join(f"{name} = {what}\n" for name, what in points.items())
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{named}", "utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pccl-entry\nVersion: 0\n", "utf-8")
    return folder


def test_the_entry_point_imports_nothing_and_takes_less_than_five_milliseconds() -> None:
    program = """
import __future__, collections.abc, sys, time, typing  # PyTorch imports these itself
before = set(sys.modules)
best = 1e9
for _ in range(5):
    began = time.perf_counter()
    import pccl_torch_entry
    pccl_torch_entry.register()  # without PyTorch: nothing
    best = min(best, time.perf_counter() - began)
    more = sorted(set(sys.modules) - before)
    del sys.modules["pccl_torch_entry"]
print(best, *more)
"""
    best, *modules = run(program).split()
    assert modules == ["pccl_torch_entry"]
    assert float(best) < IMPORT_SECONDS_MAX


def test_import_torch_gains_less_than_five_milliseconds(tmp_path: Path) -> None:
    """PyTorch looks for entry points in any case: ours are one more distribution and its call."""
    program = """
import importlib.metadata, os, sys, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch, torch.distributed as dist
assert not dist.is_backend_available("pccl")

def seconds(call):
    began = time.process_time()
    call()
    return time.process_time() - began

def look():
    (ours,) = importlib.metadata.distributions(path=[os.environ["FOLDER"]])
    (point,) = ours.entry_points
    return [point]

looking = min(seconds(look) for _ in range(5))
found = look()
importlib.metadata.entry_points = lambda group: found
calling = seconds(torch._import_device_backends)
assert dist.is_backend_available("pccl") and "pccl_torch" not in sys.modules
print(looking + calling)
"""
    folder = installed(tmp_path)
    assert float(run(program, folder, FOLDER=str(folder))) < IMPORT_SECONDS_MAX


FIRST_LINES = {
    re.findall(r"dist\.init_process_group\(.*?\)", (ROOT / page).read_text("utf-8"))[0]
    for page in ("README.md", "docs/guides/TORCH.md", "docs/guides/MIGRATING.md")
}
# Run in a process that has imported torch, and nothing else.
PROGRAMS = {
    "group": """
import sys, torch
import torch.distributed as dist
assert dist.is_backend_available("pccl")
assert not [name for name in sys.modules if name.startswith(("pccl_py", "pccl_torch."))]
dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
import pccl_torch  # registers again, which does nothing
print(type(dist.group.WORLD).__name__, x.tolist())
dist.destroy_process_group()
""",
    "rendezvous": """
import os, torch.distributed as dist
of_torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
for name in ("PCCL_TOKEN", *of_torchrun):
    os.environ.pop(name, None)
for known in ({}, {"RANK": "0", "WORLD_SIZE": "1"}):
    os.environ.update(known)
    try:
        dist.init_process_group("pccl", init_method="pccl://")
    except RuntimeError as error:
        print(type(error).__name__, error)
os.environ.update(of_torchrun)
dist.init_process_group("pccl", init_method="pccl://")  # "env://" now
print(type(dist.group.WORLD).__name__, dist.get_world_size())
dist.destroy_process_group()
""",
    "another": """
import torch, torch.distributed as dist
dist.init_process_group("cpu:gloo,cuda:pccl", store=dist.HashStore(), rank=0, world_size=1)
group, x = dist.group.WORLD, torch.ones(3)
dist.all_reduce(x)
(held,) = group._beside._made.values()
print(type(group).__name__, held.name(), x.tolist())
ranks = dist.distributed_c10d._world.pg_group_ranks
ranks[group] = {0: 0, 1: 1}
try:
    dist.all_reduce(x)
except RuntimeError as error:
    print(error)
del ranks[group][1]
dist.destroy_process_group()

dist.init_process_group("cpu:pccl,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(x)
print(dist.group.WORLD._beside._made)
dist.destroy_process_group()
""",
    "first line": f"""
import os, pccl_py as pccl, pccl_torch
import torch.distributed as dist
os.environ.pop("MASTER_ADDR", None)
with pccl.Coordinator(initial_world_size=1) as coordinator:
    os.environ.update(PCCL_TOKEN=coordinator.token, RANK="0", WORLD_SIZE="1")
    for line in {sorted(FIRST_LINES)}:
        exec(line)
        print(type(dist.group.WORLD).__name__, dist.get_world_size())
        dist.destroy_process_group()
""",
}
FORKS = """
import json, os, sys, torch
told = {}
for name, program in json.loads(os.environ["PROGRAMS"]).items():
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writes, 1)
        os.dup2(writes, 2)
        try:
            exec(program, {})
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as said:
        text = said.read()
    told[name] = os.waitpid(pid, 0)[1], text
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The output of one of PROGRAMS."""
    folder = installed(tmp_path_factory.mktemp("entry"))
    told = json.loads(run(FORKS, folder, PROGRAMS=json.dumps(PROGRAMS)))

    def output(name: str) -> str:
        status, text = told[name]
        assert status == 0, text
        return str(text).strip()

    return output


def test_a_program_that_only_imports_torch_makes_a_group_of_pccl(
    said: Callable[[str], str],
) -> None:
    assert said("group") == "ProcessGroupPccl [1.0, 1.0, 1.0]"


def test_the_rendezvous_works_without_an_import_and_says_what_is_missing(
    said: Callable[[str], str],
) -> None:
    nothing, half, group = said("rendezvous").splitlines()
    assert nothing.startswith("InvalidArgument no token: set PCCL_TOKEN, as `pccl run")
    assert "`torchrun --nproc-per-node 1 PROGRAM`" in nothing
    assert nothing.endswith("(not set here: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)")
    assert half.endswith("(not set here: MASTER_ADDR, MASTER_PORT)")
    assert group == "ProcessGroupPccl 1"


def test_the_first_line_of_the_documents_starts_under_pccl_run(
    said: Callable[[str], str],
) -> None:
    """Where `pccl run` has joined a run, PyTorch's own rendezvous raises for MASTER_ADDR, before
    any code of PCCL runs."""
    assert said("first line").splitlines() == ["ProcessGroupPccl 1"] * len(FIRST_LINES)


def test_another_backend_beside_pccl_gets_the_tensors_of_its_device(
    said: Callable[[str], str],
) -> None:
    """PyTorch drops the other backend of a group, so ours must hold one, until members change."""
    first, refused, second = said("another").splitlines()
    assert first == "ProcessGroupPccl gloo [1.0, 1.0, 1.0]"
    assert refused.startswith("the members of the group have changed, and those of its gloo cannot")
    assert second == "{}"


# ---- under pccl run ------------------------------------------------------------------------------


IN_TURN = """
import functools, json, os
for name, program in json.loads(os.environ["PROGRAMS"]).items():
    say = functools.partial(print, name, flush=True)
    exec(compile(program, name, "exec"), {"print": say})
"""


def run_in_turn(count: int, programs: dict[str, str]) -> Callable[[str], list[str]]:
    """The lines that each of these programs prints, one after the other in `count` processes.

    A line begins with the name of its program, and a traceback says it as the name of its file.
    """
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", str(count), "--"]
    done = run_of([*command, sys.executable, "-c", IN_TURN], PROGRAMS=json.dumps(programs))

    def lines(name: str) -> list[str]:
        said = (line.split(maxsplit=2) for line in done.splitlines())
        return sorted(f"{number} {rest}" for number, who, rest in said if who == name)

    return lines


def _block_of(word: str) -> str:
    """The block of docs/guides/TORCH.md that has this word."""
    page = (ROOT / "docs/guides/TORCH.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = (each for each in blocks if word in each)
    return str(block)


@pytest.fixture(scope="module")
def of_three() -> Callable[[str], list[str]]:
    """Survivors come last, whose block of the document says another PCCL_INITIAL_WORLD_SIZE."""
    group = """
import os, torch, torch.distributed as dist, pccl_py as pccl
for named in ({}, {"init_method": "pccl://"}):
    dist.init_process_group("pccl", **named)
    tensor = torch.tensor([10 ** dist.get_rank()])
    dist.all_reduce(tensor)
    (group,) = pccl.run_status(os.environ["PCCL_TOKEN"])["groups"]
    members = len(group["epochs"][0]["members"])
    print(dist.get_rank() == int(os.environ["RANK"]), tensor.item(), members)
    dist.barrier()
    dist.destroy_process_group()
"""
    survivors = f"""
import os, signal, torch, torch.distributed as dist
dist.init_process_group("pccl", init_method="pccl://")
dist.barrier()
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.barrier()
except dist.DistBackendError as error:
    print(type(error).__name__)
{_block_of("PCCL_INITIAL_WORLD_SIZE")}
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(dist.get_rank(), dist.get_world_size(), tensor.item())
dist.destroy_process_group()
"""
    return run_in_turn(3, {"group": group, "survivors": survivors})


def test_a_group_under_pccl_run_has_its_ranks_also_without_a_rendezvous(
    of_three: Callable[[str], list[str]],
) -> None:
    """RANK is the rank in a new run, by "env://" and by "pccl://", and the run is that of the
    token. The groups are made one after the other."""
    assert of_three("group") == [f"[{n}] True 111 3" for n in (0, 0, 1, 1, 2, 2)]


def test_survivors_make_their_group_anew_as_the_document_has_it(
    of_three: Callable[[str], list[str]],
) -> None:
    lines = ["[0] 0 2 2.0", "[0] PeerLost", "[2] 1 2 2.0", "[2] PeerLost"]
    assert of_three("survivors") == lines


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    checkpoint = f"""
import os, torch, torch.distributed as dist
dist.init_process_group("pccl", init_method="pccl://")
rank = dist.get_rank()
model = torch.nn.Linear(2, 1)
with torch.no_grad():
    for each in model.parameters():
        each.fill_(5.0)
folder = {str(tmp_path_factory.mktemp("checkpoint") / "saved")!r}
def step():
    for index in range(300):
        tensor = torch.full((1,), float(rank + index))
        dist.all_reduce(tensor)
        assert tensor.item() == 2 * index + 1
{_block_of("dcp.async_save")}
state = {{"model": {{name: torch.zeros_like(x) for name, x in model.state_dict().items()}}}}
dcp.load(state, checkpoint_id=folder)
print(*(x.unique().item() for x in state["model"].values()))
dist.destroy_process_group()
"""
    loop = f"""
import os, torch
rank = int(os.environ["RANK"])
torch.manual_seed(rank)
model = torch.nn.Linear(3, 1)
x = torch.randn(64, 3)
def loss_of(model):
    return (model(x) - x @ torch.tensor([[1.0], [2.0], [3.0]])).square().mean()
{_block_of(LOOP)}
print(int(steps_done), float(loss_of(model)) < 1e-4, model.weight.tolist(), model.bias.tolist())
"""
    return run_in_turn(2, {"loop": loop, "checkpoint": checkpoint})


def test_a_checkpoint_is_saved_beside_the_training_as_the_document_has_it(
    of_two: Callable[[str], list[str]],
) -> None:
    assert of_two("checkpoint") == ["[0] 5.0 5.0", "[1] 5.0 5.0"]


def test_the_loop_of_pccl_py_trains_a_model_as_the_document_has_it(
    of_two: Callable[[str], list[str]],
) -> None:
    """Two processes with data of their own, of which one begins with other parameters."""
    first, second = of_two("loop")
    assert first.startswith("[0] 100 True [[") and first[3:] == second[3:]
