"""Compares each layer's gradients and parameters after training with a placement and on one device, from equal weights
and batches. Compares the gradients of users' own blocks with finite differences."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.amp.spec import FULL
from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.cluster.joining import connect_store
from mxtrain.config.groups import Description
from mxtrain.config.sparse_tables import is_lazy
from mxtrain.data.loading.loader import Consumer
from mxtrain.data.spec import open_splits
from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE, World
from mxtrain.model.graph.summary import has_random_layers
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.parameters import parameter_multipliers
from mxtrain.parallel.differences import Difference, OwnGradients, Verification, differences_of
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.reference import BatchDivision, Reference
from mxtrain.parallel.spec import Parallel
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.training import snapshot
from mxtrain.training.build import build_step
from mxtrain.training.loaders import build_data
from mxtrain.training.network import build_network
from mxtrain.training.objective import build_objective
from mxtrain.training.own_gradients import compare_own_gradients
from mxtrain.training.step import TrainingStep
from mxtrain.training.teacher import teachers_of
from mxtrain.types import Batch, Shapes

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.data.loading.loader import EpochLoader
    from mxtrain.data.signature import Signature

STEPS = "steps of both sides:"
"""Unit of the progress display."""


@dataclass(frozen=True)
class Sides:
    """Builds both sides of the comparison: the training step of the placement, and the reference on one device.

    Attributes:
        description: description of the run.
        signature: signature of the network.
        devices: devices of this worker, [replica][stage].
        parallel: the placement; its cut may be set later.
        world: world of this worker.
        joined: store that connects several workers; None for a single worker.
        steps_per_epoch: training steps in an epoch.
        remarks: list that receives remarks on changes to the networks, e.g. switched-off dropout.
    """

    description: Description
    signature: Signature
    devices: Sequence[Sequence[Context]]
    parallel: Parallel
    world: World
    joined: Optional[Store]
    steps_per_epoch: int
    remarks: List[str]

    def placement(self, dtype: str) -> TrainingStep:
        """Builds the training step of the placement, in "float32" (or the precision of amp) or "float64"."""
        description = self.described(dtype)
        parts = description.trainer.grad_accumulation
        store = self.joined or description.kvstore.build()
        objective = self._objective(description, dtype, description.kvstore.serves_tables)
        strategy = self.parallel.build(objective, parts, store)
        return build_step(description, objective.network, self.signature, self.steps_per_epoch, strategy, store)

    def reference(self, dtype: str, cut_before: Sequence[str] = ()) -> Reference:
        """Builds the reference on one device, with the same shards of a batch.

        Args:
            dtype: as for `placement`.
            cut_before: as for `Reference`.
        """
        description, trainer = self.described(dtype), self.description.trainer
        objective = self._objective(description, dtype)
        division = BatchDivision(
            self.world.size,
            trainer.grad_accumulation,
            len(self.devices),
            self.parallel.num_microbatches(),
            self.parallel.batch_norm,
        )
        return Reference(
            objective,
            division,
            description.optimizer.build(self.steps_per_epoch),
            parameter_multipliers(description.model, objective.network),
            trainer.clip_global_norm,
            is_lazy(description),
            description.amp.build_scaling(),
            cut_before,
        )

    def objective(self, dtype: str) -> Objective:
        """Builds network and loss by themselves on one device, in "float32" without amp or "float64"."""
        return self._objective(self.described("float64"), dtype)

    def described(self, dtype: str) -> Description:
        """Returns the description; without amp for float64."""
        return replace(self.description, amp=FULL) if dtype == "float64" else self.description

    def _objective(self, description: Description, dtype: str, remote_rows: bool = False) -> Objective:
        """Builds a separate network with loss and meter. `remote_rows`: True if servers hold the rows of its tables."""
        network = build_network(description, self.signature, self.devices[0][0], remote_rows)
        refuse_float32_only(network)
        network.cast(dtype)
        # With MXNet's LeakyReLU, gradients of YOLOv3 differ by 2e-9 if only the order of the samples changes.
        if dtype == "float64":
            use_exact_leaky_relu(network)
        # Replaced in place: several networks are built, and all of them give the same remarks.
        self.remarks[:] = disable_dropout(network, self.signature.shape)
        return build_objective(description, network, self.signature, self.world)


def verify(
    description: Description, steps: int, tolerance: float, world: World = ALONE, progress: WorkProgress = SILENT
) -> Verification:
    """Trains with the description's placement and on one device, and compares the results.

    The last batch is smaller than the others and odd, unless batches continue each other, to test uneven shares.

    The tolerance applies to a comparison in float64. In float32, another order of sums occasionally moves the input of
    a ReLU across 0, which changes a gradient by percents; and adaptive optimizers turn rounding noise into steps of
    full size. With amp, the low precision is compared, too, by the norm of all gradients of the first step: after that
    step the weights of both sides differ.

    Args:
        description: description of the run.
        steps: number of steps.
        tolerance: largest relative difference that passes.
        world: world of this worker. All workers train; only rank 0 compares, and the others report no difference.
        progress: shows the steps of both sides.

    Raises:
        ConfigError: the description changes gradients or draws random numbers on purpose.
    """
    refuse_incomparable(description)
    splits = open_splits(description.dataset)
    signature = description.dataset.infer_signature(splits, description.model)
    devices = description.parallel.resolve_devices()
    teacher = teachers_of(description, signature, devices[0][0]).get("distillation")
    data = build_data(description, splits, signature, devices[0][0], teacher=teacher)
    joined: Optional[Store] = None
    if description.kvstore.distributed:
        timeout_s = description.cluster.start_timeout
        joined = connect_store(description.kvstore, world, timeout_s)
    sides = Sides(description, signature, devices, description.parallel, world, joined, len(data.train), [])
    lr = description.rates.lr
    bits: List[Difference] = []
    low: Optional[float] = None
    with progress:

        def compared(dtype: str, placed: TrainingStep, reference: Reference) -> List[Difference]:
            consumer = Consumer([placed.strategy, reference])
            stream = (batch.cast(dtype) for batch in batches(data.train, steps, consumer))
            return compare(placed, reference, stream, lr, progress.advance)

        progress.begin("building the placement", 0)
        placed = sides.placement("float32")
        cut_before = placed.strategy.layout.cut_before
        if has_same_sum_order(description, len(devices) * world.size):
            progress.begin(f"comparing bits, {STEPS}", 2 * steps)
            bits = compared("float32", placed, sides.reference("float32", cut_before))
        if description.amp.dtype != FULL.dtype:
            progress.begin(f"comparing in {description.amp.dtype}, {STEPS}", 2)
            placed, reference = sides.placement("float32"), sides.reference("float32")
            consumer = Consumer([placed.strategy, reference])
            first_batch = itertools.islice(batches(data.train, 2, consumer), 1)
            low = compare_lengths(placed, reference, first_batch, lr, progress.advance)
        if cut_before:  # balancing in float64 could choose another cut, because the costs of blocks differ
            sides = replace(sides, parallel=sides.parallel.model_copy(update={"cut_before": cut_before}))
        progress.begin(f"comparing in float64, {STEPS}", 2 * steps)
        placed = sides.placement("float64")
        layers = compared("float64", placed, sides.reference("float64"))
        own = OwnGradients()
        # Gradients of own blocks depend on the network and one batch, not on the placement, so one worker is enough.
        if world.rank == 0:
            progress.begin("comparing gradients of own layers with finite differences", 0)
            batch = next(batches(data.train, 1, Consumer([placed.strategy])))
            own = compare_own_gradients(sides.objective("float64"), sides.objective("float32"), batch)
    if joined is not None:
        joined.close()
    return Verification(
        layers, tolerance, steps, bits, [*sides.remarks, *own.remarks], low, description.amp.dtype, own=own
    )


def refuse_incomparable(description: Description) -> None:
    """Checks that training on one device computes the same numbers.

    Raises:
        ConfigError: the optimizer draws random numbers, or gradients are compressed.
    """
    if description.optimizer.draws_random:
        raise ConfigError("verify: this optimizer adds noise, which differs between devices. Choose another, e.g. sgd.")
    if getattr(description.kvstore, "compression", "none") != "none":
        raise ConfigError(
            "verify: kvstore.compression changes the gradients on purpose. Type kvstore.compression=none."
        )


def refuse_float32_only(network: gluon.Block) -> None:
    """Checks that MXNet can compute all layers in float64 on one device.

    Raises:
        ConfigError: names the first layer that it cannot.
    """
    for path, block in blocks_by_path(network):
        if isinstance(block, gluon.contrib.nn.SyncBatchNorm):
            raise ConfigError(
                f"verify: MXNet has no float64 for layer '{path}', a {type(block).__name__}. Put a BatchNorm in its "
                "place for the comparison."
            )


def use_exact_leaky_relu(network: gluon.Block) -> None:
    """Replaces leaky ReLUs by an exact computation.

    MXNet's operator multiplies negative values in float32 for every dtype. Values that differ in the last bit of
    float64 would then differ in the last bit of float32, which Adam amplifies to 1e-5.
    """
    for _, block in blocks_by_path(network):
        if isinstance(block, gluon.nn.LeakyReLU):
            block.__class__ = ExactLeakyReLU
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()


class ExactLeakyReLU(gluon.nn.LeakyReLU):
    """A leaky ReLU that is computed in the precision of its input."""

    def hybrid_forward(self, F: Any, x: nd.NDArray) -> nd.NDArray:
        return F.where(x > 0, x, x * self._alpha)


def disable_dropout(network: gluon.Block, input_shape: Shapes) -> List[str]:
    """Sets all dropout rates to 0; returns remarks on this and on other random layers."""
    remarks, silenced = [], []
    for path, block in blocks_by_path(network):
        if (isinstance(block, gluon.nn.Dropout) or getattr(block, "drops", False)) and block._rate:
            block._rate = 0
            silenced.append(path)
    if silenced:
        remarks.append(f"dropout is switched off, it would draw other masks on other devices: {', '.join(silenced)}")
    if has_random_layers(network, input_shape):
        remarks.append("the network draws random numbers besides dropout, which differ between devices")
    return remarks


def has_same_sum_order(description: Description, num_replicas: int) -> bool:
    """Returns True if the placement adds in the same order as one device, so that results can be bitwise equal.

    This needs at most two replicas (a sum of two has no order), batch norms per device, and no gradient clipping, whose
    norm is summed over devices.
    """
    is_per_device = description.parallel.batch_norm == "per_device"
    return is_per_device and num_replicas <= 2 and description.trainer.clip_global_norm is None


def batches(loader: EpochLoader, steps: int, consumer: Consumer) -> Iterator[Batch]:
    """Yields the first `steps` training batches; the last one is cut to an odd size, unless batches continue each
    other, as those of text."""
    epoch = number = 0
    while True:
        with closing(loader.epoch(epoch, 0, consumer)) as whole:
            for batch in whole:
                number += 1
                if number == steps and not batch.continues_previous:
                    # The largest odd number up to half of the batch, so that no division into two or four parts is
                    # even.
                    size = max(1, batch.size // 2 - 1 + batch.size // 2 % 2)
                    yield batch.slice(0, size)
                    return
                yield batch
                if number == steps:
                    return
        epoch += 1


def own_share(batch: Batch, world: World) -> Batch:
    """Returns a worker's share of a global batch."""
    begin, end = world.share(batch.size)
    if begin == end:
        return Batch((), (), 0, batch.size)
    return batch.slice(begin, end, batch.size)


