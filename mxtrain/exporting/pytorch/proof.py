"""The proof of a network in PyTorch: outputs, gradients, fine-tuning and torch.export. Imports MXNet and PyTorch.

The same weights, batches, loss and steps of SGD in both frameworks, with dropout off: masks are drawn differently.
"""

from __future__ import annotations

import importlib.util
import json
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.errors import NotProven
from mxtrain.exporting.standalone import relative_error
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.training.loaders import build_loader

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples
    from mxtrain.exporting.pytorch.network import TorchNetwork
    from mxtrain.training.trained import Trained

MAX_OUTPUT_ERROR, MAX_GRADIENT_ERROR, MAX_LOSS_ERROR = 1e-5, 1e-4, 0.01
NUM_STEPS, LEARNING_RATE, MOMENTUM = 20, 0.01, 0.9
"""Steps of fine-tuning at most: an epoch of a small data set."""
SMALLEST_SCALE = 1e-3
"""Gradients of a tensor below this part of the network's largest one are compared with this part: those of a bias in
front of a batch normalisation are rounding errors alone."""
CROSS_ENTROPY, SQUARES = "cross entropy with the labels", "squared distance to disturbed outputs"
Batch = Tuple[List[np.ndarray], np.ndarray]
"""Inputs of the network, and targets."""


