"""Attribution of predictions to parts of the input: Grad-CAM and integrated gradients.

`Task.explained` selects the score of a sample to explain; this module only handles arrays. The network is a separate
copy that is not hybridized: gradients with respect to inner layers are then available, and no cached graph of another
mode can run by mistake.

Max pooling runs in training mode, because oneDNN does not store the positions of the maxima in inference. If scores are
computed from several maps (SSD, YOLOv3), one backward pass computes the gradients of all maps.

Sources: R. R. Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
ICCV 2017. M. Sundararajan, A. Taly, Q. Yan, "Axiomatic Attribution for Deep Networks", ICML 2017.

Legend: B batch, C channels, H height, W width; h, w height and width of a feature map inside the network.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError, nearest
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.parallel.stage import as_list
from mxtrain.task.explained import Attribution, Explained
from mxtrain.training.evaluate import Evaluator, Outputs
from mxtrain.types import Batch, Shapes, shapes_of

AUTO = "auto"
MIN_STEPS, MAX_STEPS = 16, 256
"""Steps on the path from the baseline: doubled from the minimum until the sum converges, up to the maximum."""
TOLERANCE = 0.05
"""Largest relative difference between the sum of integrated gradients and the difference of the scores."""
NUM_SUGGESTED = 4
"""Number of layers that a message suggests."""
MIN_MAP_SIDE = 8
"""Smallest height and width of a feature map that can locate small objects."""

ChooseScore = Callable[[Outputs, Batch], Explained]
"""Selects the scores of a batch to explain: `Task.explained` with description and signature already given."""


class MethodResult(NamedTuple):
    """Attributions of a batch."""

    explained: Explained
    """The explained scores and what they are scores of."""
    score_B: nd.NDArray
    """Explained score of each sample."""
    map_Bhw: np.ndarray
    """Attributions to the positions of each sample."""
    facts: Mapping[str, np.ndarray]
    """Further numbers (B,) by name, for explain.csv."""


class LargestLosses:
    """Finds the samples with the largest losses in a pass over a split.

    Args:
        evaluator: evaluator with the loss.
    """

    def __init__(self, evaluator: Evaluator):
        self._evaluator = evaluator
        self._losses: List[List[nd.NDArray]] = []
        self._index: List[np.ndarray] = []

    def update(self, batch: Batch, outputs: Outputs) -> None:
        """Adds a batch; does not wait for the device."""
        assert batch.index_B is not None
        losses = self._evaluator.losses(batch, outputs)
        self._losses.append(losses[: 1 + self._evaluator.weighted])  # without parts that are only logged
        self._index.append(batch.index_B)

    def indices(self, count: int) -> List[int]:
        """Returns the indices of the samples with the largest loss per weight, largest first."""
        loss_N, *weights = (np.concatenate([array.asnumpy() for array in arrays]) for arrays in zip(*self._losses))
        if weights:
            loss_N = loss_N / np.maximum(weights[0], 1e-12)
        # A NaN counts as the largest loss; the stable sort keeps the order of samples with equal losses.
        order = np.argsort(-np.nan_to_num(loss_N, nan=np.inf), kind="stable")[:count]
        return [int(index) for index in np.concatenate(self._index)[order]]


class Method:
    """Base class of attribution methods."""

    title: str
    """Name of the method for readers."""

    def __call__(self, batch: Batch, choose: ChooseScore) -> MethodResult:
        """Attributes the scores of a batch that `choose` selects to positions of the input."""
        raise NotImplementedError


class GradCAM(Method):
    """Grad-CAM: the ReLU of the sum of a layer's channels, each weighted by the score's mean gradient over its map.

    If the score belongs to one position, each cell is weighted by its own gradient instead (HiResCAM). Source: R. L.
    Draelos, L. Carin, "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks",
    2020.

    If scores are computed from several maps, the results of all maps are resized to the finest one and added. A score
    that depends on a single map has no gradient in the others, which then add nothing.

    Args:
        network: network that is not hybridized.
        layers: structural names of the blocks whose outputs are used; no block may depend on another one.
    """

    def __init__(self, network: gluon.Block, layers: Sequence[str]):
        blocks = dict(blocks_by_path(network))
        self._network, self._blocks = network, {layer: blocks[layer] for layer in layers}
        self.title = f"Grad-CAM of {', '.join(layers)}"

    def __call__(self, batch: Batch, choose: ChooseScore) -> MethodResult:
        maps_of: Dict[str, List[nd.NDArray]] = {}

        def collect(layer: str, output: Any) -> None:
            maps_of[layer] = [mark(array) for array in as_list(output)]

        with watched(self._blocks, collect):
            explained, score_B = run_recorded(self._network, batch, choose)
        maps = [array for layer in self._blocks for array in maps_of[layer]]
        weighted_maps = []
        for map_BChw, gradient_BChw in zip(maps, gradients(score_B, maps, ", ".join(self._blocks))):
            # The gradient of a local score is concentrated at its position; the mean over the map would lose that.
            is_local = explained.is_of_one_place
            weight = gradient_BChw if is_local else gradient_BChw.mean(axis=(2, 3), keepdims=True)
            weighted_maps.append(nd.relu(nd.broadcast_mul(weight, map_BChw).sum(axis=1, keepdims=True)))
        return MethodResult(explained, score_B, add_up(weighted_maps).squeeze(axis=1).asnumpy(), {})


def add_up(maps: Sequence[nd.NDArray]) -> nd.NDArray:
    """Returns the sum of maps (B, 1, h, w), each resized to the size of the finest one."""
    if len(maps) == 1:
        return maps[0]
    height, width = max((array.shape[2:] for array in maps), key=lambda size: size[0] * size[1])
    return nd.add_n(
        *(
            array
            if array.shape[2:] == (height, width)
            else nd.contrib.BilinearResize2D(array, height=height, width=width, align_corners=False)
            for array in maps
        )
    )


class IntegratedGradients(Method):
    """Integrated gradients: the input times the mean gradient of the score on the straight path from a zero baseline.

    Inputs are normalised, so zeros are the mean of the training samples. By completeness, the attributions must sum to
    the difference of the scores at both ends of the path. The number of steps is doubled until they do, within
    `TOLERANCE`. The trapezoid rule reuses all gradients when the number of steps doubles.

    Args:
        network: network that is not hybridized.
    """

    title = "integrated gradients"

    def __init__(self, network: gluon.Block):
        self._network = network

    def __call__(self, batch: Batch, choose: ChooseScore) -> MethodResult:
        (input_array,) = batch.inputs
        explained, score_at_input_B = run_recorded(self._network, batch, choose)

        def gradient_at(share: float) -> Tuple[nd.NDArray, nd.NDArray]:
            """Returns the score and its gradient at a fraction of the path: 0 is the baseline, 1 the input."""
            point = input_array * share
            mark(point)
            interpolated = Batch((point,), batch.targets, batch.size, index_B=batch.index_B, meta=batch.meta)
            # The score chosen at the input is kept along the path; another class at another point would break
            # completeness.
            _, score_B = run_recorded(self._network, interpolated, lambda outputs, batch: explained)
            return score_B, gradients(score_B, [point])[0]

        baseline_B, first = gradient_at(0.0)
        _, last = gradient_at(1.0)
        total, steps = (first + last) / 2, 1
        difference_B = (score_at_input_B - baseline_B).asnumpy()
        while True:
            for step in range(steps):
                total = total + gradient_at((step + 0.5) / steps)[1]  # midpoints of the previous intervals
            steps *= 2
            # In float64, because the check of completeness subtracts nearly equal sums.
            attribution = (input_array * total / steps).asnumpy().astype(np.float64)
            sum_B = attribution.reshape(batch.size, -1).sum(axis=1)
            error_B = np.abs(sum_B - difference_B) / np.maximum(np.abs(difference_B), 1e-12)
            if steps >= MAX_STEPS or (steps >= MIN_STEPS and (error_B <= TOLERANCE).all()):
                break
        facts = {
            "baseline": baseline_B.asnumpy(),
            "sum": sum_B,
            "error": error_B,
            "steps": np.full(batch.size, steps),
        }
        return MethodResult(explained, score_at_input_B, attribution.sum(axis=1), facts)


def build_method(name: str, network: gluon.Block, layer: str, input_shape: Shapes) -> Method:
    """Builds an attribution method by name.

    Args:
        name: "grad_cam" or "integrated_gradients".
        network: network with the weights to explain. It is modified and must not be used for anything else afterwards.
        layer: structural name of a block for Grad-CAM, or "auto".
        input_shape: shape of one sample.

    Raises:
        ConfigError: there is no such layer, or its output is no feature map.
    """
    # A cached graph calls no children, so outputs of inner layers could not be watched.
    network.hybridize(active=False)
    for parameter in network.collect_params().values():
        # Only inputs and outputs of layers need gradients here; those of parameters would take memory for nothing.
        parameter.grad_req = "null"
    if name == "integrated_gradients":
        return IntegratedGradients(network)
    return GradCAM(network, find_layers(network, layer, input_shape))


def explain(batch: Batch, indices: Sequence[int], method: Method, choose: ChooseScore) -> List[Attribution]:
    """Computes which parts of a few samples determine their predictions.

    Args:
        batch: batch of the samples.
        indices: indices of the samples in the split, possibly followed by others.
        method: attribution method.
        choose: selects the score to explain.
    """
    explained, score_B, map_Bhw, facts = method(batch, choose)
    region, extent = explained.region_BHW, explained.extent_B2
    return [
        Attribution(
            indices[row],
            heat_hw,
            score,
            explained.true[row],
            explained.predicted[row],
            float(explained.probability_B[row]),
            bool(explained.is_right_B[row]),
            None if region is None else region[row],
            None if extent is None else (int(extent[row, 0]), int(extent[row, 1])),
            {name: value_B[row].item() for name, value_B in facts.items()},
        )
        for row, (score, heat_hw) in enumerate(zip(score_B.asnumpy().tolist(), map_Bhw))
    ]


# Layers.


def find_layers(network: gluon.Block, layer: str, input_shape: Shapes) -> Sequence[str]:
    """Returns the structural names of the layers whose outputs Grad-CAM uses.

    For `auto`, these are the `scored_maps` of a network that computes scores from several maps. Otherwise it is the
    single layer of `find_layer`.

    Raises:
        ConfigError: see `find_layer`.
    """
    scored_maps: Sequence[str] = getattr(network, "scored_maps", ())
    if scored_maps and layer == AUTO:
        return scored_maps
    return [layer] if layer in scored_maps else [find_layer(network, layer, input_shape)]


def find_layer(network: gluon.Block, layer: str, input_shape: Shapes) -> str:
    """Returns the structural name of the layer whose output Grad-CAM uses.

    `auto` selects the last layer whose output is a map of more than one position, except pooling layers, which only
    subsample the map before them. If the network itself outputs a map of scores, its last layers
    see only their own position. Then `auto` selects, among the layers with the coarsest map that has at least
    `MIN_MAP_SIDE` positions on each side, the one with the most channels; of several, the last.

    Raises:
        ConfigError: there is no such layer, its output is no map, or no layer has a map.
    """
    maps, is_dense, other_layers = map_shapes(network, input_shape)
    if not maps:
        raise ConfigError(
            "explain=grad_cam: no layer of this network returns a map of more than one position. Type "
            "explain=integrated_gradients, which looks at no layer."
        )
    if layer != AUTO and layer not in maps:
        all_layers = [*maps, *other_layers]
        near = nearest(layer, maps, NUM_SUGGESTED) or list(maps)[-NUM_SUGGESTED:]
        problem = "its output is no map of more than one position" if layer in all_layers else "there is no such layer"
        raise ConfigError(f"explain_layer={layer}: {problem}. Type auto, or e.g. {', '.join(near)}.")
    if layer != AUTO:
        return layer
    blocks = dict(blocks_by_path(network))
    layers = [name for name in maps if not is_pooling(blocks[name])] or list(maps)
    if not is_dense:
        return layers[-1]
    layers = [name for name in layers if min(maps[name][2:]) >= MIN_MAP_SIDE] or layers
    coarsest = min(maps[name][2] * maps[name][3] for name in layers)
    layers = [name for name in layers if maps[name][2] * maps[name][3] == coarsest]
    widest = max(maps[name][1] for name in layers)
    return [name for name in layers if maps[name][1] == widest][-1]


def is_pooling(block: gluon.Block) -> bool:
    """Returns True for a pooling layer, which only subsamples its input."""
    return isinstance(block, gluon.nn.conv_layers._Pooling)


def map_shapes(network: gluon.Block, input_shape: Shapes) -> Tuple[Dict[str, Tuple[int, ...]], bool, List[str]]:
    """Runs the network once on zeros to find its feature maps.

    Returns:
        Layer -> shape of its output, for outputs that are maps, in the order in which layers finish; whether the
        network's own output is a map; and the layers whose output is no map.
    """
    device = next(iter(network.collect_params().values())).list_ctx()[0]
    shapes: Dict[str, Tuple[int, ...]] = {}

    def note(path: str, output: object) -> None:
        shapes.pop(path, None)
        shapes[path] = getattr(output, "shape", ())  # a list of several arrays has no shape

    blocks = {path: block for path, block in blocks_by_path(network) if path}
    with watched(blocks, note), autograd.predict_mode():
        outputs = as_list(network(*(nd.zeros((1, *shape), ctx=device) for shape in shapes_of(input_shape))))
    maps = {path: shape for path, shape in shapes.items() if is_map(shape)}
    return maps, is_map(outputs[0].shape), [path for path in shapes if path not in maps]


def is_map(shape: Sequence[int]) -> bool:
    """Returns True if a shape is (B, C, h, w) with more than one position."""
    return len(shape) == 4 and shape[2] * shape[3] > 1


# Gradients.


@contextlib.contextmanager
def watched(blocks: Mapping[str, gluon.Block], hook: Callable[[str, Any], object]) -> Iterator[None]:
    """Calls `hook(name, output)` after each call of one of the blocks, within the context."""
    wrapped: Dict[int, gluon.Block] = {}  # a block that occurs under several names is wrapped only once

    def wrap(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            output = forward(*args)
            hook(name, output)
            return output

        return call

    for name, block in blocks.items():
        if id(block) not in wrapped:
            wrapped[id(block)] = block
            object.__setattr__(block, "forward", wrap(name, block.forward))
    try:
        yield
    finally:
        for block in wrapped.values():
            object.__delattr__(block, "forward")


def mark(array: nd.NDArray) -> nd.NDArray:
    """Makes an array an autograd variable, detached from its history."""
    with autograd.pause():
        autograd.mark_variables([array], [nd.zeros_like(array)])
    return array


def run_recorded(network: gluon.Block, batch: Batch, choose: ChooseScore) -> Tuple[Explained, nd.NDArray]:
    """Returns the explained quantity of a batch and its scores (B,), recorded in inference mode."""
    with autograd.record(train_mode=False):
        outputs = tuple(as_list(network(*batch.inputs)))
        # The choice of the score, e.g. an argmax, is not part of the gradient.
        with autograd.pause():
            explained = choose(outputs, batch)
        return explained, explained.score(outputs)


def gradients(score_B: nd.NDArray, variables: List[nd.NDArray], layer: Optional[str] = None) -> List[nd.NDArray]:
    """Returns the gradients of the scores with respect to the variables.

    Args:
        score_B: score of each sample.
        variables: arrays that `mark` has made variables.
        layer: name of the layer, for the message; None = an MXNet error is not translated.

    Raises:
        ConfigError: the scores do not depend on the layer's output.
    """
    try:
        # The backward pass has its own mode. In training mode, batch norms would use the gradient of batch statistics.
        return autograd.grad([score_B], variables, train_mode=False)
    except mx.MXNetError as error:
        if layer is None:
            raise
        raise ConfigError(
            f"explain_layer={layer}: nothing of what it returns reaches the prediction. Type auto, or another layer."
        ) from error
