"""The proof of a network in PyTorch: outputs, gradients, fine-tuning and torch.export. Imports MXNet and PyTorch.

The same weights, batches, loss and steps of SGD in both frameworks, with dropout off: masks are drawn differently.

MXNet computes the loss of the task for both, from the outputs of each, and its gradients of the outputs, with which
each framework computes those of the parameters. So every loss is proven, and none is written a second time:

    network in MXNet   -> outputs -> loss in MXNet -> gradients of the outputs -> backward in MXNet
    network in PyTorch -> outputs -> loss in MXNet -> gradients of the outputs -> backward in PyTorch
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Dict,
    Generator,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.errors import NotProven, first_line
from mxtrain.exporting.standalone import MIN_SHARE, relative_error, rows_error
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.parallel.stage import as_list
from mxtrain.training.loaders import build_loader
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples
    from mxtrain.exporting.pytorch.network import TorchNetwork
    from mxtrain.training.trained import Trained

MAX_OUTPUT_ERROR, MAX_GRADIENT_ERROR, MAX_LOSS_ERROR = 1e-5, 1e-4, 0.01
LEARNING_RATE, MOMENTUM = 2**-10, 0.875
"""Of the steps of fine-tuning. MXNet keeps both in float32, which holds these exactly."""
SMALLEST_SCALE = 1e-3
"""Gradients of a tensor below this part of the network's largest one are compared with this part: those of a bias in
front of a batch normalisation are rounding errors alone."""
OWN_LOSS, SQUARES = "the validation loss", "squared distance to disturbed outputs"
Loss = Callable[[Sequence[nd.NDArray], Batch], nd.NDArray]
"""(outputs of the network, batch) -> mean loss of the batch, of one element."""


@dataclass(frozen=True)
class ProofBatch:
    """A batch of training samples.

    Attributes:
        given: inputs that the network reads.
        batch: targets of the loss.
    """

    given: List[np.ndarray]
    batch: Batch


def load_module(path: Path, dtype: str = "float32") -> Any:
    """Imports a generated file, with another type in place of `torch.float32`."""
    spec = importlib.util.spec_from_file_location(f"mxtrain_exported_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    exec(compile(path.read_text().replace("torch.float32", f"torch.{dtype}"), str(path), "exec"), module.__dict__)
    return module


def load_network(folder: Path, dtype: str = "float32") -> Any:
    """Returns the network of a folder, whose weights PyTorch has read. It computes in type `dtype`."""
    import torch

    from mxtrain.exporting.pytorch.weights import WEIGHTS
    from mxtrain.model.foreign.safetensors_file import read_safetensors

    network = load_module(folder / "model.py", dtype).Network()
    arrays = read_safetensors(folder / WEIGHTS)
    network.load_state_dict({key: torch.from_numpy(np.array(array)) for key, array in arrays.items()})
    for module in network.modules():
        if getattr(module, "torch_dtype", None) is torch.float32:  # a cast of onnx2torch
            module.torch_dtype = getattr(torch, dtype)
    return without_inner_dropout(network.to(getattr(torch, dtype)).eval())


def compute(network: Any, inputs: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Returns the outputs of the network in PyTorch."""
    import torch

    with torch.no_grad():
        outputs = network(*(torch.from_numpy(np.array(array)) for array in inputs))
    return [output.numpy() for output in as_list(outputs)]


