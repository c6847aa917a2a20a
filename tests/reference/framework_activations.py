"""Activations and elementwise functions of MXNet and PyTorch, and their gradients at corners and ties."""

from __future__ import annotations

import math
from typing import Any, Callable, List

import numpy as np
from framework_lines import ACTIVATIONS, Line, values

from mxtrain.engine.backend import mx, nd

POINTS = np.array([-3, -1, -0.1, 0.2, 2], np.float32)


def value_and_gradient(function: Callable[[Any], Any], x: np.ndarray) -> List[np.ndarray]:
    """Returns a function of MXNet at some points, and its gradient there."""
    x = nd.array(x)
    x.attach_grad()
    with mx.autograd.record():
        y = function(x)
    y.backward()
    return [y.asnumpy(), x.grad.asnumpy()]


def torch_value_and_gradient(torch: Any, function: Callable[[Any], Any], x: np.ndarray) -> List[Any]:
    """Returns a function of PyTorch at some points, and its gradient there."""
    x = torch.tensor(x, requires_grad=True)
    y = function(x)
    y.sum().backward()
    return [y, x.grad]


class Gelu(Line):
    group = ACTIVATIONS
    title = "GELU"
    in_mxnet = in_pytorch = "erf form"
    mxtrain = "same"
    converters = ("LeakyReLU",)

    def mxnet(self) -> Any:
        return nd.LeakyReLU(nd.array(POINTS), act_type="gelu")

    def numpy(self) -> Any:
        return np.array([x / 2 * (1 + math.erf(x / math.sqrt(2))) for x in POINTS])

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.gelu(torch.tensor(POINTS))


class GeluTanh(Line):
    group = ACTIVATIONS
    title = "GELU in its tanh form (GPT-2)"
    in_mxnet = "has none: erf form"
    in_pytorch = '`approximate="tanh"`'
    mxtrain = "converted: `model.gelu=tanh` of `model=gpt`, written out by `export`; `model=bert` refuses such weights"
    converters = ("_mxtrain_gelu",)
    mxnet, numpy = Gelu.mxnet, Gelu.numpy

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.gelu(torch.tensor(POINTS), approximate="tanh")


class Selu(Line):
    group = ACTIVATIONS
    title = "SELU: gradient below 0"
    in_mxnet = "wrong: 0.0028 in place of 0.0875 at -3 (the scale is multiplied twice)"
    in_pytorch = "right"
    mxtrain = "corrected in `gluon.nn.SELU`; other calls are refused"
    converters = ("LeakyReLU",)
    SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772

    def mxnet(self) -> Any:
        return value_and_gradient(lambda x: nd.LeakyReLU(x, act_type="selu"), POINTS)

    def numpy(self) -> Any:
        x = POINTS.astype(np.float64)
        y = self.SCALE * np.where(x > 0, x, self.ALPHA * (np.exp(x) - 1))
        # Right is SCALE * ALPHA + y: the value has the scale already.
        return [y, np.where(x > 0, self.SCALE, self.SCALE * (self.ALPHA + y))]

    def pytorch(self, torch: Any) -> Any:
        return torch_value_and_gradient(torch, torch.nn.functional.selu, POINTS)


class PRelu(Line):
    group = ACTIVATIONS
    title = "PReLU: slope"
    in_mxnet = in_pytorch = "0.25, one or one for each channel; gradient at 0: the slope"
    mxtrain = "same"
    converters = ("LeakyReLU",)
    x_BCT = np.round(values(2, 3, 4), 0)
    slope_C = np.array([0.25, 0.5, -1], np.float32)

    def mxnet(self) -> Any:
        return value_and_gradient(lambda x: nd.LeakyReLU(x, nd.array(self.slope_C), act_type="prelu"), self.x_BCT)

    def numpy(self) -> Any:
        slope = np.where(self.x_BCT > 0, 1, self.slope_C[:, None])
        return [self.x_BCT * slope, slope]

    def pytorch(self, torch: Any) -> Any:
        slope = torch.tensor(self.slope_C)
        return torch_value_and_gradient(torch, lambda x: torch.nn.functional.prelu(x, slope), self.x_BCT)


class LeakyRelu(Line):
    group = ACTIVATIONS
    title = "Leaky ReLU: default slope"
    in_mxnet = "operator 0.25; `gluon.nn` has no default"
    in_pytorch = "0.01"
    mxtrain = "converted: read from each node"
    converters = ("LeakyReLU",)

    def mxnet(self) -> Any:
        return nd.LeakyReLU(nd.array(POINTS))

    def numpy(self) -> Any:
        return np.where(POINTS > 0, POINTS, 0.25 * POINTS)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.leaky_relu(torch.tensor(POINTS))

    def converted(self, torch: Any) -> Any:
        return torch.nn.functional.leaky_relu(torch.tensor(POINTS), 0.25)


