"""Layers with weights, products, reductions and other operators of networks for images."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

from mxtrain.exporting.pytorch.call import Converted, Layer, LayerSize, TorchCall, numbers, optional
from mxtrain.exporting.pytorch.operators.table import converts

REDUCTIONS = {
    "mean": "mean",
    "sum": "sum",
    "sum_axis": "sum",
    "max": "amax",
    "max_axis": "amax",
    "min": "amin",
    "min_axis": "amin",
    "prod": "prod",
}


def _parameters(call: TorchCall) -> dict:
    """Returns weight and bias of a convolution or product."""
    names = ("weight", "bias")[: len(call) - 1]
    return {name: call.entries[index + 1] for index, name in enumerate(names)}


@converts("Convolution", "Deconvolution")
def convolution(call: TorchCall) -> Converted:
    kernel, transposed = call.numbers("kernel"), call.op == "Deconvolution"
    count = len(kernel)
    layout = call.text("layout")
    if layout and layout not in ("NCW", "NCHW", "NCDHW"):
        raise call.unsupported(f"with layout={layout}")
    if call.numbers("target_shape"):
        raise call.unsupported("with target_shape")
    zeros, ones = (0,) * count, (1,) * count
    stride, padding = call.numbers("stride", ones), call.numbers("pad", zeros)
    dilation, groups = call.numbers("dilate", ones), call.integer("num_group", 1)
    adjust = call.numbers("adj", zeros) if transposed else zeros
    has_bias = len(call) > 2
    if not call.owns(*range(1, len(call))):
        function = f"F.conv{'_transpose' if transposed else ''}{count}d"
        given = f", output_padding={adjust}" if transposed else ""
        return (
            f"{function}({', '.join(call.inputs)}, stride={stride}, padding={padding}{given}, dilation={dilation}, "
            f"groups={groups})"
        )
    channels_in, channels_out = call.dims()[1][0], call.integer("num_filter")
    # Written even if it is 1, so that blocks with and without a stride share a class.
    options = {"stride": numbers("stride", stride)}
    options.update(
        optional(
            padding=(numbers("padding", padding), 0),
            output_padding=(numbers("output_padding", adjust), 0),
            dilation=(numbers("dilation", dilation), 1),
            groups=(LayerSize("groups", groups), 1),
            bias=(has_bias, True),
        )
    )
    code = call.construct(
        f"nn.Conv{'Transpose' if transposed else ''}{count}d",
        LayerSize("in_channels", channels_in),
        LayerSize("out_channels", channels_out),
        kernel_size=numbers("kernel_size", kernel),
        **options,
    )
    return Layer(code, _parameters(call))


@converts("BatchNorm")
def batch_norm(call: TorchCall) -> Converted:
    axis, rank = call.axis(default=1), call.rank()
    if axis != 1:
        raise call.unsupported("along another axis than the channels")
    if not call.owns(1, 2, 3, 4):
        raise call.unsupported("with parameters that another layer reads")
    size = call.dims()[1][0]
    # Without `eps` MXNet uses 1e-3, and PyTorch 1e-5; MXNet's momentum is the part that is kept.
    name = f"BatchNorm{max(rank - 2, 1)}d"
    if call.flag("use_global_stats"):
        name = call.helper(f"Frozen{name}")
    else:
        name = f"nn.{name}"
    momentum = round(1 - call.number_of("momentum", 0.9), 9)
    code = call.construct(
        name,
        LayerSize("num_features", size),
        **optional(eps=(call.number_of("eps", 1e-3), 1e-5), momentum=(momentum, 0.1)),
    )
    parameters = dict(zip(("weight", "bias", "running_mean", "running_var"), call.entries[1:]))
    extra = {"num_batches_tracked": np.array(0, np.int64)}
    fixed: List[str] = []
    if call.flag("fix_gamma", True):  # 1, whatever the array holds, and never trained
        extra["weight"] = np.ones(size, np.float32)
        del parameters["weight"]
        fixed = ["weight"]
    return Layer(code, parameters, extra, fixed)


@converts("LayerNorm")
def layer_norm(call: TorchCall) -> Converted:
    if call.axis() != call.rank() - 1:
        raise call.unsupported("along another axis than the last")
    return _norm(call, 1, call.number_of("eps", 1e-5), "")


@converts("_mxtrain_norm")
def fused_norm(call: TorchCall) -> Converted:
    residual = bool(call.integer("residual"))
    argument = f"{call.x()} + {call.x(1)}" if residual else ""
    return _norm(call, 2 if residual else 1, call.number_of("eps", 1e-12), argument)


def _norm(call: TorchCall, gamma: int, eps: float, argument: str) -> Converted:
    size = call.dims(gamma)[0][0]
    if not call.owns(gamma, gamma + 1):
        x = argument or call.x()
        return f"F.layer_norm({x}, ({size},), {call.x(gamma)}, {call.x(gamma + 1)}, eps={eps})"
    code = call.construct("nn.LayerNorm", LayerSize("size", size), **optional(eps=(eps, 1e-5)))
    return Layer(code, dict(zip(("weight", "bias"), call.entries[gamma : gamma + 2])), argument=argument)


@converts("_mxtrain_dropout_sum")
def dropout_sum(call: TorchCall) -> Converted:
    rate = call.number_of("p")
    if not rate:
        return f"{call.x()} + {call.x(1)}"
    return f"F.dropout({call.x()}, {rate}, self.training) + {call.x(1)}"


@converts("GroupNorm")
def group_norm(call: TorchCall) -> Converted:
    if not call.owns(1, 2):
        raise call.unsupported("with parameters that another layer reads")
    code = call.construct(
        call.helper("GroupNorm"),
        LayerSize("num_groups", call.integer("num_groups", 1)),
        eps=call.number_of("eps", 1e-5),
    )
    return Layer(code, {"weight": call.entries[1], "bias": call.entries[2]})


@converts("InstanceNorm")
def instance_norm(call: TorchCall) -> Converted:
    if not call.owns(1, 2):
        raise call.unsupported("with parameters that another layer reads")
    code = call.construct(
        f"nn.InstanceNorm{call.rank() - 2}d",
        LayerSize("num_features", call.dims()[1][0]),
        eps=call.number_of("eps", 1e-3),
        affine=True,
    )
    return Layer(code, {"weight": call.entries[1], "bias": call.entries[2]})


@converts("L2Normalization")
def l2_normalization(call: TorchCall) -> Converted:
    axes = {"channel": [1], "instance": list(range(1, call.rank())), "spatial": list(range(2, call.rank()))}
    dims, eps = tuple(axes[call.text("mode", "instance")]), call.number_of("eps", 1e-10)
    return f"{call.x()} / torch.sqrt({call.x()}.square().sum(dim={dims}, keepdim=True) + {eps})"


@converts("_contrib_AdaptiveAvgPooling2D")
def adaptive_pooling(call: TorchCall) -> Converted:
    sizes = call.out_dims()[2:]
    if any(len(set(size)) > 1 for size in sizes):
        raise call.unsupported("of an open size")
    rows, columns = (size[0] for size in sizes)
    return Layer(call.construct("nn.AdaptiveAvgPool2d", output_size=numbers("output_size", (rows, columns))))


@converts("Flatten", "flatten")
def flatten(call: TorchCall) -> Converted:
    return Layer(("nn.Flatten()",), plain=f"{call.x()}.flatten(1)")


@converts("FullyConnected")
def fully_connected(call: TorchCall) -> Converted:
    flat = call.flag("flatten", True) and call.rank() > 2
    argument = f"{call.x()}.flatten(1)" if flat else ""
    if not call.owns(*range(1, len(call))):
        return f"F.linear({', '.join([argument or call.x(), *call.inputs[1:]])})"
    rows, columns = (size[0] for size in call.dims(1))
    code = call.construct(
        "nn.Linear",
        LayerSize("in_features", columns),
        LayerSize("out_features", rows),
        **optional(bias=(len(call) > 2, True)),
    )
    return Layer(code, _parameters(call), argument=argument)


@converts("Embedding")
def embedding(call: TorchCall) -> Converted:
    if not call.owns(1):
        return f"F.embedding({call.ints(0)}, {call.x(1)})"
    rows, columns = (size[0] for size in call.dims(1))
    code = call.construct("nn.Embedding", LayerSize("num_embeddings", rows), LayerSize("embedding_dim", columns))
    argument = call.ints(0)
    return Layer(code, {"weight": call.entries[1]}, argument="" if argument == call.x() else argument)


@converts("batch_dot")
def batch_dot(call: TorchCall) -> Converted:
    sides = [
        f"{name}.transpose(1, 2)" if call.flag(f"transpose_{side}") else name for name, side in zip(call.inputs, "ab")
    ]
    return f"torch.bmm({', '.join(sides)})"


@converts("dot")
def dot(call: TorchCall) -> Converted:
    """Sums over the last axis of the first and the first axis of the second array."""
    x, y = call.inputs
    if call.flag("transpose_a"):  # the first axis becomes the last one, the others keep their order
        x = f"{x}.movedim(0, -1)"
    if call.flag("transpose_b"):
        y = f"{y}.movedim(-1, 0)"
    return f"torch.tensordot({x}, {y}, dims=1)"


@converts(*REDUCTIONS)
def reduce(call: TorchCall) -> Converted:
    rank, keep = call.rank(), call.flag("keepdims")
    axes = [axis % rank for axis in call.numbers("axis", tuple(range(rank)))]
    if call.flag("exclude") and call.numbers("axis"):
        axes = [axis for axis in range(rank) if axis not in axes]
    method = REDUCTIONS[call.op]
    if method == "prod":
        x = call.x()
        for axis in sorted(axes, reverse=True):
            x = f"{x}.prod(dim={axis}, keepdim={keep})"
        reduced = x
    else:
        dims = axes[0] if len(axes) == 1 else tuple(axes)
        reduced = f"{call.x()}.{method}(dim={dims}{', keepdim=True' if keep else ''})"
    # MXNet has no arrays without axes.
    return f"{reduced}.reshape(1)" if len(axes) == rank and not keep else reduced


@converts("norm")
def norm(call: TorchCall) -> Converted:
    order, rank, keep = call.integer("ord", 2), call.rank(), call.flag("keepdims")
    axes = tuple(axis % rank for axis in call.numbers("axis", tuple(range(rank))))
    reduced = f"torch.linalg.vector_norm({call.x()}, ord={order}, dim={axes}{', keepdim=True' if keep else ''})"
    return f"{reduced}.reshape(1)" if len(axes) == rank and not keep else reduced


@converts("softmax", "softmin", "log_softmax")
def softmax(call: TorchCall) -> Converted:
    if len(call) > 1:
        raise call.unsupported("with lengths")
    temperature = call.number_of("temperature", 1.0) * (-1 if call.op == "softmin" else 1)
    x = call.x() if temperature == 1 else f"{call.x()} / {temperature}"
    function, layer = ("log_softmax", "LogSoftmax") if call.op == "log_softmax" else ("softmax", "Softmax")
    plain = f"torch.{function}({x}, dim={call.axis()})"
    return Layer((f"nn.{layer}(dim={call.axis()})",), plain=plain) if temperature == 1 else plain


@converts("SoftmaxActivation")
def softmax_activation(call: TorchCall) -> Converted:
    axis = 1 if call.text("mode", "instance") == "channel" else call.rank() - 1
    return Layer((f"nn.Softmax(dim={axis})",), plain=f"torch.softmax({call.x()}, dim={axis})")


@converts("UpSampling")
def up_sampling(call: TorchCall) -> Converted:
    if call.text("sample_type") != "nearest" or len(call) > 1:
        raise call.unsupported("with another sample_type than nearest")
    scale = call.integer("scale")
    return f'F.interpolate({call.x()}, scale_factor={scale}, mode="nearest")'


@converts("_contrib_BilinearResize2D")
def bilinear_resize(call: TorchCall) -> Converted:
    # PyTorch computes other numbers with a factor than with sizes; MXNet computes with sizes.
    sizes: Sequence[str] = [call.size(size, axis) for axis, size in enumerate(call.out_dims())][2:]
    corners = call.flag("align_corners", True)
    return f'F.interpolate({call.x()}, size=({", ".join(sizes)}), mode="bilinear", align_corners={corners})'


@converts("Pad", "pad")
def pad(call: TorchCall) -> Converted:
    widths = call.numbers("pad_width")
    pairs = list(zip(widths[0::2], widths[1::2]))
    while pairs and not any(pairs[0]):
        pairs = pairs[1:]
    sides = tuple(number for pair in reversed(pairs) for number in pair)
    mode = {"edge": "replicate"}.get(call.text("mode"), call.text("mode"))
    if mode == "constant":
        return f"F.pad({call.x()}, {sides}, value={call.number_of('constant_value')})"
    return f'F.pad({call.x()}, {sides}, mode="{mode}")'
