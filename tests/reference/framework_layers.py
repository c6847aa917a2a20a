"""Layers of MXNet and PyTorch. Shapes are suffixes: B batch, C channels, H height, W width, T time."""

from __future__ import annotations

from typing import Any, List

import numpy as np
from framework_lines import LAYERS, Line, values

from mxtrain.engine.backend import gluon, mx, nd

EPSILON = 1e-5


def trained_batch_norm(layer: Any, x: np.ndarray) -> Any:
    """Runs both passes of a Gluon batch norm in training mode; MXNet moves its statistics in the backward pass."""
    layer.initialize()
    with mx.autograd.record():
        y = layer(nd.array(x))
    y.backward()
    return y


def normalised(x: np.ndarray, axes: Any, epsilon: float = EPSILON) -> np.ndarray:
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


class BatchNormOutput(Line):
    group = LAYERS
    title = "Batch norm: output in training"
    in_mxnet = in_pytorch = "biased variance of the batch, eps 1e-5 (`gluon.nn`)"
    mxtrain = "same"
    converters = ("BatchNorm",)
    x_BC = values(4, 3)

    def mxnet(self) -> Any:
        return trained_batch_norm(gluon.nn.BatchNorm(), self.x_BC)

    def numpy(self) -> Any:
        return normalised(self.x_BC, 0)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.BatchNorm1d(3)(torch.tensor(self.x_BC))


class BatchNormVariance(Line):
    group = LAYERS
    title = "Batch norm: running variance"
    in_mxnet = "biased: squares divided by n"
    in_pytorch = "unbiased: divided by n - 1"
    mxtrain = (
        "said: weights and statistics are copied, and agree in prediction. Training on moves them n/(n - 1) further in "
        "PyTorch, n = batch x height x width"
    )
    x_BC = values(4, 3)

    def mxnet(self) -> Any:
        layer = gluon.nn.BatchNorm(momentum=0.9)
        trained_batch_norm(layer, self.x_BC)
        return layer.running_var.data()

    def numpy(self) -> Any:
        return 0.9 + 0.1 * self.x_BC.astype(np.float64).var(axis=0)

    def pytorch(self, torch: Any) -> Any:
        layer = torch.nn.BatchNorm1d(3, momentum=0.1)
        layer(torch.tensor(self.x_BC))
        return layer.running_var

    def converted(self, torch: Any) -> Any:
        count = len(self.x_BC)
        return 0.9 + (self.pytorch(torch) - 0.9) * (count - 1) / count


class BatchNormMomentum(Line):
    group = LAYERS
    title = "Batch norm: momentum"
    in_mxnet = "share of the old statistics that is kept: 0.9"
    in_pytorch = "share of the new ones: 0.1"
    mxtrain = "converted: `for=pytorch` writes 1 - momentum; files of weights hold none"
    converters = ("BatchNorm",)
    x_BC = values(4, 3) + 2

    def mxnet(self) -> Any:
        layer = gluon.nn.BatchNorm(momentum=0.9)
        trained_batch_norm(layer, self.x_BC)
        return layer.running_mean.data()

    def numpy(self) -> Any:
        return 0.1 * self.x_BC.astype(np.float64).mean(axis=0)

    def _moved(self, torch: Any, momentum: float) -> Any:
        layer = torch.nn.BatchNorm1d(3, momentum=momentum)
        layer(torch.tensor(self.x_BC))
        return layer.running_mean

    def pytorch(self, torch: Any) -> Any:
        return self._moved(torch, 0.9)

    def converted(self, torch: Any) -> Any:
        return self._moved(torch, 1 - 0.9)


class BatchNormOperator(Line):
    group = LAYERS
    title = "Batch norm: defaults of the operator"
    in_mxnet = "`sym.BatchNorm`: eps 1e-3, and `fix_gamma=True`: gamma counts as 1"
    in_pytorch = "eps 1e-5, gamma is used"
    mxtrain = "converted: eps and `fix_gamma` are read from each node"
    converters = ("BatchNorm",)
    x_BC, gamma_C = values(4, 3), np.array([0.5, 2, 3], np.float32)
    variance_C = np.array([0.01, 1, 4], np.float32)

    def mxnet(self) -> Any:
        arrays = [self.x_BC, self.gamma_C, np.zeros(3), np.zeros(3), self.variance_C]
        return nd.BatchNorm(*map(nd.array, arrays))

    def numpy(self) -> Any:
        return self.x_BC / np.sqrt(self.variance_C.astype(np.float64) + 1e-3)

    def _predicted(self, torch: Any, gamma_C: np.ndarray, epsilon: float) -> Any:
        x, gamma, variance = map(torch.tensor, (self.x_BC, gamma_C, self.variance_C))
        return torch.nn.functional.batch_norm(x, torch.zeros(3), variance, gamma, torch.zeros(3), eps=epsilon)

    def pytorch(self, torch: Any) -> Any:
        return self._predicted(torch, self.gamma_C, EPSILON)

    def converted(self, torch: Any) -> Any:
        return self._predicted(torch, np.ones_like(self.gamma_C), 1e-3)


