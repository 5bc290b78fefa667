"""Programs in C for PCCL 1.0, compiled against compat/include/pccl.h and run as processes.

The example is built with the command of its head, and goes on after a kill and a join. A master's
program is interrupted in its signal handler. The compiler is that of the ziglang package. The
behaviour of each function: test_compat_c.py.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from header import COMPAT, ROOT, compile_with, flags

import pccl_py
from harness.child import held_port

CLI = [sys.executable, "-m", "pccl_py.cli"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'frontends'}",
    "PCCL_BIND": "127.0.0.1:0",
    "PCCL_DEADLINE": "30",
}
STRICT = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror"]
SECONDS_MAX = 90

MASTER = """
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <pccl.h>

static pcclMasterInstance_t *master;

static void handle(int number) {
  (void)number;
  if (pcclInterruptMaster(master) != pcclSuccess) abort();
}

static void check(pcclResult_t result, pcclResult_t expected) {
  if (result == expected) return;
  fprintf(stderr, "%d: %s\\n", (int)result, pccl_last_error());
  exit(1);
}

int main(int argc, char **argv) {
  ccoip_socket_address_t address = {0};
  if (argc != 3) return 2;
  address.port = (uint16_t)atoi(argv[1]);
  if (atoi(argv[2]) == 6) {
    address.inet.protocol = inetIPv6;
    address.inet.ipv6.data[15] = 1;
  }
  check(pcclCreateMaster(address, NULL), pcclInvalidArgument);
  check(pcclCreateMaster(address, &master), pcclSuccess);
  check(pcclInterruptMaster(master), pcclInvalidUsage);
  check(pcclMasterAwaitTermination(master), pcclInvalidUsage);
  setenv("PCCL_COORDINATOR_RUN_ID", "secret", 1);
  check(pcclRunMaster(master), pcclInvalidArgument);
  unsetenv("PCCL_COORDINATOR_RUN_ID");
  setenv("PCCL_COORDINATOR_SILENCE", "0.1", 1); /* less than three heartbeats */
  check(pcclRunMaster(master), pcclInvalidArgument);
  unsetenv("PCCL_COORDINATOR_SILENCE");
  check(pcclRunMaster(master), pcclSuccess);
  check(pcclRunMaster(master), pcclInvalidUsage);
  signal(SIGINT, handle);

  pcclMasterInstance_t *second;
  check(pcclCreateMaster(address, &second), pcclSuccess);
  check(pcclRunMaster(second), pcclInternalError);
  check(pcclDestroyMaster(second), pcclSuccess);

  pcclCommCreateParams_t params = {address, 0, 1};
  pcclComm_t *peer;
  check(pcclCreateCommunicator(&params, &peer), pcclNotInitialized);
  check(pcclConnect(NULL), pcclNotInitialized);
  check(pcclInit(), pcclSuccess);
  check(pcclCreateCommunicator(&params, &peer), pcclSuccess);
  check(pcclConnect(peer), pcclSuccess);
  puts("connected");
  fflush(stdout);
  check(pcclMasterAwaitTermination(master), pcclSuccess);
  check(pcclUpdateTopology(peer), pcclMasterConnectionFailed);
  check(pcclDestroyCommunicator(peer), pcclSuccess);
  check(pcclDestroyMaster(master), pcclSuccess);
  puts("over");
}
"""


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"),
    [
        ("cc", "c99", "c"),
        ("cc", "c11", "c"),
        ("cc", "c23", "c"),
        ("c++", "c++17", "cpp"),
        ("c++", "c++20", "cpp"),
    ],
)
def test_the_header_stands_alone_in_every_language(
    tmp_path: Path, compiler: str, standard: str, suffix: str
) -> None:
    """Also with the address as the reference's programs write it, in those that can."""
    lines = [f"#include <{name}.h>" for name in ("pccl", "ccoip_inet", "ccoip", "pccl")]
    lines += ["pcclReduceInfo_t info; pcclTensorInfo_t tensor; pcclAsyncReduceOp_t handle;"]
    if standard != "c++17":
        lines += [
            "static const ccoip_socket_address_t address = {",
            "  .inet = {.protocol = inetIPv4, .ipv4 = {{127, 0, 0, 1}}},",
            "  .port = CCOIP_PROTOCOL_PORT_MASTER};",
            "static const pcclCommCreateParams_t params = {",
            "  .master_address = {.inet = {.protocol = inetIPv6, .ipv6 = {.data = {1}}}},",
            "  .peer_group = 0};",
            "int port(void);",
            "int port(void) { return address.port + params.master_address.inet.ipv6.data[0]; }",
        ]
    source = tmp_path / f"alone.{suffix}"
    source.write_text("\n".join(lines) + "\n")
    # As designators name them, other fields are zero.
    strict = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-pedantic-errors", "-Werror"]
    strict.append(f"-I{COMPAT.parent}")
    compile_with(
        compiler, f"-std={standard}", *strict, "-c", str(source), "-o", str(tmp_path / "o")
    )


