"""Verifies that a placement computes what one device computes: same weights, same batches, compared per layer."""

from __future__ import annotations

import itertools
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.amp import FULL
from mxtrain.build import build_step
from mxtrain.data.base import open_splits
from mxtrain.data.loading.loader import Consumer
from mxtrain.description.groups import Description
from mxtrain.description.sparse_tables import is_lazy
from mxtrain.engine.backend import gluon
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE, World
from mxtrain.logger.progress_display import ProgressDisplay
from mxtrain.model.graph.summary import has_random_layers
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.parameters import parameter_multipliers
from mxtrain.parallel.base import Objective
from mxtrain.parallel.differences import Difference, Verification, differences_of
from mxtrain.parallel.reference import BatchDivision, Reference
from mxtrain.parallel.strategies import Parallel
from mxtrain.process.heartbeat import HEARTBEAT
from mxtrain.training import snapshot
from mxtrain.training.loaders import build_data
from mxtrain.training.network import build_network
from mxtrain.training.objective import build_objective
from mxtrain.training.step import TrainingStep
from mxtrain.training.teacher import teachers_of
from mxtrain.types import Batch, Shapes

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.data.loading.loader import EpochLoader
    from mxtrain.data.signature import Signature

QUIET_S = 2.0
"""Seconds after which progress is shown."""
STEPS = "steps of both sides:"