class BatchNormOneValue(Line):
    group = LAYERS
    title = "Batch norm: one value per channel in training"
    in_mxnet = "output beta, variance 0"
    in_pytorch = "is refused"
    mxtrain = "said: trains; such a batch teaches the layers before it nothing"
    raises = "ValueError"
    x_BC = values(1, 3)

    def mxnet(self) -> Any:
        return trained_batch_norm(gluon.nn.BatchNorm(), self.x_BC)

    def numpy(self) -> Any:
        return np.zeros((1, 3))

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.BatchNorm1d(3)(torch.tensor(self.x_BC))


class LayerNorm(Line):
    group = LAYERS
    title = "Layer norm"
    in_mxnet = "one axis, eps 1e-5"
    in_pytorch = "the last axes, eps 1e-5"
    mxtrain = "same along the last axis; another one is refused by `export`. eps is read from each layer (BERT: 1e-12)"
    converters = ("LayerNorm",)
    x_BTC, gamma_C, beta_C = values(2, 3, 5), values(5, seed=1), values(5, seed=2)

    def mxnet(self) -> Any:
        return nd.LayerNorm(*map(nd.array, (self.x_BTC, self.gamma_C, self.beta_C)))

    def numpy(self) -> Any:
        return normalised(self.x_BTC, -1) * self.gamma_C + self.beta_C

    def pytorch(self, torch: Any) -> Any:
        x, gamma, beta = map(torch.tensor, (self.x_BTC, self.gamma_C, self.beta_C))
        return torch.nn.functional.layer_norm(x, (5,), gamma, beta)


class GroupNorm(Line):
    group = LAYERS
    title = "Group norm: gamma and beta"
    in_mxnet = "one for each group"
    in_pytorch = "one for each channel"
    mxtrain = (
        "converted by `export`; `for=safetensors` keeps one for each group, and says so. The way back needs equal ones "
        "within each group"
    )
    raises = "RuntimeError"
    converters = ("GroupNorm",)
    x_BCT, gamma_G, beta_G = values(2, 6, 5), np.array([1, 10], np.float32), np.array([0, 3], np.float32)

    def mxnet(self) -> Any:
        return nd.GroupNorm(*map(nd.array, (self.x_BCT, self.gamma_G, self.beta_G)), num_groups=2)

    def numpy(self) -> Any:
        grouped = normalised(self.x_BCT.reshape(2, 2, 15), -1) * self.gamma_G[:, None] + self.beta_G[:, None]
        return grouped.reshape(self.x_BCT.shape)

    def _normalised(self, torch: Any, repeats: int) -> Any:
        x, gamma, beta = map(torch.tensor, (self.x_BCT, self.gamma_G, self.beta_G))
        gamma, beta = gamma.repeat_interleave(repeats), beta.repeat_interleave(repeats)
        return torch.nn.functional.group_norm(x, 2, gamma, beta)

    def pytorch(self, torch: Any) -> Any:
        return self._normalised(torch, 1)

    def converted(self, torch: Any) -> Any:
        return self._normalised(torch, 3)


class InstanceNorm(Line):
    group = LAYERS
    title = "Instance norm: eps"
    in_mxnet = "operator 1e-3 (`gluon.nn`: 1e-5, with beta)"
    in_pytorch = "1e-5, without gamma and beta"
    mxtrain = "converted: eps, gamma and beta are read from each node"
    converters = ("InstanceNorm",)
    x_BCT = values(2, 3, 7) * 0.1

    def mxnet(self) -> Any:
        return nd.InstanceNorm(nd.array(self.x_BCT), nd.ones(3), nd.zeros(3))

    def numpy(self) -> Any:
        return normalised(self.x_BCT, -1, 1e-3)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.InstanceNorm1d(3)(torch.tensor(self.x_BCT))

    def converted(self, torch: Any) -> Any:
        return torch.nn.InstanceNorm1d(3, eps=1e-3)(torch.tensor(self.x_BCT))


