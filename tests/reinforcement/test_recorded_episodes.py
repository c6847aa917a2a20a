"""Recorded episodes: what is written is what was played."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from environments_of_tests import registered

from mxtrain.cli.dispatch import run
from mxtrain.errors import DataError
from mxtrain.reinforcement.episodes import Episodes, PlayedEpisode
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.recording import RecordedEpisode
from mxtrain.reinforcement.task import EpisodeReport

__all__ = ["registered"]


def played(**settings: Any) -> Episodes:
    """Two episodes of Counting-v0, whose reward is the step: the first terminates, the second is one step shorter."""
    episodes = Gymnasium(id="Counting-v0", **settings).open().val
    assert isinstance(episodes, Episodes)
    for index, length in enumerate((5, 4)):
        actions = (np.arange(length) % 2).astype(np.float32)[:, None]
        episodes.played[index] = PlayedEpisode(int(episodes.seed_N[index]), actions)
    return episodes


def test_a_recorded_episode_has_each_observation_action_and_reward() -> None:
    episodes = played()
    found = episodes.record(0)
    assert found.seed == episodes.seed_N[0] and found.is_terminated
    assert found.rewards.tolist() == [1, 2, 3, 4, 5] and found.actions.tolist() == [5, 6, 5, 6, 5]
    assert found.observations[:, 1].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.observations[:, 2].tolist() == [0, 0, 1, 1, 2, 2]
    with np.load(io.BytesIO(found.encode()), allow_pickle=False) as arrays:
        assert set(arrays) == {"observations", "actions", "rewards", "terminations", "truncations", "seed"}
        np.testing.assert_array_equal(arrays["observations"], found.observations)
        assert arrays["terminations"].tolist() == [False] * 4 + [True] and not arrays["truncations"].any()
    cut = played(max_episode_steps=4).record(1)
    with np.load(io.BytesIO(cut.encode()), allow_pickle=False) as arrays:
        assert arrays["truncations"].tolist() == [False] * 3 + [True] and not arrays["terminations"].any()


def test_an_episode_of_another_length_is_refused(caplog: Any) -> None:
    with pytest.raises(DataError, match="episode 1 of Counting-v0 has another length when it is played again"):
        played().record(1)
    with pytest.raises(DataError, match="episode 0 of Counting-v0 has another length"):
        played(max_episode_steps=3).record(0)
    with caplog.at_level(logging.WARNING, "mxtrain"):
        assert EpisodeReport(played(), 2)._steps([0, 1]) == []
    assert "no table of steps: episode 1 of Counting-v0" in caplog.text


def test_a_table_has_a_row_for_each_step() -> None:
    (table,) = EpisodeReport(played(max_episode_steps=4), 1)._steps([1, 0])
    assert table.name == "steps" and not table.is_shown  # type: ignore[union-attr]
    header = ["episode", "step", "observation 0", "observation 1", "observation 2", "action", "reward"]
    assert table.header == header  # type: ignore[union-attr]
    rows = table.rows  # type: ignore[union-attr]
    assert [[row[0], row[1], *row[3:]] for row in rows] == [
        [1, 0, 0, 0, 5, 1],
        [1, 1, 1, 0, 6, 2],
        [1, 2, 2, 1, 5, 3],
        [1, 3, 3, 1, 6, 4],
    ]
    assert EpisodeReport(played(), 0)._steps([0]) == []
    wide = RecordedEpisode(0, np.zeros((3, 8, 8)), np.zeros((2, 2)), np.zeros(2), True)
    assert wide.header(()) == [], "images get no table"
    small = RecordedEpisode(0, np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(2), True)
    assert small.header(["a", "b"]) == ["episode", "step", "a", "b", "action 0", "action 1", "reward"]


@pytest.mark.slow
def test_eval_and_predict_write_the_same_episodes_that_an_environment_plays(train_run: Any, tmp_path: Path) -> None:
    train_run(
        "task=reinforcement_learning",
        "model=soft_actor_critic",
        "dataset.rollouts_per_epoch=10",
        "dataset.max_episode_steps=20",
        "loss.learning_starts=40",
        "dataset.val_episodes=2",
        "dataset.test_episodes=3",
        "trainer.max_epochs=1",
        "model.hidden=[8]",
        "task.shown_frames=0",
        "task.recorded_episodes=2",
    )
    assert run(["eval", str(tmp_path / "run")]) == 0
    rows, episodes = (
        [*csv.DictReader((tmp_path / f"run/eval/test/{name}.csv").read_text().splitlines())]
        for name in ("steps", "episodes")
    )
    returns = [float(row["return"]) for row in episodes]
    assert len(rows) == 2 * 20 and len(returns) == 3
    for episode in range(2):
        total = sum(float(row["reward"]) for row in rows if row["episode"] == str(episode))
        assert total == pytest.approx(returns[episode], rel=1e-5)
    words = ["task.episode_files=npz", "dataset.predicted_episodes=1", f"folder={tmp_path / 'out'}"]
    assert run(["predict", str(tmp_path / "run"), *words]) == 0
    with np.load(tmp_path / "out/episode-0.npz", allow_pickle=False) as arrays:
        environment = gymnasium.make("Pendulum-v1").unwrapped
        observation, _ = environment.reset(seed=int(arrays["seed"]))
        for step, action in enumerate(arrays["actions"]):
            np.testing.assert_allclose(arrays["observations"][step], observation, rtol=1e-5, atol=1e-6)
            observation, reward, _, _, _ = environment.step(action)
            assert arrays["rewards"][step] == pytest.approx(float(reward))
        assert step == 19 and arrays["truncations"][-1]