@dataclass(frozen=True)
class Sides:
    """Builds both sides of the comparison: steps of the placement, and of one device.

    Attributes:
        description: of the run.
        signature: what enters the network.
        devices: [replica][stage] of this worker.
        parallel: the placement; its cut may be set later.
        world: of this worker.
        joined: the store by which several workers agree; None if there is one.
        steps_per_epoch: of training.
        remarks: gets what was done to networks so that they compare.
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
        """The placement, in "float32" (or what amp makes of it) or "float64"."""
        description = self.described(dtype)
        parts = description.trainer.grad_accumulation
        store = self.joined or description.kvstore.build()
        objective = self._objective(description, dtype, description.kvstore.serves_tables)
        strategy = self.parallel.build(objective, parts, store)
        return build_step(description, objective.network, self.signature, self.steps_per_epoch, strategy, store)

    def reference(self, dtype: str, cut_before: Sequence[str] = ()) -> Reference:
        """One device, with the same shards of a batch; `dtype` as for `placement`, `cut_before` as for `Reference`."""
        description, trainer = self.described(dtype), self.description.trainer
        objective = self._objective(description, dtype)
        division = BatchDivision(
            self.world.size, trainer.grad_accumulation, len(self.devices), self.parallel.num_microbatches(),
            self.parallel.batch_norm,
        )  # fmt: skip
        return Reference(
            objective, division, description.optimizer.build(self.steps_per_epoch),
            parameter_multipliers(description.model, objective.network), trainer.clip_global_norm,
            is_lazy(description), description.amp.build_scaling(), cut_before,
        )  # fmt: skip

    def described(self, dtype: str) -> Description:
        """The description, without amp in float64."""
        return replace(self.description, amp=FULL) if dtype == "float64" else self.description

    def _objective(self, description: Description, dtype: str, remote_rows: bool = False) -> Objective:
        """A network of its own, and what it is trained for; `remote_rows`: servers hold the rows of its tables."""
        network = build_network(description, self.signature, self.devices[0][0], remote_rows)
        refuse_float32_only(network)
        network.cast(dtype)
        if dtype == "float64":
            multiply_in_float64(network)
        self.remarks[:] = silence(network, self.signature.shape)
        return build_objective(description, network, self.signature, self.world)


def verify(description: Description, steps: int, tolerance: float, world: World = ALONE) -> Verification:
    """Trains `steps` steps under the description's placement and on one device, and compares.

    The last batch is smaller than the others, and odd, where its rows do not go on from one batch to the next. The
    comparison with the whole network on one device is made in float64: in float32 another order of sums now and then
    puts a ReLU's input on the other side of 0, which changes a gradient by percents, and what an adaptive optimizer
    makes of rounding noise is as large as any step. With amp the placement is compared in the low precision as well, by
    the length of all gradients of the first step: after it, the sides have other weights.

    Args:
        description: of the run.
        steps: how many to train.
        tolerance: largest relative difference that passes.
        world: of this worker. All of them train; rank 0 compares, and the others find no difference.

    Raises:
        ConfigError: the description changes gradients or draws noise on purpose.
    """
    refuse_incomparable(description)
    splits = open_splits(description.dataset)
    signature = description.dataset.infer_signature(splits, description.model)
    devices = description.parallel.place()
    teacher = teachers_of(description, signature, devices[0][0]).get("distillation")
    data = build_data(description, splits, signature, devices[0][0], teacher=teacher)
    joined = description.kvstore.build(world) if description.kvstore.distributed else None
    sides = Sides(description, signature, devices, description.parallel, world, joined, len(data.train), [])
    lr = description.rates.lr
    bits: List[Difference] = []
    low: Optional[float] = None
    with ProgressDisplay(quiet_s=QUIET_S if world.rank == 0 else threading.TIMEOUT_MAX) as display:

        def compared(dtype: str, placed: TrainingStep, reference: Reference) -> List[Difference]:
            consumer = Consumer([placed.strategy, reference])
            stream = (batch.cast(dtype) for batch in batches(data.train, steps, consumer))
            return compare(placed, reference, stream, lr, display.advance)

        display.begin("building the placement", 0)
        placed = sides.placement("float32")
        cut_before = placed.strategy.layout.cut_before
        if sums_in_order(description, len(devices) * world.size):
            display.begin(f"comparing bits, {STEPS}", 2 * steps)
            bits = compared("float32", placed, sides.reference("float32", cut_before))
        if description.amp.dtype != FULL.dtype:
            display.begin(f"comparing in {description.amp.dtype}, {STEPS}", 2)
            placed, reference = sides.placement("float32"), sides.reference("float32")
            consumer = Consumer([placed.strategy, reference])
            first_batch = itertools.islice(batches(data.train, 2, consumer), 1)
            low = compare_lengths(placed, reference, first_batch, lr, display.advance)
        if cut_before:  # in float64 other blocks take other times
            sides = replace(sides, parallel=sides.parallel.model_copy(update={"cut_before": cut_before}))
        display.begin(f"comparing in float64, {STEPS}", 2 * steps)
        placed = sides.placement("float64")
        layers = compared("float64", placed, sides.reference("float64"))
    if joined is not None:
        joined.close()
    return Verification(layers, tolerance, steps, bits, sides.remarks, low, description.amp.dtype)


def refuse_incomparable(description: Description) -> None:
    """Raises: ConfigError: one device could not give the same numbers."""
    if description.optimizer.draws_random:
        raise ConfigError("verify: this optimizer adds noise, which differs between devices. Choose another, e.g. sgd.")
    if getattr(description.kvstore, "compression", "none") != "none":
        raise ConfigError(
            "verify: kvstore.compression changes the gradients on purpose. Type kvstore.compression=none."
        )


def refuse_float32_only(network: gluon.Block) -> None:
    """Raises: ConfigError: MXNet cannot compute a layer in float64, on one device."""
    for path, block in blocks_by_path(network):
        if isinstance(block, (gluon.contrib.nn.SyncBatchNorm, gluon.nn.BatchNormReLU)):
            raise ConfigError(
                f"verify: MXNet has no float64 for layer '{path}', a {type(block).__name__}. Put a BatchNorm in its "
                "place for the comparison."
            )


def multiply_in_float64(network: gluon.Block) -> None:
    """Makes leaky ReLUs exact: MXNet's operator multiplies negative values in float32 for every dtype, so two sums that
    differ in the last bit of float64 would differ in the last bit of float32, which Adam amplifies to 1e-5."""
    for _, block in blocks_by_path(network):
        if isinstance(block, gluon.nn.LeakyReLU):
            slope = block._alpha
            object.__setattr__(block, "hybrid_forward", lambda F, x, slope=slope: F.where(x > 0, x, x * slope))
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()


def silence(network: gluon.Block, input_shape: Shapes) -> List[str]:
    """Sets all dropout rates to 0; returns remarks on that and on what else draws random numbers."""
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


def sums_in_order(description: Description, num_replicas: int) -> bool:
    """Returns True if the placement can add in the order in which one device does: at most two replicas (a sum of two
    has no order), batch norms by themselves, and no norm over the gradients of several devices."""
    alone = description.parallel.batch_norm == "per_device"
    return alone and num_replicas <= 2 and description.trainer.clip_global_norm is None


def batches(loader: EpochLoader, steps: int, consumer: Consumer) -> Iterator[Batch]:
    """The first batches of training, the last one cut to an odd size."""
    epoch = number = 0
    while True:
        with closing(loader.epoch(epoch, 0, consumer)) as whole:
            for batch in whole:
                number += 1
                if number == steps and not batch.continues_previous:
                    size = max(1, batch.size // 2 - 1 + batch.size // 2 % 2)
                    yield batch.slice(0, size)
                    return
                yield batch
                if number == steps:
                    return
        epoch += 1


def own_share(batch: Batch, world: World) -> Batch:
    """A worker's part of a whole batch."""
    begin, end = world.share(batch.size)
    if begin == end:
        return Batch((), (), 0, batch.size)
    return batch.slice(begin, end, batch.size)


