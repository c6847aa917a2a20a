"""Gradual pruning: actions that set weights or whole channels to 0 during training. Imports no MXNet."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.callback import Action, Control
from mxtrain.callback.actions import Unit, known_length
from mxtrain.callback.spec import CallbackSpec
from mxtrain.errors import ConfigError
from mxtrain.types import Positive, ProperFraction

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.model.graph.channels import Channels, ChannelSet
    from mxtrain.types.annotations import Json, JsonObject

Scope = Literal["global", "layer"]
DEFAULT_SPARSITY = 0.8
DEFAULT_PRUNINGS = 20
"""Default number of pruning steps between start and end."""


class PruningSchedule(CallbackSpec):
    """Fields that both pruning actions share.

    The pruned share of the final sparsity is 1 - (1 - t)^3, where t rises from 0 at `start` to 1 at `end`.

    Source: Zhu and Gupta, "To prune, or not to prune", https://arxiv.org/abs/1710.01878.
    """

    acts: ClassVar[bool] = True

    start: Annotated[float, pydantic.Field(ge=0)] = 0.1
    """Point from which on elements are pruned, as a fraction of the run, or in `unit`s if that is not null."""
    end: Annotated[float, pydantic.Field(ge=0)] = 0.7
    """Point at which the last ones are pruned; the rest of the run trains what is left. As `start`."""
    unit: Optional[Unit] = None
    """Unit of `start` and `end`; null: fractions of the run."""
    every_steps: Optional[Positive] = None
    """Steps between two times that elements are pruned; null: 20 times between start and end."""
    scope: Scope = "global"
    """global: the same threshold for all layers, so layers lose different shares; layer: the same share of each."""
    leave: List[str] = []
    """Patterns of parameters that stay as they are, e.g. [output.*]."""

    @pydantic.model_validator(mode="after")
    def _check_order(self) -> PruningSchedule:
        if self.end < self.start:
            raise ValueError(f"start={self.start:g} is after end={self.end:g}")
        if self.unit is None and self.end >= 1:
            raise ValueError(f"end={self.end:g} is a fraction of the run, below 1; or type unit=epochs")
        return self


class Prune(PruningSchedule):
    """Magnitude pruning: the weights with the smallest absolute values become 0, and stay 0.

    The network keeps its size, and zeros save no time on CPUs and most GPUs; `prune_channels` makes it smaller.
    """

    sparsity: Optional[ProperFraction] = None
    """Share of the weights that is 0 in the end; null: 0.8, or what `pattern` says."""
    pattern: Optional[str] = None
    """N:M, e.g. "2:4": of each M weights in a row along the inputs of a layer the N largest stay."""
    parameters: List[str] = []
    """Patterns of the parameters to prune; []: all weights of at least two dimensions but tables."""

    @pydantic.model_validator(mode="after")
    def _check_pattern(self) -> Prune:
        if self.pattern is None:
            return self
        if self.sparsity is not None:
            raise ValueError(f"pattern={self.pattern} decides how many weights are 0. Leave sparsity out")
        match = re.fullmatch(r"(\d{1,4}):(\d{1,4})", self.pattern)
        if match is None or not 0 < int(match[1]) < int(match[2]):
            raise ValueError(f"pattern={self.pattern!r}: must be N:M with 0 < N < M, e.g. pattern='\"2:4\"'")
        return self

    def build_action(self) -> Action:
        return MagnitudePruning(self)


class PruneChannels(PruningSchedule):
    """Channel pruning: sets whole channels of convolutions and units of dense layers to 0, with the weights that read
    them. `mxtrain slim RUN` then writes the smaller network.

    A channel's importance is the mean absolute value of its filter times the scale of its batch norm.
    """

    share: ProperFraction = 0.5
    """Share of the channels that can be removed which is removed in the end."""
    keep_at_least: ProperFraction = 0.1
    """Share of the channels of each layer that stays in any case; one stays always."""
    multiple_of: Positive = 1
    """The channels that stay of each layer are a multiple of this, if it has so many: 8 or 16 suits vector units."""

    def build_action(self) -> Action:
        return ChannelPruning(self)


class GradualPruning(Action):
    """Prunes more elements at each step of a cubic schedule, and stores the masks of the elements that are kept."""

    def __init__(self, spec: PruningSchedule):
        self._schedule = spec
        self._masks: Dict[str, np.ndarray] = {}

    def on_begin(self, run: Control) -> None:
        spec = self._schedule
        total_steps, per_unit = known_length(run, spec.unit)
        origin = run.epoch_origin if spec.unit == "epochs" else 0
        self._begin, self._end = (origin + round(at * per_unit) for at in (spec.start, spec.end))
        self._every = spec.every_steps or max(1, math.ceil((self._end - self._begin) / DEFAULT_PRUNINGS))
        self._run = run
        if self._end >= total_steps:
            raise ConfigError(
                f"callback.{run.name}.end: the last elements would be pruned in step {self._end + 1}, and the run has "
                f"{total_steps}. Type a smaller number."
            )
        self.choose_parameters(run)

    def before_step(self, run: Control) -> None:
        # A checkpoint from before the end is not pruned to the final sparsity, so it must not become the best one.
        run.rank_validations(run.step >= self._end)
        elapsed = run.step - self._begin
        is_due = 0 <= elapsed and (elapsed % self._every == 0 or run.step == self._end) and run.step <= self._end
        # This method is called again for a step that is repeated after a worker was lost.
        if not is_due or self.state.get("pruned_step") == run.step:
            return
        length = self._end - self._begin
        # Exactly 1 at the end, and without a division by 0 if start and end are the same step.
        progress = 1.0 if run.step == self._end else 1 - (1 - elapsed / length) ** 3
        summary = self.prune(run, progress)
        self.state = {**self.state, "pruned_step": run.step}
        if run.step == self._end:
            run.say(f"step {run.step + 1}: callback.{run.name} is complete: {summary}")

    def choose_parameters(self, run: Control) -> None:
        """Selects the parameters to prune.

        Raises:
            ConfigError: no parameter can be pruned.
        """
        raise NotImplementedError

    def prune(self, run: Control, progress: float) -> str:
        """Prunes to a fraction of the final sparsity.

        Args:
            run: the run.
            progress: fraction of the final sparsity, from 0 to 1.

        Returns:
            The number of pruned elements as a clause, for a message.
        """
        raise NotImplementedError

    def set_masks(self, run: Control, masks: Mapping[str, np.ndarray]) -> None:
        """Prunes the elements whose mask is 0. `masks` maps a parameter's name to a mask of its shape."""
        self._masks = {name: mask.astype(np.uint8) for name, mask in masks.items()}
        run.weights.prune(run.name, self._masks)

    def excluded(self, run: Control) -> List[str]:
        """Returns the names of the parameters that `leave` excludes from pruning.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        return run.match(self._schedule.leave)

    def save_state(self) -> Tuple[Mapping[str, Union[NDArray, np.ndarray]], Mapping[str, Json]]:
        return self._masks, self.state

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        super().load_state(arrays, values, source)
        # The masks must hold from the first update after a resume on, not only from the next pruning on.
        self._masks = dict(arrays)
        self._run.weights.prune(self._run.name, self._masks)


class MagnitudePruning(GradualPruning):
    """Implements `Prune`."""

    def __init__(self, spec: Prune):
        super().__init__(spec)
        self._spec = spec
        self._names: List[str] = []

    def choose_parameters(self, run: Control) -> None:
        spec, arrays = self._spec, run.weights.arrays
        tables = run.weights.tables
        matched = run.match(spec.parameters or ["*"])
        excluded = set(self.excluded(run))
        names = [name for name in dict.fromkeys(matched) if name not in excluded]
        if not spec.parameters:
            names = [name for name in names if name not in tables and len(arrays[name].shape) > 1]
        wrong = [name for name in names if name in tables]
        if wrong:
            raise ConfigError(
                f"callback.{run.name}: the gradient of '{wrong[0]}' holds the rows of one batch only, and pruning "
                "looks at all of them. Type trainer.sparse_grad=false, or leave the table out."
            )
        if spec.pattern is not None:
            size = int(spec.pattern.split(":")[1])
            names = [n for n in names if len(arrays[n].shape) > 1 and arrays[n].shape[1] % size == 0]
        if not names:
            reason = f" whose inputs can be divided by {size}" if spec.pattern is not None else ""
            raise ConfigError(f"callback.{run.name}: the network has no weight to prune{reason}. Leave it out.")
        self._names = names

    def prune(self, run: Control, progress: float) -> str:
        spec = self._spec
        # -1 sorts elements that are pruned already before all others, even before weights that happen to be 0: so a
        # pruned element stays pruned.
        size_by_name: Dict[str, np.ndarray] = {}
        for name in self._names:
            size = np.abs(run.weights.arrays[name].asnumpy())
            size_by_name[name] = np.where(self._masks[name] == 0, -1.0, size) if name in self._masks else size
        if spec.pattern is not None:
            num_kept, group_size = map(int, spec.pattern.split(":"))
            # 1e-9: rounding of `progress` must not drop the last zero of a group.
            num_zeros = math.floor((group_size - num_kept) * progress + 1e-9)
            masks = {name: keep_largest_of_groups(size, group_size, num_zeros) for name, size in size_by_name.items()}
        else:
            share = (DEFAULT_SPARSITY if spec.sparsity is None else spec.sparsity) * progress
            groups = [self._names] if spec.scope == "global" else [[name] for name in self._names]
            masks = {}
            for group in groups:
                masks.update(keep_largest({name: size_by_name[name] for name in group}, share))
        self.set_masks(run, masks)
        total = sum(mask.size for mask in masks.values())
        zeros = total - sum(int(mask.sum()) for mask in masks.values())
        return f"{zeros:,} of {total:,} weights are 0 ({zeros / total:.1%})"


def keep_largest(sizes: Mapping[str, np.ndarray], share: float) -> Dict[str, np.ndarray]:
    """Returns masks of the elements to keep: all but the smallest `share` of the elements of all arrays together.

    If several elements equal the threshold, the first ones are pruned, so the result is the same on all workers.

    Args:
        sizes: name -> absolute values.
        share: fraction of the elements to prune, from 0 to 1.
    """
    flat = np.concatenate([size.ravel() for size in sizes.values()])
    count = round(share * flat.size)
    keep = np.ones(flat.size, bool)
    if count:
        # A partition takes linear time; sorting all weights of a network would not.
        threshold = np.partition(flat, count - 1)[count - 1]
        keep[flat < threshold] = False
        equal = np.flatnonzero(flat == threshold)
        keep[equal[: count - np.count_nonzero(~keep)]] = False
    ends = np.cumsum([size.size for size in sizes.values()])[:-1]
    return {name: part.reshape(sizes[name].shape) for name, part in zip(sizes, np.split(keep, ends))}


def keep_largest_of_groups(size: np.ndarray, length: int, zeros: int) -> np.ndarray:
    """Returns the mask of N:M sparsity: False for the `zeros` smallest of each group of `length` elements on axis 1.

    Args:
        size: absolute values (K, C, ...), where `length` divides C.
        length: elements of a group.
        zeros: elements of a group that are pruned.
    """
    rows = np.moveaxis(size, 1, -1)
    groups = rows.reshape(-1, length)
    keep = np.ones(groups.shape, bool)
    order = np.argsort(groups, axis=1, kind="stable")[:, :zeros]
    np.put_along_axis(keep, order, False, axis=1)
    return np.moveaxis(keep.reshape(rows.shape), -1, 1)


class ChannelPruning(GradualPruning):
    """Implements `PruneChannels`. `state["sets"]` holds the numbers of the pruned channel sets."""

    def __init__(self, spec: PruneChannels):
        super().__init__(spec)
        self._spec = spec

    def choose_parameters(self, run: Control) -> None:
        try:
            self._channels: Channels = run.weights.find_channels()
        except ConfigError as error:
            raise ConfigError(
                f"callback.{run.name}: {error}, so no channel can be removed. Leave it out, or type callback=prune."
            ) from error
        trained, excluded = set(run.match(["*"])), set(self.excluded(run))
        # Channels whose weights are partly frozen cannot be removed as a whole.
        self._numbers = [
            number
            for number, channel_set in enumerate(self._channels.sets)
            if {*channel_set.made, *(name for name, _, _ in channel_set.read)} <= trained
            and not excluded.intersection(channel_set.made)
        ]
        if not self._numbers:
            reason = (
                "the layers with removable channels are frozen or in `leave`"
                if self._channels.sets
                else self._channels.explain_obstacles()
            )
            raise ConfigError(
                f"callback.{run.name}: no channel of this network can be removed: {reason}. Leave it out, or type "
                "callback=prune."
            )

    def prune(self, run: Control, progress: float) -> str:
        arrays = {
            name: array.asnumpy() for name, array in run.weights.arrays.items() if name in self._channels.positions
        }
        importance = {number: importance_of(self._channels.sets[number], arrays) for number in self._numbers}
        for number in self.state.get("sets", []):
            importance[number] = -1.0  # lower than any other: pruned sets stay pruned
        pruned = self._choose(importance, self._spec.share * progress)
        self.state = {**self.state, "sets": pruned}
        trained = set(run.match(["*"]))
        # Channels that must stay have the number -1, which selects the last element: it stays False.
        is_pruned = np.zeros(len(self._channels.sets) + 1, bool)
        is_pruned[pruned] = True
        masks = {}
        for name, axes in self._channels.positions.items():
            if name in trained:
                mask = np.ones(arrays[name].shape, bool)
                for axis, set_N in axes.items():
                    shape = [1] * mask.ndim
                    shape[axis] = -1
                    mask &= ~is_pruned[set_N].reshape(shape)
                if not mask.all():
                    masks[name] = mask
        self.set_masks(run, masks)
        return (
            f"{len(pruned)} of {len(self._numbers)} sets of channels are 0. `mxtrain slim RUN` writes the network "
            "without them"
        )

    def _choose(self, importance: Mapping[int, float], share: float) -> List[int]:
        """Returns the numbers of the channel sets to prune, at most so many per group that `keep_at_least` holds.

        Args:
            importance: number of a channel set -> its importance; -1 if it is pruned already.
            share: fraction of the sets to prune.
        """
        groups: Dict[int, List[int]] = {}
        for number in importance:
            groups.setdefault(self._channels.sets[number].group, []).append(number)
        ordered = {group: sorted(numbers, key=lambda n: importance[n]) for group, numbers in groups.items()}
        max_pruned = {
            group: len(numbers) - max(1, math.ceil(self._spec.keep_at_least * len(numbers)))
            for group, numbers in ordered.items()
        }
        if self._spec.scope == "layer":
            counts = {group: min(round(share * len(numbers)), max_pruned[group]) for group, numbers in ordered.items()}
        else:
            counts = self._count_globally(importance, ordered, max_pruned, round(share * len(importance)))
        step = self._spec.multiple_of
        for group, numbers in ordered.items():
            # The number that stays is rounded up, so `keep_at_least` still holds.
            counts[group] = max(len(numbers) - math.ceil((len(numbers) - counts[group]) / step) * step, 0)
        return sorted(number for group, numbers in ordered.items() for number in numbers[: counts[group]])

    def _count_globally(
        self,
        importance: Mapping[int, float],
        ordered: Mapping[int, List[int]],
        max_pruned: Mapping[int, int],
        count: int,
    ) -> Dict[int, int]:
        """Returns the number of sets to prune by group, so that the `count` least important sets are pruned.

        Importance is divided by the mean of the group, which makes layers of different weight scales comparable.
        """
        means = {
            group: float(np.mean([max(importance[n], 0) for n in numbers])) or 1.0 for group, numbers in ordered.items()
        }
        candidates = sorted(
            (importance[number] / means[group] if importance[number] > 0 else importance[number], number, group)
            for group, numbers in ordered.items()
            for number in numbers[: max_pruned[group]]
        )
        counts = dict.fromkeys(ordered, 0)
        for _, _, group in candidates[:count]:
            counts[group] += 1
        return counts


def importance_of(channel_set: ChannelSet, arrays: Mapping[str, np.ndarray]) -> float:
    """Returns the importance of a channel set: mean absolute value of its filters * mean |gamma| of its batch norms."""
    filters = float(np.mean([np.abs(arrays[name][index]).mean() for name, index in channel_set.made.items()]))
    scales = [np.abs(arrays[name][index]).mean() for name, index in channel_set.scales.items()]
    return filters * (float(np.mean(scales)) if scales else 1.0)
