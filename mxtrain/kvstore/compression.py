"""Gradient compression with error feedback: the error of a message is added to the next gradient.

With the gradient g of a bucket and its residual r, a compressor computes x = r + g, writes C(x) into its payload, which
the store sums over workers, and keeps the residual r = x - C(x). Source: Seide et al., 1-Bit Stochastic Gradient
Descent, Interspeech 2014; Karimireddy et al., Error Feedback Fixes SignSGD, https://arxiv.org/abs/1901.09847,
algorithm 2.

Stores can only add payloads, and parameter servers only in float32. So payloads are encoded such that the sum of the
payloads of all workers is the encoded sum of their gradients: messages to and from the servers are compressed.

MXNet's own 2-bit compression is not used: it compresses only messages to the servers, also compresses counts and
statistics, and its residual cannot be read for a checkpoint. Servers reject bfloat16, so bfloat16 values travel as
float16, scaled by a power of two that all workers derive from the last sum. Residuals are part of a checkpoint.

Legend: N elements of a bucket, W workers, D digits in a word, M words, K chosen elements.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, Mapping, Optional

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError
from mxtrain.kvstore.world import World

FLOAT32_INTEGERS = 2**24
"""float32 represents all integers up to this one exactly."""
FLOAT16_MAX = 65504.0
TINY = 2.0**-100
"""Factor that keeps sums of finite values finite; smaller absolute values count as 0."""
UNITS = 8
"""Number of powers of two below the largest value that `unit_of` tries."""
COLUMNS = 1024
"""Row length of the view of a residual by which `Feedback.compress` finds values that are not finite."""
SPLITTER = 2.0**16 + 1
"""Splits a float32 number so that the 8 significant bits of bfloat16 remain."""


class Compressor:
    """Compresses the gradients of one bucket. This base class does not compress. All methods are asynchronous.

    Args:
        flat: gradients of the bucket, (N,) float32; the same array in every step.
        world: rank and number of workers.

    Attributes:
        payload: array that the store sums, 1-dimensional, float32 or float16; the same array in every step.
        residual: error of the last message of this worker, (N,); None if there is none.
        shared: further state by name, (1,) each, equal on all workers.
    """

    def __init__(self, flat: nd.NDArray, world: World):
        self.flat, self.payload = flat, flat
        self.residual: Optional[nd.NDArray] = None
        self.shared: Dict[str, nd.NDArray] = {}

    def compress(self) -> None:
        """Writes the payload from `flat`, which may be overwritten."""

    def decompress(self) -> None:
        """Writes `flat` from the payload, which is now the sum over workers."""

    def unit_of(self, values: nd.NDArray) -> float:
        """Returns the power of two by which `values` should be divided before compression: about their mean absolute
        value. Waits."""
        mean = float(nd.mean(nd.abs(values)).asscalar())
        return 2.0 ** math.ceil(math.log2(mean)) if TINY < mean < 1 / TINY else 1.0


class Feedback(Compressor):
    """Base class of the compressors with a residual.

    Args:
        flat, world, payload: see `Compressor`.
        length: length of the padded residual, if a compressor needs more than N elements.
    """

    residual: nd.NDArray

    def __init__(self, flat: nd.NDArray, world: World, payload: nd.NDArray, length: int = 0):
        super().__init__(flat, world)
        self.payload = payload
        length = max(length, flat.size)
        # The residual is a view of the first N elements; the rows are for the check in `compress`.
        rows_RC = nd.zeros((-(-length // COLUMNS), COLUMNS), ctx=flat.context)
        self._padded = rows_RC.reshape((-1,))[:length]
        self.residual = self._padded[: flat.size]
        self._rows_RC, self._tiny_C = rows_RC, nd.full((COLUMNS,), TINY, ctx=flat.context)
        self._first = payload[:1]

    def compress(self) -> None:
        nd.elemwise_add(self.residual, self.flat, out=self.residual)
        # `alarm` is 0, or NaN if a gradient is infinite or NaN. It is added to the payload, because clipping and digits
        # would hide such gradients from the other workers.
        # nd.multi_all_finite takes 100 times as long. The factor TINY keeps the sum from overflowing.
        alarm = (nd.sum(nd.dot(self._rows_RC, self._tiny_C)) * 0).astype(self.payload.dtype, copy=False)
        self._write()
        nd.elemwise_add(self._first, alarm, out=self._first)

    def _write(self) -> None:
        """Writes C(residual) into the payload and subtracts it from the residual."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to compress.")


