"""Composed observations: order, names, and the same numbers as gymnasium's `flatten`."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, flatten
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Tuple as TupleSpace

from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.reinforcement.flattening import Leaf, leaves_of, read_leaves
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.model import ActorCritic
from mxtrain.reinforcement.signature import ActionSignature

SPACE = DictSpace(
    {
        "speed": Box(-5, 5, (), np.float32),
        "arm": DictSpace({"mode": Discrete(3, start=2), "angle": Box(-1, 1, (2,), np.float32)}),
        "doors": MultiBinary(2),
        "gears": MultiDiscrete([2, 3]),
        "pair": TupleSpace([Discrete(2), Box(0, 1, (1, 2), np.float64)]),
    }
)
NAMES = [
    *("arm.angle[0]", "arm.angle[1]", "arm.mode=2", "arm.mode=3", "arm.mode=4", "doors[0]", "doors[1]"),
    *("gears[0]=0", "gears[0]=1", "gears[1]=0", "gears[1]=1", "gears[1]=2"),
    *("pair.0=0", "pair.0=1", "pair.1[0,0]", "pair.1[0,1]", "speed"),
]


class Composed(gymnasium.Env):
    """Shows a random observation of a space; actions are MultiDiscrete; the reward is 1 if each is its largest."""

    def __init__(self, space: Any = SPACE, render_mode: Any = None):
        self.observation_space, self.action_space = space, MultiDiscrete([2, 3])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._left = 4
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._left -= 1
        return self.observation_space.sample(), float(action[0] == 1 and action[1] == 2), self._left == 0, False, {}


@pytest.fixture
def composed() -> Iterator[None]:
    gymnasium.register("Composed-v0", entry_point=Composed)
    yield
    del gymnasium.registry["Composed-v0"]


def test_numbers_have_the_order_of_gymnasium_and_a_name_each() -> None:
    leaves = leaves_of(SPACE)
    assert [name for leaf in leaves for name in leaf.names()] == NAMES
    SPACE.seed(3)
    for _ in range(20):
        observation = SPACE.sample()
        np.testing.assert_allclose(read_leaves(leaves, observation), flatten(SPACE, observation), rtol=1e-6)
    again = [Leaf.from_json(json.loads(json.dumps(leaf.to_json()))) for leaf in leaves]
    assert again == leaves


def test_an_observation_of_json_is_read_and_a_wrong_one_is_named() -> None:
    leaves = leaves_of(SPACE)
    plain: Dict[str, Any] = {
        "speed": 1.5,
        "arm": {"mode": 3, "angle": [0.25, 0.5]},
        "doors": [0, 1],
        "gears": [1, 2],
        "pair": [0, [[0.5, 1]]],
    }
    found = read_leaves(leaves, plain)
    assert found.tolist() == [0.25, 0.5, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0.5, 1, 1.5]
    for change, said in (
        ({"arm": {"mode": 3}}, "lacks arm.angle"),
        ({"arm": {"mode": 1, "angle": [0, 0]}}, "has 1 in arm.mode; it is a whole number from 2 to 4"),
        ({"arm": {"mode": 2.5, "angle": [0, 0]}}, "has 2.5 in arm.mode; it is a whole number from 2 to 4"),
        ({"doors": [1]}, r"has the shape \(1,\) in doors; it is \(2,\)"),
        ({"speed": "fast"}, "holds no numbers in speed"),
    ):
        with pytest.raises(ValueError, match=said):
            read_leaves(leaves, {**plain, **change})
    with pytest.raises(ValueError, match="lacks arm.angle"):
        read_leaves(leaves, [1.0, 2.0])


def test_names_are_logged_and_kept_with_the_network(composed: None) -> None:
    settings = Gymnasium(id="Composed-v0")
    splits = settings.open()
    signature = settings.infer_signature(splits, ActorCritic())
    assert ActionSignature.cast(signature).observation_names == tuple(NAMES)
    assert signature.actions.choices == (2, 3)  # type: ignore[attr-defined]
    assert "enter as 17 numbers: arm.angle[0], arm.angle[1], arm.mode=2" in settings.remark(signature, splits)
    restored = ActionSignature.from_json(json.loads(json.dumps(signature.to_json())))
    settings.check_compatible(signature, restored, "a checkpoint")
    turned = ActionSignature((17,), actions=restored.actions, observation_names=tuple(NAMES[::-1]))
    with pytest.raises(CheckpointError, match="other observations or actions"):
        settings.check_compatible(signature, turned, "a checkpoint")
    with pytest.raises(ConfigError, match=r"number 0 of its observations is arm.angle\[0\], and .* with speed there"):
        settings.build_loader(splits.val, turned, None)  # type: ignore[arg-type]
    nameless = ActionSignature((17,), actions=restored.actions)
    settings.check_compatible(signature, nameless, "a checkpoint of an earlier version")


@pytest.mark.slow
def test_actions_of_several_components_are_learned_from_composed_observations(composed: None, train_run: Any) -> None:
    """A random agent has a return of 4 / 6, the best one 4."""
    _, result = train_run(
        "task=reinforcement_learning",
        "dataset.id=Composed-v0",
        "dataset.gamma=0",
        "dataset.rollout_steps=16",
        "dataset.batch_size=64",
        "dataset.rollouts_per_epoch=15",
        "trainer.max_epochs=1",
        "optimizer.lr=0.01",
        "dataset.val_episodes=2",
        "dataset.test_episodes=10",
        "task.shown_frames=0",
        "model.hidden=[16]",
    )
    assert result.metrics["test/return"] > 3.5