def output_errors(
    network: Any,
    names: Sequence[str],
    cases: Sequence[Tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]],
    unordered: Collection[str] = (),
) -> Dict[str, float]:
    """Returns the largest relative error of each output of the network in PyTorch.

    Args:
        network: the network.
        names: its outputs, in order.
        cases: its inputs, and MXNet's outputs by name.
        unordered: outputs whose rows are compared as a set if they differ, as in exports to ONNX: scores that differ by
            rounding alone decide about their order.

    Raises:
        NotProven: an error is larger than `MAX_OUTPUT_ERROR`.
    """
    errors: Dict[str, float] = {}
    for inputs, expected in cases:
        try:
            outputs = compute(network, inputs)
        except Exception as failure:  # of PyTorch and of onnx2torch, which have no common class for them
            raise NotProven(f"export: PyTorch cannot compute the network: {first_line(failure)}") from failure
        for name, found in zip(names, outputs):
            error = relative_error(found, expected[name])
            if not error <= MAX_OUTPUT_ERROR and name in unordered and found.shape == expected[name].shape:
                error = rows_error(found, expected[name], MIN_SHARE)
            errors[name] = max(errors.get(name, 0.0), error)
    wrong = [f"{name} by {error:.1e}" for name, error in errors.items() if not error <= MAX_OUTPUT_ERROR]
    if wrong:
        raise NotProven(
            f"export: PyTorch's outputs differ from MXNet's by more than {MAX_OUTPUT_ERROR:.0e} of the largest number: "
            f"{', '.join(wrong)}."
        )
    return errors


def training_batches(
    trained: Trained, source: Samples, network: TorchNetwork, limit_batches: Optional[int]
) -> Generator[ProofBatch, None, None]:
    """Yields batches of training samples, as in validation, until one has fewer samples than the first.

    Args:
        trained: the trained network.
        source: training samples.
        network: knows which inputs are read.
        limit_batches: number of batches at most; None = an epoch.
    """
    loader = build_loader(trained.description, source, trained.signature, trained.device, limit_batches=limit_batches)
    objective = trained.strategy.objective
    draw, size = np.random.default_rng(0), 0
    with closing(loader.epoch(consumer=Consumer([trained.strategy]))) as batches:
        for batch in batches:
            # Each batch starts with states of 0, so that batches are independent.
            batch = replace(batch, continues_previous=False)
            inputs = RecurrentState(objective.state_shapes, objective.network).enter(batch).inputs
            arrays = [array.asnumpy() for array in inputs]
            if size and len(arrays[0]) != size:
                break
            size = len(arrays[0])
            if not trained.description.task.export_form().has_loss:
                (output, *_) = trained.strategy.predict(inputs)
                score = output.asnumpy()
                batch = replace(batch, targets=(nd.array(score + draw.normal(0, score.std() or 1.0, score.shape)),))
            yield ProofBatch([arrays[position] for position in network.given], batch)


def loss_of(trained: Trained) -> Tuple[str, Loss]:
    """Returns the name of the loss, and the loss.

    Tasks whose loss cannot be computed from the exported outputs get the squared distance to targets that
    `training_batches` has made of them.
    """
    if not trained.description.task.export_form().has_loss:
        return SQUARES, lambda outputs, batch: nd.square(outputs[0] - batch.targets[0]).mean()

    def mean(outputs: Sequence[nd.NDArray], batch: Batch) -> nd.NDArray:
        losses = trained.evaluator.losses(batch, tuple(outputs))
        total = losses[0].sum()
        return total / nd.maximum(losses[1].sum(), 1e-12) if trained.evaluator.weighted else total / batch.size

    return OWN_LOSS, mean


def loss_gradients(loss: Loss, outputs: Sequence[np.ndarray], batch: Batch) -> Tuple[float, List[np.ndarray]]:
    """Returns the loss, and its gradients of the outputs; MXNet computes them in float32."""
    arrays = [nd.array(output, dtype="float32" if output.dtype.kind == "f" else output.dtype) for output in outputs]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        value = loss(arrays, batch)
    value.backward()
    return float(value.asscalar()), [array.grad.asnumpy() for array in arrays]


