"""The fp8 of the kernels is that of ml_dtypes: the digests in kernels/fp8_test.zig are made there.

One difference is left out of them: a NaN that the kernels make is always the positive one
(docs/internals/KERNELS.md), ml_dtypes keeps the sign of what became NaN.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ZIG_TEST = Path(__file__).resolve().parents[2] / "kernels" / "fp8_test.zig"
LOWS = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]


def in_zig(name: str) -> str:
    found = re.search(rf'const {name} =\s+"([0-9a-f]{{64}})";', ZIG_TEST.read_text())
    assert found is not None, f"{ZIG_TEST} has no {name}"
    return found[1]


# Signalling NaNs, and numbers that no fp8 can hold.
@pytest.mark.filterwarnings("ignore:.*encountered in cast:RuntimeWarning")
def test_the_codes_are_those_of_ml_dtypes() -> None:
    high = np.arange(1 << 16, dtype=np.uint32)[:, None] << np.uint32(16)
    bits = (high | np.array(LOWS, dtype=np.uint32)).reshape(-1)
    codes = bits.view(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes = np.where(codes & 0x7F == 0x7F, np.uint8(0x7F), codes)
    assert hashlib.sha256(codes.tobytes()).hexdigest() == in_zig("digest_of_codes")


def test_the_values_are_those_of_ml_dtypes() -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    bits = codes.astype(np.float32).view(np.uint32)
    bits = np.where(bits & 0x7FFFFFFF > 0x7F800000, np.uint32(0x7FC00000), bits)
    assert hashlib.sha256(bits.tobytes()).hexdigest() == in_zig("digest_of_values")