class L2Normalization(Line):
    group = LAYERS
    title = "L2 normalisation: eps"
    in_mxnet = "1e-10, added below the root"
    in_pytorch = "`normalize`: the norm is at least 1e-12"
    mxtrain = "converted: the formula is written out"
    converters = ("L2Normalization",)
    x_BC = values(3, 4) * np.array([[1], [1e-4], [1e-6]], np.float32)

    def mxnet(self) -> Any:
        return nd.L2Normalization(nd.array(self.x_BC))

    def numpy(self) -> Any:
        x = self.x_BC.astype(np.float64)
        return x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-10)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.normalize(torch.tensor(self.x_BC))

    def converted(self, torch: Any) -> Any:
        x = torch.tensor(self.x_BC)
        return x / torch.sqrt((x * x).sum(1, keepdim=True) + 1e-10)


class Recurrent:
    """Two bidirectional layers whose parameters are copied by name."""

    kind, gates = "", 1
    x_TBC = values(5, 2, 3)
    units = 4

    def _layer(self) -> Any:
        layer = getattr(gluon.rnn, self.kind)(self.units, num_layers=2, bidirectional=True, input_size=3)
        layer.initialize()
        for number, parameter in enumerate(layer.collect_params().values()):
            parameter.set_data(nd.array(values(*parameter.shape, seed=number) * 0.5))
        return layer

    def mxnet(self) -> Any:
        return self._layer()(nd.array(self.x_TBC))

    def numpy(self) -> Any:
        arrays = {name: p.data().asnumpy().astype(np.float64) for name, p in self._layer()._reg_params.items()}
        x = self.x_TBC.astype(np.float64)
        for layer in range(2):
            both = []
            for side in "lr":
                steps = x if side == "l" else x[::-1]
                outputs = self._run(steps, *(arrays[f"{side}{layer}_{name}"] for name in NAMES))
                both.append(outputs if side == "l" else outputs[::-1])
            x = np.concatenate(both, axis=-1)
        return x

    def _run(self, x: np.ndarray, w_i: np.ndarray, w_h: np.ndarray, b_i: np.ndarray, b_h: np.ndarray) -> np.ndarray:
        h = c = np.zeros((x.shape[1], self.units))
        outputs: List[np.ndarray] = []
        for x_BC in x:
            parts = [np.split(part, self.gates, axis=1) for part in (x_BC @ w_i.T + b_i, h @ w_h.T + b_h)]
            h, c = self.step(*parts, h, c)
            outputs.append(h)
        return np.stack(outputs)

    def step(self, i: Any, j: Any, h: Any, c: Any) -> Any:
        raise NotImplementedError

    def pytorch(self, torch: Any) -> Any:
        layer = getattr(torch.nn, self.kind)(3, self.units, num_layers=2, bidirectional=True)
        kinds = dict(zip(NAMES, ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))
        state = {}
        for name, parameter in self._layer()._reg_params.items():
            side, _, rest = name.partition("_")
            state[f"{kinds[rest]}_l{side[1:]}{'_reverse' if side[0] == 'r' else ''}"] = torch.tensor(
                parameter.data().asnumpy()
            )
        layer.load_state_dict(state)
        return layer(torch.tensor(self.x_TBC))[0]


NAMES = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class LSTM(Recurrent, Line):
    group = LAYERS
    title = "LSTM: gates and biases"
    in_mxnet = in_pytorch = "i, f, g, o; two biases; `l0_i2h_weight` is `weight_ih_l0`, `r0` is `_reverse`"
    mxtrain = "same; ONNX has another order of gates, which `export` makes"
    converters = ("RNN",)
    kind, gates = "LSTM", 4

    def step(self, i: Any, j: Any, h: Any, c: Any) -> Any:
        gates = [one + other for one, other in zip(i, j)]
        c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * np.tanh(gates[2])
        return sigmoid(gates[3]) * np.tanh(c), c