class Elu(Line):
    group = ACTIVATIONS
    title = "ELU: default alpha"
    in_mxnet = "operator 0.25; `gluon.nn` 1"
    in_pytorch = "1"
    mxtrain = "converted: read from each node"
    converters = ("LeakyReLU",)

    def mxnet(self) -> Any:
        return nd.LeakyReLU(nd.array(POINTS), act_type="elu")

    def numpy(self) -> Any:
        return np.where(POINTS > 0, POINTS, 0.25 * np.expm1(POINTS.astype(np.float64)))

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.elu(torch.tensor(POINTS))

    def converted(self, torch: Any) -> Any:
        return torch.nn.functional.elu(torch.tensor(POINTS), 0.25)


class HardSigmoid(Line):
    group = ACTIVATIONS
    title = "Hard sigmoid: slope"
    in_mxnet = "0.2 x + 0.5"
    in_pytorch = "x / 6 + 0.5"
    mxtrain = "converted: alpha and beta are read from each node"
    converters = ("hard_sigmoid",)

    def mxnet(self) -> Any:
        return nd.hard_sigmoid(nd.array(POINTS))

    def numpy(self) -> Any:
        return np.clip(0.2 * POINTS + 0.5, 0, 1)

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.hardsigmoid(torch.tensor(POINTS))

    def converted(self, torch: Any) -> Any:
        return (0.2 * torch.tensor(POINTS) + 0.5).clamp(0, 1)


class Softplus(Line):
    group = ACTIVATIONS
    title = "Softplus"
    in_mxnet = '`Activation("softrelu")`'
    in_pytorch = "`Softplus`, which is x above 20"
    mxtrain = "same"
    converters = ("Activation",)
    points = np.array([-30, -1, 0, 3, 19, 21, 90], np.float32)

    def mxnet(self) -> Any:
        return nd.Activation(nd.array(self.points), act_type="softrelu")

    def numpy(self) -> Any:
        return np.logaddexp(0, self.points.astype(np.float64))

    def pytorch(self, torch: Any) -> Any:
        return torch.nn.functional.softplus(torch.tensor(self.points))


class SoftmaxAxis(Line):
    group = ACTIVATIONS
    title = "Softmax and log softmax: default axis"
    in_mxnet = "the last one"
    in_pytorch = "`nn.Softmax()`: 0 of one or three axes, else 1, with a warning"
    mxtrain = "converted: the axis is always written"
    converters = ("softmax", "log_softmax")
    x_BTC = values(2, 3, 4)

    def mxnet(self) -> Any:
        return [nd.softmax(nd.array(self.x_BTC)), nd.log_softmax(nd.array(self.x_BTC))]

    def numpy(self) -> Any:
        x = self.x_BTC.astype(np.float64)
        log = x - np.log(np.exp(x).sum(-1, keepdims=True))
        return [np.exp(log), log]

    def pytorch(self, torch: Any) -> Any:
        x = torch.tensor(self.x_BTC)
        return [torch.nn.Softmax()(x), torch.nn.LogSoftmax()(x)]

    def converted(self, torch: Any) -> Any:
        x = torch.tensor(self.x_BTC)
        return [x.softmax(-1), x.log_softmax(-1)]


class ClipBounds(Line):
    group = ACTIVATIONS
    title = "Clip: gradient at the bounds"
    in_mxnet = "1"
    in_pytorch = "0 for numbers as bounds (1 before the change of 2026, pytorch#184574), half for tensors"
    mxtrain = "said: values agree; only training differs, and only of elements that equal a bound"
    converters = ("clip",)
    points = np.array([-2, -1, 0, 1, 2], np.float32)

    def mxnet(self) -> Any:
        return value_and_gradient(lambda x: nd.clip(x, -1, 1), self.points)

    def numpy(self) -> Any:
        return [np.clip(self.points, -1, 1), (np.abs(self.points) <= 1).astype(float)]

    def pytorch(self, torch: Any) -> Any:
        return torch_value_and_gradient(torch, lambda x: x.clamp(-1, 1), self.points)


class MaximumTies(Line):
    group = ACTIVATIONS
    title = "Maximum over an axis: gradient of ties"
    in_mxnet = "1 for each of them"
    in_pytorch = "`amax`: shared; `max(dim)`: the first"
    mxtrain = "said: values agree"
    converters = ("max",)
    points = np.array([[1, 2, 2, 0]], np.float32)

    def mxnet(self) -> Any:
        return value_and_gradient(lambda x: nd.max(x, axis=1), self.points)

    def numpy(self) -> Any:
        return [self.points.max(1), (self.points == self.points.max(1)).astype(float)]

    def pytorch(self, torch: Any) -> Any:
        return torch_value_and_gradient(torch, lambda x: x.amax(1), self.points)


