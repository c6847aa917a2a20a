"""A training run in NumPy and float64, with each formula written out. It shares no code with mxtrain.

Shapes are suffixes: N samples of a split, B of a batch, C channels, H height, W width, O output channels, K classes.

Reasons: docs/decisions/0031-independent-reference.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

Arrays = Dict[str, np.ndarray]

# Layers: forward(arrays, x, training) -> y, then backward(dy, gradients) -> dx, which also adds to the gradients.


class Layer:
    def __init__(self, name: str = "") -> None:
        self.name = name


class Flatten(Layer):
    def forward(self, arrays: Arrays, x: np.ndarray, training: bool) -> np.ndarray:
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, dy: np.ndarray, gradients: Arrays) -> np.ndarray:
        return dy.reshape(self.shape)


class Relu(Layer):
    def forward(self, arrays: Arrays, x: np.ndarray, training: bool) -> np.ndarray:
        self.positive = x > 0
        return x * self.positive

    def backward(self, dy: np.ndarray, gradients: Arrays) -> np.ndarray:
        return dy * self.positive


class Dense(Layer):
    def forward(self, arrays: Arrays, x: np.ndarray, training: bool) -> np.ndarray:
        self.x, self.weight = x, arrays[f"{self.name}.weight"]
        return x @ self.weight.T + arrays[f"{self.name}.bias"]

    def backward(self, dy: np.ndarray, gradients: Arrays) -> np.ndarray:
        gradients[f"{self.name}.weight"] += dy.T @ self.x
        gradients[f"{self.name}.bias"] += dy.sum(axis=0)
        return dy @ self.weight


class Convolution(Layer):
    """3x3, padding 1, without bias."""

    def forward(self, arrays: Arrays, x: np.ndarray, training: bool) -> np.ndarray:
        self.weight = arrays[f"{self.name}.weight"]
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        self.windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # (B, C, H, W, 3, 3)
        return np.einsum("bchwij,ocij->bohw", self.windows, self.weight, optimize=True)

    def backward(self, dy: np.ndarray, gradients: Arrays) -> np.ndarray:
        gradients[f"{self.name}.weight"] += np.einsum("bchwij,bohw->ocij", self.windows, dy, optimize=True)
        batch, channels, height, width = self.windows.shape[:4]
        dx = np.zeros((batch, channels, height + 2, width + 2))
        for i in range(3):
            for j in range(3):
                dx[:, :, i : i + height, j : j + width] += np.einsum("bohw,oc->bchw", dy, self.weight[:, :, i, j])
        return dx[:, :, 1:-1, 1:-1]


class BatchNorm(Layer):
    """Over batch, height and width; the moving statistics keep nine tenths of themselves."""

    def forward(self, arrays: Arrays, x: np.ndarray, training: bool) -> np.ndarray:
        mean, variance = arrays[f"{self.name}.running_mean"], arrays[f"{self.name}.running_var"]
        if training:
            batch_mean, batch_variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
            arrays[f"{self.name}.running_mean"] = 0.9 * mean + 0.1 * batch_mean
            arrays[f"{self.name}.running_var"] = 0.9 * variance + 0.1 * batch_variance
            mean, variance = batch_mean, batch_variance
        self.deviation = np.sqrt(variance + 1e-5)[:, None, None]
        self.normalised = (x - mean[:, None, None]) / self.deviation
        self.gamma = arrays[f"{self.name}.gamma"][:, None, None]
        return self.gamma * self.normalised + arrays[f"{self.name}.beta"][:, None, None]

    def backward(self, dy: np.ndarray, gradients: Arrays) -> np.ndarray:
        gradients[f"{self.name}.gamma"] += (dy * self.normalised).sum(axis=(0, 2, 3))
        gradients[f"{self.name}.beta"] += dy.sum(axis=(0, 2, 3))
        d = dy * self.gamma
        mean = d.mean(axis=(0, 2, 3), keepdims=True)
        along = (d * self.normalised).mean(axis=(0, 2, 3), keepdims=True)
        return (d - mean - self.normalised * along) / self.deviation


class MaxPool(Layer):
    """2x2."""

    def forward(self, arrays: Arrays, x: np.ndarray, training: bool) -> np.ndarray:
        batch, channels, height, width = x.shape
        blocks = x.reshape(batch, channels, height // 2, 2, width // 2, 2).transpose(0, 1, 2, 4, 3, 5)
        self.shape, flat = x.shape, blocks.reshape(*blocks.shape[:4], 4)
        self.largest = np.eye(4)[flat.argmax(axis=-1)]
        return flat.max(axis=-1)

    def backward(self, dy: np.ndarray, gradients: Arrays) -> np.ndarray:
        batch, channels, height, width = self.shape
        blocks = (self.largest * dy[..., None]).reshape(batch, channels, height // 2, width // 2, 2, 2)
        return blocks.transpose(0, 1, 2, 4, 3, 5).reshape(self.shape)


NETWORKS: Dict[str, Callable[[], List[Layer]]] = {
    "mlp": lambda: [Flatten(), Dense("features.1"), Relu(), Dense("output")],
    "lenet": lambda: [
        Convolution("features.0"),
        BatchNorm("features.1"),
        Relu(),
        Convolution("features.3"),
        BatchNorm("features.4"),
        Relu(),
        MaxPool(),
        Flatten(),
        Dense("features.8"),
        Relu(),
        Dense("output"),
    ],
}
STATISTICS = ("running_mean", "running_var")


def forward(layers: Sequence[Layer], arrays: Arrays, x: np.ndarray, training: bool) -> np.ndarray:
    for layer in layers:
        x = layer.forward(arrays, x, training)
    return x


def log_softmax(score_BK: np.ndarray) -> np.ndarray:
    shifted = score_BK - score_BK.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def cross_entropy(score_BK: np.ndarray, label_B: np.ndarray, smoothing: float) -> Tuple[np.ndarray, np.ndarray]:
    """The loss of each sample (B,), and its gradient (B, K), with the targets smoothed evenly over the classes."""
    num_classes = score_BK.shape[1]
    target_BK = (1 - smoothing) * np.eye(num_classes)[label_B] + smoothing / num_classes
    log_p_BK = log_softmax(score_BK)
    return -(target_BK * log_p_BK).sum(axis=1), np.exp(log_p_BK) - target_BK


# The order of samples, and the random crops: SplitMix64 at (seed, epoch, index), as the README promises.

WORD = (1 << 64) - 1
ORDER, CROP_TOP, CROP_LEFT = 0, 2, 3


def mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & WORD
    return value ^ (value >> 31)


def random_bits(seed: int, epoch: int, index: int, draw: int) -> int:
    golden = 0x9E3779B97F4A7C15
    key = mix((seed + golden) & WORD)
    key = mix((key + epoch + golden) & WORD)
    key = mix((key + draw + golden) & WORD)
    return mix((index * golden + key) & WORD)


def shuffled(seed: int, epoch: int, count: int) -> List[int]:
    return sorted(range(count), key=lambda index: random_bits(seed, epoch, index, ORDER))


def crop(image_CHW: np.ndarray, padding: int, seed: int, epoch: int, index: int) -> np.ndarray:
    """A window of the image with a border of black around it."""
    padded = np.pad(image_CHW, ((0, 0), (padding, padding), (padding, padding)))
    top, left = (
        int((random_bits(seed, epoch, index, draw) >> 11) / 2**53 * (2 * padding + 1)) for draw in (CROP_TOP, CROP_LEFT)
    )
    return padded[:, top : top + image_CHW.shape[1], left : left + image_CHW.shape[2]]


# Optimizers: they change `weights` in place, once per step.


@dataclass
class Momentum:
    momentum: float = 0.9
    clip_gradient: Optional[float] = None
    velocity: Arrays = field(default_factory=dict)

    def update(self, name: str, weight: np.ndarray, gradient: np.ndarray, lr: float, wd: float, step: int) -> None:
        if self.clip_gradient is not None:
            gradient = np.clip(gradient, -self.clip_gradient, self.clip_gradient)
        before = self.velocity.get(name, np.zeros_like(weight))
        self.velocity[name] = self.momentum * before - lr * (gradient + wd * weight)
        weight += self.velocity[name]


@dataclass
class Adam:
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    mean: Arrays = field(default_factory=dict)
    square: Arrays = field(default_factory=dict)

    def update(self, name: str, weight: np.ndarray, gradient: np.ndarray, lr: float, wd: float, step: int) -> None:
        gradient = gradient + wd * weight
        self.mean[name] = self.beta1 * self.mean.get(name, 0.0) + (1 - self.beta1) * gradient
        self.square[name] = self.beta2 * self.square.get(name, 0.0) + (1 - self.beta2) * gradient**2
        lr *= math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)
        weight -= lr * self.mean[name] / (np.sqrt(self.square[name]) + self.epsilon)


def warmup_cosine(base: float, warmup_from: float, warmup_steps: int, total_steps: int) -> Callable[[int], float]:
    """The rate of step number `step`, from 1."""

    def lr(step: int) -> float:
        if step <= warmup_steps:
            return base * (warmup_from + (1 - warmup_from) * step / warmup_steps)
        done = (step - 1 - warmup_steps) / (total_steps - warmup_steps)
        return base * (1 + math.cos(math.pi * done)) / 2

    return lr


def falling(base: float, gamma: float, milestones: Sequence[int]) -> Callable[[int], float]:
    """`base`, times `gamma` after each milestone, in finished steps."""
    return lambda step: base * gamma ** sum(step - 1 >= milestone for milestone in milestones)


# A run.


@dataclass
class Settings:
    network: str
    optimizer: Any
    lr: Callable[[int], float]
    """The rate of step number `step`, from 1."""
    batch_size: int
    epochs: int
    wd: float = 0.0
    multipliers: Mapping[str, Tuple[float, float]] = field(default_factory=dict)
    """Parameter -> (lr_mult, wd_mult), where they are not 1."""
    smoothing: float = 0.0
    clip_global_norm: Optional[float] = None
    average_decay: Optional[float] = None
    num_parts: int = 1
    """Parts of a batch, one after the other (gradient accumulation)."""
    num_shares: int = 1
    """Replicas or workers, each with its own batch norm."""
    crop_padding: int = 1
    seed: int = 0


@dataclass
class Split:
    image_NCHW: np.ndarray
    """uint8."""
    label_N: np.ndarray


@dataclass
class Moment:
    """After a step."""

    row: Dict[str, Any]
    weights: Arrays
    average: Arrays
    grad_norm: float


class Reference:
    """The same run, computed by itself.

    Args:
        settings: of the run.
        initial: the weights before the first step, by name.
        train: the training samples, whose mean and deviation normalise all images.
    """

    def __init__(self, settings: Settings, initial: Mapping[str, np.ndarray], train: Split) -> None:
        self.settings, self.train = settings, train
        self.layers = NETWORKS[settings.network]()
        self.weights = {name: array.astype(np.float64) for name, array in initial.items()}
        self.average = {name: array.copy() for name, array in self.weights.items()}
        pixels = train.image_NCHW.astype(np.float64) / 255
        self.mean, self.deviation = pixels.mean(), pixels.std()

    def normalise(self, image_NCHW: np.ndarray) -> np.ndarray:
        return (image_NCHW.astype(np.float64) / 255 - self.mean) / self.deviation

    def moments(self) -> Iterator[Moment]:
        settings, step = self.settings, 0
        for epoch in range(settings.epochs):
            order = shuffled(settings.seed, epoch, len(self.train.label_N))
            for begin in range(0, len(order), settings.batch_size):
                step += 1
                yield self._step(step, epoch, order[begin : begin + settings.batch_size])

    def _step(self, step: int, epoch: int, indices: Sequence[int]) -> Moment:
        settings = self.settings
        image = {i: crop(self.train.image_NCHW[i], settings.crop_padding, settings.seed, epoch, i) for i in indices}
        gradients = {name: np.zeros_like(array) for name, array in self.weights.items()}
        loss, right, copies = 0.0, 0, [dict(self.weights) for _ in range(settings.num_shares)]
        seen = set()
        for part in np.array_split(indices, settings.num_parts):
            for number, share in enumerate(np.array_split(part, settings.num_shares)):
                if not len(share):
                    continue
                seen.add(number)
                score_BK = forward(
                    self.layers, copies[number], self.normalise(np.stack([image[i] for i in share])), True
                )
                label_B = self.train.label_N[share]
                loss_B, d_BK = cross_entropy(score_BK, label_B, settings.smoothing)
                loss += loss_B.sum()
                right += (score_BK.argmax(axis=1) == label_B).sum()
                d = d_BK / len(indices)
                for layer in reversed(self.layers):
                    d = layer.backward(d, gradients)
        for name in self.weights:
            if name.endswith(STATISTICS):
                self.weights[name] = np.mean([copies[number][name] for number in seen], axis=0)
        lr, norm = settings.lr(step), self._update(step, gradients)
        if settings.average_decay is not None:
            keep = min(settings.average_decay, (1 + step) / (10 + step))
            for name, weight in self.weights.items():
                self.average[name] = keep * self.average[name] + (1 - keep) * weight
        row = {
            "step": step,
            "epoch": epoch + 1,
            "loss": loss / len(indices),
            "accuracy": right / len(indices),
            "lr": lr,
        }
        copied = [{name: array.copy() for name, array in arrays.items()} for arrays in (self.weights, self.average)]
        return Moment(row, copied[0], copied[1], norm)

    def _update(self, step: int, gradients: Arrays) -> float:
        settings = self.settings
        trained = [name for name in self.weights if not name.endswith(STATISTICS)]
        norm = math.sqrt(sum((gradients[name] ** 2).sum() for name in trained))
        factor = 1.0
        if settings.clip_global_norm is not None:
            factor = min(1.0, settings.clip_global_norm / norm)
        for name in trained:
            lr_mult, wd_mult = settings.multipliers.get(name, (1.0, 1.0))
            settings.optimizer.update(
                name,
                self.weights[name],
                factor * gradients[name],
                settings.lr(step) * lr_mult,
                settings.wd * wd_mult,
                step,
            )
        return norm

    def scores(self, arrays: Arrays, split: Split) -> np.ndarray:
        """(N, K), in inference mode."""
        return forward(self.layers, dict(arrays), self.normalise(split.image_NCHW), False)

    def measure(self, arrays: Arrays, split: Split) -> Dict[str, float]:
        """Loss, without smoothing, and accuracy of a whole split."""
        score_NK = self.scores(arrays, split)
        loss_N, _ = cross_entropy(score_NK, split.label_N, 0.0)
        return {"loss": loss_N.mean(), "accuracy": (score_NK.argmax(axis=1) == split.label_N).mean()}