class GRU(Recurrent, Line):
    group = LAYERS
    title = "GRU: gates and biases"
    in_mxnet = in_pytorch = "r, z, n; the reset gate multiplies the product with its bias"
    mxtrain = "same"
    converters = ("RNN",)
    kind, gates = "GRU", 3

    def step(self, i: Any, j: Any, h: Any, c: Any) -> Any:
        r, z = sigmoid(i[0] + j[0]), sigmoid(i[1] + j[1])
        return (1 - z) * np.tanh(i[2] + r * j[2]) + z * h, c


class RNN(Recurrent, Line):
    group = LAYERS
    title = "Simple RNN: activation"
    in_mxnet = "`gluon.rnn.RNN`: relu"
    in_pytorch = "`nn.RNN`: tanh"
    mxtrain = "converted: by the attribute `mode`"
    converters = ("RNN",)
    kind, gates = "RNN", 1

    def step(self, i: Any, j: Any, h: Any, c: Any) -> Any:
        return np.maximum(i[0] + j[0], 0), c

    def converted(self, torch: Any) -> Any:
        class Relu:
            """PyTorch with another default."""

            nn = type("nn", (), {"RNN": lambda *sizes, **options: torch.nn.RNN(*sizes, nonlinearity="relu", **options)})
            tensor = staticmethod(torch.tensor)

        return Recurrent.pytorch(self, Relu)


class EmbeddingPadding(Line):
    group = LAYERS
    title = "Embedding: `padding_idx`"
    in_mxnet = "has none: every row has a gradient"
    in_pytorch = "no gradient for that row, which decay still moves"
    mxtrain = "said: not converted; the row is copied as it is"
    ids = np.array([[0, 2], [1, 0]])
    table = values(3, 4)

    def mxnet(self) -> Any:
        table = nd.array(self.table)
        table.attach_grad()
        with mx.autograd.record():
            y = nd.Embedding(nd.array(self.ids), table, input_dim=3, output_dim=4)
        y.backward()
        return table.grad

    def numpy(self) -> Any:
        return np.bincount(self.ids.ravel())[:, None] * np.ones(4)

    def _gradient(self, torch: Any, **options: Any) -> Any:
        layer = torch.nn.Embedding.from_pretrained(torch.tensor(self.table), freeze=False, **options)
        layer(torch.tensor(self.ids)).sum().backward()
        return layer.weight.grad

    def pytorch(self, torch: Any) -> Any:
        return self._gradient(torch, padding_idx=0)

    def converted(self, torch: Any) -> Any:
        return self._gradient(torch)


class EmbeddingRange(Line):
    group = LAYERS
    title = "Embedding: an id that does not exist"
    in_mxnet = "the nearest row: -1 is 0, n is n - 1"
    in_pytorch = "is refused"
    mxtrain = "refused: ids are checked when the data is read"
    raises = "IndexError"
    ids = np.array([-1, 0, 7])
    table = values(3, 4)

    def mxnet(self) -> Any:
        return nd.Embedding(nd.array(self.ids), nd.array(self.table), input_dim=3, output_dim=4)

    def numpy(self) -> Any:
        return self.table[np.clip(self.ids, 0, 2)]

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.embedding(torch.tensor(self.ids), torch.tensor(self.table))

    def converted(self, torch: Any) -> Any:
        return torch.nn.functional.embedding(torch.tensor(self.ids).clamp(0, 2), torch.tensor(self.table))


class DenseFlattens(Line):
    group = LAYERS
    title = "Dense: arrays of three axes"
    in_mxnet = "`flatten=True`: (B, T, C) becomes (B, T C)"
    in_pytorch = "the last axis alone, as `flatten=False`"
    mxtrain = "converted: by the attribute `flatten`"
    raises = "RuntimeError"
    converters = ("FullyConnected",)
    x_BTC, weight_OC = values(2, 3, 4), values(5, 12, seed=1)

    def mxnet(self) -> Any:
        return nd.FullyConnected(nd.array(self.x_BTC), nd.array(self.weight_OC), no_bias=True, num_hidden=5)

    def numpy(self) -> Any:
        return self.x_BTC.reshape(2, 12).astype(np.float64) @ self.weight_OC.T

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.linear(torch.tensor(self.x_BTC), torch.tensor(self.weight_OC))

    def converted(self, torch: Any) -> Any:
        return torch.nn.functional.linear(torch.tensor(self.x_BTC).flatten(1), torch.tensor(self.weight_OC))


