"""Two homes behind NAT and a virtual machine at a provider, set up as docs/guides/INTERNET.md says:
in the clear, and through WireGuard. The networks are networks.py's.
"""

from __future__ import annotations

import array
import os
import re
import shutil
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import namespaces
import networks
import pytest
from networks import Internet, Machine, ends

import pccl_py as pccl

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "INTERNET.md"
COORDINATOR = ("-u", "-m", "pccl_py.cli", "coordinator")


@pytest.fixture
def internet() -> Iterator[Internet]:
    networks.require()
    with Internet() as made:
        yield made


@contextmanager
def coordinator(vm: Machine, *options: str) -> Iterator[str]:
    """Runs a coordinator on `vm`; gives its token."""
    program = vm.start(*COORDINATOR, *options)
    try:
        assert program.stdout is not None
        yield program.stdout.readline().strip()
    finally:
        program.terminate()
        program.communicate(timeout=networks.SECONDS_MAX)


@pytest.mark.parametrize("kind", ["public", "in_cloud"])
def test_two_homes_meet_through_a_peer_on_the_machine_of_the_coordinator(
    internet: Internet, kind: str
) -> None:
    """A provider may give the machine a public address that it does not have itself: the guide puts
    it on the loopback interface, so that the coordinator sees its neighbour at that address."""
    vm: Machine = getattr(internet, kind)()
    homes = [internet.behind_nat() for _ in range(2)]
    for machine in (vm, *homes):
        machine.hosts(f"{vm.outside} vm.example")
    if kind == "in_cloud":
        namespaces.ip("-n", vm.namespace, "address", "add", f"{vm.outside}/32", "dev", "lo")
    # A link is given up, and gone around, after the silence limit.
    quick = ("--silence", "1", "--heartbeat", "0.1")
    with coordinator(vm, "--bind", "0.0.0.0:29400", "--advertise", "vm.example", *quick) as token:
        all_three = {"PCCL_INITIAL_WORLD_SIZE": "3"}
        peers = [vm.peer(token, 1, PCCL_BIND=":29500", **all_three)]
        peers += [home.peer(token, number, **all_three) for number, home in enumerate(homes, 2)]
        for out, errors in ends(*peers):
            assert out == "sum 3\n", (out, errors)


def test_after_a_leak_a_new_directory_shuts_out_the_old_token_and_its_peers(tmp_path: Path) -> None:
    """The steps of the guide on one machine: the new coordinator has the old one's address."""
    old, new = str(tmp_path / "run-1"), str(tmp_path / "run-2")
    first = pccl.Coordinator(bind="127.0.0.1:0", state=old)
    with pccl.connect(first.token, deadline=60) as peer:
        peer.admit()
        first.close()
        with pccl.Coordinator(bind=f"127.0.0.1:{first.port}", state=new) as second:
            # The call ends, and `pccl.steps` connects again, which is refused.
            with pytest.raises(pccl.CoordinatorUnreachable, match="for another run"):
                peer.all_reduce(array.array("f", [1.0]))
            with pytest.raises(
                pccl.AuthenticationFailed, match="belongs to another run.*fresh token"
            ):
                pccl.connect(first.token)
            with pccl.connect(second.token) as comm:
                assert comm.admit().world_size == 1
            run_id = pccl.token_parse(second.token).run_id
    with pytest.raises(pccl.PcclError, match="run"):
        pccl.Coordinator(bind="127.0.0.1:0", state=old, run_id=run_id)


