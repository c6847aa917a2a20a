"""Advantages, running statistics, policies and their losses against plain NumPy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, nd
from mxtrain.errors import DamagedCheckpoint
from mxtrain.reinforcement.action_limits import ActionLimits
from mxtrain.reinforcement.advantages import discounted_sums, generalised_advantages
from mxtrain.reinforcement.losses import PolicyLoss, ProximalPolicyLoss, episode_loss
from mxtrain.reinforcement.metrics import (
    ApproximateDivergence,
    EpisodeLength,
    EpisodeReturn,
    ExplainedVariance,
    PolicyEntropy,
)
from mxtrain.reinforcement.moments import RunningMoments
from mxtrain.reinforcement.policy import FACTS, NUM_FACTS, Actions
from mxtrain.reinforcement.signature import ActionSignature

DISCRETE, GAUSSIAN, SEVERAL = Actions(count=3), Actions(size=2), Actions(7, 3, (2, 4, 1))
both = pytest.mark.parametrize(
    "actions", [DISCRETE, GAUSSIAN, SEVERAL], ids=["discrete", "gaussian", "several_components"]
)


def test_advantages_are_weighted_sums_of_errors_up_to_the_end_of_the_episode() -> None:
    rng, gamma, weight = np.random.RandomState(0), 0.9, 0.7
    reward, value, following = (rng.randn(12, 3) for _ in range(3))
    ended = (rng.rand(12, 3) < 0.2).astype(float)
    found = generalised_advantages(reward, value, following, ended, gamma, weight)
    for environment in range(3):
        for step in range(12):
            wanted, factor = 0.0, 1.0
            for later in range(step, 12):  # equation 16 of the paper, term by term
                place = (later, environment)
                wanted += factor * (reward[place] + gamma * following[place] - value[place])
                factor *= gamma * weight
                if ended[place]:
                    break
            assert found[step, environment] == pytest.approx(wanted, rel=1e-12)


def test_discounted_sums_continue_from_roll_out_to_roll_out_and_start_again_behind_an_end() -> None:
    reward, ended = np.array([[1.0], [2.0], [4.0], [8.0]]), np.array([[0.0], [0.0], [1.0], [0.0]])
    whole, left = discounted_sums(reward, ended, np.array([16.0]), 0.5)
    assert whole.ravel().tolist() == [9.0, 6.5, 7.25, 8.0] and left.tolist() == [8.0]
    first, between = discounted_sums(reward[:3], ended[:3], np.array([16.0]), 0.5)
    second, _ = discounted_sums(reward[3:], ended[3:], between, 0.5)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)


def test_running_moments_match_all_rows_of_all_workers() -> None:
    rng = np.random.RandomState(0)
    parts = [[1e4 + rng.randn(size, 2) * 3 for size in sizes] for sizes in ((5, 1, 7), (2, 4, 0))]
    moments = RunningMoments((2,))
    for mine, theirs in zip(*parts):
        answers = iter([[len(theirs), *theirs.sum(axis=0)], None])

        def total(values: Any, theirs: np.ndarray = theirs, mine: np.ndarray = mine, answers: Any = answers) -> Any:
            other = next(answers)
            if other is None:
                mean = np.concatenate([mine, theirs]).mean(axis=0)
                other = ((theirs - mean) ** 2).sum(axis=0)
            return np.asarray(values) + other

        moments.update(mine, total)
    rows = np.concatenate([*parts[0], *parts[1]])
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(moments.variance, rows.var(axis=0), rtol=1e-9)
    again = RunningMoments((2,))
    assert again.variance.tolist() == [1, 1]
    again.load(moments.arrays())
    np.testing.assert_array_equal(again.variance, moments.variance)


def example(actions: Actions, count: int = 40) -> Any:
    """Outputs, and facts with actions behind them."""
    rng = np.random.RandomState(1)
    output = rng.uniform(-1.5, 1.5, (count, actions.num_outputs)).astype(np.float32)
    facts = rng.randn(count, NUM_FACTS + actions.size).astype(np.float32)
    if actions.count:
        for part, choices in enumerate(actions.choices):
            facts[:, NUM_FACTS + part] = rng.randint(0, choices, count)
    return output, facts


def log_p_by_hand(actions: Actions, output: np.ndarray, taken: np.ndarray) -> np.ndarray:
    output = output.astype(np.float64)
    if actions.count:
        rows, begin, log_p = np.arange(len(output)), 0, np.zeros(len(output))
        for part, choices in enumerate(actions.choices):
            p = np.exp(output[:, begin : begin + choices])
            log_p, begin = log_p + np.log(p[rows, taken[:, part].astype(int)] / p.sum(axis=1)), begin + choices
        return log_p
    mean, deviation = output[:, :2], np.exp(output[:, 2:4])
    density = np.exp(-((taken - mean) ** 2) / (2 * deviation**2)) / (deviation * np.sqrt(2 * np.pi))
    return np.log(density).sum(axis=1)


def entropy_by_hand(actions: Actions, output: np.ndarray) -> np.ndarray:
    output = output.astype(np.float64)
    if actions.count:
        begin, entropy = 0, np.zeros(len(output))
        for choices in actions.choices:
            p = np.exp(output[:, begin : begin + choices])
            p = p / p.sum(axis=1, keepdims=True)
            entropy, begin = entropy - (p * np.log(p)).sum(axis=1), begin + choices
        return entropy
    return (0.5 * np.log(2 * np.pi * np.e * np.exp(2 * output[:, 2:4]))).sum(axis=1)


@both
def test_log_p_entropy_and_value_are_the_formulas_on_the_host_and_on_the_device(actions: Actions) -> None:
    output, facts = example(actions)
    wanted = log_p_by_hand(actions, output, facts[:, NUM_FACTS:])
    np.testing.assert_allclose(actions.log_probability_of(output, facts[:, NUM_FACTS:]), wanted, rtol=1e-4, atol=1e-5)
    on_device = actions.log_probability(nd, nd.array(output), nd.array(facts)).asnumpy()
    np.testing.assert_allclose(on_device, wanted, rtol=1e-4, atol=1e-5)
    entropy = actions.entropy(nd, nd.array(output)).asnumpy()
    np.testing.assert_allclose(entropy, entropy_by_hand(actions, output), rtol=1e-5)
    np.testing.assert_array_equal(actions.value(nd, nd.array(output)).asnumpy(), output[:, -1])
    assert len(actions.names()) == actions.num_outputs and Actions.from_json(dict(actions.to_json())) == actions


def losses_by_hand(actions: Actions, output: np.ndarray, facts: np.ndarray, clip: Any) -> np.ndarray:
    column = {name: facts[:, number].astype(np.float64) for number, name in enumerate(FACTS)}
    log_p = log_p_by_hand(actions, output, facts[:, NUM_FACTS:])
    if clip is None:
        gain = log_p * column["advantage"]
    else:
        ratio = np.exp(log_p - column["log_probability"])
        clipped = np.clip(ratio, 1 - clip, 1 + clip)
        gain = np.minimum(ratio * column["advantage"], clipped * column["advantage"])
    error = (output[:, -1] - column["value_target"]) ** 2
    return -gain + 0.4 * error - 0.1 * entropy_by_hand(actions, output)


@both
@pytest.mark.parametrize("clip", [None, 0.3], ids=["a2c", "ppo"])
def test_losses_and_their_gradients_equal_the_formulas(actions: Actions, clip: Any) -> None:
    output, facts = example(actions)
    facts[:, 0] = log_p_by_hand(actions, output, facts[:, NUM_FACTS:]) + 0.4 * np.random.RandomState(2).randn(40)
    options: Any = {"value_coefficient": 0.4, "entropy_coefficient": 0.1}
    spec = PolicyLoss(**options) if clip is None else ProximalPolicyLoss(clip_range=clip, **options)
    block = spec.build_for(actions)
    block.hybridize()
    given = nd.array(output)
    given.attach_grad()
    with autograd.record():
        found = block(given, nd.array(facts))
    np.testing.assert_allclose(found.asnumpy(), losses_by_hand(actions, output, facts, clip), rtol=2e-4, atol=1e-4)
    found.backward()
    step = 1e-6
    for column in range(output.shape[1]):
        shift = np.zeros(output.shape)
        shift[:, column] = step
        high, low = (losses_by_hand(actions, output + sign * shift, facts, clip) for sign in (1, -1))
        wanted = (high - low) / (2 * step)
        np.testing.assert_allclose(given.grad.asnumpy()[:, column], wanted, rtol=2e-3, atol=2e-3)


def test_the_loss_of_an_episode_is_minus_its_return() -> None:
    _, facts = example(DISCRETE)
    found = episode_loss(nd, nd.array(facts)).asnumpy()
    np.testing.assert_array_equal(found, -facts[:, FACTS.index("return")])


@both
def test_metrics_equal_the_formulas(actions: Actions) -> None:
    output, facts = example(actions)
    facts[:, 0] = log_p_by_hand(actions, output, facts[:, NUM_FACTS:]) + 0.1
    ended = np.arange(40) % 8 == 0
    facts[:, [FACTS.index(name) for name in ("return", "length")]] *= ended[:, None]
    facts[:, FACTS.index("ended")] = ended

    def value(metric: Any, rows: np.ndarray = facts) -> float:
        sums = metric.measure(nd, [nd.array(output)], [nd.array(rows)], actions.num_outputs)
        return metric.value(sums.asnumpy().astype(np.float64), len(rows))

    assert value(EpisodeReturn()) == pytest.approx(facts[ended, FACTS.index("return")].mean(), rel=1e-5)
    assert value(EpisodeLength()) == pytest.approx(facts[ended, FACTS.index("length")].mean(), rel=1e-5)
    none = facts.copy()
    none[:, FACTS.index("return") :] = 0
    assert np.isnan(value(EpisodeReturn(), none)), "no episode has ended"
    assert value(PolicyEntropy(actions=actions)) == pytest.approx(entropy_by_hand(actions, output).mean(), rel=1e-4)
    assert value(ApproximateDivergence(actions=actions)) == pytest.approx(np.exp(-0.1) - 1 + 0.1, rel=1e-2)
    target, thought = (facts[:, FACTS.index(name)].astype(np.float64) for name in ("value_target", "value"))
    wanted = 1 - (target - thought).var() / target.var()
    assert value(ExplainedVariance(actions=actions)) == pytest.approx(wanted, rel=1e-4)


def test_choices_have_the_probabilities_of_the_policy() -> None:
    from scipy import stats

    rng, count = np.random.RandomState(3), 20000
    noise = -np.log(-np.log(rng.rand(count, 3)))
    output = np.tile(np.array([[0.5, -0.3, 1.0, 9.0]], np.float32), (count, 1))
    chosen = DISCRETE.choose(output, noise)[:, 0].astype(int)
    p = np.exp(output[0, :3]) / np.exp(output[0, :3]).sum()
    assert stats.chisquare(np.bincount(chosen), p * count).pvalue > 0.001
    assert (DISCRETE.choose(output, np.zeros((count, 3))) == 2).all()
    output = np.tile(np.array([[0.5, -1.0, 0.2, -0.7, 9.0]], np.float32), (count, 1))
    drawn = GAUSSIAN.choose(output, rng.randn(count, 2))
    np.testing.assert_allclose(drawn.mean(axis=0), [0.5, -1.0], atol=0.05)
    np.testing.assert_allclose(drawn.std(axis=0), np.exp([0.2, -0.7]), rtol=0.03)


def test_order_of_facts_is_stable() -> None:
    """A roll-out of one version is learned from by the next."""
    assert FACTS == ("log_probability", "advantage", "value_target", "value", "return", "length", "ended")


def test_actions_of_several_components_are_chosen_one_by_one() -> None:
    output = np.array([[0.0, 1, 5, 4, 3, 2, -9, 8], [2, 1, 3, 4, 9, 2, -9, 8]], np.float32)
    chosen = SEVERAL.choose(output, np.zeros((2, 7), np.float32))
    assert chosen.tolist() == [[1, 0, 0], [0, 2, 0]] and chosen.dtype == np.float32
    limits = ActionLimits(shape=(3,), dtype="int32", starts=(0, 10, 0))
    limits = ActionLimits.from_json(json.loads(json.dumps(limits.to_json())))
    found = limits.actions_for(SEVERAL, chosen)
    assert [action.tolist() for action in found] == [[1, 10, 0], [0, 12, 0]] and found[0].dtype == np.int32
    drawn = SEVERAL.draw(np.random.RandomState(0).rand(4000, 3))
    np.testing.assert_allclose(np.bincount(drawn[:, 1].astype(int)) / 4000, [0.25] * 4, atol=0.03)
    assert set(drawn[:, 2]) == {0} and set(drawn[:, 0]) == {0, 1}
    estimated = SEVERAL.estimates(output[0])
    assert estimated["value"] == 8 and [len(shares) for shares in estimated["probabilities"]] == [2, 4, 1]
    assert estimated["probabilities"][0] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)], abs=1e-6)
    names = ["score 0.0", "score 0.1", "score 1.0", "score 1.1", "score 1.2", "score 1.3", "score 2.0", "value"]
    assert SEVERAL.names() == names


def test_heads_have_their_own_outputs() -> None:
    valued, squashed = Actions(3, head="action_values"), Actions(size=2, head="squashed_gaussian")
    assert valued.names() == ["value 0", "value 1", "value 2"] and squashed.num_outputs == 4
    assert valued.estimates(np.array([0.5, 2.0, -1.0])) == {"value": 2.0, "action_values": [0.5, 2.0, -1.0]}
    assert squashed.estimates(np.zeros(4)) == {}
    for actions in (valued, squashed):
        assert Actions.from_json(json.loads(json.dumps(actions.to_json()))) == actions


@pytest.mark.parametrize(
    "values", [{"head": "unknown"}, {"parts": [2, 2]}, {"parts": [3]}, {"count": 0, "size": 1, "parts": [2]}]
)
def test_contradictory_actions_of_a_checkpoint_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="there are no such actions"):
        Actions.from_json({"count": 3, "size": 2, **values})
    signature = {**ActionSignature((4,), actions=DISCRETE).to_json(), "actions": {"count": 3, "size": 2, **values}}
    with pytest.raises(DamagedCheckpoint, match="there are no such actions"):
        ActionSignature.from_json(signature)
