"""PyTorch's tensors for the kit of frontends: which tensors are taken, their layout, their dtypes.

A CPU tensor is passed to the core by its address. The kit packs tensors that are not contiguous. A
complex tensor travels as twice as many floats, and `Outcome.ranges` counts the floats. Bytes of a
bool tensor must be 0 or 1, as PyTorch makes them: band, bor and bxor combine their bits. The kit
(pccl_py.kit) makes collectives of the class `Torch`: functions.py names them, and nn.py adds
gradients.

Tensors are refused before anything is sent, by an error for each kind:

    TypeError            no torch.Tensor; a dtype that no collective takes, or no reduction
    NotImplementedError  (a RuntimeError) sparse, quantized and nested tensors; tensors without
                         memory of their own (FakeTensor, DTensor, in torch.vmap); tensors with a
                         tangent of forward-mode differentiation
    RuntimeError         tensors of another device, or of meta; conjugated or negated views; to
                         write to: a leaf that requires grad, unless under torch.no_grad(), an
                         inference tensor outside of inference mode, an expanded tensor
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from pccl_py import DType, Group
from pccl_py.buffers import Buffer
from pccl_py.kit import Frontend
from pccl_py.words import not_added_up

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.uint8: DType.U8,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
}
"""Dtypes that reductions take, and the core's dtypes for them."""

PAIRS: dict[torch.dtype, DType] = {torch.complex64: DType.F32, torch.complex128: DType.F64}
"""Complex dtypes, and the core's dtype of the real and the imaginary part."""

OPAQUE: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in ("bool", *(name for name in dir(torch) if name.startswith(("float8_", "float4_"))))
}
"""Dtypes of one byte that travel as u8 and are not reduced, and their names in ml_dtypes."""