def compare(
    placed: TrainingStep,
    reference: Reference,
    stream: Iterator[Batch],
    lr: float,
    advance: Callable[[int], None] = lambda _: None,
) -> List[Difference]:
    """Trains both sides on the same batches and returns the largest differences of each layer.

    Args:
        placed: training step of the placement.
        reference: reference on one device.
        stream: global batches.
        lr: learning rate.
        advance: called with 1 after each step of a side, for progress.
    """
    layers: Dict[str, Difference] = {}
    for values, gradients in trained(placed, reference, stream, lr, advance):
        for name, absolute, relative in differences_of(values[1], values[0]):
            layer = _layer(layers, name)
            layer.parameter_abs = max(layer.parameter_abs, absolute)
            layer.parameter_rel = max(layer.parameter_rel, relative)
        for name, absolute, relative in differences_of(gradients[1], gradients[0]):
            layer = _layer(layers, name)
            layer.gradient_abs = max(layer.gradient_abs, absolute)
            layer.gradient_rel = max(layer.gradient_rel, relative)
    return list(layers.values())


def compare_lengths(
    placed: TrainingStep,
    reference: Reference,
    stream: Iterator[Batch],
    lr: float,
    advance: Callable[[int], None] = lambda _: None,
) -> float:
    """Returns the largest relative error of the gradients of a step, in the Euclidean norm over all parameters.

    See `compare` for the arguments.
    """
    worst = 0.0
    for _, (found, wanted) in trained(placed, reference, stream, lr, advance):
        difference = _length(found[name] - array for name, array in wanted.items())
        # max(0.0, nan) returns 0.0, so a NaN must become infinity first.
        worst = max(worst, float(np.nan_to_num(difference / _length(wanted.values()), nan=np.inf)))
    return worst


