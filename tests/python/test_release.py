"""The files that `make release` puts beside the wheels; the wheels have tests of their own."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import bundle

PROJECT = tomllib.loads((bundle.ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_bill_names_all_that_is_compiled_in_and_all_that_is_required() -> None:
    bill = json.loads(bundle.materials(PROJECT, 1_700_000_000))
    parts = {part["name"]: part for part in bill["components"]}
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/pccl-py@0.1.0"
    for folder in (bundle.ROOT / "bindings" / "third_party").iterdir():
        assert parts[folder.name]["version"] and parts[folder.name]["licenses"], folder
        assert (folder / "LICENSE").exists()
    for requirement in PROJECT["build-system"]["requires"]:
        name, is_pinned, version = requirement.partition("==")
        if is_pinned:  # hatchling is not, and leaves nothing in the wheel
            assert parts[name]["version"] == version
    for requirement in PROJECT["project"]["dependencies"]:
        assert parts[bundle.name_of(requirement)]["scope"] == "required"
    assert parts["torch"]["scope"] == "optional"
    assert parts["dp-accounting"]["scope"] == "optional"
    assert parts["xla_ffi"]["purl"] == "pkg:pypi/jaxlib@0.10.2#xla_ffi"
    assert bundle.materials(PROJECT, 1_700_000_000) == bundle.materials(PROJECT, 1_700_000_000)


def test_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    for name in ("a.whl", "b.tar.gz"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(bundle.checksums(tmp_path))
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "a.whl").write_text("another")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1


def test_an_archive_of_the_site_has_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<title>PCCL</title>")
    for name in ("one", "two"):
        bundle.archive(site, tmp_path / name, 1_700_000_000)
        (site / "index.html").touch()
        (site / "index.html").chmod(0o600)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
