"""No token and no run id in anything that a run prints: what goes well, and what fails.

Where a token may come from, and that arguments and environment have it nowhere else, is
tests/python/test_cli_secrets.py. A test reads all that a core file would hold of a process.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pccl_py as pccl

RUN_ID = bytes.fromhex("c3a95e17b2d840f6819de47035acfb2e")

# Everything that Python shows of what knows the token, and every error that one gets with it.
PROGRAM = """
import logging, os, sys, traceback
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
import numpy as np
import pccl_py as pccl

run_id = bytes.fromhex(sys.stdin.readline().strip())
state = sys.argv[1]

def shown(*things):
    for thing in things:
        print(repr(thing), str(thing), vars(thing) if hasattr(thing, "__dict__") else "")

def failing(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except pccl.PcclError as error:
        traceback.print_exc()
        shown(error, error.args)
    else:
        raise AssertionError("it should have failed")

with pccl.Coordinator(run_id=run_id, state=state) as coordinator:
    token = coordinator.token
    other = pccl.token_create("127.0.0.1:" + str(coordinator.port), bytes(16))
    with pccl.connect(token, bind="127.0.0.1:0") as comm:
        comm.admit()
        work = comm.all_reduce(np.ones(9), async_op=True)
        outcome = work.wait()
        shown(coordinator, comm, work, outcome, comm.info(), pccl.token_parse(token))
        shown(pccl.run_status(token))
        failing(pccl.connect, token, bind="127.0.0.1:0", peer_id=comm.peer_id)
        failing(pccl.connect, token, bind="nowhere.invalid:0")
        failing(pccl.connect, token, group="a\\nb")
    failing(pccl.connect, other, bind="127.0.0.1:0", connect_timeout=1)
    failing(pccl.run_status, other, timeout=1)
    failing(pccl.connect, token[:-1] + "!", bind="127.0.0.1:0")
    failing(pccl.token_parse, token[:-2])
    failing(pccl.token_parse, token + token)
    failing(pccl.Coordinator, run_id=run_id, state=state)
    failing(pccl.token_create, "no address", run_id)
failing(pccl.Coordinator, run_id=bytes(16), state=state)
failing(pccl.connect, token, bind="127.0.0.1:0", connect_timeout=0.2)
failing(pccl.run_status, token, timeout=0.2)
os.unlink(state + "/lock")
os.chmod(state, 0o755)
failing(pccl.Coordinator, run_id=run_id, state=state)
"""


def assert_tells_nothing(said: str, run_id: bytes, token: str | None = None) -> None:
    """Neither as people write it, nor as bytes are shown, nor encoded as in a token."""
    forms = {
        "its hexadecimal digits": run_id.hex(),
        "its bytes": repr(run_id)[2:-1],
        "a number": str(int.from_bytes(run_id)),
        "its bytes as numbers": ", ".join(str(byte) for byte in run_id),
        "base 64": base64.urlsafe_b64encode(run_id).decode()[:20],
        "base 32": base64.b32encode(run_id).decode().lower()[:20],
    }
    if token is not None:
        forms["the token"] = token[len("pccl1-") :][:24]
    for form, text in forms.items():
        assert text.lower() not in said.lower(), f"the run id is there as {form}: {said}"


def test_what_a_program_shows_and_every_error_has_no_token(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "state")],
        input=RUN_ID.hex() + "\n", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Traceback") == 14
    assert_tells_nothing(done.stdout + done.stderr, RUN_ID)
    # The beginning of it is there, by which people tell runs apart.
    assert RUN_ID.hex()[:8] in done.stdout


def test_what_the_commands_say_has_no_token_but_where_it_is_asked_for(
    start: Any, tmp_path: Path
) -> None:
    run_file = tmp_path / "run"
    run_file.write_text(RUN_ID.hex())
    run_file.chmod(0o600)
    token_file = tmp_path / "token"
    options = ("--verbose", "--run-id-file", str(run_file), "--state", str(tmp_path / "state"))
    program = start("coordinator", *options, "--token-file", str(token_file), module="pccl_py.cli")
    token = program.line()
    with pccl.connect(token, bind="127.0.0.1:0") as comm:
        comm.admit()
        comm.barrier()
        said = ""
        for arguments in (
            ("status", "--token-file", str(token_file)),
            ("status", "--json", "--token-file", str(token_file)),
            ("status", "--token-file", str(run_file)),
            ("coordinator", *options),
            ("coordinator", "--bind", "127.0.0.1:1", *options[1:]),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "pccl_py.cli", *arguments],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            said += done.stdout + done.stderr
            if "--json" in arguments:
                assert json.loads(done.stdout)["run"] == RUN_ID.hex()[:8]
    program.interrupt()
    assert program.end() == 0
    assert "peer" in program.errors  # --verbose says what happens
    assert_tells_nothing(said + program.errors + program.rest(), RUN_ID, token)


def test_the_processes_of_a_run_find_the_run_id_in_the_token_alone(start: Any) -> None:
    """All that a process of `pccl run` is given, looked at as another one of its user would."""
    source = (
        "import os, pathlib, pccl_py\n"
        "token = os.environ.pop('PCCL_TOKEN')\n"
        "run_id = pccl_py.token_parse(token).run_id\n"
        "given = pathlib.Path(f'/proc/self/environ').read_bytes().split(b'\\0')\n"
        "given = [one for one in given if not one.startswith(b'PCCL_TOKEN=')]\n"
        "given.append(pathlib.Path('/proc/self/cmdline').read_bytes())\n"
        "for secret in (token.encode(), run_id, run_id.hex().encode()):\n"
        "    print(any(secret in one for one in given))\n"
    )
    program = start("run", "-n", "1", "--", sys.executable, "-c", source, module="pccl_py.cli")
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] False\n[0] False\n[0] False\n"


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="looks the way of Linux")
def test_the_pages_of_a_coordinator_with_its_secrets_are_in_no_core_file(tmp_path: Path) -> None:
    """The pointer that the C interface gives is to the token itself."""
    cffi = pytest.importorskip("cffi")
    library = next(Path(pccl.__file__).parent.glob("libpccl.so"))
    ffi = cffi.FFI()
    ffi.cdef(
        "int pccl_coordinator_create(const void *, void **);"
        "const char *pccl_coordinator_token(const void *);"
        "void pccl_coordinator_destroy(void *);"
    )
    pccl_c = ffi.dlopen(str(library))
    made = ffi.new("void **")
    assert pccl_c.pccl_coordinator_create(ffi.NULL, made) == 0
    try:
        token = pccl_c.pccl_coordinator_token(made[0])
        assert ffi.string(token).startswith(b"pccl1-")
        assert "dd" in flags_of_mapping(int(ffi.cast("uintptr_t", token)))
    finally:
        pccl_c.pccl_coordinator_destroy(made[0])


def flags_of_mapping(address: int) -> list[str]:
    """As /proc/self/smaps tells them."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if head == "VmFlags:":
            if found:
                return line.split()[1:]
        elif "-" in head:
            begin, end = (int(part, 16) for part in head.split("-"))
            found = begin <= address < end
    raise AssertionError(f"nothing is mapped at {address:#x}")


MEMBER = """
import sys
import numpy as np
import pccl_py as pccl
token = sys.stdin.readline().strip()
pccl.run_status(token)
with pccl.connect(token, bind="127.0.0.1:0", initial_world_size=2) as comm:
    comm.admit()
    comm.all_reduce(np.ones(9))
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="looks the way of Linux")
def test_no_stack_has_the_run_id_or_the_token_and_no_memory_has_the_bytes_of_the_run_id(
    start: Any,
) -> None:
    """A coordinator and two peers that have talked to each other. Python keeps the token, which is
    a string of its own, on its heap."""
    # Our libraries are bound when they are loaded. The interpreter is not, and while its linker
    # binds, it saves registers on the stack, also those in which Python has a part of the token.
    at_once = {"LD_BIND_NOW": "1"}
    program = start("coordinator", "--run-id-file", "-", module="pccl_py.cli", **at_once)
    program.say(RUN_ID.hex())
    token = program.line()
    members = [start(MEMBER, **at_once) for _ in range(2)]
    for member in members:
        member.say(token)
    for member in members:
        assert member.line() == "done"
    for process in (program, *members):
        for stack in stacks(process.process.pid):
            assert stack.strip(b"\0"), "the stack was not read"
            for secret in (RUN_ID, RUN_ID.hex().encode(), token[6:30].encode()):
                assert secret not in stack
        assert RUN_ID not in dumped(process.process.pid)
    for member in members:
        member.say("")
        assert member.end() == 0, member.errors


def stacks(pid: int) -> list[bytes]:
    """The stacks of all threads: the bytes below the stack pointer, where calls that have returned
    left theirs, and 16 KiB above it. The mapping may go on above a stack."""
    pointers = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        while (words := (task / "syscall").read_text().split()) == ["running"]:
            pass
        pointers.append(int(words[-2], 16))
    found = [
        (begin, min(end, pointer + 16384))
        for begin, end in mappings(pid)
        for pointer in pointers
        if begin <= pointer < end
    ]
    assert len(found) == len(pointers)
    return read(pid, found)


def dumped(pid: int) -> bytes:
    """All memory that a core file of the process has."""
    return b"\0".join(read(pid, mappings(pid)))


def mappings(pid: int) -> list[tuple[int, int]]:
    """First and end of each that a core file has."""
    kept: list[tuple[int, int]] = []
    begin, end, rights, named = 0, 0, "", ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "VmFlags:":
            leaves_out = {"dd", "io"} & set(words[1:]) or named in ("[vvar]", "[vsyscall]")
            if "r" in rights and not leaves_out:
                kept.append((begin, end))
        elif not words[0].endswith(":"):
            begin, end = (int(part, 16) for part in words[0].split("-"))
            rights, named = words[1], words[5] if len(words) > 5 else ""
    return kept


def read(pid: int, ranges: list[tuple[int, int]]) -> list[bytes]:
    parts = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for begin, end in ranges:
            memory.seek(begin)
            part = b""
            while len(part) < end - begin and (more := memory.read(end - begin - len(part))):
                part += more
            parts.append(part)
    return parts
