"""Tokens and run ids on the command line: where they may come from, and where they never show."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

import pccl_py as pccl
from pccl_py.cli import secret

CLI = "pccl_py.cli"
RUN_ID = "0123456789abcdef" * 2


def secret_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("empty", ["", "\n"])
def test_an_empty_token_is_none_for_each_command(pccl_command: Any, empty: str) -> None:
    """The cat of a file that is not there yet leaves nothing in the variable."""
    for command in (["status"], ["token"], ["doctor"], ["bench", "all_reduce"]):
        answer = pccl_command(*command, PCCL_TOKEN=empty)
        assert answer.returncode == 2
        assert "no token: set PCCL_TOKEN, or pass --token-file FILE" in answer.stderr, command


# ---- arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "TOKEN"],
        ["status", "--json", "TOKEN"],
        ["status", "--token-file", "TOKEN"],
        ["token", "TOKEN", "--show"],
        ["token", "--show", "TOKEN"],
        ["token", "TOKEN"],
    ],
)
def test_a_token_as_an_argument_is_refused_and_not_repeated(
    pccl_command: Any, arguments: list[str]
) -> None:
    """The same command says how to give it instead; a working token must not help."""
    with pccl.Coordinator() as coordinator:
        token = coordinator.token
        said = [token if argument == "TOKEN" else argument for argument in arguments]
        answer = pccl_command(*said, PCCL_TOKEN=token)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert "PCCL_TOKEN" in answer.stderr and "--token-file FILE" in answer.stderr
    assert token not in answer.stderr


@pytest.mark.parametrize("command", [["coordinator"], ["token", "example.org:4000"]])
def test_a_run_id_as_an_argument_is_refused_and_not_repeated(
    pccl_command: Any, command: list[str]
) -> None:
    answer = pccl_command(*command, "--run-id", RUN_ID)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert "--run-id-file FILE" in answer.stderr
    assert RUN_ID not in answer.stderr


def test_help_offers_no_way_to_pass_a_secret_as_an_argument(pccl_command: Any) -> None:
    for command in ("coordinator", "token", "status"):
        shown = pccl_command(command, "--help", COLUMNS="200").stdout
        assert "--run-id " not in shown
        assert "TOKEN]" not in shown.split("Options")[0]


def test_processes_of_a_run_have_the_token_in_one_variable_alone(start: Any) -> None:
    """Looked at as `ps` does: the arguments of `pccl run`, of its process and of its launcher."""
    source = (
        "import os, pathlib\n"
        "token = os.environ['PCCL_TOKEN']\n"
        "print([name for name, value in os.environ.items() if token in value])\n"
        "for pid in (os.getpid(), os.getppid()):\n"
        "    print(token in pathlib.Path(f'/proc/{pid}/cmdline').read_text())\n"
    )
    program = start("run", "-n", "1", "--", sys.executable, "-c", source, module=CLI)
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] ['PCCL_TOKEN']\n[0] False\n[0] False\n"


# ---- files and standard input


def test_a_token_comes_from_a_file_or_from_standard_input(
    start: Any, pccl_command: Any, tmp_path: Path
) -> None:
    token = pccl.token_create("example.org:4000", bytes.fromhex(RUN_ID))
    says = f"address  example.org:4000\nrun id   {RUN_ID}\n"
    file = secret_file(tmp_path, f"  {token}\n")
    other = pccl.token_create("other.example:1")
    from_file = pccl_command("token", "--show", "--token-file", str(file), PCCL_TOKEN=other)
    assert (from_file.stdout, from_file.stderr) == (says, "")
    from_input = start("token", "--show", "--token-file", "-", module=CLI)
    from_input.say(token)
    assert from_input.end() == 0
    assert (from_input.rest(), from_input.errors) == (says, "")


def test_a_token_is_shown_in_parts_without_its_secret(pccl_command: Any, tmp_path: Path) -> None:
    """`pccl token` alone. The first 8 digits of the run id are those of `pccl status`."""
    token = pccl.token_create("example.org:4000", bytes.fromhex(RUN_ID))
    for answer in (
        pccl_command("token", PCCL_TOKEN=token),
        pccl_command("token", "--token-file", str(secret_file(tmp_path, token))),
    ):
        assert (
            answer.stdout == "address  example.org:4000\nrun      01234567, as in `pccl status`\n"
        )
        assert RUN_ID not in answer.stdout
    for address in ("127.0.0.1:9", "localhost:9", "[::1]:9"):
        answer = pccl_command("token", PCCL_TOKEN=pccl.token_create(address))
        assert "is this machine itself: other machines cannot join" in answer.stdout


def test_the_status_takes_the_token_file_that_a_coordinator_wrote(
    start: Any, pccl_command: Any, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    program = start("coordinator", "--token-file", str(file), module=CLI)
    program.line()
    answer = pccl_command("status", "--token-file", str(file))
    assert answer.returncode == 0, answer.stderr
    assert "no group yet" in answer.stdout


def test_a_run_id_comes_from_a_file(pccl_command: Any, tmp_path: Path) -> None:
    file = secret_file(tmp_path, f"{RUN_ID}\n")
    made = pccl_command("token", "example.org:4000", "--run-id-file", str(file))
    assert pccl.token_parse(made.stdout).run_id == bytes.fromhex(RUN_ID), made.stderr


def test_a_token_file_that_others_can_use_is_refused_with_its_cure(
    pccl_command: Any, tmp_path: Path
) -> None:
    token = pccl.token_create("example.org:4000")
    file = secret_file(tmp_path, token, 0o644)
    answer = pccl_command("token", "--show", "--token-file", str(file))
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert "has the mode 0644" in answer.stderr
    assert f"chmod 600 {file}" in answer.stderr


ME, ROOT, ANOTHER = 1000, 0, 1001


@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (ME, 0o600, None),
        (ME, 0o400, None),
        (ME, 0o440, "mode 0440"),
        (ME, 0o640, "mode 0640"),
        (ME, 0o604, "mode 0604"),
        (ME, 0o620, "mode 0620"),
        (ME, 0o602, "mode 0602"),
        (ME, 0o610, "mode 0610"),
        (ROOT, 0o600, None),
        (ROOT, 0o400, None),
        # As systemd and Kubernetes hand a secret to a service that is not root.
        (ROOT, 0o440, None),
        (ROOT, 0o640, None),
        (ROOT, 0o460, "mode 0460"),
        (ROOT, 0o450, "mode 0450"),
        (ROOT, 0o444, "mode 0444"),
        (ANOTHER, 0o400, "belongs to the user 1001"),
    ],
)
def test_whose_token_file_is_trusted(
    monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, why: str | None
) -> None:
    """Owners are users that this machine need not have."""
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    status = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, 7, 40, 0, 0, 0))
    if why is None:
        secret._check(Path("token"), status)
    else:
        with pytest.raises(pccl.InvalidArgument, match=why):
            secret._check(Path("token"), status)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_token_file_of_another_user_is_refused(pccl_command: Any, tmp_path: Path) -> None:
    file = secret_file(tmp_path, pccl.token_create("example.org:4000"))
    os.chown(file, 12345, -1)
    answer = pccl_command("token", "--show", "--token-file", str(file))
    assert answer.returncode == 2
    assert "belongs to the user 12345" in answer.stderr


def test_what_is_no_file_and_what_holds_no_secret_is_one_sentence(
    start: Any, pccl_command: Any, tmp_path: Path
) -> None:
    def assert_one_sentence(errors: str, file: Path, why: str) -> None:
        assert f"{file} " in errors and why in errors
        assert errors.count("\n") == 1

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    # A process, because reading a pipe without a writer would wait for ever.
    program = start("token", "--show", "--token-file", str(pipe), module=CLI)
    assert program.end() == 2
    assert_one_sentence(program.errors, pipe, "is not a regular file")
    for file, code, why in (
        (tmp_path / "none", 1, "No such file or directory"),
        (secret_file(tmp_path, "\n"), 2, "is empty"),
    ):
        answer = pccl_command("token", "--show", "--token-file", str(file))
        assert answer.returncode == code
        assert_one_sentence(answer.stderr, file, why)
    wrong = "abcd" * 9
    for answer in (
        pccl_command("coordinator", "--run-id-file", "-", said=wrong),
        pccl_command("coordinator", "--run-id-file", "-", said="nonsense" * 4),
    ):
        assert answer.returncode == 2
        assert wrong not in answer.stderr and "nonsense" not in answer.stderr


# ---- the file that is written

# Says where the part of the token file would be, were its name foreseen, and becomes the command.
PLANTING = """
import os, sys
file, victim = sys.argv[1], sys.argv[2]
part = f"{file}.{os.getpid()}.part"
if victim == "-":
    os.close(os.open(part, os.O_CREAT, 0o644))
    os.chmod(part, 0o644)
else:
    os.symlink(victim, part)
os.execv(sys.executable, [sys.executable, "-m", "pccl_py.cli", "coordinator", "--token-file", file])
"""


def test_a_link_in_the_place_of_the_unfinished_token_file_is_not_followed(
    start: Any, tmp_path: Path
) -> None:
    victim, file = tmp_path / "victim", tmp_path / "token"
    victim.write_text("precious")
    program = start(PLANTING, str(file), str(victim))
    token = program.line()
    assert victim.read_text() == "precious"
    assert file.read_text() == f"{token}\n"
    assert not file.is_symlink()


def test_a_file_in_the_place_of_the_unfinished_token_file_does_not_lend_its_mode(
    start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    program = start(PLANTING, str(file), "-")
    token = program.line()
    assert file.read_text() == f"{token}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_token_file_that_cannot_be_put_in_place_leaves_nothing_behind(
    pccl_command: Any, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    (file / "inside").mkdir(parents=True)
    answer = pccl_command("coordinator", "--token-file", str(file))
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"pccl: {file} cannot be written: ")
    assert os.listdir(tmp_path) == ["token"]