class Float16Compressor(Feedback):
    """Sends float16 (11 significant bits). The part of a value that exceeds the range stays in the residual.

    Values are clipped to 65504 / W, so that the sum over W workers does not overflow. No residual includes the rounding
    of the sum in float16.
    """

    SIGNIFICANT_BITS = 11

    def __init__(self, flat: nd.NDArray, world: World):
        super().__init__(flat, world, nd.zeros(flat.shape, ctx=flat.context, dtype="float16"))
        # Rounded down: a limit that the format rounds up would let the sum of all workers overflow.
        self._limit = rounded_down(FLOAT16_MAX / world.size, self.SIGNIFICANT_BITS)

    def _write(self) -> None:
        buffer = self.flat  # reused as a buffer: the residual already includes its gradients
        self._clip(self.residual, buffer)
        nd.Cast(buffer, dtype="float16", out=self.payload)
        nd.Cast(self.payload, dtype="float32", out=buffer)
        nd.elemwise_sub(self.residual, buffer, out=self.residual)

    def decompress(self) -> None:
        nd.Cast(self.payload, dtype="float32", out=self.flat)

    def _clip(self, values: nd.NDArray, out: nd.NDArray) -> None:
        # nd.clip takes twice as long as these two operators.
        nd._internal._minimum_scalar(values, scalar=self._limit, out=out)
        nd._internal._maximum_scalar(out, scalar=-self._limit, out=out)


class BFloat16Compressor(Float16Compressor):
    """Sends bfloat16 (8 significant bits) in a float16 payload with a scale that follows the gradients.

    MXNet's stores do not support bfloat16. Every bfloat16 number from 2^-17 to 65504 is also a float16 number, so
    values are multiplied by a power of two, rounded to bfloat16 and sent as float16; the sum keeps 11 bits. The scale
    follows the largest element of the last sum, which all workers know. It is computed by comparisons and exact
    products only, so that it is equal on all workers. Values out of range stay in the residual.
    """

    SIGNIFICANT_BITS = 8
    LOWEST, LOW, HIGH, HIGHEST = 2.0**4, 2.0**11, 2.0**13, 2.0**15
    """Bounds of the largest scaled element of a sum: beyond the inner two the scale moves by 2, the outer by 256."""

    def __init__(self, flat: nd.NDArray, world: World):
        super().__init__(flat, world)
        self._scale = nd.ones((1,), ctx=flat.context)
        self.shared = {"scale": self._scale}

    def _write(self) -> None:
        buffer = self.flat
        nd.broadcast_mul(self.residual, self._scale, out=buffer)
        self._clip(buffer, buffer)
        # Source: Dekker, A floating-point technique for extending the available precision, 1971, section 5.
        product = buffer * SPLITTER
        nd.elemwise_sub(product, product - buffer, out=buffer)
        nd.Cast(buffer, dtype="float16", out=self.payload)
        nd.Cast(self.payload, dtype="float32", out=buffer)
        nd.broadcast_div(buffer, self._scale, out=buffer)
        nd.elemwise_sub(self.residual, buffer, out=self.residual)

    def decompress(self) -> None:
        super().decompress()
        largest = nd.max(nd.abs(self.flat))
        nd.broadcast_div(self.flat, self._scale, out=self.flat)
        up = 1 + (largest < self.LOW) + 254 * (largest < self.LOWEST)
        down = 1 + (largest > self.HIGH) + 254 * (largest > self.HIGHEST)
        nd.clip(self._scale * up / down, 2.0**-120, 2.0**120, out=self._scale)


