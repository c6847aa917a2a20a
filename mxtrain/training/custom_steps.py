"""The steps of a custom training loop: one for each network, all over the parameters of one placement.

The step of a network updates only the parameters of that network, with a separate optimizer. A run saves the step of
the first network, which also holds the state of the other optimizers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.sparse_tables import is_lazy
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.model.parameters import parameter_multipliers
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.spec import GivenOptimizer
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.base import Strategy, StrategyView
from mxtrain.training.step import TrainingStep
from mxtrain.types import Stateful

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.config.groups import Description
    from mxtrain.data.signature import Signature
    from mxtrain.kvstore.store import Store
    from mxtrain.metric.meter import Meter
    from mxtrain.training.context import RunContext
    from mxtrain.training.evaluate import Evaluator
    from mxtrain.training.plan import Plan, RunData
    from mxtrain.types.annotations import JsonObject

SINGLE_NETWORK = ""
"""Name of the network in a loop with a single network."""
SEED_STRIDE = 7919
"""Difference between the seeds of two networks, so that their steps on one batch draw different random numbers."""


class PartialStrategy(StrategyView):
    """A view of a strategy for the step of one of several networks: only its parameters get gradients.

    Args:
        whole: strategy with the parameters of all networks.
        network: name of the network to train.
    """

    def __init__(self, whole: Strategy, network: str):
        super().__init__(whole)
        prefix = f"{network}."
        self.reductions = [reduction for reduction in whole.reductions if reduction.name.startswith(prefix)]
        self.trainable = [reduction.name for reduction in self.reductions]
        if not self.trainable:
            raise ConfigError(f"model: the network '{network}' has no parameter to train.")


class CustomSteps:
    """Builds and keeps the steps of a custom loop for `build_run`.

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
        self.build_test_evaluator: Callable[[Optional[JsonObject]], Evaluator]
        self.context: RunContext

    def build_step(
        self,
        description: Description,
        network: gluon.Block,
        signature: Signature,
        steps_per_epoch: int,
        strategy: Strategy,
        store: Store,
        states: Optional[Mapping[str, Stateful]] = None,
    ) -> TrainingStep:
        """Builds a step for each network; returns that of the first. Arguments as for `training.build.build_step`."""
        names = getattr(network, "names", None) or [SINGLE_NETWORK]
        multipliers = parameter_multipliers(description.model, network)
        optimizer, trainer = description.optimizer, description.trainer
        # One placement for all networks: with a strategy for each, checkpoints and resume would need a second form.
        parts = {name: PartialStrategy(strategy, name) if name else strategy for name in names}
        if names != [SINGLE_NETWORK] and description.amp.dtype != "float32":
            raise ConfigError(f"amp={description.amp.dtype}: several networks compute in float32. Type amp=off.")
        updaters: Dict[str, Updater] = {}
        for name, part in parts.items():
            if isinstance(optimizer, GivenOptimizer):
                built, self.relative_lr[name] = optimizer.build_for(name), optimizer.relative_lr(name)
            else:
                built, self.relative_lr[name] = optimizer.build(steps_per_epoch), 1.0
            weights = {parameter: part.values[parameter] for parameter in part.trainable}
            updaters[name] = Updater(built, weights, multipliers, part.rows, is_lazy(description))
        other_states: Dict[str, Stateful] = {f"optimizer_{name}": updaters[name] for name in names[1:]}
        if not self.is_custom:
            other_states.update(description.task.build_states(strategy.objective.loss))
        for number, (name, part) in enumerate(parts.items()):
            is_first = number == 0
            self.steps[name] = TrainingStep(
                # A local store is bound to the arrays that it sums; a store of several workers connects only once.
                part,
                store if is_first or description.kvstore.distributed else description.kvstore.build(),
                updaters[name],
                build_average(trainer.ema_decay if is_first else None, part.values, part.publish),
                trainer.clip_global_norm,
                trainer.seed + SEED_STRIDE * number,
                description.amp.build_scaling(),
                {**(states or {}), **other_states} if is_first else {},
            )
        return self.first

    @property
    def first(self) -> TrainingStep:
        """Returns the step that the run saves."""
        return next(iter(self.steps.values()))

    def prepare(self, context: RunContext, meter: Meter) -> Tuple[RunContext, Meter]:
        """Returns context and meter for the runner. If the loop is custom, the context has no evaluation splits.

        Args:
            context: context of the run.
            meter: meter of one step.
        """
        self.plan, self.data, self.evaluator = context.plan, context.data, context.evaluator
        self.build_test_evaluator = context.build_test_evaluator
        self.meter = LoopMeter(meter, list(self.steps))
        if self.is_custom:
            context = replace(context, data=replace(context.data, val=None, test=None, samples=None))
        self.context = context
        return context, self.meter  # type: ignore[return-value]  # it has all methods that the runner calls

    def find_name(self, network: Optional[str]) -> str:
        """Returns the name of the network to update.

        Raises:
            ConfigError: no network has this name, or there are several networks and `network` is None.
        """
        names = list(self.steps)
        if network is None and len(names) == 1:
            return names[0]
        if names == [SINGLE_NETWORK]:
            raise ConfigError(f"s.step(network={network!r}): this session has one network: leave network= out.")
        if network not in self.steps:
            problem = "one must be named" if network is None else f"there is no '{network}'"
            raise ConfigError(
                f"s.step(network=...): {problem}.{did_you_mean(str(network), names)} Networks: {', '.join(names)}."
            )
        return str(network)


class LoopMeter:
    """Meter of a custom loop: concatenates the sums of the networks' steps.

    Args:
        meter: meter of one step.
        names: names of the networks.
    """

    def __init__(self, meter: Meter, names: Sequence[str]):
        self._meter, self._names = meter, names
        self.width, self.weighted = len(names) * meter.width, meter.weighted
        self.has_metrics = True
        """False once a loss function was used, since the metrics of the task were not computed then."""

    def join(self, sums_of: Mapping[str, List[NDArray]]) -> NDArray:
        """Returns one vector of the sums of a batch. `sums_of` maps each network to the sums of its steps."""
        from mxtrain.engine.backend import nd

        device = next(iter(sums_of.values()))[0].context
        parts = []
        for name in self._names:
            sums = sums_of.get(name) or [nd.zeros((self._meter.width,), ctx=device)]
            parts.append(sums[0] if len(sums) == 1 else nd.add_n(*sums))
        return parts[0] if len(parts) == 1 else nd.concat(*parts, dim=0)

    def direction(self, name: str) -> str:
        """See `Meter.direction`."""
        return self._meter.direction(name)

    def values(self, sums: np.ndarray, count: int) -> Dict[str, float]:
        """See `Meter.values`. With several networks, `loss` is the sum of the losses `loss_NAME`."""
        parts = dict(zip(self._names, np.split(sums, len(self._names))))
        values_of = {name: self._meter.values(part, count) for name, part in parts.items()}
        if list(values_of) == [SINGLE_NETWORK]:
            return values_of[SINGLE_NETWORK] if self.has_metrics else {"loss": values_of[SINGLE_NETWORK]["loss"]}
        losses = {f"loss_{name}": values["loss"] for name, values in values_of.items() if parts[name][1]}
        return {"loss": sum(losses.values()), **losses}
