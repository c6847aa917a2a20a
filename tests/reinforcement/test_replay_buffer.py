"""Replay buffers against lists of all steps, and the loader of their batches: workers, resume, target networks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest
from environments_of_tests import registered

from mxtrain.data.loading.loader import Consumer, LoaderOptions
from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.kvstore.world import World
from mxtrain.reinforcement import replay_loader
from mxtrain.reinforcement.algorithm import ReplayAlgorithm
from mxtrain.reinforcement.dqn import DeepQLoss
from mxtrain.reinforcement.draws import standard_normal
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.model import QNetwork, SoftActorCritic
from mxtrain.reinforcement.policy import NUM_FACTS, REPLAY_FACTS, Actions
from mxtrain.reinforcement.replay import ReplayBuffer
from mxtrain.reinforcement.replay_loader import ReplayLoader
from mxtrain.reinforcement.sac import SoftActorCriticLoss
from mxtrain.reinforcement.target_network import update_target
from mxtrain.types.kinds import TargetKind

__all__ = ["registered"]
SMALL: Dict[str, Any] = {"num_envs": 4, "rollout_steps": 3, "batch_size": 8, "rollouts_per_epoch": 3, "passes": 4}


def filled(steps: int, capacity: int = 7) -> Tuple[ReplayBuffer, np.ndarray, List[List[Any]]]:
    """A buffer of two environments, their current observations, and all steps as (before, after, action, reward,
    terminated)."""
    rng, buffer = np.random.RandomState(0), ReplayBuffer(2, capacity, (3,), "float32", 1)
    steps_of: List[List[Any]] = [[], []]
    now = rng.randn(2, 3).astype(np.float32)
    for number in range(steps):
        action, reward, after = rng.randn(2, 1), rng.randn(2), rng.randn(2, 3).astype(np.float32)
        kind = [(number + environment) % 4 for environment in range(2)]  # 0: terminated, 1: truncated
        ended = {environment: kind[environment] == 0 for environment in range(2) if kind[environment] < 2}
        last = {environment: after[environment].copy() for environment in ended if not ended[environment]}
        buffer.add(now, action, list(reward), ended, last)
        for environment in range(2):
            step = (now[environment].copy(), after[environment].copy(), action[environment], reward[environment])
            steps_of[environment].append((*step, ended.get(environment, False)))
        begins = rng.randn(2, 3).astype(np.float32)
        now = np.where(np.array([environment in ended for environment in range(2)])[:, None], begins, after)
    return buffer, now, steps_of


@pytest.mark.parametrize("steps", [1, 5, 7, 8, 23])
def test_a_buffer_holds_the_last_steps_and_what_followed_each(steps: int) -> None:
    buffer, now, steps_of = filled(steps)
    held = min(steps, 7)
    assert len(buffer) == held
    drawn = buffer.draw(np.tile((np.arange(held) + 0.5) / held, (2, 1)), now)
    for environment in range(2):
        for age, (before, after, action, reward, terminated) in enumerate(reversed(steps_of[environment][-held:])):
            place = (environment, age)
            assert drawn.age[place] == age and drawn.is_terminated[place] == terminated
            np.testing.assert_array_equal(drawn.observation[place], before)
            np.testing.assert_array_equal(drawn.action[place], action.astype(np.float32))
            assert drawn.reward[place] == np.float32(reward)
            if not terminated:
                np.testing.assert_array_equal(drawn.next_observation[place], after)
    kept = sum(not step[4] and (n + e) % 4 == 1 for e in range(2) for n, step in list(enumerate(steps_of[e]))[-held:])
    assert len(buffer.last_observations(0)[0]) == kept, "those of overwritten steps are dropped"


@pytest.mark.parametrize("steps", [5, 23])
def test_a_restored_buffer_draws_the_same(steps: int) -> None:
    buffer, now, _ = filled(steps)
    rows, (places, observations) = buffer.arrays(), buffer.last_observations(3)
    assert (places[:, 0] >= 3).all() and rows["observations"].shape == (2, min(steps, 7) * 3)
    other = ReplayBuffer(2, 7, (3,), "float32", 1)
    other.load(rows, places, observations, buffer.num_steps, 3)
    uniform = np.random.RandomState(1).rand(2, 50)
    for found, wanted in zip(other.draw(uniform, now), buffer.draw(uniform, now)):
        np.testing.assert_array_equal(found, wanted)
    rows["rewards"][:] = 9
    assert (buffer.reward_EC != 9).all(), "what is saved is a copy"


def test_steps_are_drawn_uniformly_and_noise_is_normal() -> None:
    from scipy import stats

    buffer, now, _ = filled(23)
    rng = np.random.RandomState(0)
    drawn = buffer.draw(rng.rand(2, 7000), now)
    assert stats.chisquare(np.bincount(drawn.age.ravel(), minlength=7)).pvalue > 0.001
    assert stats.kstest(standard_normal(rng.rand(5000), rng.rand(5000)), "norm").pvalue > 0.001


class Network:
    """Stands for a strategy, with a policy that is a product, and its target."""

    objective, layout = SimpleNamespace(predict_shape=(1,), input_shape=(1,)), SimpleNamespace(num_stages=2)

    def __init__(self, num_inputs: int, num_outputs: int):
        weight = 0.1 * np.random.RandomState(0).randn(num_inputs, num_outputs)
        names = ("policy.weight", "critics.weight", "target.weight")
        self.values = {name: nd.array(weight + 0.01 * number) for number, name in enumerate(names)}
        self.published: List[str] = []

    def predict(self, inputs: Any) -> Any:
        return (nd.dot(inputs[0].reshape((inputs[0].shape[0], -1)), self.values["policy.weight"]),)

    def publish(self, names: List[str]) -> None:
        self.published = names


def loader_of(
    loss: ReplayAlgorithm, world: Optional[World] = None, batch: Optional[int] = None, **settings: Any
) -> ReplayLoader:
    model = QNetwork() if isinstance(loss, DeepQLoss) else SoftActorCritic()
    dataset = Gymnasium(**{**SMALL, **settings}).for_run(TargetKind, model, loss)
    splits = dataset.open()
    options = LoaderOptions(batch_size=batch or dataset.batch_size, seed=3, train=True, world=world or World())
    loader = dataset.build_loader(splits.train, dataset.infer_signature(splits, model), options)  # type: ignore[arg-type]
    assert isinstance(loader, ReplayLoader)
    return loader


def network_of(loader: ReplayLoader) -> Network:
    spaces = loader._source.spaces
    return Network(int(np.prod(spaces.shape)), spaces.actions.num_outputs)


def batches(loader: ReplayLoader, start: int = 0, count: int = 99, network: Optional[Network] = None) -> List[Any]:
    found = []
    for batch in loader.epoch(0, start, Consumer([network or network_of(loader)])):  # type: ignore[list-item]
        found.append([array.asnumpy() for array in (*batch.inputs, *batch.targets)])
        if len(found) == count:
            break
    return found


DQN = DeepQLoss(learning_starts=20, buffer_size=60, epsilon_steps=40)
SAC = SoftActorCriticLoss(learning_starts=20, buffer_size=60)
both = pytest.mark.parametrize(
    "loss, settings",
    [
        (DQN, {}),
        (DQN, {"id": "Counting-v0", "max_episode_steps": 3, "normalize_rewards": True}),
        (DQN, {"id": "Looking-v0"}),
        (SAC, {"id": "Pendulum-v1", "max_episode_steps": 5}),
    ],
)


@both
def test_batches_do_not_depend_on_the_assignment_of_environments(loss: Any, settings: Any) -> None:
    settings = {**settings, "normalize_rewards": False}
    whole = batches(loader_of(loss, **settings), count=8)
    parts = [batches(loader_of(loss, World(rank, 3), **settings), count=8) for rank in range(3)]
    for number, arrays in enumerate(whole):
        for place, wanted in enumerate(arrays):
            found = np.concatenate([part[number][place] for part in parts])
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stop", [1, 3, 5, 6, 11])
@both
def test_resumed_batches_are_bit_exact(loss: Any, settings: Any, stop: int) -> None:
    whole = batches(loader_of(loss, **settings))
    assert len(whole) == 3 * 4 * 4 * 3 // 8
    first = loader_of(loss, **settings)
    batches(first, count=stop)
    arrays, _ = first.collector.save_state()
    assert all(array.size and array.ndim and array.dtype != bool for array in arrays.values())
    second = loader_of(loss, **settings)
    second.collector.load_state(dict(arrays), {}, "a checkpoint")
    again, _ = second.collector.save_state()
    assert {key: array.tolist() for key, array in again.items()} == {k: a.tolist() for k, a in arrays.items()}
    for found, wanted in zip(batches(second, start=stop), whole[stop:]):
        for one, other in zip(found, wanted):
            np.testing.assert_array_equal(one, other)


def test_a_batch_has_a_step_of_each_environment_at_least() -> None:
    """Exports read training batches of the size of evaluations."""
    (arrays,) = batches(loader_of(DQN, batch=2), count=1)
    assert [len(array) for array in arrays] == [4, 4, 4]


def test_facts_of_a_batch_equal_the_environment() -> None:
    """Counting-v0: observations are (start, step, sum of actions), the reward is the step, an episode has 5 steps."""
    loader = loader_of(DQN, id="Counting-v0", gamma=0.75, passes=8)
    ended = 0.0
    for observation, following, facts in batches(loader):
        column = {name: facts[:, number] for number, name in enumerate(REPLAY_FACTS)}
        np.testing.assert_array_equal(column["reward"], observation[:, 1] + 1)
        over = observation[:, 1] == 4
        np.testing.assert_array_equal(column["terminated"], over)
        np.testing.assert_array_equal(column["discount"], np.where(over, 0, 0.75))
        np.testing.assert_array_equal(following[~over, 1], observation[~over, 1] + 1)
        np.testing.assert_array_equal(following[~over, 2], (observation[:, 2] + facts[:, NUM_FACTS])[~over])
        assert (column["length"] == 5 * column["ended"]).all() and (column["return"] == 15 * column["ended"]).all()
        ended += column["ended"].sum()
    assert ended == 4 * ((5 + 3 * 3) // 5), "each episode is counted once, also those of the random steps"


def test_the_first_steps_are_random_and_epsilon_falls() -> None:
    always = DeepQLoss(learning_starts=40, buffer_size=400, epsilon_start=0.0, epsilon_end=0.0)
    loader = loader_of(always, id="Counting-v0", rollouts_per_epoch=20)
    network = network_of(loader)
    network.values["policy.weight"][:] = nd.array([[-1.0, 1.0]] * 3)
    batches(loader, network=network)
    taken = loader.collector.buffer.action_EC[:, : loader.collector.buffer.num_steps, 0]
    assert 0.2 < taken[:, :10].mean() < 0.8 and (taken[:, 10:] == 1).all(), "learning_starts=40 are 10 of each"
    half = DeepQLoss(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100)
    assert [half.epsilon_at(steps) for steps in (0, 50, 100, 900)] == pytest.approx([0.8, 0.5, 0.2, 0.2])
    actions = Actions(count=4, head="action_values")
    chosen = half.explore(actions, np.tile([[0.0, 0, 9, 0]], (4000, 1)), np.random.RandomState(0).rand(4000, 2), 50)
    shares = np.bincount(chosen[:, 0].astype(int)) / 4000
    np.testing.assert_allclose(shares, [0.125, 0.125, 0.625, 0.125], atol=0.03)


def test_a_target_network_follows() -> None:
    network = Network(3, 2)
    before = {name: array.asnumpy() for name, array in network.values.items()}
    update_target([network], "critics", 0.25)  # type: ignore[list-item]
    wanted = 0.75 * before["target.weight"] + 0.25 * before["critics.weight"]
    np.testing.assert_allclose(network.values["target.weight"].asnumpy(), wanted, rtol=1e-6)
    assert network.published == ["target.weight"]
    update_target([network], "policy", 1.0)  # type: ignore[list-item]
    np.testing.assert_array_equal(network.values["target.weight"].asnumpy(), before["policy.weight"])
    np.testing.assert_array_equal(network.values["policy.weight"].asnumpy(), before["policy.weight"])
    network.values["target.observation_mean"] = nd.ones((3,))  # there is no critics.observation_mean to follow
    update_target([network], "critics", 1.0)  # type: ignore[list-item]
    assert network.values["target.observation_mean"].asnumpy().tolist() == [1, 1, 1]


def test_a_target_network_that_follows_slowly_is_a_copy_at_first() -> None:
    loader = loader_of(SoftActorCriticLoss(learning_starts=20, buffer_size=60), id="Pendulum-v1")
    network = network_of(loader)
    batches(loader, count=1, network=network)
    target, critics = (network.values[f"{name}.weight"].asnumpy() for name in ("target", "critics"))
    np.testing.assert_array_equal(target, critics)


def test_the_target_network_is_a_copy_at_first_and_then_follows_at_its_interval() -> None:
    loss = DeepQLoss(learning_starts=20, buffer_size=60, target_interval=3)
    loader = loader_of(loss)
    network, equal = network_of(loader), []
    for number, _ in enumerate(loader.epoch(0, 0, Consumer([network]))):  # type: ignore[list-item]
        target, policy = (network.values[f"{name}.weight"].asnumpy() for name in ("target", "policy"))
        equal.append(bool((target == policy).all()))
        network.values["policy.weight"] += 1.0
        if number == 6:
            break
    assert equal == [True, False, False, True, False, False, True]


def test_a_buffer_of_another_run_is_refused() -> None:
    loader = loader_of(DQN)
    batches(loader, count=2)
    arrays, _ = loader.collector.save_state()
    for settings in ({"num_envs": 8}, {"id": "Counting-v0"}):
        with pytest.raises(CheckpointError):
            loader_of(DQN, **settings).collector.load_state(dict(arrays), {}, "a checkpoint")
    smaller = loader_of(DeepQLoss(learning_starts=20, buffer_size=24))
    with pytest.raises(CheckpointError, match="a replay buffer of other environments, or of another number or length"):
        smaller.collector.load_state(dict(arrays), {}, "a checkpoint")


def test_a_buffer_larger_than_the_memory_is_refused(monkeypatch: Any) -> None:
    """Looking-v0 shows 4 x 5 x 3 bytes: with an action and 5 bytes, 69 each step."""
    large = DeepQLoss(learning_starts=20, buffer_size=1000)
    for memory, world in ((69_000, None), (35_000, World(0, 2))):
        monkeypatch.setattr(replay_loader, "usable_memory", lambda memory=memory: memory)
        loader_of(large, world, id="Looking-v0")
    monkeypatch.setattr(replay_loader, "usable_memory", lambda: 68_999)
    with pytest.raises(ConfigError, match="of 3 x 4 x 5 numbers take 67.38 KiB.* Type loss.buffer_size=499 or less"):
        loader_of(large, id="Looking-v0")


def test_changed_number_of_workers_starts_a_new_buffer() -> None:
    loader = loader_of(DQN)
    batches(loader, count=2)
    loader.world = World(0, 2)
    found = batches(loader, start=6, count=1)
    assert len(found[0][0]) == 4 and loader.collector.buffer.num_steps == 5 + 3


def test_statistics_of_rewards_scale_what_is_drawn() -> None:
    plain, scaled = (loader_of(DQN, id="Counting-v0", normalize_rewards=value) for value in (False, True))
    (first,), (second,) = (batches(loader, count=1) for loader in (plain, scaled))
    deviation = np.sqrt(scaled.collector._moments["return"].variance)
    assert deviation > 1
    np.testing.assert_allclose(second[2][:, 0], first[2][:, 0] / deviation, rtol=1e-5)


def test_all_parts_of_a_network_have_the_statistics_of_observations() -> None:
    loader = loader_of(DeepQLoss(learning_starts=20, buffer_size=60, target_interval=1))
    network = network_of(loader)
    parts = ("policy.features.0", "target.features.0")
    for part in parts:
        network.values[f"{part}.observation_mean"], network.values[f"{part}.observation_variance"] = (
            nd.zeros((4,)),
            nd.ones((4,)),
        )
    batches(loader, network=network, count=7)  # with the statistics before the last roll-out
    seen = loader.collector.buffer.observation_EC[:, : loader.collector.buffer.num_steps - 3].reshape((-1, 4))
    for part in parts:
        mean, variance = (network.values[f"{part}.observation_{name}"].asnumpy() for name in ("mean", "variance"))
        np.testing.assert_allclose(mean, seen.mean(axis=0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(variance, seen.var(axis=0), rtol=1e-4)
