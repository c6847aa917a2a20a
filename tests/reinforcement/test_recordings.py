"""Replay buffers that begin with recorded episodes, and files that are none."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np
import pytest
from environments_of_tests import registered
from pydantic import ValidationError
from test_replay_buffer import batches, loader_of, network_of

from mxtrain.cli.dispatch import run
from mxtrain.errors import ConfigError, DataError
from mxtrain.kvstore.world import World
from mxtrain.reinforcement import recording
from mxtrain.reinforcement.action_limits import ActionLimits
from mxtrain.reinforcement.dqn import DeepQLoss
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.policy import NUM_FACTS, REPLAY_FACTS, Actions
from mxtrain.reinforcement.recording import RecordedEpisode, read_recordings

__all__ = ["registered"]
DQN = DeepQLoss(learning_starts=20, buffer_size=60)


def episode(length: int, start: float, is_terminated: bool) -> RecordedEpisode:
    """An episode of Counting-v0: observations are (start, step, sum of actions), the reward is the step."""
    actions = np.arange(length) % 2
    total = np.concatenate([[0], np.cumsum(actions)])
    observations = np.stack([np.full(length + 1, start), np.arange(length + 1), total], axis=1).astype(np.float32)
    return RecordedEpisode(3, observations, actions + 5, np.arange(1.0, length + 1), is_terminated)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three episodes of 5, 4 and 5 steps; the second is truncated."""
    for number, (length, is_terminated) in enumerate(((5, True), (4, False), (5, True))):
        (tmp_path / f"episode-{number}.npz").write_bytes(episode(length, 10.0 * number, is_terminated).encode())
    (tmp_path / "notes.txt").write_text("not read")
    return tmp_path


def rows_of(folder: Path, **settings: Any) -> np.ndarray:
    """(start, step, action, reward, discount, next step) of each distinct step in batches of the first roll-out."""
    loader = loader_of(
        DQN, id="Counting-v0", recordings=str(folder), rollout_steps=2, gamma=0.5, passes=500, **settings
    )
    found = []
    for observation, following, facts in batches(loader, count=40, network=network_of(loader)):
        columns = [facts[:, REPLAY_FACTS.index(name)] for name in ("reward", "discount")]
        found.append(np.stack([*observation[:, :2].T, facts[:, NUM_FACTS], *columns, following[:, 1]], axis=1))
    return np.unique(np.concatenate(found), axis=0)


def test_a_buffer_begins_with_recorded_steps(folder: Path) -> None:
    """Of 14 steps, each of 4 environments gets 3; in the roll-out they take 2 of their own each."""
    rows = rows_of(folder)
    recorded = {tuple(row[:2]): row for row in rows if row[0] in (0, 10, 20)}
    assert set(recorded) >= {(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (10, 0), (10, 3), (20, 0), (20, 2)}
    for (_, step), row in recorded.items():
        assert row[2] == step % 2 and row[3] == step + 1, "an action is 0 or 1 to the policy, 5 or 6 to the environment"
        is_terminated = step == 4
        assert row[4] == (0.0 if is_terminated else 0.5)
        assert is_terminated or row[5] == step + 1, "also where the episode or the part of an environment ends"
    assert (20, 3) not in recorded, "the last two of 14 steps are left out"


def test_offline_training_takes_no_steps(folder: Path) -> None:
    rows, with_steps = (rows_of(folder, recordings_only=is_only) for is_only in (True, False))
    assert set(rows[:, 0]) == {0, 10, 20} < set(with_steps[:, 0])
    assert len(rows) == 12, "3 recorded steps of each of 4 environments"


def test_a_resumed_offline_run_draws_the_same_batches(folder: Path) -> None:
    settings = {"id": "Counting-v0", "recordings": str(folder), "recordings_only": True, "rollout_steps": 2}
    whole = batches(loader_of(DQN, **settings), count=8)
    first, second = loader_of(DQN, **settings), loader_of(DQN, **settings)
    batches(first, count=3)
    second.collector.load_state(dict(first.collector.save_state()[0]), {}, "a checkpoint")
    for found, wanted in zip(batches(second, start=3, count=5), whole[3:8]):
        for one, other in zip(found, wanted):
            np.testing.assert_array_equal(one, other)


def test_offline_training_needs_recordings() -> None:
    with pytest.raises(ValidationError, match="recordings_only=true needs recordings=FOLDER"):
        Gymnasium(recordings_only=True)


def test_episodes_are_read_in_the_order_of_the_names_of_their_files(folder: Path, monkeypatch: Any) -> None:
    """A folder lists its files in any order."""
    names = sorted(os.listdir(folder))
    spaces = Gymnasium(id="Counting-v0").open().train.spaces  # type: ignore[union-attr]
    for order in (names, names[::-1]):
        monkeypatch.setattr(recording.os, "listdir", lambda _, order=order: order)
        found = read_recordings(str(folder), spaces, "Counting-v0")
        assert found.observation[:, 0].tolist() == [0.0] * 5 + [10.0] * 4 + [20.0] * 5
        assert found.reward.tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4, 5]


