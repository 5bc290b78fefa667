"""
Native part of pccl_py: include/pccl.h, function by function. Use pccl_py.
"""

from collections.abc import Callable, Sequence

def set_error_factory(factory: Callable[[int, str], BaseException]) -> None:
    """
    factory(status, message) makes the exception that a failing call raises.
    """

def status_name(status: int) -> str:
    """The name of a status, e.g. 'PCCL_MISMATCH'."""

def version() -> int:
    """major * 10000 + minor * 100 + patch."""

def version_string() -> str:
    """Version of the loaded native library."""

def wire_version() -> int:
    """Wire protocol version."""

def cpu_level() -> str:
    """CPU level of the kernels in use."""

def dtype_size(dtype: int) -> int:
    """Bytes per element; 0 for an unknown dtype."""

def completions_wait(timeout_ns: int) -> list[int]:
    """
    Keys of works that finished since the last call; waits for one, or for a wake.
    """

def completions_wake() -> None:
    """Ends completions_wait."""

def work_notify(work: Work, key: int) -> None:
    """Puts key into completions_wait once the work is finished."""

def exit_begin() -> None:
    """The interpreter exits: connect and admit end with PCCL_CANCELLED."""

def exit_finish(timeout_ns: int) -> bool:
    """
    Waits until no thread is inside the library; later ones are parked. True: none was.
    """

def fork_child() -> None:
    """Called in a forked child: nothing of the parent's queue is used there."""

def token_create(address: str, run_id: bytes | None) -> str:
    """
    run_id is 16 bytes, or None for random ones; the caller has checked the length.
    """

def token_parse(token: str) -> tuple[str, bytes]:
    """(address, run_id)"""

def run_status(token: str, timeout_ns: int, dial_back: bytes | None) -> str:
    """
    JSON of docs/reference/STATUS.md. dial_back: members dial this peer, of 16 bytes.
    """

def buffer_address(exporter: memoryview) -> int:
    """Address of the first element; the caller keeps the memoryview alive."""

def log_next() -> tuple[int, str] | None:
    """The oldest queued event as (level, message), or None."""

class Coordinator:
    """Owns a pccl_coordinator_t."""

    def __init__(
        self,
        *,
        bind: str | None,
        advertise: str | None,
        run_id: bytes | None,
        min_world_size: int,
        initial_world_size: int,
        lanes_per_link: int,
        chunk_bytes: int,
        window_bytes: int,
        heartbeat_ns: int,
        silence_ns: int,
        prepare_ns: int,
        stall_warning_ns: int,
        stall_ns: int,
        state_dir: str | None,
        memory_bytes: int,
        probe: int,
        plans: int,
    ) -> None: ...
    @property
    def token(self) -> str: ...
    @property
    def port(self) -> int: ...
    def close(self) -> None:
        """Stops it. Idempotent."""

FOREVER_NS: int = 18446744073709551615

class Work:
    """Owns a pccl_work_t and the buffers it borrows."""

    def __init__(self) -> None: ...
    def wait(self, timeout_ns: int) -> None:
        """Raises unless the operation has committed."""

    def poll(self) -> bool:
        """True if wait would not block."""

    def in_flight(self) -> bool:
        """The contrary of poll; never raises."""

    def fileno(self) -> int:
        """
        Readable once wait would not block; -1 of a blocking call that has committed.
        """

    def cancel(self) -> None: ...
    def withdraw(self) -> None:
        """Cancels, and waits until it is done."""

    @property
    def begun(self) -> bool: ...
    def resolve(self, timeout_ns: int, copy: bool) -> None: ...
    def outcome(
        self,
    ) -> tuple[
        int, int, int, int, bytes, int, int, int, int, int, int, list[tuple[int, int, list[bytes]]]
    ]:
        """
        (epoch, tag, sequence, attempts, digest, bytes_sent, bytes_received, duration_ns,
        plan, predicted_ns, bound_ns, ranges)
        """