def trained(
    placed: TrainingStep, reference: Reference, stream: Iterator[Batch], lr: float, advance: Callable[[int], None]
) -> Iterator[Tuple[Sequence[Mapping[str, np.ndarray]], Sequence[Mapping[str, np.ndarray]]]]:
    """Trains both sides on the same batches; yields the parameters and the gradients of both after each batch."""
    for number, batch in enumerate(stream, start=1):
        placed(own_share(batch, placed.store.world), lr, number)
        found = _state(placed)  # waits for the device
        HEARTBEAT.begin_batch()
        advance(1)
        placed.seed_random(number)  # both sides must draw the same numbers
        reference.step(batch, lr)
        wanted = tuple(
            {name: array.asnumpy() for name, array in arrays.items()}
            for arrays in (reference.values, reference.gradients)
        )
        HEARTBEAT.begin_batch()
        advance(1)
        values, gradients = zip(found, wanted)
        yield values, gradients


def _length(arrays: Iterable[np.ndarray]) -> float:
    """Returns the Euclidean norm over all arrays."""
    return float(np.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays)))


def _state(side: TrainingStep) -> Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    """Returns parameters and gradients by structural name."""
    strategy = side.strategy
    return snapshot.copy_parameters(strategy), snapshot.copy_gradients(strategy)


def _layer(layers: Dict[str, Difference], parameter: str) -> Difference:
    name = parameter.rpartition(".")[0]
    return layers.setdefault(name, Difference(name))
