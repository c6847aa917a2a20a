"""Roll-outs and episodes: what is played, by whom, and that it is played again."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Sequence

import gymnasium
import numpy as np
import pytest
from environments_of_tests import registered

from mxtrain.data.loading.loader import Consumer, LoaderOptions
from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError, DataError, LoaderError
from mxtrain.kvstore.world import World
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.model import ActorCritic
from mxtrain.reinforcement.policy import FACTS, NUM_FACTS
from mxtrain.reinforcement.policy_client import PolicyClient
from mxtrain.reinforcement.rollout_loader import RolloutLoader
from mxtrain.reinforcement.rollouts import Rollout

__all__ = ["registered"]
SMALL: Dict[str, Any] = {"num_envs": 4, "rollout_steps": 6, "batch_size": 8, "rollouts_per_epoch": 3, "passes": 2}


class Linear:
    """Stands for a strategy whose network is cut, so that no NumPy function replaces it: outputs are a product of
    observations."""

    objective, layout = SimpleNamespace(predict_shape=None, input_shape=(1,)), SimpleNamespace(num_stages=2)

    def __init__(self, num_inputs: int, num_outputs: int, scale: float = 0.01):
        weight = scale * np.random.RandomState(0).randn(num_inputs, num_outputs)
        self.values = {"weight": nd.array(weight)}
        # In several stages, so that no NumPy function replaces it.
        self.objective, self.layout = SimpleNamespace(predict_shape=(num_inputs,)), SimpleNamespace(num_stages=2)

    def predict(self, inputs: Sequence[Any]) -> Any:
        return (nd.dot(inputs[0].reshape((inputs[0].shape[0], -1)), self.values["weight"]),)


def loader_of(settings: Gymnasium, world: Optional[World] = None) -> RolloutLoader:
    splits = settings.open()
    signature = settings.infer_signature(splits, ActorCritic())
    options = LoaderOptions(batch_size=settings.batch_size, seed=3, train=True, world=world or World())
    loader = settings.build_loader(splits.train, signature, options)  # type: ignore[arg-type]
    assert isinstance(loader, RolloutLoader) and signature.actions is not None
    return loader


def acting(loader: RolloutLoader) -> Linear:
    """The network that acts in the environments of a loader."""
    spaces, name = loader.rollouts._source.spaces, loader.rollouts._source.maker.id
    scale = 0.1 if name == "Pendulum-v1" else 0.01
    return Linear(int(np.prod(spaces.shape)), spaces.actions.num_outputs, scale)


def first_rollout(loader: RolloutLoader) -> Rollout:
    return loader.rollouts.collect(0, True, PolicyClient([acting(loader)]))  # type: ignore[list-item]


def fact(rows: np.ndarray, name: str) -> np.ndarray:
    return rows[..., FACTS.index(name)]


def test_facts_equal_the_environment() -> None:
    settings = Gymnasium(
        **{**SMALL, "rollout_steps": 60, "batch_size": 240}, gamma=0.9, gae_lambda=1.0, normalize_advantages=False
    )
    loader = loader_of(settings)
    rollout = first_rollout(loader)
    weight = acting(loader).values["weight"].asnumpy()
    logits = rollout.observation_ET @ weight
    np.testing.assert_allclose(logits[..., -1], fact(rollout.facts_ETX, "value"), rtol=1e-4, atol=1e-6)
    p = np.exp(logits[..., :2]) / np.exp(logits[..., :2]).sum(axis=-1, keepdims=True)
    taken = rollout.facts_ETX[..., NUM_FACTS].astype(int)
    chosen = np.take_along_axis(p, taken[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(np.exp(fact(rollout.facts_ETX, "log_probability")), chosen, rtol=1e-4)
    assert 0.3 < taken.mean() < 0.7 and fact(rollout.facts_ETX, "ended").sum() >= 4
    environment = gymnasium.make("CartPole-v1").unwrapped
    for observations, facts, actions in zip(rollout.observation_ET, rollout.facts_ETX, taken):
        environment.reset(seed=0)
        state, length = observations[0].astype(np.float64), 0
        for step, action in enumerate(actions):
            np.testing.assert_allclose(observations[step], state, rtol=1e-4, atol=1e-5)
            environment.state, environment.steps_beyond_terminated = tuple(state), None  # type: ignore[attr-defined]
            state, _, over, _, _ = environment.step(action)
            length += 1
            assert facts[step, FACTS.index("ended")] == over
            assert facts[step, FACTS.index("return")] == facts[step, FACTS.index("length")] == (length if over else 0)
            if over and step + 1 < len(actions):
                assert (np.abs(observations[step + 1]) <= 0.05).all(), "CartPole begins there"
                state, length = observations[step + 1].astype(np.float64), 0
    # With lambda 1 and all of an episode in the roll-out, targets are discounted sums of rewards, each 1 here.
    last = int(np.argmax(fact(rollout.facts_ETX[0], "ended")))
    wanted = (1 - 0.9 ** (last + 1 - np.arange(last + 1))) / (1 - 0.9)
    np.testing.assert_allclose(fact(rollout.facts_ETX[0], "value_target")[: last + 1], wanted, rtol=1e-5)


def test_an_episode_that_is_cut_off_has_the_value_of_its_last_observation_behind_it() -> None:
    settings = Gymnasium(
        **SMALL, id="Counting-v0", max_episode_steps=2, gamma=0.5, gae_lambda=0.0, normalize_advantages=False
    )
    loader = loader_of(settings)
    rollout = first_rollout(loader)
    weight = acting(loader).values["weight"].asnumpy()
    assert fact(rollout.facts_ETX, "ended")[:, 1::2].all() and fact(rollout.facts_ETX, "return")[0, 1] == 3
    before, action = rollout.observation_ET[:, 1], rollout.facts_ETX[:, 1, NUM_FACTS]
    last = np.stack([before[:, 0], np.full(4, 2.0), before[:, 2] + action], axis=1)
    np.testing.assert_allclose(
        fact(rollout.facts_ETX, "value_target")[:, 1], 2 + 0.5 * (last @ weight)[:, -1], rtol=1e-4
    )


def batches(loader: RolloutLoader, epoch: int = 0, start: int = 0, count: int = 99) -> List[Any]:
    found = []
    for batch in loader.epoch(epoch, start, Consumer([acting(loader)])):  # type: ignore[list-item]
        found.append((batch.inputs[0].asnumpy(), batch.targets[0].asnumpy()))
        if len(found) == count:
            break
    return found


def test_each_pass_visits_all_steps_in_another_order() -> None:
    loader = loader_of(Gymnasium(**SMALL))
    found = batches(loader)
    assert len(found) == len(loader) == 3 * 2 * 3 and loader.num_samples == 8 * 18
    passes = [np.concatenate([facts for _, facts in found[begin : begin + 3]]) for begin in (0, 3, 6)]
    rows = [sorted(map(tuple, one.tolist())) for one in passes]
    assert rows[0] == rows[1] != rows[2], "the third is of the next roll-out"
    assert passes[0].tolist() != passes[1].tolist()


def test_rollouts_do_not_depend_on_the_assignment_of_environments() -> None:
    settings = Gymnasium(**SMALL, normalize_advantages=False)
    whole = batches(loader_of(settings), count=8)
    parts = [batches(loader_of(settings, World(rank, 3)), count=8) for rank in range(3)]
    for number, (observations, facts) in enumerate(whole):
        for joined, wanted in ((0, observations), (1, facts)):
            found = np.concatenate([part[number][joined] for part in parts])
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stop", [2, 6, 7, 11])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Looking-v0"])
def test_resumed_rollouts_are_bit_exact(stop: int, name: str) -> None:
    settings = Gymnasium(**SMALL, id=name, normalize_rewards=True)
    whole = batches(loader_of(settings), count=13)
    first = loader_of(settings)
    batches(first, count=stop)
    arrays, values = first.rollouts.save_state()
    assert ("facts" in arrays) == (stop % 6 != 0), "a roll-out that is not learned from any more is not kept"
    second = loader_of(settings)
    second.rollouts.load_state(dict(arrays), {}, "a checkpoint")
    again, _ = second.rollouts.save_state()
    assert {key: array.tolist() for key, array in again.items()} == {k: a.tolist() for k, a in arrays.items()}
    for found, wanted in zip(batches(second, start=stop, count=13 - stop), whole[stop:]):
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], wanted[1])


def test_unseeded_environment_starts_again_and_is_reported(caplog: Any) -> None:
    settings = Gymnasium(**SMALL, id="Counting-v0", kwargs={"goes_wrong": "unseeded"})
    first, second = loader_of(settings), loader_of(settings)
    batches(first, count=6)
    arrays, _ = first.rollouts.save_state()
    second.rollouts.load_state(dict(arrays), {}, "a checkpoint")
    with caplog.at_level(logging.WARNING, "mxtrain"):
        (observations, _), *_ = batches(second, start=6, count=1)
    assert len(caplog.records) == 4 and "is no function of its seed and the actions in it" in caplog.text
    assert 0 in observations[:, 1], "at the beginning of an episode"


def test_a_state_of_other_environments_is_refused() -> None:
    arrays, _ = loader_of(Gymnasium(**SMALL)).rollouts.save_state()
    assert "episodes" not in arrays, "nothing was played"
    loader = loader_of(Gymnasium(**SMALL))
    batches(loader, count=1)
    arrays, _ = loader.rollouts.save_state()
    other = loader_of(Gymnasium(**{**SMALL, "num_envs": 8}))
    with pytest.raises(CheckpointError, match="of other environments, or of another number or length"):
        other.rollouts.load_state(dict(arrays), {}, "a checkpoint")
    with pytest.raises(CheckpointError, match="holds the statistics of another environment"):
        loader_of(Gymnasium(**SMALL, id="Pendulum-v1")).rollouts.load_state(
            {key: array for key, array in arrays.items() if "." in key}, {}, "a checkpoint"
        )


def test_changed_number_of_workers_restarts_all_environments() -> None:
    loader = loader_of(Gymnasium(**SMALL))
    batches(loader, count=2)
    loader.world = World(0, 2)
    arrays, _ = loader.rollouts.save_state()
    assert "episodes" not in arrays, "so rank 0 can save without the others"
    (observations, _), *_ = batches(loader, start=2, count=1)
    assert len(observations) == 4


@pytest.mark.parametrize(
    "wrong, said",
    [
        ("raises", "environment 0 of Counting-v0 failed in step 3 of its episode, which began with the seed "),
        ("raises", "RuntimeError: the cart fell off."),
        ("reward", "its reward is inf."),
        ("observation", "its observation is not finite: [nan  3."),
        ("exits", "SystemExit: 3."),
        ("shape", "its observation has the shape (1,), and not (3,)."),
        ("no reward", "float() argument must be a string"),
    ],
)
def test_failing_environment_is_named_with_its_step(wrong: str, said: str) -> None:
    loader = loader_of(Gymnasium(**SMALL, id="Counting-v0", kwargs={"goes_wrong": wrong}))
    with pytest.raises(LoaderError) as caught:
        batches(loader)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            {"id": "CartPol-v1"},
            "dataset.id=CartPol-v1: gymnasium knows no such environment. Did you mean 'CartPole-v1'?",
        ),
        ({"id": "Choosing-v0"}, "its actions are MultiBinary(3), and policies are for Discrete (one of some), MultiD"),
        ({"kwargs": {"lenght": 3}, "id": "Counting-v0"}, "the environment cannot be opened: TypeError: "),
        ({"kwargs": {"lenght": 3}, "id": "Counting-v0"}, "Correct dataset.kwargs, or install what it needs."),
        ({"id": "Lacking-v0"}, "No module named 'box2d_of_tests'. Install that."),
        ({"id": "ALE/Breakout-v5"}, "dataset.id=ALE/Breakout-v5 needs the package ale_py"),
        ({"id": "BreakoutNoFrameskip-v4"}, "pip install ale-py"),
    ],
)
def test_an_environment_that_cannot_be_opened_is_refused(settings: Any, said: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(DataError) as caught:
        Gymnasium(**settings).open()
    assert said in str(caught.value)


def test_an_environment_may_know_no_drawing_and_fail_to_close(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        assert Gymnasium(id="Bare-v0").open().shape == (3,)
    assert "an environment cannot be closed: RuntimeError: it is jammed" in caplog.text


def test_missing_gymnasium_names_the_package(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(DataError, match=r"needs the package gymnasium .*pip install 'gymnasium>=0.29,<2' 'pygame-ce"):
        Gymnasium().open()


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"batch_size": 100}, "it can be 8, 16, 32, 64, 128, 256"),
        ({"id": "mine:Env-v0"}, "a module in front of an id"),
        ({"kwargs": {"render_mode": "human"}}, "render_mode is chosen by what wants to draw"),
        ({"prefetch": 2}, "prefetch"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Gymnasium(**settings)


def test_images_enter_with_channels_first_and_discrete_observations_as_ones_and_zeros() -> None:
    loader = loader_of(Gymnasium(**SMALL, id="Looking-v0"))
    rollout = first_rollout(loader)
    assert rollout.observation_ET.shape == (4, 6, 3, 4, 5) and rollout.observation_ET.dtype == np.uint8
    assert rollout.observation_ET[0, :, 0, 1, 2].tolist() == [0, 1, 2, 3, 4, 0]
    frozen = first_rollout(loader_of(Gymnasium(**SMALL, id="FrozenLake-v1")))
    assert frozen.observation_ET.shape == (4, 6, 16) and (frozen.observation_ET.sum(axis=2) == 1).all()