def test_recorded_steps_are_divided_among_workers_and_resumed(folder: Path) -> None:
    settings = {"id": "Counting-v0", "recordings": str(folder)}
    whole = batches(loader_of(DQN, **settings), count=8)
    parts = [batches(loader_of(DQN, World(rank, 2), **settings), count=8) for rank in range(2)]
    for number, arrays in enumerate(whole):
        for place, wanted in enumerate(arrays):
            np.testing.assert_allclose(np.concatenate([part[number][place] for part in parts]), wanted, rtol=1e-6)
    first = loader_of(DQN, **settings)
    batches(first, count=3)
    second = loader_of(DQN, **settings)
    second.collector.load_state(dict(first.collector.save_state()[0]), {}, "a checkpoint")
    for found, wanted in zip(batches(second, start=3, count=5), whole[3:8]):
        for one, other in zip(found, wanted):
            np.testing.assert_array_equal(one, other)


def changed(**arrays: Any) -> bytes:
    """The file of an episode of five steps with other arrays; None leaves one out."""
    with np.load(io.BytesIO(episode(5, 0.0, True).encode())) as file:
        kept: Dict[str, Any] = {**file, **arrays}
    stream = io.BytesIO()
    np.savez(stream, **{name: array for name, array in kept.items() if array is not None})
    return stream.getvalue()


def one_array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