class Torch(Frontend[Tensor]):
    """The kit's operations on CPU tensors of any strides."""

    def array(self, x: object, adds: bool) -> Tensor:
        tensor = _taken(x)
        check_dtype(tensor.dtype, adds=adds)
        return tensor.detach() if tensor.requires_grad else tensor

    def target(self, x: object, adds: bool, only_read: bool = False) -> Tensor:
        tensor = self.array(x, adds)
        if not only_read:
            check_leaf(x)
            check_written(tensor)
        return tensor

    def remedy(self, comm: object) -> str:
        if isinstance(getattr(comm, "comm", None), Group):
            return "pass the group behind it, dist.group.WORLD.comm for the default one"
        if isinstance(comm, torch.distributed.ProcessGroup):
            return (
                'pass dist.group.WORLD.comm, which a process group of backend "pccl" has, or call '
                "that of torch.distributed"
            )
        return (
            "it comes first, as pccl_py.connect() returns it, or dist.group.WORLD.comm after "
            'dist.init_process_group("pccl", init_method="pccl://")'
        )

    def shared(self, x: object, may_differ: bool) -> Tensor:
        """Checks a tensor of a shared state; takes parameters as well, as autograd sees no sync.

        Returns the tensor itself, so that a sync notices if the tensor's memory was replaced.
        """
        tensor = _taken(x)
        check_dtype(tensor.dtype, adds=False)
        if not may_differ:
            check_written(tensor)
        return tensor

    def shape(self, x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape)

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x.view(shape)

    def rows(self, x: Tensor, first: int, end: int) -> Tensor:
        return x[first:end]

    def is_packed(self, x: Tensor) -> bool:
        return x.is_contiguous()

    def copy(self, x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.contiguous_format)

    def empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        # The device is named, as a program may have another default device.
        return torch.empty(shape, dtype=like.dtype, device="cpu")

    def write(self, target: Tensor, source: Tensor) -> None:
        with torch.inference_mode(target.is_inference()), torch.no_grad():
            target.copy_(source)

    def written(self, x: Tensor) -> None:
        # A backward that has saved the tensor then raises, as the tensor may have changed.
        if not x.is_inference():
            increment_version(x)

    def check_dtypes(self, out: Tensor, x: Tensor) -> None:
        if out.dtype != x.dtype:
            raise TypeError(f"out is {_name(out.dtype)}, x is {_name(x.dtype)}")

    def bounds(self, x: Tensor) -> tuple[int, int]:
        low = high = x.data_ptr()
        if x.numel() == 0:
            return low, high
        steps = sum(
            (length - 1) * stride for length, stride in zip(x.shape, x.stride(), strict=True)
        )
        return low, high + (steps + 1) * x.element_size()

    def place(self, x: Tensor) -> tuple[int, ...]:
        # With the storage, as a program may replace or resize it without a change of the bounds.
        storage = x.untyped_storage()
        return (*self.bounds(x), storage.data_ptr(), storage.nbytes())

    def overlaps(self, x: Tensor, y: Tensor) -> bool:
        (low, high), (first, end) = self.bounds(x), self.bounds(y)
        if high <= first or end <= low or low == high or first == end:
            return False
        if (x.is_contiguous() and y.is_contiguous()) or self.is_same(x, y):
            return True
        if self._are_columns(x, y, first - low):
            return False
        # Other layouts: marks each byte of `x`, and looks for marks under the bytes of `y`.
        base = min(low, first)
        marks = torch.zeros(max(high, end) - base, dtype=torch.bool, device="cpu")
        _bytes_of(x, marks, base).fill_(True)
        return bool(_bytes_of(y, marks, base).any())

    def _are_columns(self, x: Tensor, y: Tensor, gap: int) -> bool:
        """Whether `x` and `y` lie in separate columns of a common matrix, and so do not overlap."""
        steps = [_steps(each) for each in (x, y)]
        for least in {step for each in steps for step, _ in each}:
            row = math.gcd(*(step for each in steps for step, _ in each if step >= least))
            wide, other_wide = (
                tensor.element_size() + sum(step * more for step, more in each if step < least)
                for tensor, each in zip((x, y), steps, strict=True)
            )
            if row and gap % row >= wide and -gap % row >= other_wide:
                return True
        return False

    def is_same(self, x: Tensor, y: Tensor) -> bool:
        return x.data_ptr() == y.data_ptr() and x.stride() == y.stride() and x.shape == y.shape

    def memory(self, x: Tensor) -> Buffer:
        # The Buffer keeps the storage, as `x.data = y` gives the tensor another storage.
        owner, shape = x.untyped_storage(), tuple(x.shape)
        place, count = x.data_ptr(), x.numel()
        part = PAIRS.get(x.dtype)
        if part is not None:
            return Buffer(place, 2 * count, part, False, owner, (*shape, 2), None, True)
        opaque = OPAQUE.get(x.dtype)
        dtype = DTYPES[x.dtype] if opaque is None else DType.U8
        return Buffer(place, count, dtype, False, owner, shape, opaque)

    def width(self, x: Tensor) -> int:
        return 2 if x.dtype in PAIRS else 1


TORCH = Torch()


def check_dtype(dtype: torch.dtype, *, adds: bool) -> None:
    """Raises TypeError for a dtype that no collective takes or, with `adds`, none that adds up."""
    if dtype in DTYPES or dtype in PAIRS or (dtype in OPAQUE and not adds):
        return
    if dtype in OPAQUE:
        raise not_added_up(_name(dtype))
    raise TypeError(
        f"dtype {_name(dtype)} is not supported; supported are float16, float32, float64, "
        "bfloat16, complex64, complex128 and the integers of 8 to 64 bits; and where nothing is "
        "added up, bool and the float8 and float4 types"
    )


def check_leaf(x: object) -> None:
    """Raises RuntimeError for a leaf that requires grad, or its view, as PyTorch's in-place ops do.

    Other tensors of a computation may be written, as in torch.distributed; autograd does not
    record the write.
    """
    if not (isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()):
        return
    base: Any = x._base
    if not x.is_leaf and (base is None or not base.is_leaf):
        return
    what = "a leaf Variable" if x.is_leaf else "a view of a leaf Variable"
    raise RuntimeError(
        f"{what} that requires grad is being used in an in-place operation: call this under "
        "torch.no_grad(), or pass x.detach() or x.grad"
    )


