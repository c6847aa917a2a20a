"""The steps of a custom training loop: one for each network, all over the parameters of one placement.

A step of one network updates its parameters alone, with an optimizer of its own. The first network's step is the one
that a run saves; it holds the state of the other optimizers, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.description.sparse_tables import is_lazy
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.model.parameters import parameter_multipliers
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.given import GivenOptimizer
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.base import Strategy
from mxtrain.training.step import TrainingStep
from mxtrain.types import Batch, Stateful

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.data.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.kvstore.store import Reduction, Store
    from mxtrain.metric.meter import Meter
    from mxtrain.parallel.loss_function import FunctionExecutor, Network
    from mxtrain.training.context import RunContext
    from mxtrain.training.evaluate import Evaluator
    from mxtrain.training.plan import Plan, RunData

WHOLE = ""
"""Name of the only network."""
SEEDS_APART = 7919
"""Distance of the seeds of two networks' steps, so that they draw other numbers in the step of one batch."""


class PartialStrategy(Strategy):
    """A strategy as the step of one of several networks sees it: only its parameters get gradients.

    Args:
        whole: computes; has all parameters.
        network: whose parameters are trained.
    """

    def __init__(self, whole: Strategy, network: str):
        self._whole = whole
        self.objective, self.layout, self.network = whole.objective, whole.layout, whole.network
        self.values, self.constants, self.recurrent_state = whole.values, whole.constants, whole.recurrent_state
        self.rows, self.remote = whole.rows, whole.remote
        prefix = f"{network}."
        self.reductions = [one for one in whole.reductions if one.name.startswith(prefix)]
        self.trainable = [one.name for one in self.reductions]
        if not self.trainable:
            raise ConfigError(f"model: the network '{network}' has no parameter to train.")

    def forward_backward(self, batch: Batch) -> NDArray:
        whole = self._whole
        whole.loss_scale, whole.loss_function = self.loss_scale, self.loss_function
        return whole.forward_backward(batch)

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        self._whole.publish(names)

    def other_copies(self) -> Iterator[Tuple[str, NDArray]]:
        return self._whole.other_copies()

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        return self._whole.predict(inputs)

    def gradient(self, reduction: Reduction) -> np.ndarray:
        return self._whole.gradient(reduction)

    def function_executor(self) -> FunctionExecutor:
        return self._whole.function_executor()

    def network_on(self, replica: int) -> Network:
        return self._whole.network_on(replica)

    def gather(self) -> gluon.Block:
        return self._whole.gather()