def compare(
    placed: TrainingStep, reference: Reference, stream: Iterator[Batch], lr: float,
    advance: Callable[[int], None] = lambda _: None,
) -> List[Difference]:  # fmt: skip
    """Trains both sides on the same batches; how the placement, if it is rank 0, differs from the reference. Each step
    of a side advances by one."""
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
    placed: TrainingStep, reference: Reference, stream: Iterator[Batch], lr: float,
    advance: Callable[[int], None] = lambda _: None,
) -> float:  # fmt: skip
    """The largest length of the difference of all gradients together, over that on one device; see `compare`."""
    worst = 0.0
    for _, (found, wanted) in trained(placed, reference, stream, lr, advance):
        difference = _length(found[name] - array for name, array in wanted.items())
        worst = max(worst, float(np.nan_to_num(difference / _length(wanted.values()), nan=np.inf)))
    return worst


def trained(
    placed: TrainingStep, reference: Reference, stream: Iterator[Batch], lr: float, advance: Callable[[int], None]
) -> Iterator[Tuple[Sequence[Mapping[str, np.ndarray]], Sequence[Mapping[str, np.ndarray]]]]:
    """Trains both sides on the same batches: after each the parameters and the gradients of both."""
    for number, batch in enumerate(stream, start=1):
        placed(own_share(batch, placed.store.world), lr, number)
        found = _state(placed)  # waits for the device
        HEARTBEAT.begin_batch()
        advance(1)
        placed.seed_random(number)
        reference.step(batch, lr)
        wanted = tuple({name: array.asnumpy() for name, array in arrays.items()}
                       for arrays in (reference.values, reference.gradients))  # fmt: skip
        HEARTBEAT.begin_batch()
        advance(1)
        values, gradients = zip(found, wanted)
        yield values, gradients


def _length(arrays: Iterable[np.ndarray]) -> float:
    """The Euclidean norm of all of them together."""
    return float(np.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays)))


def _state(side: TrainingStep) -> Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    """Parameters and gradients by structural name."""
    strategy = side.strategy
    gradients = {one.name: strategy.gradient(one) for one in strategy.reductions}
    return snapshot.copy_parameters(strategy), {**gradients, **strategy.remote.summed_gradients()}


def _layer(layers: Dict[str, Difference], parameter: str) -> Difference:
    name = parameter.rpartition(".")[0]
    return layers.setdefault(name, Difference(name))
