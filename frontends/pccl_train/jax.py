"""DiLoCo and related methods for JAX: any pytree of parameters, and any inner optimizer.

    diloco = pccl_train.jax.DiLoCo(sync_every=50, codec="int8", fragment_sync_delay=5)
    params, state = diloco.init(comm, params)       # a sync of all members
    while state.round < 20:
        params, opt_state = inner_step(params, opt_state, next(batches))    # jitted
        params, state = diloco.step(params, state)                          # not jitted

Call `step` outside of `jit`. Exchanges go on while jitted steps run. `step` changes the state
object in place; it returns new arrays for parameters that an exchange has changed, and the old
arrays otherwise.

With `inner` a newcomer takes over the state of a member's inner optimizer:

    params, state = diloco.init(comm, params, inner=optimizer.init(params))
    ...
        params, opt_state = inner_step(params, state.inner, next(batches))
        params, state = diloco.step(params, state, inner=opt_state)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

try:
    import jax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pccl_train.jax needs JAX: pip install 'pccl-py[jax]'", name=error.name
    ) from error

import jax.numpy as jnp
import numpy as np

from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument
from pccl_train.fragments import Tensor
from pccl_train.method import Method
from pccl_train.rounds import Exchange, Rounds


class DiLoCo:
    """A training method for pytrees of parameters; takes the arguments of `Method` as well.

    `on_exchange`: called with each Exchange. `name`: distinguishes successive trainings in one
    group.
    """

    def __init__(
        self,
        *,
        on_exchange: Callable[[Exchange], object] | None = None,
        name: str = "diloco",
        **settings: Any,
    ) -> None:
        self.method = Method(**settings)
        self._on_exchange = on_exchange
        self._name = name

    def prepare(self, params: Any) -> State:
        """The state of a worker that begins with `params` and is not attached to a group yet."""
        return State(params, self.method, name=self._name, on_exchange=self._on_exchange)

    def init(self, comm: Group, params: Any, *, inner: Any = None) -> tuple[Any, State]:
        """Enters the run; returns the parameters with which all members begin, and the state.

        `inner`: the state of the inner optimizer, a pytree, which becomes `state.inner`. On a
        newcomer `state.inner` has the values of a member instead. Raises the errors of
        `Rounds.begin`, and InvalidArgument unless `params` has leaves, all of floats.
        """
        state = self.prepare(params)
        state.inner = inner
        state.attach(comm)
        state.begin()
        return state.params, state

    def step(
        self, params: Any, state: State, tokens: float = 1.0, *, inner: Any = None
    ) -> tuple[Any, State]:
        """Call this after each inner step with the step's parameters; see `Rounds.step`.

        `inner`: the state of the inner optimizer, stored in `state.inner` first. Raises
        InvalidArgument if `params` has another structure than before.
        """
        state.params = params
        if inner is not None:
            state.inner = inner
        state.step(tokens)
        return state.params, state


class State(Rounds):
    """The rounds of one worker, and its parameters between two steps.

    `inner`: a pytree, such as the state of an optimizer, whose values a newcomer takes over from a
    member; None: the newcomer takes over nothing.
    """

    def __init__(self, params: Any, method: Method, **options: Any) -> None:
        self.inner: Any = None
        self._tree = _Tree(params)
        super().__init__(self._tree, method, **options)

    @property
    def params(self) -> Any:
        """The parameters, a pytree of JAX arrays."""
        return jax.tree_util.tree_unflatten(self._tree.structure, self._tree.leaves)

    @params.setter
    def params(self, params: Any) -> None:
        leaves, structure = jax.tree_util.tree_flatten(params)
        if structure != self._tree.structure:
            raise InvalidArgument(
                f"the parameters were {self._tree.structure} and are {structure} now: make a new "
                "state, on all peers"
            )
        self._tree.leaves = [jnp.asarray(leaf) for leaf in leaves]

    def _own_state(self) -> dict[str, Any]:
        # Parameters are saved as bytes, because NumPy's archives do not support bfloat16.
        params = {
            name: np.frombuffer(np.asarray(leaf).tobytes(), np.uint8)
            for name, leaf in zip(self._tree.names, self._tree.leaves, strict=True)
        }
        return {"params": params, "inner": np.frombuffer(self._gift(with_optimizer=True), np.uint8)}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        params = state["params"]
        self._tree.write(
            {
                name: np.frombuffer(params[name].tobytes(), leaf.dtype).reshape(leaf.shape)
                for name, leaf in zip(self._tree.names, self._tree.leaves, strict=True)
            }
        )
        self._take_gift(state["inner"].tobytes())

    @property
    def _inherits(self) -> bool:
        return self.inner is not None

    def _gift(self, *, with_optimizer: bool) -> bytes:
        leaves = jax.tree_util.tree_leaves(self.inner) if with_optimizer else []
        return b"".join(np.asarray(leaf).tobytes() for leaf in leaves)

    def _take_gift(self, gift: bytes) -> None:
        leaves, structure = jax.tree_util.tree_flatten(self.inner)
        own = [np.asarray(leaf) for leaf in leaves]
        wanted = sum(array.nbytes for array in own)
        if len(gift) != wanted:
            raise InvalidArgument(
                f"a member or a checkpoint gives {len(gift)} bytes for `inner`, which has {wanted} "
                "here: it must be the same on all peers, and set before a checkpoint is loaded"
            )
        taken, at = [], 0
        for leaf, array in zip(leaves, own, strict=True):
            value = np.frombuffer(gift, array.dtype, array.size, at).reshape(array.shape)
            place = leaf.sharding if isinstance(leaf, jax.Array) else None
            taken.append(jax.device_put(value, place))
            at += array.nbytes
        self.inner = jax.tree_util.tree_unflatten(structure, taken)


def _name(path: Sequence[Any]) -> str:
    """The name of a leaf in PyTorch's style, from its path in the pytree: "layers.0.w"."""
    keys = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
    return ".".join(map(str, keys)) or "params"


class _Tree:
    """The Replica of a pytree of parameters; leaves are named by their paths."""

    def __init__(self, params: Any) -> None:
        found, structure = jax.tree_util.tree_flatten_with_path(params)
        self.structure: Any = structure
        self.names = [_name(path) for path, _ in found]
        self.leaves = [jnp.asarray(leaf) for _, leaf in found]
        if not found:
            raise InvalidArgument("params has no leaves: there is nothing to exchange")
        for name, leaf in zip(self.names, self.leaves, strict=True):
            if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize == 1:
                raise InvalidArgument(f"parameter {name!r} must be of floats, not {leaf.dtype}")

    def tensors(self) -> Sequence[Tensor]:
        return [
            Tensor(name, tuple(leaf.shape), str(leaf.dtype))
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]

    def read(self, names: Sequence[str], *, to_write: bool = False) -> Mapping[str, Any]:
        found = dict(zip(self.names, self.leaves, strict=True))
        # np.asarray does not copy an array on the CPU.
        take = np.array if to_write else np.asarray
        return {name: take(found[name]) for name in names}

    def write(self, arrays: Mapping[str, Any]) -> None:
        """Replaces leaves by new JAX arrays with the shardings of the old leaves."""
        for index, name in enumerate(self.names):
            if name in arrays:
                self.leaves[index] = jax.device_put(arrays[name], self.leaves[index].sharding)