class MXNetTraining:
    """Steps of SGD in MXNet.

    Args:
        network: the traced network.
        loss: the loss.
        trained: variables of the parameters that are trained.
        dtype: type in which the network computes.
    """

    def __init__(self, network: TorchNetwork, loss: Loss, trained: Sequence[str], dtype: str = "float32"):
        self._loss, self._dtype, self._num_outputs = loss, dtype, network.num_outputs
        self._operator = nd.CachedOp(without_dropout(network.symbol, dtype))
        self._names = network.symbol.list_inputs()
        self._given = [network.inputs[position] for position in network.given]
        self.values = {name: self._array(value) for name, value in network.parameters.items() if name in self._names}
        self._trained = [name for name in trained if name in self.values]
        for name in self._trained:
            self.values[name].attach_grad()
        self._momenta = {name: nd.zeros_like(self.values[name]) for name in self._trained}

    def _array(self, value: np.ndarray) -> Any:
        return nd.array(value, dtype=self._dtype if value.dtype == np.float32 else value.dtype)

    def gradients(self, batch: ProofBatch) -> Tuple[float, Dict[str, np.ndarray]]:
        """Returns the loss of a batch, and its gradients by variable."""
        arrays = {name: self._array(value) for name, value in zip(self._given, batch.given)}
        arrays.update(self.values)
        with autograd.record():
            outputs = as_list(self._operator(*(arrays[name] for name in self._names)))[: self._num_outputs]
        value, heads = loss_gradients(self._loss, [output.asnumpy() for output in outputs], batch.batch)
        autograd.backward(outputs, [nd.array(head, dtype=output.dtype) for head, output in zip(heads, outputs)])
        return value, {name: self.values[name].grad.asnumpy() for name in self._trained}

    def step(self, batch: ProofBatch) -> float:
        """Trains on a batch; returns its loss before the step."""
        loss, _ = self.gradients(batch)
        for name in self._trained:
            value = self.values[name]
            nd.sgd_mom_update(value, value.grad, self._momenta[name], lr=LEARNING_RATE, momentum=MOMENTUM, out=value)
        return loss


