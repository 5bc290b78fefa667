"""Adds everything but the wheels to a release: the last part of `make release`.

    python release/bundle.py [--out dist]

Writes to `out`, where the wheels are: the source archives of pccl-py and pccl-compat; the site
(build/site, made by `make docs`) as pccl-site-VERSION.tar.gz; the bill of materials (CycloneDX 1.6)
as pccl-VERSION.cdx.json; and SHA256SUMS of all files, for `sha256sum --check`. One commit always
gives the same site and source archives, because files in them have the time of the commit.

The site's archive has each version in build/site. To keep older versions, unpack the archive of the
previous release's site into build/ before `make docs`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path

import make_site
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
# Parts of other projects that are compiled into the native libraries, by their folders in
# bindings/third_party, and their licences.
COMPILED_IN = {
    "libcxx": "Apache-2.0 WITH LLVM-exception",  # part of ziglang
    "nanobind": "BSD-3-Clause",
    "robin_map": "MIT",  # part of nanobind
    "xla_ffi": "Apache-2.0",  # a header of jaxlib
    "ziglang": "MIT",
}
# The PyPI package that contains a compiled-in part which is not a package of its own.
BROUGHT_BY = {"libcxx": "ziglang", "robin_map": "nanobind", "xla_ffi": "jaxlib"}
# The extras of pyproject.toml whose requirements the bill of materials lists.
EXTRAS = ("numpy", "torch", "jax", "train", "privacy")


def main() -> None:
    asked = argparse.ArgumentParser(description="Completes a release.")
    asked.add_argument("--out", type=Path, default=ROOT / "dist")
    out = asked.parse_args().out
    wheels = sorted(out.glob("*.whl"))
    if not wheels:
        sys.exit(f"bundle: there are no wheels in {out}; `make release` makes them first")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    version = project["project"]["version"]
    seconds = make_site.commit_time()
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    for folder in (ROOT, ROOT / "compat"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    site = out / f"pccl-site-{version}.tar.gz"
    archive(make_site.SITE, site, seconds)
    bill = out / f"pccl-{version}.cdx.json"
    bill.write_text(materials(project, seconds), encoding="utf-8")
    (out / "SHA256SUMS").unlink(missing_ok=True)
    (out / "SHA256SUMS").write_text(checksums(out), encoding="ascii")
    for path in sorted(out.iterdir()):
        print(f"bundle: {path.name}, {path.stat().st_size / 2**20:.2f} MiB", file=sys.stderr)


def archive(folder: Path, file: Path, seconds: int) -> None:
    """Packs `folder` into `file`, without names, ids or times of this machine and user."""
    if not (folder / "index.html").exists():
        sys.exit(f"bundle: {folder} is no site; `make docs` makes it")

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = seconds, 0, 0, "", ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with (
        file.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            tar.add(path, path.relative_to(folder.parent), recursive=False, filter=plain)


def materials(project: dict[str, object], seconds: int) -> str:
    """The bill of materials as JSON: parts compiled in, requirements, requirements of extras."""
    about = project["project"]
    build = project["build-system"]
    assert isinstance(about, dict) and isinstance(build, dict)
    product = component(about["name"], about["version"], "MIT", None)
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{about['name']}@{about['version']}"))
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, UTC)
    bom.metadata.component = product
    pinned = dict(one.split("==") for one in build["requires"] if "==" in one)
    header = (ROOT / "bindings" / "third_party" / "xla_ffi" / "README.md").read_text("utf-8")
    pinned["jaxlib"] = header.partition("jaxlib ")[2].split()[0]
    parts = [
        component(name, pinned[BROUGHT_BY.get(name, name)], licence, ComponentScope.REQUIRED)
        for name, licence in COMPILED_IN.items()
    ]
    needed = [name_of(requirement) for requirement in about["dependencies"]]
    parts += [component(name, None, None, ComponentScope.REQUIRED) for name in needed]
    extras = about["optional-dependencies"]
    brought = {name_of(one) for extra in EXTRAS for one in extras[extra]}
    parts += [component(name, None, None, ComponentScope.OPTIONAL) for name in sorted(brought)]
    bom.components.update(parts)
    bom.register_dependency(product, parts)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        sys.exit(f"bundle: the bill of materials breaks its schema: {wrong}")
    return text


def name_of(requirement: str) -> str:
    """The package's name in a requirement: "numpy" in "numpy>=1.26"."""
    return re.split(r"[<>=!~;\[ ]", requirement)[0]


def component(
    name: str, version: str | None, licence: str | None, scope: ComponentScope | None
) -> Component:
    package = BROUGHT_BY.get(name, name)
    part = name if name in BROUGHT_BY else None
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        scope=scope,
        purl=PackageURL("pypi", None, package, version, None, part),
        bom_ref=f"{name}@{version}" if version else name,
        licenses=[LicenseExpression(licence)] if licence else [],
    )


def checksums(folder: Path) -> str:
    """The SHA-256 checksums of a folder's files, as `sha256sum *` prints them."""
    lines = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
    )
    return "".join(lines)


if __name__ == "__main__":
    main()