class Dropout(Line):
    group = LAYERS
    title = "Dropout: scale of what is kept"
    in_mxnet = in_pytorch = "1 / (1 - p) in training, 1 in prediction"
    mxtrain = "same; which elements are dropped differs"
    p = 0.25

    def mxnet(self) -> Any:
        with mx.autograd.record():
            y = nd.Dropout(nd.ones(1000), p=self.p)
        return np.unique(y.asnumpy())

    def numpy(self) -> Any:
        return np.array([0, 1 / (1 - self.p)])

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.Dropout(self.p)(torch.ones(1000)).unique()


def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Returns the cross correlation of (B, C, T) with (O, C, K), without padding."""
    size = kernel.shape[-1]
    windows = np.stack([x[..., k : x.shape[-1] - size + 1 + k] for k in range(size)], axis=-1).astype(np.float64)
    return np.einsum("bctk,ock->bot", windows, kernel)


class SamePadding(Line):
    group = LAYERS
    title = 'Convolution: padding "same", even kernel'
    in_mxnet = "has none: `pad` is the same on both sides, and the result is longer by one"
    in_pytorch = "one element more at the end"
    mxtrain = "converted: `model=onnx` pads by an operator first, which `export` keeps"
    converters = ("Convolution", "Pad")
    x_BCT, kernel = values(2, 3, 5), values(4, 3, 2, seed=1)

    def mxnet(self) -> Any:
        x, kernel = nd.array(self.x_BCT), nd.array(self.kernel)
        return nd.Convolution(x, kernel, no_bias=True, num_filter=4, kernel=(2,), pad=(1,))

    def numpy(self) -> Any:
        return convolved(np.pad(self.x_BCT, ((0, 0), (0, 0), (1, 1))), self.kernel)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.conv1d(torch.tensor(self.x_BCT), torch.tensor(self.kernel), padding="same")

    def converted(self, torch: Any) -> Any:
        x, kernel = torch.tensor(self.x_BCT), torch.tensor(self.kernel)
        return torch.cat([torch.nn.functional.conv1d(x, kernel, padding=1)[..., :1], self.pytorch(torch)], dim=-1)


class SamePaddingStride(Line):
    group = LAYERS
    title = 'Convolution: padding "same", stride 2'
    in_mxnet = "has none"
    in_pytorch = "is refused; timm's `Conv2dSame` pads by the size of its input: 0 and 1 for 4 elements, 1 and 1 for 5"
    mxtrain = "said: the padding of the file is fixed, so such a network holds for one size"
    raises = "RuntimeError"
    x_BCHW, kernel = values(1, 2, 4, 5), values(3, 2, 3, 3, seed=1)

    def mxnet(self) -> Any:
        padded = nd.pad(nd.array(self.x_BCHW), mode="constant", pad_width=(0, 0, 0, 0, 0, 1, 1, 1))
        return nd.Convolution(padded, nd.array(self.kernel), no_bias=True, num_filter=3, kernel=(3, 3), stride=(2, 2))

    def numpy(self) -> Any:
        x = np.pad(self.x_BCHW, ((0, 0), (0, 0), (0, 1), (1, 1)))
        rows = [
            sum(convolved(x[:, :, top + k], self.kernel[:, :, k])[..., ::2] for k in range(3)) for top in range(0, 3, 2)
        ]
        return np.stack(rows, axis=2)

    def pytorch(self, torch: Any) -> Any:
        x, kernel = torch.tensor(self.x_BCHW), torch.tensor(self.kernel)
        return torch.nn.functional.conv2d(x, kernel, padding="same", stride=2)

    def converted(self, torch: Any) -> Any:
        from timm.layers import Conv2dSame

        layer = Conv2dSame(2, 3, 3, stride=2, bias=False)
        layer.weight.data = torch.tensor(self.kernel)
        return layer(torch.tensor(self.x_BCHW))


class GroupedConvolution(Line):
    group = LAYERS
    title = "Convolution: groups and dilation"
    in_mxnet = in_pytorch = "cross correlation, weight (out, in / groups, height, width)"
    mxtrain = "same"
    converters = ("Convolution",)
    x_BCT, kernel = values(2, 4, 9), values(6, 2, 3, seed=1)

    def mxnet(self) -> Any:
        options = {"num_filter": 6, "kernel": (3,), "num_group": 2, "dilate": (2,), "stride": (2,), "pad": (1,)}
        return nd.Convolution(nd.array(self.x_BCT), nd.array(self.kernel), no_bias=True, **options)

    def numpy(self) -> Any:
        x = np.pad(self.x_BCT, ((0, 0), (0, 0), (1, 1)))
        spread = np.zeros((6, 2, 5))
        spread[..., ::2] = self.kernel
        halves = [convolved(x[:, 2 * g : 2 * g + 2], spread[3 * g : 3 * g + 3]) for g in range(2)]
        return np.concatenate(halves, axis=1)[..., ::2]

    def pytorch(self, torch: Any) -> Any:
        x, kernel = torch.tensor(self.x_BCT), torch.tensor(self.kernel)
        return torch.nn.functional.conv1d(x, kernel, groups=2, dilation=2, stride=2, padding=1)


class TransposedConvolution(Line):
    group = LAYERS
    title = "Transposed convolution: extra output"
    in_mxnet = "`adj`; weight (in, out / groups, height, width)"
    in_pytorch = "`output_padding`; the same weight"
    mxtrain = "same; `target_shape` is refused by `export`"
    converters = ("Deconvolution",)
    x_BCT, kernel = values(2, 3, 4), values(3, 2, 3, seed=1)

    def mxnet(self) -> Any:
        options = {"kernel": (3,), "stride": (2,), "pad": (1,), "adj": (1,), "num_filter": 2}
        return nd.Deconvolution(nd.array(self.x_BCT), nd.array(self.kernel), no_bias=True, **options)

    def numpy(self) -> Any:
        full, x = np.zeros((2, 2, 2 * 3 + 3 + 1)), self.x_BCT.astype(np.float64)  # stride (length - 1) + kernel + extra
        for t in range(4):
            full[:, :, 2 * t : 2 * t + 3] += np.einsum("bc,cok->bok", x[:, :, t], self.kernel)
        return full[..., 1:-1]

    def pytorch(self, torch: Any) -> Any:
        x, kernel = torch.tensor(self.x_BCT), torch.tensor(self.kernel)
        return torch.nn.functional.conv_transpose1d(x, kernel, stride=2, padding=1, output_padding=1)


def pooled(x: np.ndarray, kind: str, full: bool = True, **options: Any) -> Any:
    sizes = {name: (size,) for name, size in options.items() if name in ("kernel", "stride", "pad")}
    further = {name: value for name, value in options.items() if name not in sizes}
    convention = "full" if full else "valid"
    return nd.Pooling(nd.array(x), pool_type=kind, pooling_convention=convention, **sizes, **further)


class CeilMaxPooling(Line):
    group = LAYERS
    title = "Max pooling: sizes rounded up"
    in_mxnet = "`pooling_convention=full` (`ceil_mode`)"
    in_pytorch = "`ceil_mode`"
    mxtrain = "same, but for windows without elements"
    converters = ("Pooling",)
    x_BCT = values(2, 3, 8)

    def mxnet(self) -> Any:
        return pooled(self.x_BCT, "max", kernel=3, stride=2)

    def numpy(self) -> Any:
        return np.stack([self.x_BCT[..., t : t + 3].max(-1) for t in range(0, 8, 2)], -1)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.max_pool1d(torch.tensor(self.x_BCT), 3, 2, ceil_mode=True)


class EmptyWindows(Line):
    group = LAYERS
    title = "Pooling: windows in the padding alone"
    in_mxnet = "are kept: max -3.4e38, mean 0 (1D, 2D) or NaN (3D, by size)"
    in_pytorch = "are left out: another shape"
    mxtrain = "converted: `export` writes MXNet's values"
    converters = ("Pooling",)
    x_BCT = values(1, 2, 5)

    def mxnet(self) -> Any:
        return pooled(self.x_BCT, "max", kernel=2, stride=3, pad=1)

    def numpy(self) -> Any:
        lowest = np.full((1, 2), np.finfo(np.float32).min)
        return np.stack([self.x_BCT[..., 0], self.x_BCT[..., 2:4].max(-1), lowest], -1)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.max_pool1d(torch.tensor(self.x_BCT), 2, 3, padding=1, ceil_mode=True)

    def converted(self, torch: Any) -> Any:
        lowest = torch.finfo(torch.float32).min
        padded = torch.nn.functional.pad(torch.tensor(self.x_BCT), (1, 3), value=lowest)
        return torch.nn.functional.max_pool1d(padded, 2, 3)


class CountedPadding(Line):
    group = LAYERS
    title = "Average pooling: counted padding"
    in_mxnet = in_pytorch = "counted by default, also if sizes are rounded up; elements behind it are not"
    mxtrain = "same forward. MXNet's gradient of windows beyond the padding is wrong on a CPU: corrected in layers"
    converters = ("Pooling",)
    x_BCT = values(2, 3, 6)

    def mxnet(self) -> Any:
        return pooled(self.x_BCT, "avg", kernel=3, stride=2, pad=1)

    def numpy(self) -> Any:
        x = np.pad(self.x_BCT.astype(np.float64), ((0, 0), (0, 0), (1, 1)))
        return np.stack([x[..., t : t + 3].mean(-1) for t in range(0, 7, 2)], -1)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.avg_pool1d(torch.tensor(self.x_BCT), 3, 2, padding=1, ceil_mode=True)


class AdaptivePooling(Line):
    group = LAYERS
    title = "Adaptive average pooling: 7 to 3"
    in_mxnet = in_pytorch = "windows from floor(i n / m) to ceil((i + 1) n / m)"
    mxtrain = "same"
    converters = ("_contrib_AdaptiveAvgPooling2D",)
    x_BCHW = values(2, 3, 7, 5)

    def mxnet(self) -> Any:
        return nd.contrib.AdaptiveAvgPooling2D(nd.array(self.x_BCHW), output_size=(3, 2))

    def numpy(self) -> Any:
        x = self.x_BCHW.astype(np.float64)
        rows = np.stack([x[:, :, i * 7 // 3 : -(-(i + 1) * 7 // 3)].mean(2) for i in range(3)], 2)
        return np.stack([rows[..., i * 5 // 2 : -(-(i + 1) * 5 // 2)].mean(3) for i in range(2)], 3)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.AdaptiveAvgPool2d((3, 2))(torch.tensor(self.x_BCHW))


def interpolated(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns the last axis at positions between its elements."""
    at = np.clip(at, 0, x.shape[-1] - 1)
    low = np.floor(at).astype(int)
    high, share = np.minimum(low + 1, x.shape[-1] - 1), at - low
    return x[..., low].astype(np.float64) * (1 - share) + x[..., high] * share


