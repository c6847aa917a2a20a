"""Verifies that a placement computes what one device computes: same weights, same batches, compared per layer."""

from __future__ import annotations

import itertools
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.amp import FULL
from mxtrain.build import build_network, build_objective, build_step
from mxtrain.dataset.base import open_splits
from mxtrain.description.groups import Description
from mxtrain.description.sparse_tables import is_lazy
from mxtrain.engine.backend import gluon
from mxtrain.errors import ConfigError
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE, World
from mxtrain.logger.progress_display import ProgressDisplay
from mxtrain.model.graph.summary import has_random_layers
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.parallel.base import Objective, Strategy
from mxtrain.parallel.differences import Difference, Verification, differences_of
from mxtrain.parallel.reference import Reference
from mxtrain.parallel.strategies import Parallel
from mxtrain.process.heartbeat import HEARTBEAT
from mxtrain.trainer import Trainer, snapshot
from mxtrain.trainer.loaders import build_data
from mxtrain.trainer.step import TrainingStep
from mxtrain.types import Batch, Shapes

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.annotations import EpochLoader
    from mxtrain.dataset.signature import Signature

QUIET_S = 2.0
"""Seconds after which progress is shown."""
STEPS = "steps of both sides:"


@dataclass(frozen=True)
class Sides:
    """Builds what is compared: steps of the placement, and of one device.

    Attributes:
        description: of the run.
        signature: what enters the network.
        devices: [replica][stage] of this worker.
        parallel: the placement, which may be told later where it is cut.
        world: of this worker.
        joined: the store by which several workers agree; None where there is one.
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
        description = self.description
        parts = description.trainer.grad_accumulation
        return self._build(
            dtype, lambda objective, store: self.parallel.build(objective, parts, store),
            self.joined or description.kvstore.build(), description.trainer, description.kvstore.serves_tables,
        )  # fmt: skip

    def reference(self, dtype: str, cut_before: Sequence[str] = ()) -> TrainingStep:
        """One device, with the same shards of a batch; it may be cut as the placement is."""
        description, size = self.description, self.world.size
        parts, replicas = description.trainer.grad_accumulation, len(self.devices)

        def build(objective: Objective, store: Store) -> Strategy:
            return Reference(objective, self.devices[0][0], self.parallel, replicas, parts, cut_before, size)

        return self._build(dtype, build, MXNetStore("local"), with_whole_gradients(description))

    def _build(
        self, dtype: str, build_strategy: Callable[[Objective, Store], Strategy], store: Store, settings: Trainer,
        elsewhere: bool = False,
    ) -> TrainingStep:  # fmt: skip
        amp = FULL if dtype == "float64" else self.description.amp
        described = replace(self.description, amp=amp, trainer=settings)
        network = build_network(described, self.signature, self.devices[0][0], elsewhere)
        refuse_float32_only(network)
        network.cast(dtype)
        if dtype == "float64":
            multiply_in_float64(network)
        self.remarks[:] = silence(network, self.signature.shape)
        strategy = build_strategy(build_objective(described, network, self.signature, self.world), store)
        return build_step(described, network, self.signature, self.steps_per_epoch, strategy, store)


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
    signature = description.dataset.sign(splits, description.model)
    devices = description.parallel.place()
    data = build_data(description, splits, signature, devices[0][0])
    joined = description.kvstore.build(world) if description.kvstore.distributed else None
    sides = Sides(description, signature, devices, description.parallel, world, joined, len(data.train), [])
    lr = description.rates.lr
    bits: List[Difference] = []
    low: Optional[float] = None
    with ProgressDisplay(quiet_s=QUIET_S if world.rank == 0 else threading.TIMEOUT_MAX) as display:

        def compared(dtype: str, placed: TrainingStep, other: TrainingStep) -> List[Difference]:
            data.train.follow([placed.strategy, other.strategy])
            stream = (batch.cast(dtype) for batch in batches(data.train, steps))
            return compare((placed, other), stream, lr, display.advance)

        display.begin("building the placement", 0)
        placed = sides.placement("float32")
        cut_before = placed.strategy.layout.cut_before
        if sums_in_order(description, len(devices) * world.size):
            display.begin(f"comparing bits, {STEPS}", 2 * steps)
            bits = compared("float32", placed, sides.reference("float32", cut_before))
        if description.amp.dtype != FULL.dtype:
            display.begin(f"comparing in {description.amp.dtype}, {STEPS}", 2)
            pair = (sides.placement("float32"), sides.reference("float32"))
            data.train.follow([side.strategy for side in pair])
            first_batch = itertools.islice(batches(data.train, 2), 1)
            low = compare_lengths(pair, first_batch, lr, display.advance)
        if cut_before:  # in float64 other blocks take other times
            sides = replace(sides, parallel=sides.parallel.model_copy(update={"cut_before": cut_before}))
        display.begin(f"comparing in float64, {STEPS}", 2 * steps)
        placed = sides.placement("float64")
        layers = compared("float64", placed, sides.reference("float64"))
    if joined is not None:
        joined.close()
    return Verification(layers, tolerance, steps, bits, sides.remarks, low, description.amp.dtype)


def with_whole_gradients(description: Description) -> Trainer:
    """The settings of the reference: its gradients hold all rows of a table, unless updates are to be lazy, which moves
    other rows than the dense computation does."""
    trainer = description.trainer
    return trainer if is_lazy(description) else trainer.model_copy(update={"sparse_grad": False})


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
    """Makes leaky ReLUs exact: MXNet's operator multiplies what is below 0 in float32 whatever it is given, so two
    sums that differ in the last bit of float64 would differ in the last of float32, and Adam makes 1e-5 of that."""
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
    """Whether the placement can add in the order in which one device does: at most two replicas (a sum of two has no
    order), batch norms by themselves, and no norm over the gradients of several devices."""
    alone = description.parallel.batch_norm == "per_device"
    return alone and num_replicas <= 2 and description.trainer.clip_global_norm is None


def batches(loader: EpochLoader, steps: int) -> Iterator[Batch]:
    """The first batches of training, the last one cut to an odd size."""
    epoch = number = 0
    while True:
        with closing(loader.epoch(epoch)) as whole:
            for batch in whole:
                number += 1
                if number == steps and not batch.goes_on:
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
    sides: Sequence[TrainingStep], stream: Iterator[Batch], lr: float, advance: Callable[[int], None] = lambda _: None
) -> List[Difference]:
    """Trains two sides on the same batches; how the first one, if it is rank 0, differs from the second. Each step of a
    side advances by one."""
    layers: Dict[str, Difference] = {}
    for values, gradients in trained(sides, stream, lr, advance):
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
    sides: Sequence[TrainingStep], stream: Iterator[Batch], lr: float, advance: Callable[[int], None] = lambda _: None
) -> float:
    """The largest length of the difference of all gradients together, over that on one device; see `compare`."""
    worst = 0.0
    for _, (found, wanted) in trained(sides, stream, lr, advance):
        difference = _length(found[name] - array for name, array in wanted.items())
        worst = max(worst, float(np.nan_to_num(difference / _length(wanted.values()), nan=np.inf)))
    return worst


def trained(
    sides: Sequence[TrainingStep], stream: Iterator[Batch], lr: float, advance: Callable[[int], None]
) -> Iterator[Tuple[Sequence[Mapping[str, np.ndarray]], Sequence[Mapping[str, np.ndarray]]]]:
    """Trains sides on the same batches: after each the parameters and the gradients of all of them."""
    for number, batch in enumerate(stream, start=1):
        for side in sides:
            side(own_share(batch, side.store.world), lr, number)
            HEARTBEAT.begin_batch()
        states = []
        for side in sides:
            states.append(_state(side))  # waits for the device
            advance(1)
        values, gradients = zip(*states)
        yield values, gradients


def _length(arrays: Iterable[np.ndarray]) -> float:
    """The Euclidean norm of all of them together."""
    return float(np.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays)))


def _state(side: TrainingStep) -> Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    """Parameters and gradients by structural name."""
    strategy = side.strategy
    gradients = {one.name: strategy.gradient(one) for one in strategy.reductions}
    served = {} if strategy.served is None else strategy.served.gradients_of_all()
    return snapshot.copy_parameters(strategy), {**gradients, **served}


def _layer(layers: Dict[str, Difference], parameter: str) -> Difference:
    name = parameter.rpartition(".")[0]
    return layers.setdefault(name, Difference(name))
