"""Words, errors and values of pccl_py that need no peer: names, numbers, ids, seconds, classes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import typing

import pytest

import pccl_py as pccl
from pccl_py import _pccl, errors, words


def test_import_is_light_and_starts_nothing() -> None:
    """No array library, no command line library, no thread: only the core comes with the import."""
    source = (
        "import sys, threading, pccl_py\n"
        "heavy = {'numpy', 'typer', 'rich', 'asyncio', 'ctypes', 'torch', 'jax'}\n"
        "print(sorted(heavy & set(sys.modules)), threading.active_count())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True
    )
    assert answer.stderr == ""
    assert answer.stdout == "[] 1\n"


def test_a_frontend_imports_its_own_array_library_and_no_other() -> None:
    source = "import sys, pccl_py.kit, pccl_numpy; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True
    )
    assert answer.stdout == "False\n"


def test_everything_public_exists_and_is_documented() -> None:
    for name in pccl.__all__:
        value = getattr(pccl, name)
        is_type = typing.get_origin(value) is typing.Literal  # it has no room for a docstring
        assert name == "__version__" or is_type or value.__doc__, name


@pytest.mark.parametrize(
    ("value", "dtype"),
    [("f32", "F32"), ("float32", "F32"), ("bfloat16", "BF16"), (11, "U64"), (pccl.DType.I8, "I8")],
)
def test_a_dtype_is_known_by_name_and_number(value: object, dtype: str) -> None:
    assert words.parse_dtype(value) is pccl.DType[dtype]  # type: ignore[arg-type]


def test_sizes_of_dtypes_are_those_of_the_library() -> None:
    for dtype in pccl.DType:
        assert dtype.size == _pccl.dtype_size(dtype)
    assert _pccl.dtype_size(len(pccl.DType)) == 0


@pytest.mark.parametrize("value", ["add", "SUM", "", 8, -1, True, None, pccl.DType.F32])
def test_an_unknown_op_is_refused_and_the_known_are_named(value: object) -> None:
    with pytest.raises(pccl.InvalidArgument, match="'sum', 'avg', 'prod', 'min', 'max', 'band', "):
        words.parse_op(value)  # type: ignore[arg-type]


def test_a_scaled_sum_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(pccl.InvalidArgument, match="multiply the array by the factor before a"):
        words.parse_op("premul_sum")


def test_the_name_of_a_mean_elsewhere_is_refused_with_ours() -> None:
    with pytest.raises(pccl.InvalidArgument, match="no op 'mean': 'avg' is the mean"):
        words.parse_op("mean")


def test_a_recovery_may_be_left_to_the_default() -> None:
    assert words.parse_recovery(None) is pccl.Recovery.DEFAULT
    assert words.parse_recovery("resume") is pccl.Recovery.RESUME
    with pytest.raises(pccl.InvalidArgument, match="retry"):
        words.parse_recovery("retry")


def test_a_peer_id_is_its_bytes_and_its_hexadecimal_digits() -> None:
    peer = pccl.PeerId(bytes(range(16)))
    assert str(peer) == "000102030405060708090a0b0c0d0e0f"
    assert peer.short == "00010203"
    assert pccl.PeerId(str(peer)) == peer == bytes(range(16))
    assert repr(peer) == f"PeerId('{peer}')"
    assert pickle.loads(pickle.dumps(peer)) == peer
    assert {peer: 1}[pccl.PeerId(str(peer))] == 1


@pytest.mark.parametrize("value", [b"", bytes(15), bytes(17), "00" * 15, "zz" * 16])
def test_what_is_no_peer_id_is_refused(value: bytes | str) -> None:
    with pytest.raises(pccl.InvalidArgument, match="peer id"):
        pccl.PeerId(value)


def test_seconds_become_nanoseconds() -> None:
    assert words.nanoseconds(None, "deadline") == 0
    assert words.nanoseconds(0.25, "deadline") == 250_000_000
    assert words.nanoseconds(1e-12, "deadline") == 1  # positive stays positive: 0 is the default
    assert words.nanoseconds(1e300, "deadline") < 1 << 63
    assert words.wait_nanoseconds(None, _pccl.FOREVER_NS) == _pccl.FOREVER_NS
    assert words.wait_nanoseconds(-1, _pccl.FOREVER_NS) == 0
    assert words.wait_nanoseconds(float("inf"), _pccl.FOREVER_NS) < 1 << 63


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_deadline_is_positive_and_finite(seconds: float) -> None:
    with pytest.raises(pccl.InvalidArgument, match="deadline"):
        words.nanoseconds(seconds, "deadline")


@pytest.mark.parametrize("seconds", ["3", b"3", [3], object()])
def test_a_deadline_that_is_no_number_is_named(seconds: object) -> None:
    with pytest.raises(TypeError, match="deadline must be a number of seconds"):
        words.nanoseconds(seconds, "deadline")  # type: ignore[arg-type]


def test_an_integer_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match="tag must be an integer, not float"):
        words.unsigned(1.0, "tag", 64)  # type: ignore[arg-type]


def test_every_status_has_its_class() -> None:
    """The numbers are those of pccl_status_t; tests/abi compares them with the header."""
    for status, cls in errors.CLASS_OF_STATUS.items():
        error = errors.make(status, "why")
        assert type(error) is cls
        assert str(error) == "why"
        assert isinstance(error, pccl.PcclError) != (status == 1)
    assert type(errors.make(99, "new")) is pccl.PcclError


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (pccl.InvalidArgument, ValueError),
        (pccl.InvalidUsage, RuntimeError),
        (pccl.OutOfMemory, MemoryError),
        (pccl.DeadlineExceeded, TimeoutError),
        (pccl.CoordinatorUnreachable, ConnectionError),
        (pccl.SystemRefused, OSError),
    ],
)
def test_errors_are_also_what_python_calls_them(cls: type[Exception], builtin: type) -> None:
    assert issubclass(cls, pccl.PcclError)
    assert issubclass(cls, builtin)


def test_a_token_says_where_and_which_run() -> None:
    run_id = bytes(range(16))
    token = pccl.token_create("203.0.113.7:4000", run_id)
    assert token.startswith("pccl1-")
    assert pccl.token_parse(f" {token}\n") == pccl.Token("203.0.113.7:4000", run_id)
    assert pccl.token_create("host:1") != pccl.token_create("host:1")  # random runs


@pytest.mark.parametrize("address", ["", "host", "host:", "host:port", "host:65536", "h\0st:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(pccl.InvalidArgument):
        pccl.token_create(address)


def test_a_mistyped_token_is_refused_wherever_the_mistake_is() -> None:
    token = pccl.token_create("127.0.0.1:4000", bytes(16))
    for index, letter in enumerate(token):
        other = "A" if letter != "A" else "B"
        reason = "this is not a token" if index < len("pccl1-") else "mistyped or cut"
        with pytest.raises(pccl.InvalidArgument, match=reason):
            pccl.token_parse(token[:index] + other + token[index + 1 :])
    for length in range(len(token)):
        reason = "this is not a token" if length < len("pccl1-") else "mistyped or cut"
        with pytest.raises(pccl.InvalidArgument, match=reason):
            pccl.token_parse(token[:length])


def test_a_run_id_has_16_bytes() -> None:
    with pytest.raises(pccl.InvalidArgument, match="16 bytes"):
        pccl.token_create("host:1", b"short")


def test_contributors_of_an_outcome_are_those_of_any_range() -> None:
    a, b, c = (pccl.PeerId(bytes([value]) * 16) for value in (1, 2, 3))
    parts = (pccl.Range(0, 4, (a, b, c)), pccl.Range(4, 8, (a, c)))
    outcome = pccl.Outcome(1, 0, 0, 2, "00" * 16, parts, 0, 0, 0.0)
    assert outcome.contributors == (a, b, c)
    with pytest.raises(AttributeError):
        outcome.epoch = 2  # type: ignore[misc]


def test_words_agree_with_numbers() -> None:
    assert [words.counted(number, "rank") for number in (0, 1, 2)] == [
        "0 ranks",
        "1 rank",
        "2 ranks",
    ]
    assert words.counted(1, "entry", "entries") == "1 entry"
    assert words.counted(2, "entry", "entries") == "2 entries"
    with pccl.LocalWorld(1, deadline=30) as world:
        with pytest.raises(pccl.InvalidArgument, match="with 1 rank out needs 1, or pass counts"):
            world.comms[0].all_gather(bytes(1), bytearray(2))
        with pytest.raises(pccl.InvalidArgument, match="^out has 1 element, array has 2$"):
            world.comms[0].all_reduce(bytes(2), bytearray(1))
