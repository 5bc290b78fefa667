"""Old and new programs: every struct that begins with its size, shorter and longer than ours.

A short one lies at the end of its page, and the page behind it cannot be read or written: a library
that looks further than the size says does not fail a test here, it ends the process. The trials of
each struct are in READ and FILLED; one that the header has more is missed.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from calling import LOOPBACK, check, coordinator, ffi, lib, one_rank, options, refused

PAGE = mmap.PAGESIZE
STRUCT_BYTES_MAX = 4096  # engine/abi/argument.zig: size_max
PROT_NONE, PROT_READ_WRITE = 0, 3

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class World(NamedTuple):
    """The arguments of the calls: somebody who is alone, and a coordinator that nobody uses."""

    comm: Any
    work: Any
    state: Any
    coordinator: Any
    token: Any


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with one_rank() as comm, coordinator() as unused:
        work, state = ffi.new("pccl_work_t **"), ffi.new("pccl_state_t **")
        data, mine = ffi.new("float[4]"), options("state_options", name=NAME)
        check(lib.pccl_all_reduce(comm, data, data, 4, lib.PCCL_F32, ffi.NULL, work))
        check(lib.pccl_state_create(comm, one_tensor(mine, data), state))
        token = lib.pccl_coordinator_token(unused)
        yield World(comm, work[0], state[0], unused, token)
        lib.pccl_state_destroy(state[0])
        lib.pccl_work_destroy(work[0])


KEPT: list[Any] = []  # cffi frees what Python forgets


def one_tensor(made: Any, data: Any) -> Any:
    shape = ffi.new("uint64_t[1]", [4])
    tensor = ffi.new("pccl_tensor_t *", {"name": NAME, "data": data, "shape": shape})
    tensor.dimensions = 1
    KEPT.extend((shape, tensor, data))
    made.tensors, made.tensor_count = tensor, 1
    return made


NAME = ffi.new("char[]", b"x")
FLOATS = ffi.new("float[64]")


# ---- the calls that read a struct, and those that fill one -------------------------------------


def create_coordinator(_: World, made: Any) -> int:
    created = ffi.new("pccl_coordinator_t **")
    status = int(lib.pccl_coordinator_create(made, created))
    lib.pccl_coordinator_destroy(created[0])
    return status


def create_comm(world: World, made: Any) -> int:
    created = ffi.new("pccl_comm_t **")
    status = int(lib.pccl_comm_create(world.token, made, created))
    lib.pccl_comm_destroy(created[0])
    return status


def create_state(world: World, made: Any) -> int:
    created = ffi.new("pccl_state_t **")
    status = int(lib.pccl_state_create(world.comm, made, created))
    lib.pccl_state_destroy(created[0])
    return status


Call = Callable[[World, Any], int]

READ: dict[str, Call] = {
    "coordinator_options": create_coordinator,
    "comm_options": create_comm,
    "collective_options": lambda world, made: lib.pccl_barrier(world.comm, made, ffi.NULL),
    "state_options": create_state,
    "outer_options": lambda _, made: lib.pccl_outer_step(*[FLOATS] * 4, 4, made),
    "sparse_options": lambda _, made: lib.pccl_sparse_encode(FLOATS, 4, made, FLOATS),
    "sync_options": lambda world, made: lib.pccl_state_sync(world.state, made, ffi.NULL),
}

FILLED: dict[str, Call] = {
    "token_info": lambda world, made: lib.pccl_token_parse(world.token, made),
    "admission": lambda world, made: lib.pccl_comm_admit(world.comm, 0, made),
    "comm_info": lambda world, made: lib.pccl_comm_info(world.comm, made),
    "comm_plan": lambda world, made: lib.pccl_comm_plan(world.comm, made),
    "outcome": lambda world, made: lib.pccl_work_outcome(world.work, made),
    "outcome_range": lambda world, made: lib.pccl_work_range(world.work, 0, made, ffi.NULL, 0),
    "sync_outcome": lambda world, made: lib.pccl_state_sync(world.state, ffi.NULL, made),
}


def full_size(kind: str) -> int:
    return int(ffi.sizeof(f"pccl_{kind}_t"))


# Fields that differ between two calls: the number of the sync, and times.
VARIES = {
    "sync_outcome": ("revision", "elected_revision", "sequence", "duration_ns", "hash_ns"),
}


def test_every_struct_that_says_its_size_is_tried_here() -> None:
    kinds = {
        name.removeprefix("pccl_").removesuffix("_t")
        for name in ffi.list_types()[0]
        if ffi.typeof(name).kind == "struct" and "size" in dict(ffi.typeof(name).fields or [])
    }
    assert READ.keys() | FILLED.keys() == kinds


# ---- structs of a size -------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Callable[[str, int], Any]]:
    """Makes a struct of `size` bytes, all zero but the size, that ends where memory does."""
    made = []

    def guarded(kind: str, size: int) -> Any:
        pages = -(-size // PAGE)
        memory = mmap.mmap(-1, (pages + 1) * PAGE)
        view = ffi.from_buffer(memory)
        begin = int(ffi.cast("uintptr_t", view))
        assert libc.mprotect(begin + pages * PAGE, PAGE, PROT_NONE) == 0
        made.append((memory, view, begin + pages * PAGE))
        placed = ffi.cast(f"pccl_{kind}_t *", begin + pages * PAGE - size)
        placed.size = size
        if kind == "comm_options" and size >= ffi.offsetof("pccl_comm_options_t", "advertise"):
            placed.bind = LOOPBACK  # else it listens on all interfaces
        return placed

    yield guarded
    for memory, view, guard in made:
        assert libc.mprotect(guard, PAGE, PROT_READ_WRITE) == 0
        ffi.release(view)
        memory.close()


Place = Callable[[str, int], Any]


def bytes_of(made: Any, begin: int, end: int) -> bytes:
    return bytes(ffi.buffer(ffi.cast("char *", made) + begin, end - begin))


def shorter(kinds: dict[str, Call]) -> list[Any]:
    """Every size that an older version of the struct may have had."""
    return [
        pytest.param(kind, size, id=f"{kind}-{size}")
        for kind in kinds
        for size in range(8, full_size(kind) + 1, ffi.alignof(f"pccl_{kind}_t"))
        # The ends of a text of 256 bytes are enough.
        if not (kind == "token_info" and 24 < size < 256)
    ]


@pytest.mark.parametrize(("kind", "size"), shorter(READ))
def test_options_of_an_old_caller_are_read_as_far_as_they_go(
    world: World, place: Place, kind: str, size: int
) -> None:
    check(READ[kind](world, place(kind, size)))


def test_what_an_old_caller_says_counts(world: World, place: Place) -> None:
    """Up to the last field that it has."""
    work, outcome = ffi.new("pccl_work_t **"), options("outcome")
    old = place("collective_options", ffi.offsetof("pccl_collective_options_t", "deadline_ns"))
    old.tag = 77
    check(lib.pccl_barrier(world.comm, old, work))
    check(lib.pccl_work_outcome(work[0], outcome))
    assert outcome.tag == 77
    lib.pccl_work_destroy(work[0])
    old = place("state_options", ffi.offsetof("pccl_state_options_t", "flags"))
    one_tensor(old, ffi.new("float[4]")).revision = 9
    state, revision = ffi.new("pccl_state_t **"), ffi.new("uint64_t *")
    check(lib.pccl_state_create(world.comm, old, state))
    check(lib.pccl_state_revision(state[0], revision))
    assert revision[0] == 9
    lib.pccl_state_destroy(state[0])


@pytest.mark.parametrize(("kind", "size"), shorter(FILLED))
def test_results_for_an_old_caller_end_where_its_struct_ends(
    world: World, place: Place, kind: str, size: int
) -> None:
    """And are those that a caller of today gets."""
    today, old = options(kind), place(kind, size)
    check(FILLED[kind](world, today))
    check(FILLED[kind](world, old))
    assert old.size == size
    for name, field in ffi.typeof(f"pccl_{kind}_t").fields:
        end = field.offset + ffi.sizeof(field.type)
        if name != "size" and name not in VARIES.get(kind, ()) and end <= size:
            assert bytes_of(old, field.offset, end) == bytes_of(today, field.offset, end), name


@pytest.mark.parametrize("more", [8, 64])
@pytest.mark.parametrize("kind", READ)
def test_a_newer_caller_is_understood_unless_it_asks_for_what_we_do_not_know(
    world: World, place: Place, kind: str, more: int
) -> None:
    size = full_size(kind) + more
    check(READ[kind](world, place(kind, size)))
    check(READ[kind](world, place(kind, STRUCT_BYTES_MAX)))
    for unknown in (full_size(kind), size - 1):
        made = place(kind, size)
        ffi.cast("char *", made)[unknown] = b"\1"
        said = refused(READ[kind](world, made))
        assert f"pccl_{kind}_t" in said and "does not know" in said


@pytest.mark.parametrize("kind", FILLED)
def test_what_a_newer_caller_has_more_is_zero(world: World, place: Place, kind: str) -> None:
    size = full_size(kind) + 64
    made = place(kind, size)
    ffi.memmove(ffi.cast("char *", made) + 8, b"\xa5" * (size - 8), size - 8)
    check(FILLED[kind](world, made))
    assert bytes_of(made, full_size(kind), size) == bytes(64)


@pytest.mark.parametrize("size", [0, 4, 7, 9, 12, STRUCT_BYTES_MAX + 8, 2**20, 2**63, 2**64 - 8])
@pytest.mark.parametrize("kind", READ | FILLED)
def test_a_size_that_cannot_be_is_refused(world: World, place: Place, kind: str, size: int) -> None:
    """A struct that was not initialised, most likely: no more of it than the size is looked at."""
    made = place(kind, 8)
    made.size = size
    said = refused((READ | FILLED)[kind](world, made))
    assert f"`size` of the pccl_{kind}_t" in said and "_INIT" in said