def test_the_flags_name_the_header_of_pccl_1(tmp_path: Path) -> None:
    include, *_ = flags("--compat").split()
    folder = Path(include.removeprefix("-I"))
    assert (folder / "pccl.h").read_text() == COMPAT.read_text()
    assert (folder / "ccoip_inet.h").exists() and (folder / "ccoip.h").exists()


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = ROOT / "examples" / "compat" / "hello.c"
    assert "cc examples/compat/hello.c $(pccl flags --compat) -o hello\n" in source.read_text()
    made = tmp_path_factory.mktemp("hello") / "hello"
    compile_with("cc", *STRICT, str(source), *flags("--compat").split(), "-o", str(made))
    return made


def run(*arguments: str) -> str:
    """The output of three processes of a run, one of which may be started again."""
    command = [*CLI, "run", "-n", "3", "--restarts", "1", "--", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_ends_with_the_same_weights_everywhere(hello: Path) -> None:
    output = run(str(hello), "100")
    results = re.findall(r"end at revision (\d+), weights (\d+)", output)
    expected = 100 * sum(element % 7 for element in range(1024))
    assert results == [("100", str(expected))] * 3


def test_the_example_goes_on_after_a_kill_and_lets_the_peer_in_again(hello: Path) -> None:
    """The others finish the step, and wait for the third: else they may be done before it comes."""
    output = run(str(hello), "300", "1@100", "3")
    results = set(re.findall(r"end at revision (\d+), weights (\d+)", output))
    assert len(results) == 1 and output.count("end at revision 300,") == 3, output
    assert re.search(r"\[1\] 3 peers at revision 0\b.*\[1\] 3 peers at", output, re.DOTALL)


@pytest.mark.parametrize("point", ["operation.settled:3:0", "operation.voted:3", "sync.offered:3"])
def test_the_others_go_on_when_a_peer_dies_within_a_call(
    hello: Path, start: Any, point: str
) -> None:
    """A sync, or an update: of the operations with that number, the one in it is the first."""
    with pccl_py.Coordinator(run_id=b"pccl 1.0 has one", heartbeat=0.1, silence=3) as coordinator:
        environment = {
            "PCCL_TOKEN": coordinator.token,
            "PCCL_BIND": "127.0.0.1:0",
            "PCCL_INITIAL_WORLD_SIZE": "3",
        }
        peers = [start("20", file=hello, **environment) for _ in range(2)]
        victim = start("20", file=hello, PCCL_FAULT_POINT=point, **environment)
        assert victim.end() == -signal.SIGKILL
        for peer in peers:
            assert peer.end() == 0, peer.errors
            lines = peer.rest().splitlines()
            assert [re.sub(r" at revision \d+$", "", line) for line in lines[:-1]] == [
                "[0] 3 peers",
                "[0] 2 peers",
            ]
            weights = 20 * sum(element % 7 for element in range(1024))
            assert lines[-1] == f"[0] end at revision 20, weights {weights}"


def test_the_example_says_what_went_wrong(hello: Path) -> None:
    for token, problem in (("nonsense", r"create: 3: .*token"), ("", r"connect: 6: .{20,}")):
        answer = subprocess.run(
            [str(hello), "1"],
            env={**ENVIRONMENT, "PCCL_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert answer.returncode == 1
        assert re.match(f"hello: {problem}", answer.stderr), answer.stderr


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_master_is_interrupted_in_a_signal_handler(
    tmp_path: Path, start: Any, family: socket.AddressFamily
) -> None:
    """Its own peer loses it then, and says so at once."""
    host = "0.0.0.0" if family == socket.AF_INET else "::1"
    try:
        held = held_port(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    source, made = tmp_path / "master.c", tmp_path / "master"
    source.write_text(MASTER)
    compile_with("cc", *STRICT, str(source), *flags("--compat").split(), "-o", str(made))
    version = "4" if family == socket.AF_INET else "6"
    environment = {
        "PCCL_RECONNECT_TIMEOUT": "0",
        "PCCL_BIND": f"{'[::1]' if version == '6' else '127.0.0.1'}:0",
    }
    with held:
        program = start(str(held.getsockname()[1]), version, file=made, **environment)
        program.expect("connected")
    program.interrupt(signal.SIGINT)
    program.expect("over")
    assert program.end() == 0
