"""Schedule of gradual pruning, importance of channels, and the channels that each layer keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List

import numpy as np
import pytest

from mxtrain.callback.pruning import (
    ChannelPruning,
    GradualPruning,
    MagnitudePruning,
    Prune,
    PruneChannels,
    PruningSchedule,
    importance_of,
)
from mxtrain.errors import ConfigError
from mxtrain.model.graph.channels import ChannelSet


class Recorder(GradualPruning):
    """Stores the fraction of the final sparsity of each step in which something is pruned."""

    def __init__(self, spec: PruningSchedule) -> None:
        super().__init__(spec)
        self.progress: Dict[int, float] = {}

    def choose_parameters(self, run: Any) -> None:
        pass

    def prune(self, run: Any, progress: float) -> str:
        assert run.step not in self.progress
        self.progress[run.step] = progress
        return "done"


def simulate(spec: PruningSchedule, total_steps: int) -> Any:
    """Calls an action before each of `total_steps` steps, and the step at which it is repeated twice."""
    action, ranked, said = Recorder(spec), [], []
    run = SimpleNamespace(
        step=0,
        name="prune",
        total_steps=total_steps,
        steps_per_epoch=10,
        epoch_origin=0,
        rank_validations=ranked.append,
        say=said.append,
    )
    action.on_begin(run)
    for run.step in range(total_steps):
        action.before_step(run)
        if run.step == 40:
            action.before_step(run)
            ranked.pop()
    return action.progress, ranked, said


def test_schedule_is_cubic() -> None:
    """Zhu and Gupta, equation 1, with an initial sparsity of 0: s_t = s_f - s_f (1 - (t - t_0) / (n dt))^3."""
    progress, ranked, said = simulate(PruningSchedule(start=0.2, end=0.7, every_steps=10), 100)
    expected = {20: 0.0, 30: 1 - 0.8**3, 40: 1 - 0.6**3, 50: 1 - 0.4**3, 60: 1 - 0.2**3, 70: 1.0}
    assert progress == pytest.approx(expected)
    assert ranked == [step >= 70 for step in range(100)]  # the network of step 70 has its final sparsity
    assert said == ["step 71: callback.prune is complete: done"]


def test_default_interval_and_the_last_step() -> None:
    progress, _, _ = simulate(PruningSchedule(start=0.1, end=0.7), 210)  # steps 21 to 147: 126 / 20, rounded up
    assert list(progress) == [*range(21, 147, 7), 147] and progress[147] == 1
    progress, _, _ = simulate(PruningSchedule(start=1, end=3, unit="epochs", every_steps=15), 100)
    assert list(progress) == [10, 25, 30] and progress[25] == pytest.approx(1 - (1 - 15 / 20) ** 3)
    progress, _, _ = simulate(PruningSchedule(start=5, end=5, unit="steps"), 100)
    assert progress == {5: 1.0}


def test_end_behind_the_last_step_is_refused() -> None:
    assert simulate(PruningSchedule(start=1, end=49, unit="steps"), 50)[0][49] == 1
    with pytest.raises(ConfigError, match="pruned in step 51, and the run has 50"):
        simulate(PruningSchedule(start=1, end=50, unit="steps"), 50)


def test_importance_is_mean_of_filters_times_mean_of_scales() -> None:
    arrays = {
        "a": np.array([[1.0, -3.0], [9.0, 9.0]]),
        "b": np.array([[4.0], [8.0]]),
        "g": np.array([-0.5, 7.0]),
        "h": np.array([1.5, 7.0]),
    }
    first = np.array([0])
    made = {"a": first, "b": first}
    assert importance_of(ChannelSet(0, made, (), {}), arrays) == (2 + 4) / 2
    assert importance_of(ChannelSet(0, made, (), {"g": first}), arrays) == 3 * 0.5
    assert importance_of(ChannelSet(0, made, (), {"g": first, "h": first}), arrays) == 3 * (0.5 + 1.5) / 2


def choose(sizes: List[int], share: float, **settings: Any) -> List[int]:
    """Returns how many of each group's channels stay if channel n of a group has the importance (n + 1) * 10^group."""
    sets = [ChannelSet(group, {}, (), {}) for group, size in enumerate(sizes) for _ in range(size)]
    action = ChannelPruning(PruneChannels(**settings))
    action._channels = SimpleNamespace(sets=sets)  # type: ignore[assignment]
    importance = {n: (1.0 + n - sum(sizes[: one.group])) * 10**one.group for n, one in enumerate(sets)}
    pruned = action._choose(importance, share)
    first = np.cumsum([0, *sizes[:-1]])
    counts = [sum(sets[number].group == group for number in pruned) for group in range(len(sizes))]
    assert pruned == [n for start, count in zip(first, counts) for n in range(start, start + count)]
    return [size - count for size, count in zip(sizes, counts)]