class CustomSteps:
    """Builds the steps of a custom loop for `build_run`, and keeps them.

    Args:
        is_custom: True if only the loop's functions define the objective; False if the description's task does, too.
    """

    def __init__(self, is_custom: bool):
        self.is_custom = is_custom
        self.steps: Dict[str, TrainingStep] = {}
        self.relative_lr: Dict[str, float] = {}
        self.meter: LoopMeter
        self.plan: Plan
        self.data: RunData
        self.evaluator: Evaluator
        self.context: RunContext

    def build_step(
        self, description: Description, network: gluon.Block, signature: Signature, steps_per_epoch: int,
        strategy: Strategy, store: Store, states: Optional[Mapping[str, Stateful]] = None,
    ) -> TrainingStep:  # fmt: skip
        """As `mxtrain.build.build_step`, of the first network."""
        names = getattr(network, "names", None) or [WHOLE]
        multipliers = parameter_multipliers(description.model, network)
        optimizer, trainer = description.optimizer, description.trainer
        parts = {name: PartialStrategy(strategy, name) if name else strategy for name in names}
        if names != [WHOLE] and description.amp.dtype != "float32":
            raise ConfigError(f"amp={description.amp.dtype}: several networks compute in float32. Type amp=off.")
        updaters: Dict[str, Updater] = {}
        for name, part in parts.items():
            if isinstance(optimizer, GivenOptimizer):
                made, self.relative_lr[name] = optimizer.build_for(name), optimizer.relative_lr(name)
            else:
                made, self.relative_lr[name] = optimizer.build(steps_per_epoch), 1.0
            weights = {one: part.values[one] for one in part.trainable}
            updaters[name] = Updater(made, weights, multipliers, part.rows, is_lazy(description))
        others = {f"optimizer_{name}": updaters[name] for name in names[1:]}
        for number, (name, part) in enumerate(parts.items()):
            is_first = number == 0
            self.steps[name] = TrainingStep(
                # A local store sums the same arrays always; one of several workers connects once.
                part, store if is_first or description.kvstore.distributed else description.kvstore.build(),
                updaters[name],
                build_average(trainer.ema_decay if is_first else None, part.values, part.publish),
                trainer.clip_global_norm, trainer.seed + SEEDS_APART * number,
                description.amp.build_scaling(), {**(states or {}), **others} if is_first else {},
            )  # fmt: skip
        return self.first

    @property
    def first(self) -> TrainingStep:
        """Returns the step that the run saves."""
        return next(iter(self.steps.values()))

    def prepare(self, context: RunContext, meter: Meter) -> Tuple[RunContext, Meter]:
        """Returns the context and the meter that the runner gets: a custom loop is not validated by a task.

        Args:
            context: of the run.
            meter: of one step.
        """
        self.plan, self.data, self.evaluator = context.plan, context.data, context.evaluator
        self.meter = LoopMeter(meter, list(self.steps))
        if self.is_custom:
            context = replace(context, data=replace(context.data, val=None, test=None, samples=None))
        self.context = context
        return context, self.meter  # type: ignore[return-value]  # it has what a runner asks of one

    def named(self, network: Optional[str]) -> str:
        """Returns the name of the network that a step is for.

        Raises:
            ConfigError: there is none of this name, or several and none was named.
        """
        names = list(self.steps)
        if network is None and len(names) == 1:
            return names[0]
        if names == [WHOLE]:
            raise ConfigError(f"s.step(network={network!r}): this session has one network: leave network= out.")
        if network not in self.steps:
            given = "one must be named" if network is None else f"there is no '{network}'"
            raise ConfigError(
                f"s.step(network=...): {given}.{did_you_mean(str(network), names)} Networks: {', '.join(names)}."
            )
        return str(network)


class LoopMeter:
    """The meter of a loop's rows: the sums of each network's step, one after the other.

    Args:
        meter: of one step.
        names: of the networks.
    """

    def __init__(self, meter: Meter, names: Sequence[str]):
        self._meter, self._names = meter, names
        self.width, self.weighted = len(names) * meter.width, meter.weighted
        self.has_metrics = True
        """False once a loss function was used: the task's metrics were not measured."""

    def join(self, found: Mapping[str, List[NDArray]]) -> NDArray:
        """Returns the sums of a batch's steps, by network, as one vector."""
        from mxtrain.engine.backend import nd

        device = next(iter(found.values()))[0].context
        parts = []
        for name in self._names:
            sums = found.get(name) or [nd.zeros((self._meter.width,), ctx=device)]
            parts.append(sums[0] if len(sums) == 1 else nd.add_n(*sums))
        return parts[0] if len(parts) == 1 else nd.concat(*parts, dim=0)

    def direction(self, name: str) -> str:
        """See `Meter.direction`."""
        return self._meter.direction(name)

    def values(self, sums: np.ndarray, count: int) -> Dict[str, float]:
        """See `Meter.values`. Several networks have a loss each, and the loss is their sum."""
        parts = dict(zip(self._names, np.split(sums, len(self._names))))
        found = {name: self._meter.values(part, count) for name, part in parts.items()}
        if list(found) == [WHOLE]:
            return found[WHOLE] if self.has_metrics else {"loss": found[WHOLE]["loss"]}
        taken = {f"loss_{name}": values["loss"] for name, values in found.items() if parts[name][1]}
        return {"loss": sum(taken.values()), **taken}
