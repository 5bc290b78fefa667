"""The model: a byte-level language model in NumPy, with its gradients derived by hand, and AdamW.

The parameters of the network are one flat array. The text is in `corpus.py`, and the training loop
in `peer.py`.

The network is the neural probabilistic language model of Bengio et al. (2003). The embeddings of
the last `context` bytes are looked up in a table and concatenated; one hidden layer of tanh gives
the scores of the 256 possible next bytes:

    e = table[window]          (batch, context * embedding)
    h = tanh(e W1 + b1)        (batch, hidden)
    z = h W2 + b2              (batch, 256)
    loss = mean over the batch of  log(sum(exp(z))) - z[target]

"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BYTE_VALUES = 256

Floats = NDArray[np.floating]  # f32, or f64 in tests of the gradients
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Model:
    """The network's shapes and arithmetic. The caller holds the parameters, a flat f32 array."""

    context: int = 16
    embedding: int = 32
    hidden: int = 512

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each parameter, in the order of the flat array."""
        return {
            "table": (BYTE_VALUES, self.embedding),
            "w1": (self.context * self.embedding, self.hidden),
            "b1": (self.hidden,),
            "w2": (self.hidden, BYTE_VALUES),
            "b2": (BYTE_VALUES,),
        }

    @property
    def size(self) -> int:
        """Number of elements of the flat array of parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def views(self, flat: Floats) -> dict[str, Floats]:
        """The parameters by name, as views into `flat`."""
        if flat.shape != (self.size,):
            raise ValueError(
                f"expected a flat array of {self.size} parameters, got shape {flat.shape}"
            )
        views, begin = {}, 0
        for name, shape in self.shapes.items():
            end = begin + int(np.prod(shape))
            views[name] = flat[begin:end].reshape(shape)
            begin = end
        return views

    def initial(self, seed: int) -> Floats:
        """The parameters before training, a flat array; equal on all peers with the same seed."""
        rng = np.random.default_rng(seed)
        flat = np.zeros(self.size, np.float32)
        parameters = self.views(flat)
        # The output layer starts small, so that the first guess is close to uniform: ln 256 = 5.55
        # nats per byte.
        scales = {
            "table": 0.5,
            "w1": (self.context * self.embedding) ** -0.5,
            "w2": 0.3 * self.hidden**-0.5,
        }
        for name, scale in scales.items():
            parameters[name][...] = scale * rng.standard_normal(parameters[name].shape)
        return flat

    def loss(self, flat: Floats, windows: Bytes, targets: Bytes) -> float:
        """Mean loss in nats per byte. windows: (batch, context); targets: (batch,)."""
        *_, scores = self._forward(self.views(flat), windows)
        likelihoods = log_softmax(scores)[np.arange(len(targets)), targets]
        return float(-likelihoods.mean())

    def loss_and_gradient(self, flat: Floats, windows: Bytes, targets: Bytes, out: Floats) -> float:
        """Returns the loss (see `loss`), and writes its gradient to `out`, an array like `flat`."""
        parameters, gradients = self.views(flat), self.views(out)
        batch = len(targets)
        rows = np.arange(batch)
        embedded, hidden, scores = self._forward(parameters, windows)
        log_likelihoods = log_softmax(scores)
        loss = float(-log_likelihoods[rows, targets].mean())

        # d loss / d scores = (softmax(scores) - one_hot(target)) / batch
        d_scores = np.exp(log_likelihoods)
        d_scores[rows, targets] -= 1
        d_scores /= batch
        np.matmul(hidden.T, d_scores, out=gradients["w2"])
        d_scores.sum(axis=0, out=gradients["b2"])

        # tanh' = 1 - tanh^2
        d_hidden = (d_scores @ parameters["w2"].T) * (1 - hidden * hidden)
        np.matmul(embedded.T, d_hidden, out=gradients["w1"])
        d_hidden.sum(axis=0, out=gradients["b1"])

        # Row v of the table's gradient sums the gradients of all places where byte v stood:
        # one_hot^T times d_embedded.
        d_embedded = (d_hidden @ parameters["w1"].T).reshape(-1, self.embedding)
        places = np.zeros((BYTE_VALUES, d_embedded.shape[0]), flat.dtype)
        places[windows.reshape(-1), np.arange(d_embedded.shape[0])] = 1
        np.matmul(places, d_embedded, out=gradients["table"])
        return loss

    def write(
        self, flat: Floats, prompt: bytes, length: int, seed: int, temperature: float = 0.7
    ) -> bytes:
        """Samples `length` bytes from the model, one by one, to continue `prompt`."""
        rng = np.random.default_rng(seed)
        parameters = self.views(flat)
        text = bytearray(prompt.rjust(self.context, b"\n"))
        for _ in range(length):
            window = np.frombuffer(bytes(text[-self.context :]), np.uint8)[None, :]
            *_, scores = self._forward(parameters, window)
            likelihoods = np.exp(log_softmax(scores[0] / temperature).astype(np.float64))
            text.append(int(rng.choice(BYTE_VALUES, p=likelihoods / likelihoods.sum())))
        return bytes(text[-length:])

    def _forward(
        self, parameters: dict[str, Floats], windows: Bytes
    ) -> tuple[Floats, Floats, Floats]:
        embedded = parameters["table"][windows].reshape(len(windows), -1)
        hidden = np.tanh(embedded @ parameters["w1"] + parameters["b1"])
        return embedded, hidden, hidden @ parameters["w2"] + parameters["b2"]


def log_softmax(scores: Floats) -> Floats:
    """Log-likelihoods for scores (logits), along the last axis."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


@dataclass
class AdamW:
    """The optimizer of Loshchilov and Hutter (arXiv 1711.05101).

    State: two moments per parameter, and the number of steps taken.
    """

    size: int
    learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    steps: int = 0
    mean: Floats = field(init=False, repr=False)
    square: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.mean = np.zeros(self.size, np.float32)
        self.square = np.zeros(self.size, np.float32)

    def step(self, parameters: Floats, gradient: Floats, schedule: float = 1.0) -> None:
        """Updates `parameters` in place by one step with `schedule` times the learning rate."""
        self.steps += 1
        self.mean += (1 - self.beta1) * (gradient - self.mean)
        self.square += (1 - self.beta2) * (gradient * gradient - self.square)
        # Both moments start at zero; dividing by these weights removes the bias towards zero.
        mean_weight = 1 - self.beta1**self.steps
        square_weight = 1 - self.beta2**self.steps
        direction = (self.mean / mean_weight) / (
            np.sqrt(self.square / square_weight) + self.epsilon
        )
        rate = schedule * self.learning_rate
        parameters *= 1 - rate * self.weight_decay
        parameters -= rate * direction