WRONG: Dict[str, Tuple[bytes, str]] = {
    "text": (b"hello", "is no recorded episode"),
    "cut off": (changed()[:-700], "is no recorded episode"),
    "array": (one_array(), "is no recorded episode: it is a single array"),
    "no rewards": (changed(rewards=None), "'rewards is not a file in the archive'"),
    "pickled": (changed(rewards=np.array([{}] * 5)), "Object arrays cannot be loaded when allow_pickle=False"),
    "no steps": (changed(rewards=np.zeros(0)), r"rewards and actions have the shapes \(0,\) and \(5,\)"),
    "fewer actions": (changed(actions=np.full(4, 5)), r"the shapes \(5,\) and \(4,\)"),
    "other observations": (
        changed(observations=np.zeros((6, 4))),
        r"observations has the shape \(6, 4\), and 5 steps in",
    ),
    "as many observations": (changed(observations=np.zeros((5, 3))), r"have \(6, 3\)"),
    "fewer ends": (changed(terminations=np.ones(1)), r"terminations has the shape \(1,\)"),
    "nan": (changed(rewards=np.array([1, 2, np.nan, 4, 5])), "rewards holds values that are no finite numbers"),
    "too large": (changed(observations=np.full((6, 3), 1e39)), "observations holds values that are no finite numbers"),
    "texts": (changed(actions=np.array(list("abcde"))), "actions holds values that are no finite numbers"),
    "no end": (changed(terminations=np.zeros(5)), "no single episode, which ends with its last step"),
    "two episodes": (changed(terminations=np.array([0, 1, 0, 0, 1])), "no single episode"),
    "other choices": (changed(actions=np.array([5, 6, 7, 5, 5])), "an action is none of the choices"),
    "fractions": (changed(actions=np.full(5, 5.5)), "an action is none of the choices"),
    "more numbers": (changed(actions=np.full((5, 2), 5)), "an action has 2 numbers, and not 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_files_are_refused(name: str, tmp_path: Path) -> None:
    content, said = WRONG[name]
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=rf"{tmp_path}/a\.npz.*{said}"):
        loader_of(DQN, id="Counting-v0", recordings=str(tmp_path))


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a\.npz is no recorded episode: it is a named pipe"):
        loader_of(DQN, id="Counting-v0", recordings=str(tmp_path))


def test_folders_without_episodes_and_other_numbers_of_steps_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dataset.recordings=.*/none cannot be read: No such file or directory"):
        loader_of(DQN, recordings=str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no \.npz files. `python -m mxtrain predict RUN"):
        loader_of(DQN, recordings=str(tmp_path / "empty"))
    small = DeepQLoss(learning_starts=8, buffer_size=8)
    with pytest.raises(
        ConfigError, match=r"14 steps, and .* takes 1 to 2 for each .* Type loss.buffer_size=14 or more"
    ):
        loader_of(small, id="Counting-v0", recordings=str(folder))
    loader_of(DeepQLoss(learning_starts=8, buffer_size=14), id="Counting-v0", recordings=str(folder))
    with pytest.raises(ConfigError, match="Record more of them, or type fewer dataset.num_envs"):
        loader_of(DQN, id="Counting-v0", recordings=str(folder), num_envs=16, batch_size=16)


def test_actions_of_environments_become_those_of_the_policy() -> None:
    limits = ActionLimits(0, np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32), (2,), "float32")
    squashed = Actions(size=2, head="squashed_gaussian")
    action_NA = np.random.RandomState(0).uniform(-1, 1, (9, 2)).astype(np.float32)
    for actions in (squashed, Actions(size=2)):
        native = np.stack(limits.actions_for(actions, action_NA))
        wanted = action_NA if actions is squashed else native
        np.testing.assert_allclose(limits.policy_actions(actions, native), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="beyond the limits"):
        limits.policy_actions(squashed, np.array([[0.0, 10.01]]))
    parts = ActionLimits(shape=(2,), starts=(3, 0))
    several = Actions(6, 2, (2, 4))
    assert parts.policy_actions(several, np.array([[4, 3], [3, 0]])).tolist() == [[1, 3], [0, 0]]
    for wrong in ([[5, 0]], [[3, 4]], [[2, 0]]):
        with pytest.raises(ValueError, match="none of the choices"):
            parts.policy_actions(several, np.array(wrong))


def test_images_are_read_as_bytes(tmp_path: Path) -> None:
    spaces = Gymnasium(id="Looking-v0").open().train.spaces  # type: ignore[union-attr]
    images = np.zeros((3, *spaces.shape), np.uint8)
    images[:, 0, 1, 2] = [7, 8, 255]
    recorded = RecordedEpisode(0, images, np.array([5, 6]), np.ones(2), True)
    (tmp_path / "a.npz").write_bytes(recorded.encode())
    found = read_recordings(str(tmp_path), spaces, "Looking-v0")
    assert found.observation.dtype == np.uint8 and found.observation[:, 0, 1, 2].tolist() == [7, 8]
    assert found.next_observation[:, 0, 1, 2].tolist() == [8, 255] and found.action.tolist() == [[0], [1]]
    for wrong in (images / 255.0, images.astype(np.int64) + 1):
        (tmp_path / "a.npz").write_bytes(RecordedEpisode(0, wrong, np.array([5, 6]), np.ones(2), True).encode())
        with pytest.raises(DataError, match="observations of Looking-v0 are whole numbers from 0 to 255"):
            read_recordings(str(tmp_path), spaces, "Looking-v0")


@pytest.mark.slow
def test_recordings_without_a_replay_buffer_are_refused(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["task=reinforcement_learning", "dataset.recordings=here", "logger=[]"]) == 2
    assert "recorded steps fill a replay buffer, and ProximalPolicyLoss has none" in capsys.readouterr().err
    assert run(["task=reinforcement_learning", "model=q_network", "dataset.recordings=here"]) == 2
    assert "dataset.recordings=here cannot be read: No such file or directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