class Comm:
    """Owns a pccl_comm_t."""

    @staticmethod
    def connect(
        token: str,
        group: str,
        bind: str | None,
        advertise: str | None,
        ports: str | None,
        initial_world_size: int,
        deadline_ns: int,
        connect_ns: int,
        peer_id: bytes | None,
        label: str | None,
        reconnect_timeout_ns: int,
        send_rates: str | None,
        congestion: int,
        probe: int,
    ) -> Comm: ...
    def join(self, group: str, initial_world_size: int, deadline_ns: int) -> Comm: ...
    def subgroup(self, group: str, founders: list[bytes], deadline_ns: int) -> Comm: ...
    def set_deadline(self, deadline_ns: int) -> None: ...
    def close(self) -> None: ...
    def admit(
        self, deadline_ns: int, together: bool
    ) -> tuple[int, int, int, bool, list[bytes], list[bytes]]:
        """(epoch, rank, world_size, changed, joined, left)"""

    def pending_agreed(self, deadline_ns: int) -> int: ...
    def not_entered(self) -> list[bytes]:
        """In rank order."""

    def info(self) -> tuple[int, int, int, int, int, int, int, bytes, int, int, int]:
        """
        (epoch, attempt, rank, world_size, alive, pending, operations_in_flight, peer_id,
        bytes_sent, bytes_received, lost)
        """

    def plan(
        self,
    ) -> tuple[int, int, int, list[int], list[int], int, int, int, list[tuple[int, int]]]:
        """
        (epoch, attempt, kind, order, shares, small_bytes, predicted_ns, bound_ns, limits)
        """

    def optimize_topology(self, deadline_ns: int) -> None: ...
    def members(self) -> list[bytes]:
        """In rank order."""

    @property
    def handle(self) -> int:
        """The number that stands for it in compiled programs."""

    def label(self, peer: bytes) -> str:
        """Empty if it is not known."""

def rate_parse(text: str, name: str) -> int:
    """
    The rate for all peers together; raises what pccl_rate_parse says of the text.
    """

def call(
    work: Work,
    comm: Comm,
    kind: int,
    arrays: Sequence[tuple[int, int, int, int]],
    counts: Sequence[int],
    recv_counts: Sequence[int],
    root: int,
    op: int,
    tag: int,
    deadline_ns: int,
    recovery: int,
    plan: int,
    codec: int,
    codec_block: int,
    codec_rotate: int,
    codec_rounding: int,
    residual_in: int,
    residual_out: int,
    form: int,
    buffers: object | None,
    block: bool,
) -> bool: ...

FORM_BOOL: int = 1819242339

FORM_OBJECT: int = 1868720741

def handler_hooks(main_thread_ident: int) -> int:
    """The address of bindings/handlers.h's hooks."""

def handlers_withdraw() -> None:
    """Ends the operations of programs that run beside Python's threads."""

class State:
    """Owns a pccl_state_t and the tensors it borrows."""

    @staticmethod
    def create(
        comm: Comm,
        name: str,
        tensors: list[tuple[str, int, tuple[int, ...], int, int]],
        revision: int,
        flags: int,
        owners: object | None,
    ) -> State:
        """
        Each tensor is (name, address, shape, dtype, flags). flags: STATE_PREFETCH,
        and the numbers of rules.
        """

    def sync(
        self, strategy: int, revision: int | None, deadline_ns: int
    ) -> tuple[
        tuple[int, int, int, int, int, int],
        tuple[int, int, int],
        tuple[int, int, int, int],
        tuple[int, int],
        list[bytes],
        list[bool],
    ]:
        """
        ((revision, elected_revision, epoch, sequence, attempts, sources),
        (leaves, leaves_moved, leaves_early),
        (bytes_sent, bytes_received, hash_bytes_sent, hash_bytes_received),
        (duration_ns, hash_ns), contributors, which of them held what was elected)
        """

    def revision(self) -> int: ...
    def close(self) -> None: ...

TENSOR_MAY_DIFFER: int = 1

STATE_PREFETCH: int = 1

def kernel_names() -> list[str]:
    """The kernels that kernel_run can measure."""

def kernel_memory(count: int) -> int:
    """
    Bytes that kernel_run needs for so many elements; 0 if it cannot measure them.
    """

def kernel_run(name: str, what: int, memory: object, count: int, repeats: int) -> int:
    """
    Processor time in ns of the kernel (what=1) or of its skeleton (2); 0 prepares the memory.
    """

def outer_difference(outer: int, parameters: int, dtype: int, count: int, out: int) -> float:
    """The sum of the squares of outer - parameters, which `out` becomes."""

def outer_mix(parameters: int, dtype: int, outer: int, count: int, alpha: float) -> None:
    """parameters := alpha * parameters + (1 - alpha) * outer."""

def outer_step(
    outer: int,
    first_moment: int,
    second_moment: int,
    gradient: int,
    count: int,
    rule: int,
    learning_rate: float,
    momentum: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    scale: float,
    step: int,
) -> None:
    """
    One step of rule 0 (SGD), 1 (Nesterov) or 2 (Adam). 0 stands for a moment it has not.
    """

def sparse_bytes(chunk: int, kept: int, values: int, count: int) -> int:
    """Bytes of a piece of `count` f32; 0 for options that cannot be."""

def sparse_encode(input: int, count: int, chunk: int, kept: int, values: int, piece: int) -> None:
    """piece := the elements of greatest magnitude of each chunk."""

def sparse_add(
    into: int,
    weights: int,
    count: int,
    chunk: int,
    kept: int,
    values: int,
    piece: int,
    scale: float,
) -> None:
    """
    into += scale * piece, and weights, unless 0, += scale where the piece has an element.
    """
