"""The package, short of compiling it: its contents, and what is said where it cannot be used.

`make wheels` compiles, checks and uses real wheels; release/wheel_check.py has its rules.
"""

from __future__ import annotations

import io
import queue
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

import nanobind

import hatch_build
import hatch_readme

ROOT = Path(__file__).resolve().parents[2]
HERE = hatch_build.machine_here()


# ---- importing what is not built


def sources(folder: Path) -> Path:
    """A copy of the package as a fresh clone has it."""
    package = folder / "pccl_py"
    package.mkdir(parents=True)
    for file in (ROOT / "pccl_py").glob("*.py"):
        shutil.copy(file, package)
    return package


def imported(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import pccl_py"],
        cwd=folder, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_import_in_a_checkout_that_is_not_built_says_what_to_do(tmp_path: Path) -> None:
    sources(tmp_path)
    (tmp_path / "build.zig").write_text("")
    said = imported(tmp_path)
    assert said.startswith(
        f"ImportError: pccl_py is imported from its source directory {tmp_path}, where its native "
    )
    assert "make build" in said and "circular" not in said


def test_import_of_what_was_built_for_another_python_says_so(tmp_path: Path) -> None:
    package = sources(tmp_path)
    (package / "_pccl.cpython-39-x86_64-linux-gnu.so").write_text("")
    said = imported(tmp_path)
    assert "but _pccl.cpython-39-x86_64-linux-gnu.so: install it again with this Python" in said


def test_a_native_part_that_does_not_load_keeps_its_own_error(tmp_path: Path) -> None:
    package = sources(tmp_path)
    version = f"{sys.version_info[0]}{sys.version_info[1]}"
    (package / f"_pccl.cpython-{version}-{HERE}-linux-gnu.so").write_text("no library")
    said = imported(tmp_path)
    assert said.startswith("ImportError") and "source directory" not in said


# ---- what a wheel is for

THREE_ELEVEN = hatch_build.Interpreter(
    (3, 11), Path("/include"), f".cpython-311-{HERE}-linux-gnu.so", "", False, False, True
)


@pytest.mark.skipif(sys.platform != "linux", reason="tags of Linux")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_targets_tags_and_names_fit_each_other(machine: str) -> None:
    old = hatch_build.plan(THREE_ELEVEN, machine)
    assert old == (
        f"{machine}-linux-gnu.2.17",
        f"cp311-cp311-manylinux_2_17_{machine}",
        False,
        f"_pccl.cpython-311-{machine}-linux-gnu.so",
    )
    new = hatch_build.plan(THREE_ELEVEN._replace(version=(3, 14)), machine)
    assert new[1:] == (f"cp312-abi3-manylinux_2_17_{machine}", True, "_pccl.abi3.so")
    free = THREE_ELEVEN._replace(version=(3, 14), is_free_threaded=True)
    assert hatch_build.plan(free, machine)[1] == f"cp314-cp314t-manylinux_2_17_{machine}"
    musl = hatch_build.plan(THREE_ELEVEN._replace(is_musl=True), machine)
    assert musl[:2] == (f"{machine}-linux-musl", f"cp311-cp311-musllinux_1_2_{machine}")


def test_an_interpreter_tells_about_itself() -> None:
    told = hatch_build.Interpreter.of(sys.executable)
    assert told.version == sys.version_info[:2] and told.is_cpython
    with pytest.raises(
        RuntimeError, match=r"Python.h is not in /nowhere(.|\n)*apt install python3-dev"
    ):
        hatch_build.check_headers(told._replace(include=Path("/nowhere")))


def test_another_environment_compiles_nothing_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: `pip install .` after `make build` takes what is in the cache. Zig's cache counts
    paths, and pip's environment for building has a new path each time."""
    lines: list[str] = []

    def collect(news: queue.SimpleQueue[str | None], say: object) -> None:
        while (line := news.get()) is not None:
            lines.append(line)

    def built(folder: str) -> set[str]:
        lines.clear()
        hatch_build.build_native(tmp_path / folder, hatch_build.to_stderr)
        installs = [line.split() for line in lines if line.startswith("install -C .zig-cache")]
        return {source for _, _, source, _ in installs}  # whose names are hashes of all that counts

    monkeypatch.setattr(hatch_build, "tell_progress", collect)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    first = built("first")
    original = Path(nanobind.__file__)
    elsewhere = tmp_path / "environment" / "nanobind"
    shutil.copytree(original.parent, elsewhere)
    monkeypatch.setattr(nanobind, "__file__", str(elsewhere / original.name))
    assert len(first) == 3 and built("second") == first


def test_a_long_build_says_what_it_compiles_and_passes_errors_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a period of no time at all, so that each moment without news is told."""
    monkeypatch.setattr(hatch_build, "PROGRESS_SECONDS", 0.0)

    class News(queue.SimpleQueue[str | None]):
        def get(self, block: bool = True, timeout: float | None = None) -> str | None:
            assert timeout == 0.0
            line = super().get(block=False)
            if line == "nothing for a while":
                raise queue.Empty
            return line

    news = News()
    for line in (
        "nothing for a while",
        "/env/ziglang/zig build-obj -OReleaseFast --name kernels_v3 --cache-dir x\n",
        "nothing for a while",
        "install -C /a /b\n",
        "error: no such thing\n",
        None,
    ):
        news.put(line)
    said: list[str] = []
    hatch_build.tell_progress(news, said.append)
    assert said == [
        "zig build: 0 s of 2 to 5 minutes the first time, compiling the build script",
        "zig build: 0 s of 2 to 5 minutes the first time, compiling kernels_v3 (command 1)",
    ]
    assert capsys.readouterr().err == "error: no such thing\n"


def test_progress_passes_by_pip_which_keeps_what_a_build_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = tmp_path / "terminal"
    terminal.touch()
    monkeypatch.setattr(hatch_build, "TERMINAL", terminal)
    hatch_build.to_terminal("10 s")
    assert (terminal.read_text(), capsys.readouterr().err) == ("10 s\n", "")
    monkeypatch.setattr(hatch_build, "TERMINAL", tmp_path / "none" / "terminal")
    hatch_build.to_terminal("20 s")
    assert capsys.readouterr().err == "20 s\n"


# ---- the sdist and the page of the package


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> tarfile.TarFile:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("*.tar.gz")
    return tarfile.open(path)


def test_the_sdist_has_documents_examples_and_all_that_builds_it(sdist: tarfile.TarFile) -> None:
    names = {name.partition("/")[2] for name in sdist.getnames()}
    for path in (
        "README.md", "LICENSE", "SECURITY.md", "Makefile", "pyproject.toml", "build.zig",
        "hatch_build.py", "hatch_readme.py", "docs/guides/INSTALL.md", "docs/reference/RUN.md",
        "examples/quickstart.py", "examples/c_average/average.c", "include/pccl.h",
        "pccl_py/cli/run.py", "frontends/pccl_numpy/__init__.py",
        "frontends/pccl_torch/__init__.py", "tests/conftest.py", "release/wheels.py",
    ):  # fmt: skip
        assert path in names
    for name in names:
        assert not re.search(r"\.(so|pyc)$|__pycache__|^\.(venv|zig-cache)|pccl_py/include", name)
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if kept.returncode == 0:  # a checkout, not an unpacked sdist
        ours = {name for name in kept.stdout.split() if not name.startswith((".ci", ".git"))}
        assert ours <= names


def test_the_page_of_the_package_is_the_readme_without_dead_links(sdist: tarfile.TarFile) -> None:
    (name,) = (name for name in sdist.getnames() if name.endswith("/PKG-INFO"))
    file = sdist.extractfile(name)
    assert file is not None
    text = file.read().decode()
    assert "Description-Content-Type: text/markdown" in text and "all_reduce" in text
    assert "pccl.steps(" in text and "![" not in text
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", text) == []
    assert "Project-URL: Paper, https://arxiv.org/abs/2505.14065" in text
    # The notices of what is compiled in, as their licences ask.
    for name in ("libcxx", "nanobind", "robin_map", "xla_ffi", "ziglang"):
        assert f"License-File: bindings/third_party/{name}/LICENSE" in text


def test_links_lead_to_the_source_once_it_has_an_address() -> None:
    text = "![p](docs/p.png)[a](docs/A.md#b), [`c`](c/d.py), [e](#e), [f](https://f.example/g)"
    page = hatch_readme.for_package_page(text, "https://git.example/pccl/")
    assert page == (
        "![p](https://git.example/pccl/raw/main/docs/p.png)"
        "[a](https://git.example/pccl/blob/main/docs/A.md#b), "
        "[`c`](https://git.example/pccl/blob/main/c/d.py), [e](#e), [f](https://f.example/g)"
    )
    plain = hatch_readme.for_package_page(text, None)
    assert plain == "a, `c`, [e](#e), [f](https://f.example/g)"