def test_two_homes_reach_each_other_through_wireguard(internet: Internet, tmp_path: Path) -> None:
    """The machine in the middle has no peer, and its public address no port of PCCL."""
    vm, homes = internet.public(), [internet.behind_nat() for _ in range(2)]
    with wireguard(vm, homes, tmp_path), ExitStack() as stack:
        bind = ("--bind", "10.8.0.1:29400", "--initial-world-size", "2")
        token = stack.enter_context(coordinator(vm, *bind))
        with pytest.raises(ConnectionRefusedError):
            homes[0].inside(lambda: socket.create_connection((vm.address, 29400), 5))

        def join(home: Machine) -> pccl.Communicator:
            def connect() -> pccl.Communicator:
                return pccl.connect(token, ports="29500-29509", deadline=60)

            comm = stack.enter_context(home.inside(connect))
            comm.admit()
            return comm

        with ThreadPoolExecutor(2) as threads:
            comms = list(threads.map(join, homes))
            arrays = [array.array("f", [1.0]) for _ in comms]
            list(threads.map(lambda comm, values: comm.all_reduce(values), comms, arrays))
        assert [values[0] for values in arrays] == [2.0] * 2
        options = ("-m", "pccl_py.cli", "doctor", "--timeout", "2", "--ports", "29500-29509")
        doctor = homes[0].start(*options, PCCL_TOKEN=token)
        ((out, errors),) = ends(doctor)
    assert doctor.returncode == 0, (out, errors)
    assert "ok     name: 10.8.0.1 is 10.8.0.1\n" in out
    assert "ok     seen: others dial a peer of this machine at 10.8.0.2:295" in out
    members = [line for line in out.splitlines() if line.startswith("ok     member ")]
    addresses = ("10.8.0.2:295", "10.8.0.3:295")
    assert all(any(f"): {address}" in line for line in members) for address in addresses), out
    assert len(members) == 2
    assert all("it has dialed this machine at 10.8.0.2:295" in line for line in members), out


@contextmanager
def wireguard(vm: Machine, homes: list[Machine], folder: Path) -> Iterator[None]:
    """The files of the guide, with interfaces that have names of their own: wireguard-go, where the
    kernel has none, makes a socket of that name outside the namespace."""
    require_wireguard(vm)
    machines = [vm, *homes]
    for home in homes:
        home.hosts(f"{vm.address} vm.example")
    interfaces = [f"pccl{number}-{os.getpid()}" for number in range(len(machines))]
    try:
        for machine, interface, text in zip(machines, interfaces, configurations(), strict=True):
            file = folder / f"{interface}.conf"
            file.touch(0o600)
            file.write_text(text)
            command = [*machine.prefix(), "wg-quick", "up", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        yield
    finally:
        # A wireguard-go ends with its interface.
        for machine, interface in zip(machines, interfaces, strict=True):
            subprocess.run(
                ["ip", "-n", machine.namespace, "link", "delete", interface],
                capture_output=True,
                check=False,
            )


def require_wireguard(machine: Machine) -> None:
    if shutil.which("wg-quick") is None:
        namespaces.skip("WireGuard needs the commands wg and wg-quick: install wireguard-tools")
    try:
        namespaces.ip("-n", machine.namespace, "link", "add", "wg-try", "type", "wireguard")
        namespaces.ip("-n", machine.namespace, "link", "delete", "wg-try")
    except namespaces.Refused as error:
        if shutil.which("wireguard-go") is None:
            namespaces.skip(f"the kernel has no WireGuard ({error}): install wireguard-go")


def configurations() -> list[str]:
    """The guide's wg0.conf of the VM, of home A and of home B, with keys for their names."""
    blocks = re.findall(r"```ini\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    texts = [textwrap.dedent(block) for block in blocks if "[Interface]" in block]
    for owner in ("VM", "HOME_A", "HOME_B"):
        secret = output("wg", "genkey")
        keys = {"PRIVATE": secret, "PUBLIC": output("wg", "pubkey", of=secret)}
        for kind, key in keys.items():
            texts = [text.replace(f"{kind}_KEY_OF_{owner}", key) for text in texts]
    assert not any("_KEY_OF_" in text for text in texts), "a key of a machine that is none of these"
    return texts


def output(*command: str, of: str = "") -> str:
    done = subprocess.run(command, input=of, capture_output=True, text=True, check=True)
    return done.stdout.strip()