class BilinearSize(Line):
    group = LAYERS
    title = "Bilinear resizing to a size"
    in_mxnet = "`BilinearResize2D` aligns corners"
    in_pytorch = "`interpolate` does not, unless told"
    mxtrain = "converted: by the attribute `align_corners`"
    converters = ("_contrib_BilinearResize2D",)
    x_BCHW = values(1, 2, 3, 4)

    def mxnet(self) -> Any:
        return nd.contrib.BilinearResize2D(nd.array(self.x_BCHW), height=5, width=7)

    def numpy(self) -> Any:
        wide = interpolated(self.x_BCHW, np.linspace(0, 3, 7))
        return interpolated(wide.swapaxes(2, 3), np.linspace(0, 2, 5)).swapaxes(2, 3)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.interpolate(torch.tensor(self.x_BCHW), size=(5, 7), mode="bilinear")

    def converted(self, torch: Any) -> Any:
        x = torch.tensor(self.x_BCHW)
        return torch.nn.functional.interpolate(x, size=(5, 7), mode="bilinear", align_corners=True)


class BilinearScale(Line):
    group = LAYERS
    title = "Bilinear resizing by a factor, corners not aligned"
    in_mxnet = "positions by the sizes: 4 to 6 for a factor of 1.6"
    in_pytorch = "positions by the factor itself"
    mxtrain = "converted: sizes are written to the file, never factors"
    converters = ("_contrib_BilinearResize2D",)
    x_BCHW = values(1, 2, 4, 4)
    scale = 1.6

    def mxnet(self) -> Any:
        options = {"scale_height": self.scale, "scale_width": self.scale, "align_corners": False}
        return nd.contrib.BilinearResize2D(nd.array(self.x_BCHW), **options)

    def numpy(self) -> Any:
        at = (np.arange(6) + 0.5) * 4 / 6 - 0.5
        return interpolated(interpolated(self.x_BCHW, at).swapaxes(2, 3), at).swapaxes(2, 3)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.interpolate(torch.tensor(self.x_BCHW), scale_factor=self.scale, mode="bilinear")

    def converted(self, torch: Any) -> Any:
        return torch.nn.functional.interpolate(torch.tensor(self.x_BCHW), size=(6, 6), mode="bilinear")


