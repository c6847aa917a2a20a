"""Reinforcement learning: what is learned, shown, written and refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image

from mxtrain.callback.protocol import CommandLine
from mxtrain.cli.dispatch import run
from mxtrain.engine.backend import nd
from mxtrain.reinforcement.episode_figure import CAPTION, COLUMNS, WIDTH, draw_episode, encode_animation
from mxtrain.reinforcement.episodes import Episodes
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.policy_client import PolicyClient
from mxtrain.reinforcement.task import ReinforcementLearning
from mxtrain.terminal.report import next_commands
from mxtrain.training.verification import verify
from mxtrain.workflows.eval_folder import write_artifacts

RL = "task=reinforcement_learning"
SIDE = 36
"""Side of images: the smallest that the convolutions take."""
SMALL = (
    RL,
    "dataset.num_envs=4",
    "dataset.rollout_steps=8",
    "dataset.batch_size=16",
    "dataset.rollouts_per_epoch=2",
    "dataset.val_episodes=3",
    "dataset.test_episodes=4",
    "model.hidden=[8]",
    "trainer.max_epochs=1",
)


class Pointing(gymnasium.Env):
    """Shows an image with a bright square; the reward is 1 for saying in which quarter it is. 8 steps an episode."""

    observation_space = Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = Discrete(4)

    def __init__(self, render_mode: Any = None):
        self.render_mode = render_mode

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = 8
        return self._show(), {}

    def _show(self) -> np.ndarray:
        image = self.np_random.integers(0, 100, (SIDE, SIDE, 1)).astype(np.uint8)
        self._quarter = int(self.np_random.integers(4))
        row, column = (half * SIDE // 2 + int(self.np_random.integers(8)) for half in divmod(self._quarter, 2))
        image[row : row + 8, column : column + 8] = 255
        return image

    def step(self, action: int) -> Any:
        reward, self._left = float(action == self._quarter), self._left - 1
        return self._show(), reward, self._left == 0, False, {}

    def render(self) -> np.ndarray:
        return np.zeros((SIDE, SIDE, 3), np.uint8)


@pytest.fixture
def pointing() -> Iterator[str]:
    """The name of the environment with images."""
    gymnasium.register("Pointing-v0", entry_point=Pointing)
    yield "dataset.id=Pointing-v0"
    del gymnasium.registry["Pointing-v0"]


@pytest.mark.slow
def test_a_trained_agent_is_evaluated_and_plays(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    made, result = train_run(*SMALL)
    assert result.exit_code == 0 and len(made.runner.context.data.train) == 2 * 10 * 2
    inputs = made.info.predict_inputs
    commands = dict(next_commands(result, tmp_path, made.info.config, CommandLine(), predict_inputs=inputs))
    assert "FILE" not in commands["predict"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["split"] == "train"]
    assert {"return", "episode_length", "policy_entropy", "explained_variance", "approx_kl"} <= set(trained[0])
    assert trained[0]["approx_kl"] == pytest.approx(0, abs=1e-6), "the weights are those that acted"
    assert trained[0]["policy_entropy"] == pytest.approx(np.log(2), abs=1e-3)
    assert trained[0]["return"] is None and any(row["return"] for row in trained), "none has ended so early"
    assert result.metrics["val/loss"] == -result.metrics["val/return"] == -result.metrics["val/episode_length"]
    assert run(["eval", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run" / "eval" / "test"
    found = json.loads((folder / "metrics.json").read_text())
    assert found["samples"] == 4 and found["return"] == pytest.approx(result.metrics["test/return"])
    returns = [float(line.split(",")[1]) for line in (folder / "episodes.csv").read_text().splitlines()[1:]]
    assert len(returns) == 4 and np.mean(returns) == pytest.approx(found["return"])
    capsys.readouterr()
    words = ["predict", str(tmp_path / "run"), "dataset.predicted_episodes=2"]
    assert run([*words, f"folder={tmp_path / 'out'}"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["file"] for line in lines] == ["episode-0", "episode-1"]
    for line in lines:
        assert line["return"] == line["length"] and line["animation"] == str(tmp_path / "out" / f"{line['file']}.gif")
        with Image.open(line["animation"]) as animation:  # GIF joins frames that are the same
            assert 0.5 * line["length"] < getattr(animation, "n_frames", 1) <= line["length"] + 1
    assert run(words) == 0 and "animation" not in capsys.readouterr().out
    assert run([*words, "some.file"]) == 2
    assert "some.file: predict plays episodes of CartPole-v1 and reads no files." in capsys.readouterr().err
    assert run(["eval", str(tmp_path / "run"), "dataset.id=Pendulum-v1"]) == 2
    assert "differ from those that the network was trained on" in capsys.readouterr().err


@pytest.mark.slow
def test_frames_are_of_the_episode_that_was_played(tmp_path: Path, train_run: Any) -> None:
    made, _ = train_run(*SMALL)
    samples = made.runner.context.data.samples
    assert samples is not None
    (image,) = samples.artifacts(made.runner.context.evaluator)
    assert write_artifacts([image], tmp_path) == ["episode.png"]
    with Image.open(tmp_path / "episode.png") as sheet:
        assert sheet.size[0] == COLUMNS * WIDTH


def test_each_image_of_an_episode_has_its_step() -> None:
    frames = [np.full((60, 80, 3), 10 * number, np.uint8) for number in range(6)]
    (short, long) = (np.asarray(draw_episode(frames, "said", num_steps)) for num_steps in (5, 50))
    height = WIDTH * 60 // 80
    assert short.shape == (CAPTION + 2 * height, 4 * WIDTH, 3)
    for number in range(6):
        left, top = number % 4 * WIDTH, CAPTION + number // 4 * height
        assert (short[top + 40 : top + height - 1, left + 1 : left + WIDTH - 1] == 10 * number).all()
        labels = [sheet[top + 1 : top + 30, left + 1 : left + WIDTH - 1] for sheet in (short, long)]
        assert (labels[0] == labels[1]).all() == (number == 0), "step 0 is step 0, and 1 of 5 is 10 of 50"


def test_an_animation_has_a_frame_for_each_image_and_its_speed() -> None:
    frames = [np.full((6, 8, 3), shade, np.uint8) for shade in (0, 100, 200)]
    animation = Image.open(io.BytesIO(encode_animation(frames, 10.0)))
    assert animation.n_frames == 3 and animation.info["duration"] == 100  # type: ignore[attr-defined]
    animation.seek(2)
    assert np.asarray(animation.convert("RGB")).mean() == pytest.approx(200, abs=2)


def test_undrawable_environment_is_reported_once_and_training_continues(caplog: Any, monkeypatch: Any) -> None:
    from mxtrain.errors import DataError

    def refuse(self: Episodes, index: int, most: Any = None) -> Any:
        raise DataError("CartPole-v1 cannot be drawn: no screen.")

    monkeypatch.setattr(Episodes, "frames", refuse)
    splits = Gymnasium().open()
    assert ReinforcementLearning().show(None, splits.val, [np.zeros(2)], []) == []  # type: ignore[arg-type]
    assert "no figures of episodes: CartPole-v1 cannot be drawn" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("model.shared=true",),
        ("dataset.id=Pendulum-v1", "model.normalize_observations=true"),
    ],
)
def test_a_placement_is_the_same_over_several_roll_outs(describe_run: Any, words: Any) -> None:
    small = (*SMALL, "dataset.passes=1", "dataset.normalize_rewards=true", *words)
    found = verify(describe_run(*small, "parallel=data"), 6, 1e-5)
    assert found.passed, found


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["data", "hybrid"])
@pytest.mark.parametrize("model", ["q_network", "soft_actor_critic"])
def test_a_placement_with_a_replay_buffer_is_the_same(describe_run: Any, model: str, placement: str) -> None:
    """With `hybrid`, the second device computes only what training needs, and prediction leaves it out."""
    words = ("dataset.num_envs=4", "model.hidden=[8]", "loss.learning_starts=40", "loss.target_interval=1")
    words += ("model.normalize_observations=true", "dataset.normalize_rewards=true", "dataset.batch_size=16")
    found = verify(describe_run(RL, f"model={model}", *words, f"parallel={placement}"), 4, 1e-5)
    assert found.passed, found


@pytest.mark.slow
def test_statistics_of_observations_enter_the_network_and_stay_with_its_weights(train_run: Any) -> None:
    made, _ = train_run(*SMALL, "model.normalize_observations=true")
    step = made.runner.context.step
    mean, variance = (step.strategy.values[f"features.0.observation_{name}"] for name in ("mean", "variance"))
    moments = made.runner.context.data.train.rollouts._moments["observation"]
    assert moments.count == 2 * 32 and (variance.asnumpy() != 1).all()
    # Those of the first roll-out: what acted in the second one was normalised by them.
    assert mean.asnumpy().tolist() != moments.mean.astype(np.float32).tolist()
    assert "features.0.observation_mean" not in step.strategy.trainable


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("loss=a2c dataset.passes=4", "which only loss=ppo corrects. Type loss=ppo, or dataset.passes=1."),
        ("loss=l2", "Type loss=a2c. Other options that fit: dqn, ppo, sac."),
        ("loss._target_=mxnet.gluon.loss.L2Loss", "Type loss=ppo or loss=a2c, or model=q_network (DQN)"),
        ("loss=dqn", "its outputs are those of an actor critic policy. Type loss=dqn model=q_network."),
        (
            "model=q_network loss=ppo",
            "its outputs are those of an action values policy. Type loss=ppo model=actor_critic.",
        ),
        ("model=soft_actor_critic loss=ppo", "those of a squashed gaussian policy. Type loss=ppo model=actor_critic."),
        (
            "model=q_network dataset.id=Pendulum-v1",
            "its actions are numbers, and loss=dqn values a few single actions.",
        ),
        ("model=soft_actor_critic dataset.id=CartPole-v1", "its actions are choices, and loss=sac is for numbers."),
        ("model=q_network dataset.batch_size=48", "are whole batches: it can be 8, 16, 32, 64, 128, 256, 512."),
        ("model=q_network loss.buffer_size=10", "Type loss.buffer_size=1000 or more."),
        (
            "model=q_network loss.learning_starts=32 loss.buffer_size=40",
            "and a batch of dataset.batch_size=64. Type loss.buffer_size=64 or more.",
        ),
        ("model=soft_actor_critic trainer.max_epochs=1 loss.learning_starts=2001", "loss.learning_starts=2000 or less"),
        ("model=q_network kvstore=dist_async cluster.workers=2", "each worker would have a target network of its own."),
        ("metric=[accuracy]", "Type metric=[return]."),
        ("model=mlp", "Type model=actor_critic."),
        ("dataset=digits", "its samples are for task=classification or task=metric_learning. Type that."),
        ("trainer.overfit_batches=1", "samples come from the weights, so no batch is the same again"),
        ("kvstore=dist_sync cluster.workers=9", "there are only dataset.num_envs=8 environments to share"),
        (
            "kvstore=dist_sync cluster.workers=2 cluster.balance=speed",
            "each worker keeps its own samples, such as environments",
        ),
        ("kvstore=dist_async cluster.workers=2 model.normalize_observations=true", "statistics of its own"),
        ("amp=bfloat16", "Type amp=off."),
        ("dataset.batch_size=100", "it can be 8, 16, 32, 64, 128, 256"),
        ("dataset.id=CartPole", "Did you mean 'CartPole-v1'?"),
        ("loss.clip_rage=0.1", "Did you mean"),
    ],
)
def test_wrong_settings_are_refused(words: str, said: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([RL, *words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_loss_sets_the_passes_over_a_rollout(describe_run: Any) -> None:
    for loss, passes in (("ppo", 10), ("a2c", 1)):
        assert describe_run(RL, f"loss={loss}").dataset.passes == passes
    assert describe_run(RL, "dataset.passes=3").dataset.passes == 3


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("trainer.max_epochs=4",),
        pytest.param(("experiment=a2c_cartpole", "trainer.max_epochs=5"), marks=pytest.mark.zoo),
    ],
)
def test_cart_pole_is_learned(train_run: Any, words: Any) -> None:
    """About 10 s of processor time each; a random agent keeps the pole up for 22 steps. How far an agent comes in
    so few epochs depends on the last bits: 223 to 500 steps were seen."""
    _, result = train_run(RL, *words, "dataset.test_episodes=20")
    assert result.metrics["test/return"] > 150


@pytest.mark.slow
def test_a_policy_learns_from_images(train_run: Any, pointing: str) -> None:
    """By the convolutions of Mnih et al.: a random agent has a return of 2, the best one 8."""
    made, result = train_run(
        RL,
        pointing,
        "dataset.gamma=0",
        "dataset.rollout_steps=16",
        "dataset.batch_size=64",
        "dataset.passes=4",
        "dataset.rollouts_per_epoch=12",
        "trainer.max_epochs=1",
        "dataset.val_episodes=4",
        "dataset.test_episodes=25",
        "task.shown_frames=0",
    )
    assert any(
        parameter.name.endswith("weight") and parameter.data().ndim == 4
        for parameter in made.info.network.collect_params().values()
    )
    assert result.metrics["test/return"] > 7


@pytest.mark.slow
def test_actions_on_the_host_equal_actions_on_the_device(train_run: Any) -> None:
    """With the weights as they are, also behind steps that changed them; one of images asks the device."""
    made, _ = train_run(*SMALL, "model.normalize_observations=true")
    strategy = made.runner.context.step.strategy
    client = PolicyClient([strategy])
    observation = np.random.RandomState(0).randn(5, 4).astype(np.float32)
    assert client._host is not None
    client.refresh()
    (wanted,) = strategy.predict((nd.array(observation),))
    np.testing.assert_allclose(client.act(observation), wanted.asnumpy(), rtol=1e-5, atol=1e-6)
    for value in strategy.values.values():
        value[:] = value * 1.5
    client.refresh()
    (changed,) = strategy.predict((nd.array(observation),))
    np.testing.assert_allclose(client.act(observation), changed.asnumpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(wanted.asnumpy() - changed.asnumpy()).max() > 1e-3