@pytest.mark.parametrize(
    "sizes, share, settings, kept",
    [
        ([10, 10], 0.5, {"scope": "layer"}, [5, 5]),
        ([11], 0.99, {"scope": "layer", "keep_at_least": 0.2}, [3]),  # 2.2, rounded up
        ([11], 0.99, {"keep_at_least": 0.2}, [3]),
        ([3], 0.99, {"keep_at_least": 0.01}, [1]),  # one stays always
        ([10], 0.45, {"scope": "layer", "multiple_of": 4}, [8]),  # 6 stay, rounded up to a multiple of 4
        ([3], 0.5, {"scope": "layer", "multiple_of": 4}, [3]),  # has no 4
        # Divided by the means of their groups: 0.4, 0.8, 1.2, 1.6 and 0.67, 1.33. The three smallest go.
        ([4, 2], 0.5, {}, [2, 1]),
    ],
)
def test_channels_that_each_layer_keeps(sizes: List[int], share: float, settings: Any, kept: List[int]) -> None:
    assert choose(sizes, share, **settings) == kept


def test_defaults_are_allowed_values() -> None:
    assert PruneChannels(**PruneChannels().model_dump()).share == 0.5


class Weights:
    """Weights of a run by name, without a network. `masks` are those of the last call."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = {
            name: SimpleNamespace(shape=np.shape(array), asnumpy=lambda array=array: np.float32(array))
            for name, array in arrays.items()
        }
        self.tables: List[str] = []
        self.masks: Dict[str, Any] = {}

    def prune(self, name: str, masks: Dict[str, np.ndarray]) -> None:
        self.masks = {name: mask.tolist() for name, mask in masks.items()}


def run_of(weights: Any, leave: List[str]) -> Any:
    return SimpleNamespace(
        name="prune", weights=weights, match=lambda patterns: list(weights.arrays) if patterns == ["*"] else leave
    )


def test_pruned_weights_rank_before_other_zeros() -> None:
    action = MagnitudePruning(Prune(sparsity=0.5))
    weights = Weights(w=[[9, 8, 1, 2]])
    run = run_of(weights, [])
    action.choose_parameters(run)
    assert action.prune(run, 0.5) == "1 of 4 weights are 0 (25.0%)" and weights.masks == {"w": [[1, 1, 0, 1]]}
    weights.arrays = Weights(w=[[0, 0, 0, 2]]).arrays
    assert action.prune(run, 1.0) == "2 of 4 weights are 0 (50.0%)" and weights.masks == {"w": [[0, 1, 0, 1]]}


@pytest.mark.parametrize(
    "given, mask",
    [
        ({}, [[0] * 8 + [1] * 2]),
        ({"sparsity": 0.3}, [[0] * 3 + [1] * 7]),
        ({"pattern": "1:2"}, [[0, 1] * 5]),
        ({"pattern": "3:5"}, [[0, 0, 1, 1, 1] * 2]),
    ],
)
def test_sparsity_and_patterns(given: Any, mask: Any) -> None:
    """Without a setting, 80 % of the weights are pruned."""
    action, weights = MagnitudePruning(Prune(**given)), Weights(w=[list(range(1, 11))], bias=[1, 2])
    action.choose_parameters(run_of(weights, []))
    action.prune(run_of(weights, []), 1.0)
    assert weights.masks == {"w": mask}


def test_channels_of_frozen_and_excluded_layers_stay() -> None:
    first = np.array([0])
    layers = (("a", "d"), ("b", "d"), ("frozen", "d"), ("d", "frozen"))
    sets = [ChannelSet(n, {made: first}, [(read, 1, first)], {}) for n, (made, read) in enumerate(layers)]
    for leave, numbers in ((["b"], [0]), ([], [0, 1])):
        weights = Weights(a=[1], b=[1], d=[1])
        weights.find_channels = lambda: SimpleNamespace(sets=sets)  # type: ignore[attr-defined]
        action = ChannelPruning(PruneChannels())
        action.choose_parameters(run_of(weights, leave))
        assert action._numbers == numbers
    with pytest.raises(ConfigError, match="are frozen or in `leave`"):
        action.choose_parameters(run_of(weights, ["a", "b"]))


def test_channels_are_pruned_to_the_scheduled_sparsity() -> None:
    layer = np.arange(4)
    sets = [ChannelSet(0, {"w": layer[n : n + 1]}, (), {}) for n in layer]
    action, weights = ChannelPruning(PruneChannels(share=0.5)), Weights(w=[[2], [1], [4], [3]])
    action._channels = SimpleNamespace(sets=sets, positions={"w": {0: layer}})  # type: ignore[assignment]
    action._numbers = [*range(4)]
    for progress, mask in ((0.0, None), (0.5, [[1], [0], [1], [1]]), (1.0, [[0], [0], [1], [1]])):
        said = action.prune(run_of(weights, []), progress)
        assert weights.masks.get("w") == mask and said.startswith(f"{round(2 * progress)} of 4 sets")