class NearestUpSampling(Line):
    group = LAYERS
    title = "Nearest up-sampling"
    in_mxnet = in_pytorch = "pixels are repeated"
    mxtrain = "same"
    converters = ("UpSampling",)
    x_BCHW = values(1, 2, 3, 4)

    def mxnet(self) -> Any:
        return nd.UpSampling(nd.array(self.x_BCHW), scale=2, sample_type="nearest")

    def numpy(self) -> Any:
        return self.x_BCHW.repeat(2, 2).repeat(2, 3)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.interpolate(torch.tensor(self.x_BCHW), scale_factor=2)


class Attention(Line):
    group = LAYERS
    title = "Self attention: order of queries, keys, values"
    in_mxnet = "`interleaved_matmul_selfatt`: rows (head, q k v, size of a head)"
    in_pytorch = "`in_proj`: rows (q k v, head, size of a head)"
    mxtrain = (
        "converted: `export` splits the rows by head; weights of transformers go into mxtrain's own blocks of queries, "
        "keys and values"
    )
    converters = ("_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_selfatt_valatt")
    heads, size = 2, 3
    x_TBC, weight, bias = values(4, 2, 6), values(18, 6, seed=1), values(18, seed=2)

    def mxnet(self) -> Any:
        qkv = nd.FullyConnected(*map(nd.array, (self.x_TBC, self.weight, self.bias)), num_hidden=18, flatten=False)
        scores = nd.contrib.interleaved_matmul_selfatt_qk(qkv, heads=self.heads)
        return nd.contrib.interleaved_matmul_selfatt_valatt(qkv, nd.softmax(scores), heads=self.heads)

    def numpy(self) -> Any:
        qkv = self.x_TBC.astype(np.float64) @ self.weight.T + self.bias
        q, k, v = np.moveaxis(qkv.reshape(4, 2, self.heads, 3, self.size), 3, 0)
        scores = np.exp(np.einsum("tbhd,sbhd->bhts", q, k) / np.sqrt(self.size))
        shares = scores / scores.sum(-1, keepdims=True)
        return np.einsum("bhts,sbhd->tbhd", shares, v).reshape(4, 2, 6)

    def _attended(self, torch: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
        layer = torch.nn.MultiheadAttention(6, self.heads)
        layer.load_state_dict(
            {
                "in_proj_weight": torch.tensor(weight),
                "in_proj_bias": torch.tensor(bias),
                "out_proj.weight": torch.eye(6),
                "out_proj.bias": torch.zeros(6),
            }
        )
        x = torch.tensor(self.x_TBC)
        return layer(x, x, x)[0]

    def pytorch(self, torch: Any) -> Any:
        return self._attended(torch, self.weight, self.bias)

    def converted(self, torch: Any) -> Any:
        rows = np.arange(18).reshape(self.heads, 3, self.size).swapaxes(0, 1).ravel()
        return self._attended(torch, self.weight[rows], self.bias[rows])


class RegionsOfInterest(Line):
    group = LAYERS
    title = "RoI align: default of the samples in a bin"
    in_mxnet = in_pytorch = "by the size of the region; corners are not shifted by half a pixel"
    mxtrain = "same"
    converters = ("_contrib_ROIAlign",)
    x_BCHW = values(1, 2, 8, 8)
    regions = np.array([[0, 1, 1, 6.5, 7], [0, 0, 2, 5, 6]], np.float32)

    def mxnet(self) -> Any:
        return nd.contrib.ROIAlign(nd.array(self.x_BCHW), nd.array(self.regions), pooled_size=(2, 2), spatial_scale=1)

    def numpy(self) -> Any:
        found = np.zeros((2, 2, 2, 2))
        for n, (_, left, top, right, bottom) in enumerate(self.regions.astype(np.float64)):
            at = []
            for begin, end in ((top, bottom), (left, right)):
                size = max(end - begin, 1.0) / 2
                count = int(np.ceil(size))
                at.append(begin + size * (np.arange(2)[:, None] + (np.arange(count) + 0.5) / count))
            lines = interpolated(self.x_BCHW[0].swapaxes(1, 2), at[0].ravel()).swapaxes(1, 2)
            grid = interpolated(lines, at[1].ravel()).reshape(2, 2, at[0].shape[1], 2, at[1].shape[1])
            found[n] = grid.mean((2, 4))
        return found

    def pytorch(self, torch: Any) -> Any:
        import torchvision

        return torchvision.ops.roi_align(torch.tensor(self.x_BCHW), torch.tensor(self.regions), (2, 2))