def _taken(x: object) -> Tensor:
    """Returns `x` if it is a tensor in CPU memory; else raises (see the head of this file)."""
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a torch.Tensor, not {type(x).__name__}: {_instead_of(x)}")
    kind = type(x)
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise NotImplementedError(
            f"a {kind.__name__} stands for other tensors, and has no memory of its own: pass these "
            "(of a DTensor x.to_local())"
        )
    if x.device.type == "meta":
        raise RuntimeError("the tensor is on device meta, where it has no data")
    if x.device.type != "cpu":
        raise RuntimeError(
            f"the tensor is on device {x.device}, and pccl_torch's functions take tensors of the "
            "CPU: pass x.cpu()"
        )
    if x.layout != torch.strided:
        raise NotImplementedError(
            f"the tensor has layout {x.layout}, and only torch.strided is supported: pass "
            "x.to_dense(), or its indices and values"
        )
    if x.is_quantized or x.is_nested:
        what, remedy = ("quantized", "x.int_repr()") if x.is_quantized else ("nested", "its parts")
        raise NotImplementedError(f"the tensor is {what}, which is not supported: pass {remedy}")
    try:
        x.data_ptr()
    except RuntimeError as error:
        raise NotImplementedError(
            f"the tensor has no memory of its own, as in a function under torch.vmap ({error})"
        ) from None
    check_no_tangent(x)
    if x.is_conj() or x.is_neg():
        what, remedy = ("conjugated", "resolve_conj") if x.is_conj() else ("negated", "resolve_neg")
        raise RuntimeError(
            f"the tensor is a {what} view, whose memory has other values: pass x.{remedy}()"
        )
    return x


def _instead_of(x: object) -> str:
    """The end of the error for an `x` that is no tensor: it says what to pass instead."""
    if isinstance(x, dict | list | tuple):
        return (
            "pass torch.tensor(x) where it has numbers; pccl_torch.tree has collectives for dicts "
            "and lists of tensors"
        )
    if isinstance(x, Group):
        return "comm comes first, then the tensor"
    if x is None:
        return "where it is the grad of a parameter that no backward has reached, pass zeros"
    if isinstance(x, int | float | complex):
        return "pass torch.tensor(x)"
    if hasattr(x, "__array_interface__"):
        return "pass torch.as_tensor(x), which shares its memory, or call pccl_numpy's function"
    return "comm.all_gather_object and comm.broadcast_object send any object"


def check_no_tangent(x: Tensor) -> None:
    """Raises NotImplementedError for a dual tensor, whose tangent a collective would drop."""
    # Nearly all calls are outside of any dual level: there unpack_dual, ten times as slow as the
    # other checks, can be skipped.
    if getattr(forward_ad, "_current_level", 0) < 0:
        return
    if forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
        raise NotImplementedError(
            "the tensor has a tangent of forward-mode differentiation, which collectives do not "
            "know: pass torch.autograd.forward_ad.unpack_dual(x).primal, and the tangent in a call "
            "of its own"
        )


def check_written(x: Tensor) -> None:
    """Raises RuntimeError for a tensor that cannot be written to: see the head of this file."""
    if x.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed: pass "
            "x.clone(), or call this under torch.inference_mode()"
        )
    if any(stride == 0 and length > 1 for length, stride in zip(x.shape, x.stride(), strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location: clone() the tensor, which is expanded, first"
        )


def _steps(x: Tensor) -> list[tuple[int, int]]:
    """The stride in bytes, and the length minus one, of each dimension longer than one."""
    size, lengths = x.element_size(), zip(x.stride(), x.shape, strict=True)
    return [(stride * size, length - 1) for stride, length in lengths if length > 1]


def _bytes_of(x: Tensor, marks: Tensor, base: int) -> Tensor:
    """The view of `marks` that has the bytes of `x`; marks begin at the address `base`."""
    size = x.element_size()
    strides = [stride * size for stride in x.stride()]
    return marks.as_strided((*x.shape, size), (*strides, 1), x.data_ptr() - base)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
