"""Mixture of experts: equal to NumPy and to Mixtral of transformers, and what the load-balancing loss changes."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.metric.metrics import ExpertBalance
from mxtrain.text.language_modeling.gpt import Gpt
from mxtrain.text.networks.experts import Experts

T, B, U, E, K = 7, 3, 6, 4, 2
HIDDEN = 10


class GatedExpert(gluon.HybridBlock):
    """Expert of Mixtral: W2 (silu(W1 x) * W3 x)."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.gate = gluon.nn.Dense(HIDDEN, flatten=False, in_units=U, use_bias=False)
            self.up = gluon.nn.Dense(HIDDEN, flatten=False, in_units=U, use_bias=False)
            self.down = gluon.nn.Dense(U, flatten=False, in_units=HIDDEN, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        gate = self.gate(x)
        return self.down(gate * F.sigmoid(gate) * self.up(x))


def build(dtype: str = "float64", capacity: int = 0) -> Experts:
    experts = Experts(U, [GatedExpert() for _ in range(E)], K, capacity)
    mx.random.seed(0)
    experts.initialize(mx.init.Normal(0.5))
    experts.router.initialize(mx.init.Normal(0.5), force_reinit=True)
    experts.cast(dtype)
    return experts


def build_inputs(dtype: str = "float64") -> Tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(1)
    counts_TB1 = np.ones((T, B, 1), dtype)
    counts_TB1[5:, 1] = 0  # padding
    counts_TB1[:, 2] = 0
    return rng.normal(0, 1, (T, B, U)).astype(dtype), counts_TB1


def weights_of(experts: Experts) -> List[Tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return [
        tuple(layer.weight.data().asnumpy() for layer in (one.gate, one.up, one.down))  # type: ignore[misc]
        for one in experts.experts
    ]


def by_numpy(experts: Experts, x_TBU: np.ndarray, counts_TB1: np.ndarray, capacity: int = T) -> Tuple[np.ndarray, ...]:
    """Computes token by token only the chosen experts, which take so many tokens."""
    taken_BE = np.zeros((B, E), int)
    router_EU, weights = experts.router.weight.data().asnumpy(), weights_of(experts)
    y_TBU, load_BE, probability_BE = np.zeros_like(x_TBU), np.zeros((B, E)), np.zeros((B, E))
    for t, b in np.ndindex(T, B):
        x_U = x_TBU[t, b]
        probability_E = np.exp(router_EU @ x_U) / np.exp(router_EU @ x_U).sum()
        chosen = sorted(range(E), key=lambda e: -probability_E[e])[:K]
        for e in chosen:
            load_BE[b, e] += counts_TB1[t, b, 0]
            taken_BE[b, e] += 1
            if taken_BE[b, e] > capacity:
                continue
            gate, up, down = weights[e]
            hidden = gate @ x_U
            y_U = down @ (hidden / (1 + np.exp(-hidden)) * (up @ x_U))
            y_TBU[t, b] += probability_E[e] / probability_E[chosen].sum() * y_U
        probability_BE[b] += probability_E * counts_TB1[t, b, 0]
    num_B1 = np.maximum(counts_TB1.sum(axis=0), 1)
    return y_TBU, E * (load_BE / num_B1 / K * probability_BE / num_B1).sum(axis=1), load_BE


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_experts_equal_numpy(hybrid: bool, capacity: int) -> None:
    experts, (x_TBU, counts_TB1) = build(capacity=capacity), build_inputs()
    if hybrid:
        experts.hybridize()
    found = experts(nd.array(x_TBU, dtype="float64"), nd.array(counts_TB1, dtype="float64"))
    wanted = by_numpy(experts, x_TBU, counts_TB1, capacity or T)
    for name, ours, theirs in zip(("states", "balance", "load"), found, wanted):
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=1e-12, atol=1e-14, err_msg=name)
    assert wanted[2].sum(axis=1).tolist() == [K * T, K * 5, 0]
    changed = (wanted[0] != by_numpy(experts, x_TBU, counts_TB1)[0]).any(axis=2)
    assert changed.any() == bool(capacity) and not changed.all()


def test_a_token_that_no_expert_takes_passes_through_the_residual_connection() -> None:
    experts, (x_TBU, counts_TB1) = build(capacity=1), build_inputs()
    x_TBU[:] = x_TBU[0]  # all tokens of a window choose the same experts
    y_TBU = experts(nd.array(x_TBU, dtype="float64"), nd.array(counts_TB1, dtype="float64"))[0].asnumpy()
    assert y_TBU[0].any() and not y_TBU[1:].any()


def test_experts_equal_mixtral_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    if not hasattr(mixtral, "MixtralTopKRouter"):
        pytest.skip("weights of another layout, of transformers before 5")
    experts, (x_TBU, _) = build("float32"), build_inputs("float32")
    config = mixtral.MixtralConfig(
        hidden_size=U, intermediate_size=HIDDEN, num_local_experts=E, num_experts_per_tok=K, num_attention_heads=1
    )
    block = mixtral.MixtralSparseMoeBlock(config)
    weights, router_EU = weights_of(experts), experts.router.weight.data().asnumpy()
    with torch.no_grad():
        block.gate.weight.copy_(torch.tensor(router_EU))
        block.experts.gate_up_proj.copy_(torch.tensor(np.stack([np.concatenate([g, u]) for g, u, _ in weights])))
        block.experts.down_proj.copy_(torch.tensor(np.stack([down for _, _, down in weights])))
    x_BTU = torch.tensor(x_TBU.transpose(1, 0, 2).copy(), requires_grad=True)
    theirs = block(x_BTU)
    logits = x_BTU @ block.gate.weight.T
    balances = [mixtral.load_balancing_loss_func((logits_TE,), E, K) for logits_TE in logits]
    ((theirs**2).sum() + sum(balances)).backward()

    x = nd.array(x_TBU)
    x.attach_grad()
    with autograd.record():
        y, balance_B, _ = experts(x, nd.ones((T, B, 1)))
        # theirs is K times as large: it divides by the number of tokens, not of choices
        ((y**2).sum() + K * balance_B.sum()).backward()
    np.testing.assert_allclose(y.asnumpy().transpose(1, 0, 2), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(K * balance_B.asnumpy(), [float(one.detach()) for one in balances], rtol=1e-5)
    np.testing.assert_allclose(x.grad.asnumpy().transpose(1, 0, 2), x_BTU.grad.numpy(), rtol=1e-4, atol=1e-5)
    router_grad = experts.router.weight.grad().asnumpy()
    np.testing.assert_allclose(router_grad, block.gate.weight.grad.numpy(), rtol=1e-4, atol=1e-5)
    down = np.stack([one.down.weight.grad().asnumpy() for one in experts.experts])
    np.testing.assert_allclose(down, block.experts.down_proj.grad.numpy(), rtol=1e-4, atol=1e-5)


V, LENGTH = 13, 9


def build_gpt(**settings: Any) -> Any:
    given = {"num_layers": 2, "units": 12, "num_heads": 3, "dropout": 0.0, "experts": E, **settings}
    network = Gpt(**given).build_text(V, ((LENGTH,), (LENGTH,)), V)
    mx.random.seed(1)
    network.initialize()
    for parameter in network.collect_params().values():
        parameter.set_data(parameter.data() + nd.random.normal(0, 0.3, parameter.shape))
    return network


def build_batch() -> Tuple[Any, Any]:
    rng = np.random.RandomState(0)
    token, label = rng.randint(0, V, (B, LENGTH)), rng.randint(-1, V, (B, LENGTH))
    return nd.array(token, dtype="int32"), nd.array(label)


def test_the_output_is_the_cross_entropy_and_the_gradient_that_of_both_losses() -> None:
    token, label = build_batch()

    def run(load_balancing: float) -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
        network = build_gpt(load_balancing=load_balancing)
        with autograd.record():
            loss = network(token, label)[0]
        loss.backward()
        return loss.asnumpy(), {name: p.grad().asnumpy() for name, p in network.collect_params().items()}

    def balance_gradient() -> Dict[str, np.ndarray]:
        network, balances = build_gpt(), []
        for layer in network.layers:
            layer.mixture.register_forward_hook(lambda block, inputs, outputs: balances.append(outputs[1]))
        with autograd.record():
            network(token, label)
            loss = sum((balance_B * (label >= 0).sum(axis=1)).sum() for balance_B in balances)
        loss.backward()
        return {name: p.grad().asnumpy() for name, p in network.collect_params().items()}

    (plain, without), (loss, gradient), added = run(0.0), run(0.5), balance_gradient()
    np.testing.assert_array_equal(loss, plain)
    assert max(np.abs(array).max() for name, array in added.items() if "router" in name) > 0.01
    for name, array in gradient.items():
        np.testing.assert_allclose(array, without[name] + 0.5 * added[name], rtol=1e-3, atol=2e-5, err_msg=name)


LIMITED = {"capacity_factor": 0.6}


@pytest.mark.parametrize("settings", [{}, LIMITED], ids=["unlimited", "limited"])
@pytest.mark.parametrize("place", [0, 4, LENGTH - 1])
def test_a_token_changes_nothing_before_it(place: int, settings: Dict[str, Any]) -> None:
    network, (token, label) = build_gpt(**settings), build_batch()
    before = network(token, label)[0].asnumpy()
    token[:, place] = (token[:, place] + 1) % V
    changed = (network(token, label)[0].asnumpy() != before) & (label.asnumpy() >= 0)
    assert not changed[:, :place].any() and changed[:, place:].any()


@pytest.mark.parametrize("settings", [{}, LIMITED], ids=["unlimited", "limited"])
def test_one_token_after_the_other_gives_the_same(settings: Dict[str, Any]) -> None:
    network, (token, label) = build_gpt(**settings), build_batch()
    wanted, memory = network(token, label)[0].asnumpy(), network.initial_state(B, mx.cpu())
    for place in range(LENGTH):
        score_BV, memory = network.step(token[:, place], place, memory)
        label_B = label.asnumpy()[:, place].astype(int)
        found = -nd.log_softmax(score_BV).asnumpy()[np.arange(B), np.maximum(label_B, 0)] * (label_B >= 0)
        np.testing.assert_allclose(found, wanted[:, place], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "load, evenness",
    [([5, 5, 5, 5], 1.0), ([10, 10, 0, 0], 0.5), ([6, 2, 2, 2], 144 / (4 * 48)), ([0, 0, 0, 0], np.nan)],
)
def test_balance_metric(load: List[int], evenness: float) -> None:
    metric = ExpertBalance()
    load_BLE = nd.array([[load, load], [[0, 0, 0, 0], load]])  # an empty layer does not count
    sums = metric.measure(nd, (nd.zeros((2, 3)), load_BLE), (), V).asnumpy()  # type: ignore[arg-type]
    np.testing.assert_allclose(metric.value(sums, 2), evenness)


@pytest.mark.parametrize(
    "factor, capacity", [(None, 0), (1.0, 5), (1.25, 7), (0.1, 1), (1.7, 9), (1.9, 0), (2.0, 0), (5.0, 0)]
)
def test_capacity_follows_from_the_window(factor: Any, capacity: int) -> None:
    """Ten tokens with two experts each are 20 choices, so five for each of four experts."""
    network = Gpt(experts=4, capacity_factor=factor).build_text(V, ((10,), (10,)), V)
    assert {layer.mixture._capacity for layer in network.layers} == {capacity}


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"experts": 1}, "experts=1 leaves the router no choice. Type experts=0, or 2 or more"),
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token=3 is more than experts=2"),
        ({"load_balancing": 0.1}, "load_balancing needs experts, and experts=0"),
        ({"capacity_factor": 1.25}, "capacity_factor needs experts, and experts=0"),
        ({"experts": 4, "capacity_factor": 0}, "greater than 0"),
        ({"experts": -1}, "greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_refused(settings: Dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Gpt(**settings)