class TorchTraining:
    """Steps of SGD in PyTorch.

    Args:
        network: the network, which computes in this type.
        loss: the loss.
        num_outputs: number of its outputs that the loss reads; states follow them.
        dtype: the type.
    """

    def __init__(self, network: Any, loss: Loss, num_outputs: int, dtype: str = "float32"):
        import torch

        self._loss, self._num_outputs, self._dtype = loss, num_outputs, dtype
        self.network = network.train()
        self._trained = [(name, one) for name, one in network.named_parameters() if one.requires_grad]
        self._optimizer = torch.optim.SGD([one for _, one in self._trained], lr=LEARNING_RATE, momentum=MOMENTUM)

    def gradients(self, batch: ProofBatch) -> Tuple[float, Dict[str, np.ndarray]]:
        """Returns the loss of a batch, and its gradients by name. Those of parameters that the loss does not read are
        missing."""
        import torch

        self._optimizer.zero_grad()
        outputs = as_list(self.network(*map(self._tensor, batch.given)))[: self._num_outputs]
        value, heads = loss_gradients(self._loss, [output.detach().numpy() for output in outputs], batch.batch)
        pairs = [(output, head) for output, head in zip(outputs, heads) if output.requires_grad]
        torch.autograd.backward(
            [output for output, _ in pairs], [torch.from_numpy(head).to(output.dtype) for output, head in pairs]
        )
        return value, {name: one.grad.numpy() for name, one in self._trained if one.grad is not None}

    def _tensor(self, value: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(value.astype(self._dtype if value.dtype == np.float32 else value.dtype))

    def step(self, batch: ProofBatch) -> float:
        """Trains on a batch; returns its loss before the step."""
        loss, _ = self.gradients(batch)
        self._optimizer.step()
        return loss


def without_dropout(symbol: Any, dtype: str) -> Any:
    """Returns a symbol without dropout, whose operators make numbers of type `dtype` instead of float32."""
    content = json.loads(symbol.tojson(remove_amp_cast=False))
    for node in content["nodes"]:
        if node.get("attrs", {}).get("dtype") == "float32":
            node["attrs"]["dtype"] = dtype
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


def prove_training(
    network: TorchNetwork, load: Any, trained: Trained, source: Samples, num_steps: Optional[int]
) -> Dict[str, Any]:
    """Compares gradients and steps of training; returns the content of proof.json for them.

    Args:
        network: the code and its weights.
        load: returns the network in PyTorch, which computes in a type.
        trained: the trained network in MXNet.
        source: training samples.
        num_steps: number of steps at most; None = an epoch.

    Raises:
        NotProven: gradients or losses differ.
    """
    name, loss = loss_of(trained)
    # Not `grad_req`: networks that only predict have none for most parameters.
    is_trained = [network.names[name] for name in network.source.names]
    is_trained = [name for name in is_trained if name not in network.symbol.list_auxiliary_states()]
    losses: List[Tuple[float, float]] = []
    with no_dropout(), closing(training_batches(trained, source, network, num_steps)) as batches:
        first = next(batches)
        errors, precision = compare_gradients(network, load, loss, is_trained, first)
        worst = max(errors, key=lambda name: errors[name])
        if not errors[worst] <= MAX_GRADIENT_ERROR:
            raise NotProven(
                f"export: the gradient of {worst} differs between PyTorch and MXNet by {errors[worst]:.1e} of its "
                f"largest number, in {precision}; {MAX_GRADIENT_ERROR:.0e} is allowed."
            )
        # In float32 rounding alone can part both within a few steps, where batch normalisations see few numbers.
        ours = MXNetTraining(network, loss, is_trained, precision)
        theirs = TorchTraining(load(precision), loss, network.num_outputs, precision)
        for batch in chain([first], batches):
            one, other = ours.step(batch), theirs.step(batch)
            losses.append((one, other))
            if not abs(one - other) <= MAX_LOSS_ERROR * abs(one):
                raise NotProven(
                    f"export: step {len(losses)} of fine-tuning has a loss of {one:.6g} in MXNet and {other:.6g} in "
                    f"PyTorch. The gradients of the first batch agree within {errors[worst]:.0e}, so that rounding may "
                    "have grown, as it does in deep networks with batch normalisations that are hardly trained. Train "
                    "longer, or type a larger dataset.eval_batch_size, or fewer finetune_steps."
                )
    return {
        "loss": name,
        "gradients": {
            "compared": len(errors),
            "largest_error": errors[worst],
            "precision": precision,
        },
        "fine_tuning": {
            "steps": len(losses),
            "batch_size": first.batch.size,
            "learning_rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "mxnet": [one for one, _ in losses],
            "pytorch": [other for _, other in losses],
        },
    }


def compare_gradients(
    network: TorchNetwork, load: Any, loss: Loss, trained: Sequence[str], batch: ProofBatch
) -> Tuple[Dict[str, float], str]:
    """Returns the relative error of each gradient by its name in PyTorch, and the type in which they were computed.

    That is float64 if the network computes in it, because gradients through batch normalisations of small batches have
    few right digits in float32, in both frameworks.
    """
    for dtype in ("float64", "float32"):
        try:
            _, ours = MXNetTraining(network, loss, trained, dtype).gradients(batch)
            theirs_in = TorchTraining(load(dtype), loss, network.num_outputs, dtype)
            _, theirs = theirs_in.gradients(batch)
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


@contextmanager
def quiet() -> Iterator[None]:
    """Hides warnings of PyTorch, and the graph of the network, which `torch.export` prints when it fails."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


def prove_export(network: Any, inputs: Sequence[np.ndarray]) -> str:
    """Exports the network by `torch.export`; returns why it cannot be, or an empty text.

    Raises:
        NotProven: the exported program computes something else.
    """
    import torch

    tensors = tuple(torch.from_numpy(np.array(array)) for array in inputs)
    try:
        with quiet():
            program = torch.export.export(network, tensors).module()
    except Exception as error:  # of torch.export, which has no common class for them
        return first_line(error)
    for expected, found in zip(compute(network, inputs), compute(program, inputs)):
        if not relative_error(found, expected) <= MAX_OUTPUT_ERROR:
            raise NotProven("export: the program of torch.export computes something else than the network.")
    return ""