def load_module(path: Path) -> Any:
    """Imports a generated file."""
    spec = importlib.util.spec_from_file_location(f"mxtrain_exported_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_network(folder: Path, name: str = "Network") -> Any:
    """Returns the network of a folder with its weights, as PyTorch has read them."""
    import torch

    from mxtrain.exporting.pytorch.weights import WEIGHTS
    from mxtrain.model.foreign.safetensors_file import read_safetensors

    network = getattr(load_module(folder / "model.py"), name)()
    arrays = read_safetensors(folder / WEIGHTS)
    network.load_state_dict({key: torch.from_numpy(np.array(array)) for key, array in arrays.items()})
    return network.eval()


def compute(network: Any, inputs: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Returns the outputs of the network in PyTorch."""
    import torch

    with torch.no_grad():
        outputs = network(*(torch.from_numpy(np.array(array)) for array in inputs))
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


def output_errors(
    network: Any, names: Sequence[str], cases: Sequence[Tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]]
) -> Dict[str, float]:
    """Returns the largest relative error of each output of the network in PyTorch.

    Args:
        network: the network.
        names: its outputs, in order.
        cases: its inputs, and MXNet's outputs by name.

    Raises:
        NotProven: an error is larger than `MAX_OUTPUT_ERROR`.
    """
    errors: Dict[str, float] = {}
    for inputs, expected in cases:
        for name, found in zip(names, compute(network, inputs)):
            errors[name] = max(errors.get(name, 0.0), relative_error(found, expected[name]))
    wrong = [f"{name} by {error:.1e}" for name, error in errors.items() if not error <= MAX_OUTPUT_ERROR]
    if wrong:
        raise NotProven(
            f"export: PyTorch's outputs differ from MXNet's by more than {MAX_OUTPUT_ERROR:.0e} of the largest number: "
            f"{', '.join(wrong)}."
        )
    return errors


def training_batches(trained: Trained, source: Samples, network: TorchNetwork) -> Tuple[str, List[Batch]]:
    """Returns the name of the loss, and batches of the network's inputs with their targets.

    Args:
        trained: the trained network.
        source: training samples.
        network: knows which inputs are read.
    """
    loader = build_loader(trained.description, source, trained.signature, trained.device, limit_batches=NUM_STEPS)
    objective = trained.strategy.objective
    draw, size = np.random.default_rng(0), 0
    found: List[Tuple[List[np.ndarray], np.ndarray, Optional[np.ndarray]]] = []
    with closing(loader.epoch(consumer=Consumer([trained.strategy]))) as batches:
        for batch in islice(batches, NUM_STEPS):
            # Each batch starts with states of 0, so that batches are independent.
            inputs = RecurrentState(objective.state_shapes, objective.network).enter(batch).inputs
            arrays = [array.asnumpy() for array in inputs]
            given = [arrays[position] for position in network.given]
            if found and len(arrays[0]) != size:  # a last batch with fewer samples
                break
            size = len(arrays[0])
            (output, *_) = trained.strategy.predict(inputs)
            found.append((given, output.asnumpy(), batch.targets[0].asnumpy() if batch.targets else None))
    # Embeddings have no score of each class, even if there are as many numbers. One loss serves all batches: labels of
    # some batches may be small by chance.
    has_scores = not trained.description.task.export_form().open_set
    if has_scores and all(_are_labels(labels, score) for _, score, labels in found):
        return CROSS_ENTROPY, [(given, labels.astype(np.int64)) for given, _, labels in found if labels is not None]
    disturbed = (score + draw.normal(0, score.std() or 1.0, score.shape) for _, score, _ in found)
    return SQUARES, [(given, target.astype(np.float32)) for (given, *_), target in zip(found, disturbed)]


def _are_labels(labels: Optional[np.ndarray], score: np.ndarray) -> bool:
    """Returns True if targets are a class of each row of scores."""
    return (
        labels is not None
        and score.ndim == 2
        and score.shape[1] > 1
        and labels.shape == score.shape[:1]
        and np.array_equal(labels, np.rint(labels))
        and labels.min() >= 0
        and labels.max() < score.shape[1]
    )


class MXNetTraining:
    """Steps of SGD in MXNet.

    Args:
        network: the traced network.
        kind: name of the loss.
        trained: variables of the parameters that are trained.
        dtype: type in which numbers are computed.
    """

    def __init__(self, network: TorchNetwork, kind: str, trained: Sequence[str], dtype: str = "float32"):
        self._dtype = dtype
        self._operator = nd.CachedOp(without_dropout(network.symbol))
        self._names = network.symbol.list_inputs()
        self._given = [network.inputs[position] for position in network.given]
        self._kind = kind
        self.values = {name: self._array(value) for name, value in network.parameters.items() if name in self._names}
        self._trained = [name for name in trained if name in self.values]
        for name in self._trained:
            self.values[name].attach_grad()
        self._momenta = {name: nd.zeros_like(self.values[name]) for name in self._trained}

    def _array(self, value: np.ndarray) -> Any:
        return nd.array(value, dtype=self._dtype if value.dtype == np.float32 else value.dtype)

    def gradients(self, batch: Batch) -> Tuple[float, Dict[str, np.ndarray]]:
        """Returns the loss of a batch, and its gradients by variable."""
        inputs, target = batch
        arrays = {name: self._array(value) for name, value in zip(self._given, inputs)}
        arrays.update(self.values)
        goal = self._array(target)
        with autograd.record():
            outputs = self._operator(*(arrays[name] for name in self._names))
            first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
            if self._kind == CROSS_ENTROPY:
                loss = -nd.pick(nd.log_softmax(first, axis=-1), goal, axis=-1).mean()
            else:
                loss = nd.square(first - goal).mean()
        loss.backward()
        return float(loss.asscalar()), {name: self.values[name].grad.asnumpy() for name in self._trained}

    def step(self, batch: Batch) -> float:
        """Trains on a batch; returns its loss before the step."""
        loss, _ = self.gradients(batch)
        for name in self._trained:
            value = self.values[name]
            nd.sgd_mom_update(value, value.grad, self._momenta[name], lr=LEARNING_RATE, momentum=MOMENTUM, out=value)
        return loss


class TorchTraining:
    """Steps of SGD in PyTorch.

    Args:
        network: the network.
        kind: name of the loss.
        dtype: type in which numbers are computed.
    """

    def __init__(self, network: Any, kind: str, dtype: str = "float32"):
        import torch

        self.network, self._kind, self._dtype = network.to(getattr(torch, dtype)).train(), kind, dtype
        self._trained = [(name, one) for name, one in network.named_parameters() if one.requires_grad]
        self._optimizer = torch.optim.SGD([one for _, one in self._trained], lr=LEARNING_RATE, momentum=MOMENTUM)

    def gradients(self, batch: Batch) -> Tuple[float, Dict[str, np.ndarray]]:
        """Returns the loss of a batch, and its gradients by name. Those of parameters that the loss does not read are
        missing."""
        from torch.nn import functional

        inputs, target = batch
        self._optimizer.zero_grad()
        outputs = self.network(*map(self._tensor, inputs))
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        goal = self._tensor(target)
        loss = functional.cross_entropy(first, goal) if self._kind == CROSS_ENTROPY else (first - goal).square().mean()
        loss.backward()
        return loss.item(), {name: one.grad.numpy() for name, one in self._trained if one.grad is not None}

    def _tensor(self, value: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(value.astype(self._dtype if value.dtype == np.float32 else value.dtype))

    def step(self, batch: Batch) -> float:
        """Trains on a batch; returns its loss before the step."""
        loss, _ = self.gradients(batch)
        self._optimizer.step()
        return loss


def without_dropout(symbol: Any) -> Any:
    """Returns a symbol whose operators drop nothing."""
    content = json.loads(symbol.tojson(remove_amp_cast=False))
    for node in content["nodes"]:
        if node["op"] == "Dropout":
            # With p=0 MXNet multiplies gradients by a mask that was never written.
            node["op"], node["attrs"] = "_copy", {}
        elif node["op"] == "RNN" or node["op"].startswith("_mxtrain_dropout"):
            node.setdefault("attrs", {})["p"] = "0"
    return mx.sym.load_json(json.dumps(content))


@contextmanager
def no_dropout() -> Iterator[None]:
    """Lets PyTorch drop nothing."""
    from torch.nn import functional

    before = functional.dropout
    functional.dropout = lambda x, *args, **options: x
    try:
        yield
    finally:
        functional.dropout = before


def prove_training(network: TorchNetwork, load: Any, trained: Trained, source: Samples) -> Dict[str, Any]:
    """Compares gradients and steps of training; returns the content of proof.json for them.

    Args:
        network: the code and its weights.
        load: returns the network in PyTorch.
        trained: the trained network in MXNet.
        source: training samples.

    Raises:
        NotProven: gradients or losses differ.
    """
    kind, batches = training_batches(trained, source, network)
    # Not `grad_req`: networks that only predict have none for most parameters.
    is_trained = [network.names[name] for name in network.source.names]
    is_trained = [name for name in is_trained if name not in network.symbol.list_auxiliary_states()]
    with no_dropout():
        errors, precision = compare_gradients(network, load, kind, is_trained, batches[0])
        ours, theirs = MXNetTraining(network, kind, is_trained), TorchTraining(without_inner_dropout(load()), kind)
        losses = [(ours.step(batch), theirs.step(batch)) for batch in batches]
    worst = max(errors, key=lambda name: errors[name], default="")
    if errors and not errors[worst] <= MAX_GRADIENT_ERROR:
        raise NotProven(
            f"export: the gradient of {worst} differs between PyTorch and MXNet by {errors[worst]:.1e} of its largest "
            f"number; {MAX_GRADIENT_ERROR:.0e} is allowed."
        )
    for number, (one, other) in enumerate(losses, 1):
        if not abs(one - other) <= MAX_LOSS_ERROR * abs(one):
            raise NotProven(
                f"export: step {number} of fine-tuning has a loss of {one:.6g} in MXNet and {other:.6g} in PyTorch."
            )
    return {
        "loss": kind,
        "gradients": {
            "compared": len(errors),
            "largest_error": max(errors.values(), default=0.0),
            "precision": precision,
        },
        "fine_tuning": {
            "steps": len(losses),
            "batch_size": len(batches[0][0][0]),
            "learning_rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "mxnet": [one for one, _ in losses],
            "pytorch": [other for _, other in losses],
        },
    }


def compare_gradients(
    network: TorchNetwork, load: Any, kind: str, trained: Sequence[str], batch: Batch
) -> Tuple[Dict[str, float], str]:
    """Returns the relative error of each gradient by its name in PyTorch, and the type in which they were computed.

    That is float64 if the network computes in it, because gradients through batch normalisations of small batches have
    few right digits in float32, in both frameworks.
    """
    for dtype in ("float64", "float32"):
        try:
            _, ours = MXNetTraining(network, kind, trained, dtype).gradients(batch)
            _, theirs = TorchTraining(without_inner_dropout(load()), kind, dtype).gradients(batch)
        except (mx.MXNetError, RuntimeError):
            if dtype == "float32":
                raise
            continue
        return gradient_errors(network, ours, theirs), dtype
    raise AssertionError("float32 returns or raises")


def without_inner_dropout(network: Any) -> Any:
    """Lets recurrent layers of PyTorch drop nothing: they do not call the function that `no_dropout` replaces."""
    for module in network.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return network


def gradient_errors(
    network: TorchNetwork, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]
) -> Dict[str, float]:
    """Returns the relative error of each gradient, by its name in PyTorch.

    Args:
        network: knows the names.
        ours: gradients in MXNet by variable.
        theirs: gradients in PyTorch by name.
    """
    largest = max((float(np.abs(array).max()) for array in ours.values()), default=0.0)
    errors: Dict[str, float] = {}
    for structural, name in network.source.names.items():
        variable = network.names[structural]
        if variable not in ours:
            continue
        expected = ours[variable].astype(np.float64)
        found = theirs.get(name, np.zeros_like(expected)).astype(np.float64)
        scale = max(float(np.abs(expected).max()), SMALLEST_SCALE * largest) or 1.0
        errors[name] = float(np.abs(found - expected).max() / scale) if np.isfinite(found).all() else float("inf")
    return errors


def prove_export(network: Any, inputs: Sequence[np.ndarray]) -> str:
    """Exports the network by `torch.export`; returns why it cannot be, or an empty text.

    Raises:
        NotProven: the exported program computes something else.
    """
    import torch

    tensors = tuple(torch.from_numpy(np.array(array)) for array in inputs)
    try:
        program = torch.export.export(network, tensors).module()
    except Exception as error:  # of torch.export, which has no common class for them
        return str(error).strip().splitlines()[0][:300]
    for expected, found in zip(compute(network, inputs), compute(program, inputs)):
        if not relative_error(found, expected) <= MAX_OUTPUT_ERROR:
            raise NotProven("export: the program of torch.export computes something else than the network.")
    return ""