class LargerTies(Line):
    group = ACTIVATIONS
    title = "Maximum of two arrays: gradient of ties"
    in_mxnet = "1 for the first array"
    in_pytorch = "half for each"
    mxtrain = "said: values agree"
    converters = ("broadcast_maximum",)
    points, others = np.array([1, 2, 3], np.float32), np.array([1, 3, 2], np.float32)

    def mxnet(self) -> Any:
        return value_and_gradient(lambda x: nd.maximum(x, nd.array(self.others)), self.points)

    def numpy(self) -> Any:
        return [np.maximum(self.points, self.others), (self.points >= self.others).astype(float)]

    def pytorch(self, torch: Any) -> Any:
        return torch_value_and_gradient(torch, lambda x: torch.maximum(x, torch.tensor(self.others)), self.points)


class PoolingTies(Line):
    group = ACTIVATIONS
    title = "Max pooling: gradient of ties"
    in_mxnet = in_pytorch = "1 for the first"
    mxtrain = "same"
    converters = ("Pooling",)
    x_BCT = np.array([[[1, 1, 2, 2]]], np.float32)

    def mxnet(self) -> Any:
        return value_and_gradient(lambda x: nd.Pooling(x, kernel=(2,), stride=(2,), pool_type="max"), self.x_BCT)

    def numpy(self) -> Any:
        return [[[[1, 2]]], [[[1, 0, 1, 0]]]]

    def pytorch(self, torch: Any) -> Any:
        return torch_value_and_gradient(torch, lambda x: torch.nn.functional.max_pool1d(x, 2), self.x_BCT)


class NormOfZeros(Line):
    group = ACTIVATIONS
    title = "Norm: gradient of zeros"
    in_mxnet = "NaN"
    in_pytorch = "0"
    mxtrain = "said: write the root out with a small number below it; a loss that is not finite ends the run"
    converters = ("norm",)
    points = np.zeros((1, 3), np.float32)

    def mxnet(self) -> Any:
        return value_and_gradient(lambda x: nd.norm(x, axis=1), self.points)

    def numpy(self) -> Any:
        with np.errstate(invalid="ignore"):
            return [np.zeros(1), self.points / np.sqrt((self.points**2).sum(1))]

    def pytorch(self, torch: Any) -> Any:
        return torch_value_and_gradient(torch, lambda x: x.norm(dim=1), self.points)


class NanOfRelu(Line):
    group = ACTIVATIONS
    title = "ReLU of NaN"
    in_mxnet = '`Activation("relu")`: 0; `nd.relu`: NaN'
    in_pytorch = "NaN"
    mxtrain = "said: units that are NaN seem to be dead; a loss that is not finite ends the run"
    converters = ("Activation",)
    points = np.array([np.nan, 1], np.float32)

    def mxnet(self) -> Any:
        return nd.Activation(nd.array(self.points), act_type="relu")

    def numpy(self) -> Any:
        return np.array([0, 1])

    def pytorch(self, torch: Any) -> Any:
        return torch.relu(torch.tensor(self.points))


class RoundHalf(Line):
    group = ACTIVATIONS
    title = "Round: halves"
    in_mxnet = "`round`: away from 0; `rint`: down"
    in_pytorch = "`round`: to even"
    mxtrain = "refused by `export`"
    refused = ("round", "rint")
    points = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)

    def mxnet(self) -> Any:
        return [nd.round(nd.array(self.points)), nd.rint(nd.array(self.points))]

    def numpy(self) -> Any:
        return [np.sign(self.points) * np.floor(np.abs(self.points) + 0.5), np.ceil(self.points - 0.5)]

    def pytorch(self, torch: Any) -> Any:
        return [torch.round(torch.tensor(self.points))] * 2

    def converted(self, torch: Any) -> Any:
        x = torch.tensor(self.points)
        return [torch.sign(x) * torch.floor(x.abs() + 0.5), torch.ceil(x - 0.5)]


class Variance(Line):
    group = ACTIVATIONS
    title = "Variance over an axis"
    in_mxnet = "`moments`: biased"
    in_pytorch = "`var`: unbiased"
    mxtrain = "said: `correction=0` in PyTorch"
    x_BC = values(2, 5)

    def mxnet(self) -> Any:
        return nd.moments(nd.array(self.x_BC), axes=1)[1]

    def numpy(self) -> Any:
        return self.x_BC.astype(np.float64).var(1)

    def pytorch(self, torch: Any) -> Any:
        return torch.tensor(self.x_BC).var(1)

    def converted(self, torch: Any) -> Any:
        return torch.tensor(self.x_BC).var(1, correction=0)