class TwoBit(Feedback):
    """Sends each element as -threshold, 0 or +threshold, as MXNet's 2bit, with D elements packed into one word.

    Elements become digits 0, 1 and 2, so a sum over W workers has digits up to 2 W. Words of D digits in base 2 W + 1
    are added without a carry. They are integers below 2^24, which float32 adds exactly. D is 10 for 2 workers (3.2 bits
    per element), 7 for 4 and 5 for 8.

    Args:
        flat, world: see `Compressor`.
        threshold: size of the sent values, in the unit of a worker's gradient (its part of the global mean).
    """

    def __init__(self, flat: nd.NDArray, world: World, threshold: float):
        self._threshold, self._size, self._base = threshold, world.size, 2 * world.size + 1
        num_digits = digits_per_word(world.size)
        num_words = -(-flat.size // num_digits)
        super().__init__(flat, world, nd.zeros((num_words,), ctx=flat.context))
        digits = nd.zeros((num_digits * num_words,), ctx=flat.context)
        powers = nd.array([[float(self._base**position) for position in range(num_digits)]], ctx=flat.context)
        # Views and constants of every step, created once: each NDArray operation costs a call into the engine.
        self._signs, self._digits_DM = digits[: flat.size], digits.reshape((num_digits, num_words))
        self._powers_1D, self._powers_D1 = powers, powers.T
        self._words_1M = self.payload.reshape((1, num_words))
        self._ones = (self._base**num_digits - 1) // (self._base - 1)  # the word whose digits are all 1

    def _write(self) -> None:
        upper = nd._internal._greater_equal_scalar(self.residual, scalar=self._threshold)
        nd._internal._lesser_equal_scalar(self.residual, scalar=-self._threshold, out=self.flat)
        nd.elemwise_sub(upper, self.flat, out=self._signs)
        # The digits after the bucket's end are 0 on all workers, so they are 0 in the sum too.
        nd.dot(self._powers_1D, self._digits_DM, out=self._words_1M)
        nd._internal._plus_scalar(self.payload, scalar=float(self._ones), out=self.payload)
        nd._internal._mul_scalar(self._signs, scalar=self._threshold, out=self.flat)
        nd.elemwise_sub(self.residual, self.flat, out=self.residual)

    def unit_of(self, values: nd.NDArray) -> float:
        """Returns the unit with the smallest sum of squared errors.

        Sending s for an element x with |x| >= s reduces the squared error by 2 s |x| - s^2.
        """
        # With the mean as unit, an MLP reached an accuracy of 0.69 instead of 0.75 in the same steps (one run each).
        sizes = nd.abs(values)
        largest = float(nd.max(sizes).asscalar())
        if not TINY < largest < 1 / TINY:
            return 1.0
        gain_of = {}
        for exponent in range(-UNITS, 1):
            size = 2.0 ** (math.floor(math.log2(largest)) + exponent) * self._threshold
            gains = (2 * size * sizes - size * size) * (sizes >= size)
            gain_of[size / self._threshold] = nd.sum(gains)
        return max(gain_of, key=lambda unit: float(gain_of[unit].asscalar()))

    def decompress(self) -> None:
        above = nd.floor(nd.broadcast_div(self._words_1M, self._powers_D1))  # word // base^d: digit d and all above
        count = above.shape[0]
        if count > 1:
            lower = above[: count - 1] - above[1:] * self._base
            above = nd.concat(lower, above[count - 1 :], dim=0)
        nd._internal._minus_scalar(above, scalar=float(self._size), out=self._digits_DM)
        nd._internal._mul_scalar(self._signs, scalar=self._threshold, out=self.flat)


class TopK(Feedback):
    """Sends the K elements with the largest absolute values exactly, with their indices.

    Each worker writes to its own part of the payload, in which all others have 0, so that the sum concatenates the
    parts. Source: Stich et al., Sparsified SGD with Memory, https://arxiv.org/abs/1809.07599; Lin et al., Deep Gradient
    Compression, https://arxiv.org/abs/1712.01887, without its momentum correction.

    Args:
        flat, world: see `Compressor`.
        ratio: K / N; at least one element is sent.
        row_size: longer buckets are split into rows, each with its own top K, because float32 cannot represent larger
            indices exactly.
    """

    def __init__(self, flat: nd.NDArray, world: World, ratio: float, row_size: int = FLOAT32_INTEGERS):
        rows = -(-flat.size // row_size)
        width = -(-flat.size // rows)
        # Above a ratio of 1/8 MXNet's topk sorts all elements, which takes ten times as long.
        k = max(1, int(ratio * width))
        self._k = k
        payload = nd.zeros((world.size * 2 * rows * k,), ctx=flat.context)
        super().__init__(flat, world, payload, rows * width)
        self._residual_RN = self._padded.reshape((rows, width))
        self._total = flat if rows * width == flat.size else nd.zeros((rows * width,), ctx=flat.context)
        self._total_RN = self._total.reshape((rows, width))
        self._row_K = nd.repeat(nd.arange(rows, ctx=flat.context), repeats=k)
        parts = payload.reshape((world.size * 2, rows * k))
        self._parts = [(parts[2 * rank], parts[2 * rank + 1]) for rank in range(world.size)]  # views
        self._zeros_K = nd.zeros((rows * k,), ctx=flat.context)
        counts = (world.rank, world.size - 1 - world.rank)  # workers before and after this one
        # The parts of the other workers, which this worker fills with zeros. Lists, because MXNet has no empty arrays.
        self._before, self._after = (
            [nd.zeros((count * 2 * rows * k,), ctx=flat.context)] if count else [] for count in counts
        )

    def _write(self) -> None:
        # Exact top-k takes about 10 ns per element, less than a backward pass. A sampled threshold would select a
        # varying number of elements, and a key has a fixed size.
        position_K = nd.topk(nd.abs(self._residual_RN), axis=1, k=self._k, ret_typ="indices").reshape((-1,))
        index_2K = nd.stack(self._row_K, position_K)
        value_K = nd.gather_nd(self._residual_RN, index_2K)
        nd.concat(*self._before, value_K, position_K, *self._after, dim=0, out=self.payload)
        self._set(self._residual_RN, index_2K, self._zeros_K)

    def decompress(self) -> None:
        self._total[:] = 0
        for value_K, position_K in self._parts:  # by rank: the same order of sums, and bits, on all workers
            index_2K = nd.stack(self._row_K, position_K)
            self._set(self._total_RN, index_2K, nd.gather_nd(self._total_RN, index_2K) + value_K)
        if self._total is not self.flat:
            self._total[: self.flat.size].copyto(self.flat)

    @staticmethod
    def _set(array: nd.NDArray, index_2K: nd.NDArray, value_K: nd.NDArray) -> None:
        nd._internal._scatter_set_nd(lhs=array, rhs=value_K, indices=index_2K, shape=array.shape, out=array)


Build = Callable[[nd.NDArray, World], Compressor]
"""(flat, world) -> the compressor of a bucket."""


def compressor_of(name: str, **options: Optional[float]) -> Build:
    """Returns the builder of a kind of compressor: none, fp16, bf16, 2bit (`threshold`) or topk (`ratio`)."""
    if name == "none":
        return Compressor
    kind: Callable[..., Compressor] = {
        "fp16": Float16Compressor,
        "bf16": BFloat16Compressor,
        "2bit": TwoBit,
        "topk": TopK,
    }[name]
    return lambda flat, world: kind(flat, world, **options)


def digits_per_word(num_workers: int) -> int:
    """Returns the number of digits in base 2 W + 1 of which all integers are at most 2^24, so exact in float32."""
    digits, base = 1, 2 * num_workers + 1
    while base ** (digits + 1) <= FLOAT32_INTEGERS:
        digits += 1
    return digits


def rounded_down(value: float, bits: int) -> float:
    """Rounds `value` down to a number of `bits` significant bits."""
    fraction, exponent = math.frexp(value)
    return math.ldexp(math.floor(math.ldexp(fraction, bits)), exponent - bits)


def other_parameters(error: Exception) -> CheckpointError:
    """Returns the error for residuals that do not belong to the network's parameters."""
    return CheckpointError(f"the checkpoint's residuals are of other parameters: {error}")


def redistribute_residual(arrays: Mapping[str, np.ndarray], name: str, world: World) -> np.ndarray:
    """Returns this worker's residual of a parameter from the arrays `<name>:<rank>` of a checkpoint.

    If the number of workers has changed, each gets an equal part of the sum of all residuals, so that none is lost.

    Raises:
        KeyError: the checkpoint has no residual of the parameter.
    """
    size = 0
    while f"{name}:{size}" in arrays:
        size += 1
    if size == world.size:
        return arrays[f"{name}:{world.rank}"]
    # In float64, so that the sum of the residuals loses no bits before it is divided.
    total = np.sum([arrays[f"{name}:{rank}"].astype(np.float64) for rank in range(max(size, 1))], axis=0)
    return (total / world.size).astype(np.float32)
