"""DQN and SAC: networks, losses and gradients against plain NumPy in float64."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.parameters import distinct_parameters
from mxtrain.reinforcement.action_limits import ActionLimits
from mxtrain.reinforcement.dqn import DeepQLoss
from mxtrain.reinforcement.metrics import PolicyMetric
from mxtrain.reinforcement.model import QNetwork, SoftActorCritic
from mxtrain.reinforcement.policy import NUM_FACTS, Actions
from mxtrain.reinforcement.sac import SoftActorCriticLoss

Values = Dict[str, np.ndarray]
CHOICES, NUMBERS = Actions(count=3, head="action_values"), Actions(size=2, head="squashed_gaussian")
SHAPE, BATCH, STEP = (4,), 6, 1e-6


def facts_of(actions: Actions) -> np.ndarray:
    rng = np.random.RandomState(5)
    facts = np.zeros((BATCH, NUM_FACTS + actions.size), np.float32)
    facts[:, 0] = rng.randn(BATCH) * 2
    facts[:, 1] = [0.9, 0, 0.9, 0.9, 0, 0.9]
    facts[:, NUM_FACTS:] = rng.randint(0, 3, (BATCH, 1)) if actions.count else rng.uniform(-1, 1, (BATCH, actions.size))
    return facts


def doubles(array: np.ndarray) -> Any:
    return nd.array(array, dtype="float64")


def prepared(network: gluon.Block) -> Tuple[Dict[str, gluon.Parameter], Values]:
    """Random values of all parameters in float64, so that no two parts are equal and rounding hides no error."""
    infer_shapes(network, SHAPE)
    network.cast("float64")
    parameters, rng = distinct_parameters(network), np.random.RandomState(2)
    network.initialize()
    network.hybridize()
    for parameter in parameters.values():
        parameter.set_data(doubles(rng.uniform(-0.8, 0.8, parameter.shape)))
    return parameters, {name: parameter.data().asnumpy() for name, parameter in parameters.items()}


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def by_layers(values: Values, part: str, x: np.ndarray) -> np.ndarray:
    hidden = relu(x @ values[f"{part}.hidden.0.weight"].T + values[f"{part}.hidden.0.bias"])
    return hidden @ values[f"{part}.output.weight"].T + values[f"{part}.output.bias"]


def require_gradients(
    parameters: Dict[str, gluon.Parameter], values: Values, loss_of: Callable[[Values, Values], float]
) -> None:
    """Compares gradients with differences of `loss_of(variable, constant)`, where a loss sees some values as
    constants."""
    rng = np.random.RandomState(7)
    for name, parameter in parameters.items():
        if parameter.grad_req == "null":
            continue
        found, direction = parameter.grad().asnumpy(), rng.randn(*parameter.shape)
        high, low = ({**values, name: values[name] + sign * STEP * direction} for sign in (1, -1))
        wanted = (loss_of(high, values) - loss_of(low, values)) / (2 * STEP)
        assert (found * direction).sum() == pytest.approx(wanted, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("double, limit", [(True, None), (False, None), (True, 1.0), (True, 0.5)])
def test_dqn_equals_the_formula(double: bool, limit: Any) -> None:
    loss, model = DeepQLoss(double=double, error_limit=limit), QNetwork(hidden=[5])
    network = loss.build_network(lambda: model.build_policy(CHOICES, SHAPE), CHOICES, SHAPE)
    parameters, values = prepared(network)
    assert {name for name, one in parameters.items() if one.grad_req == "null"} == {
        name for name in parameters if name.startswith("target.")
    }
    rng = np.random.RandomState(1)
    x, following = rng.randn(BATCH, 4) * 3, rng.randn(BATCH, 4) * 3
    facts = facts_of(CHOICES)
    rows, taken, errors = np.arange(BATCH), facts[:, NUM_FACTS].astype(int), np.zeros(BATCH)

    def loss_by_hand(now: Values, constant: Values) -> np.ndarray:
        target_values = by_layers(constant, "target", following)
        chosen = (by_layers(constant, "policy", following) if double else target_values).argmax(axis=1)
        target = facts[:, 0] + facts[:, 1].astype(np.float64) * target_values[rows, chosen]
        error = by_layers(now, "policy", x)[rows, taken] - target
        errors[:] = error
        if limit is None:
            return 0.5 * error**2
        return np.where(np.abs(error) < limit, 0.5 * error**2, limit * (np.abs(error) - 0.5 * limit))

    with autograd.record():
        output = network(doubles(x), doubles(following))
        found = loss.build_for(CHOICES)(output, doubles(facts))
    wanted = loss_by_hand(values, values)
    mean_error = np.abs(errors).mean()
    assert (np.abs(errors) < 0.5).any() and (np.abs(errors) > 1).any(), "both parts of Huber's loss"
    np.testing.assert_allclose(found.asnumpy(), wanted, rtol=1e-9, atol=1e-12)
    found.backward()
    require_gradients(parameters, values, lambda now, constant: float(loss_by_hand(now, constant).sum()))
    np.testing.assert_allclose(network(doubles(x)).asnumpy(), by_layers(values, "policy", x), rtol=1e-9, atol=1e-12)
    metrics = loss.metrics(CHOICES)
    mean = by_layers(values, "policy", x)[rows, taken].mean()
    assert measured(metrics["action_value"], output, facts) == pytest.approx(mean, rel=1e-9)
    assert measured(metrics["td_error"], output, facts) == pytest.approx(mean_error, rel=1e-9)


def measured(metric: Any, output: Any, facts: np.ndarray) -> float:
    assert isinstance(metric, PolicyMetric)
    sums = metric.measure(nd, [output], [doubles(facts)], 3)
    return metric.value(sums.asnumpy().astype(np.float64), BATCH)


def critics_by_hand(values: Values, part: str, x: np.ndarray, action: np.ndarray) -> np.ndarray:
    joined, found = np.concatenate([x, action], axis=1), []
    for critic in range(2):
        weights = [values[f"{part}.critic{critic}_{layer}_{role}"] for layer in (0, 1) for role in ("weight", "bias")]
        found.append((relu(joined @ weights[0].T + weights[1]) @ weights[2].T + weights[3])[:, 0])
    return np.stack(found)


def draw_by_hand(values: Values, x: np.ndarray, noise: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """An action and its log p, by the density of a Gaussian and the slope of tanh."""
    output = by_layers(values, "policy", x)
    mean, deviation = output[:, :2], np.exp(np.clip(output[:, 2:], -20, 2))
    raw = mean + deviation * noise
    density = np.exp(-((raw - mean) ** 2) / (2 * deviation**2)) / (deviation * np.sqrt(2 * np.pi))
    return np.tanh(raw), (np.log(density) - np.log(1 - np.tanh(raw) ** 2)).sum(axis=1)


@pytest.mark.parametrize("entropy_target", ["auto", 0.3])
def test_sac_equals_the_formula(entropy_target: Any) -> None:
    loss, model = SoftActorCriticLoss(entropy_target=entropy_target), SoftActorCritic(hidden=[5])
    network = loss.build_network(lambda: model.build_policy(NUMBERS, SHAPE), NUMBERS, SHAPE)
    parameters, values = prepared(network)
    rng = np.random.RandomState(1)
    x, following = rng.randn(BATCH, 4), rng.randn(BATCH, 4)
    facts, noise = facts_of(NUMBERS), 0.5 * rng.randn(BATCH, 4)
    action, target_entropy = facts[:, NUM_FACTS:].astype(np.float64), -2.0 if entropy_target == "auto" else 0.3

    def loss_by_hand(now: Values, constant: Values) -> np.ndarray:
        next_action, next_log_p = draw_by_hand(constant, following, noise[:, 2:])
        temperature = np.exp(constant["log_temperature"][0, 0])
        next_value = critics_by_hand(constant, "target", following, next_action).min(axis=0)
        target = facts[:, 0] + facts[:, 1].astype(np.float64) * (next_value - temperature * next_log_p)
        critics = 0.5 * ((critics_by_hand(now, "critics", x, action) - target) ** 2).sum(axis=0)
        policy_action, log_p = draw_by_hand(now, x, noise[:, :2])
        policy = temperature * log_p - critics_by_hand(constant, "critics", x, policy_action).min(axis=0)
        _, constant_log_p = draw_by_hand(constant, x, noise[:, :2])
        return critics + policy - now["log_temperature"][0, 0] * (constant_log_p + target_entropy)

    with autograd.record():
        output = network(doubles(x), doubles(following), doubles(action), doubles(noise))
        found = loss.build_for(NUMBERS)(output, doubles(facts))
    np.testing.assert_allclose(found.asnumpy(), loss_by_hand(values, values), rtol=1e-9, atol=1e-12)
    found.backward()
    require_gradients(parameters, values, lambda now, constant: float(loss_by_hand(now, constant).sum()))
    np.testing.assert_allclose(network(doubles(x)).asnumpy(), by_layers(values, "policy", x), rtol=1e-9, atol=1e-12)
    metrics = loss.metrics(NUMBERS)
    assert measured(metrics["temperature"], output, facts) == pytest.approx(
        np.exp(values["log_temperature"][0, 0]), rel=1e-9
    )
    entropy = -draw_by_hand(values, x, noise[:, :2])[1].mean()
    assert measured(metrics["policy_entropy"], output, facts) == pytest.approx(entropy, rel=1e-9)
    mean = critics_by_hand(values, "critics", x, action)[0].mean()
    assert measured(metrics["action_value"], output, facts) == pytest.approx(mean, rel=1e-9)


def test_log_p_of_large_numbers_is_finite() -> None:
    network = SoftActorCritic(hidden=[5]).build_policy(NUMBERS, SHAPE)
    output = mx.nd.array([[30.0, -30.0, 0.0, 0.0]])
    action, log_p = network._draw(nd, output, nd.zeros((1, 2)))
    assert action.asnumpy().tolist() == [[1, -1]]
    # log(1 - tanh(30)^2) = log(4) - 60 to the last digit.
    assert float(log_p.asscalar()) == pytest.approx(-np.log(2 * np.pi) - 2 * (np.log(4) - 60), rel=1e-6)


def test_the_temperature_begins_at_its_setting_and_limits_are_reached() -> None:
    network = SoftActorCritic(hidden=[5], initial_temperature=0.25).build_policy(NUMBERS, SHAPE)
    network.initialize()
    assert float(network.log_temperature.data().asscalar()) == pytest.approx(np.log(0.25))
    limits = ActionLimits(0, np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32), (2,), "float32")
    actions = limits.actions_for(NUMBERS, np.array([[-1, -1], [0, 0.5], [1, 1]], np.float32))
    np.testing.assert_allclose(actions, [[-3, 0], [-1, 7.5], [1, 10]])
    beyond = limits.actions_for(Actions(size=2), np.array([[-9, -9], [9, 99]], np.float32))  # of a normal distribution
    np.testing.assert_allclose(beyond, [[-3, 0], [1, 10]])
    drawn = NUMBERS.draw(np.array([[0.0, 0.5], [0.25, 1.0]]))
    np.testing.assert_allclose(drawn, [[-1, 0], [-0.5, 1]])


def test_a_target_network_with_the_same_names_of_parameters_is_refused() -> None:
    """MXNet would take both for one parameter."""
    with pytest.raises(ConfigError, match="have the same names of parameters"):
        DeepQLoss().build_network(lambda: gluon.nn.Dense(3, prefix="same_"), CHOICES, SHAPE)


def test_exploration_of_sac_is_the_policy_with_noise() -> None:
    output = np.tile(np.array([[0.3, -0.2, -1.0, -2.0]], np.float32), (20000, 1))
    found = SoftActorCriticLoss().explore(NUMBERS, output, np.random.RandomState(0).rand(20000, 4), 0)
    raw = np.arctanh(found.astype(np.float64))
    np.testing.assert_allclose(raw.mean(axis=0), [0.3, -0.2], atol=0.01)
    np.testing.assert_allclose(raw.std(axis=0), np.exp([-1.0, -2.0]), rtol=0.03)
    still = NUMBERS.choose(output[:1], np.zeros((1, 2), np.float32))
    np.testing.assert_allclose(still, np.tanh([[0.3, -0.2]]), rtol=1e-6)


@pytest.mark.parametrize(
    "loss, actions, limits, said",
    [
        (DeepQLoss(), Actions(6, 2, (2, 4)), ActionLimits(), "of several components"),
        (DeepQLoss(), Actions(size=2), ActionLimits(), "loss=sac model=soft_actor_critic"),
        (SoftActorCriticLoss(), Actions(3), ActionLimits(), "its actions are choices"),
        (
            SoftActorCriticLoss(),
            Actions(size=1),
            ActionLimits(low=np.array([-np.inf]), high=np.array([1.0])),
            "no finite limits",
        ),
    ],
)
def test_unsupported_actions_are_named(loss: Any, actions: Actions, limits: ActionLimits, said: str) -> None:
    assert said in loss.unsupported_reason(actions, limits)


def test_action_values_begin_with_uniform_weights_and_biases_and_the_policy_of_sac_with_biases_of_zero() -> None:
    """Within +- 1 / sqrt(inputs), as PyTorch's layers have them."""
    network = QNetwork(hidden=[400, 900]).build_policy(CHOICES, SHAPE)
    infer_shapes(network, SHAPE)
    network.initialize()
    for layer, inputs in (("hidden.0", 4), ("hidden.2", 400), ("output", 900)):
        for name in ("weight", "bias"):
            values, bound = distinct_parameters(network)[f"{layer}.{name}"].data().asnumpy().ravel(), inputs**-0.5
            assert np.abs(values).max() <= bound and (values != 0).all()
            if len(values) > 100:  # a third of the square of the bound is the variance of such a distribution
                assert values.var() == pytest.approx(bound**2 / 3, rel=0.15) and abs(values.mean()) < 0.1 * bound
    soft = SoftActorCritic().build_policy(NUMBERS, SHAPE)
    soft.initialize()
    assert not any(
        parameter.data().asnumpy().any()
        for name, parameter in distinct_parameters(soft).items()
        if name.startswith("policy.") and name.endswith("bias")
    )
