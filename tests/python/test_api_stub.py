"""The stub of the native module is what nanobind would generate for it now."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pccl_py


def test_the_stub_matches_the_module(tmp_path: Path) -> None:
    """Goal: types that callers are checked against are true. Method: compare syntax trees."""
    made = tmp_path / "_pccl.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "pccl_py._pccl", "-o", str(made)],
        check=True,
    )
    kept = Path(pccl_py.__file__).with_name("_pccl.pyi")
    assert _tree(made) == _tree(kept), f"generate {kept} anew with python -m nanobind.stubgen"


def _tree(path: Path) -> str:
    body = ast.parse(path.read_text()).body
    return "\n".join(ast.dump(node) for node in body[1:])  # without the module's own docstring
