"""State that is carried from batch to batch belongs to rows, whoever computes them, and is that of a plain loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, Threads

from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import CheckpointError
from mxtrain.kvstore.world import World
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.parallel.spec import Data, Hybrid, Pipeline, Single
from mxtrain.text.losses import TokenCrossEntropy
from mxtrain.types import Batch

ROWS, TOKENS = 8, 3


class Adding(gluon.HybridBlock):
    """Returns what it carries plus its input's sum, times a weight, as a loss for each token; carries that on."""

    def __init__(self) -> None:
        super().__init__(prefix="adding_")
        with self.name_scope():
            self.first = gluon.nn.Dense(1, in_units=1, flatten=False, use_bias=False)
            self.second = gluon.nn.Dense(1, in_units=1, flatten=False, use_bias=False)
            self.second.begins_stage = True

    def hybrid_forward(self, F, token_BT, label_BT, state_B1):
        state_B1 = state_B1 + F.sum(token_BT, axis=1, keepdims=True)
        second_B1 = self.second(self.first(state_B1))
        return F.broadcast_mul(second_B1, label_BT >= 0), state_B1 * 2


def build(parallel: Any, parts: int = 1, workers: Any = None) -> Any:
    network = Adding()
    network.initialize("ones")
    network.hybridize(static_alloc=True)
    meter = Meter({}, 2, LossWeights(True))
    shape = ((TOKENS,), (TOKENS,), (1,))
    return parallel.build(
        Objective(network, TokenCrossEntropy().build(0, True), meter, shape, ROWS, state_shapes=[(1,)]), parts, workers
    )


def batches() -> Tuple[List[Batch], List[float]]:
    """Some batches, and what the loss of each must be: sums over all rows of what they carry and have."""
    rng = np.random.RandomState(0)
    made, wanted, state_B = [], [], np.zeros(ROWS)
    for number in range(5):
        continues_previous = number not in (0, 3)
        token_BT = rng.randint(0, 9, (ROWS, TOKENS)).astype(np.float32)
        label = nd.ones((ROWS, TOKENS))
        made.append(Batch((nd.array(token_BT), label), (label,), ROWS, continues_previous=continues_previous))
        state_B = (state_B if continues_previous else 0) + token_BT.sum(axis=1)
        wanted.append(float(state_B.sum() * TOKENS))
        state_B = state_B * 2
    return made, wanted


PLACEMENTS = {
    "single": (Single(), 1),
    "parts": (Single(), 4),
    "data": (Data(devices="cpu:2"), 1),
    "pipeline": (Pipeline(devices="cpu:2", microbatches=2), 1),
    "hybrid": (Hybrid(devices="cpu:4", microbatches=2), 2),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_row_gets_its_own_state(name: str) -> None:
    strategy = build(*PLACEMENTS[name])
    made, wanted = batches()
    assert [float(strategy.forward_backward(batch)[0].asscalar()) for batch in made] == wanted
    (state,) = strategy.recurrent_state.save_state()[0].values()
    alone = build(*PLACEMENTS["single"])
    for batch in made:
        alone.forward_backward(batch)
    (own,) = alone.recurrent_state.save_state()[0].values()
    assert state.asnumpy().tolist() == own.asnumpy().tolist()


def test_a_checkpoint_continues_under_another_placement_to_the_same_numbers() -> None:
    made, wanted = batches()
    before = build(*PLACEMENTS["hybrid"])
    for batch in made[:2]:
        before.forward_backward(batch)
    arrays = {name: array.asnumpy() for name, array in before.recurrent_state.save_state()[0].items()}
    after = build(*PLACEMENTS["data"])
    after.recurrent_state.load_state(arrays, {}, "checkpoint")
    assert float(after.forward_backward(made[2])[0].asscalar()) == wanted[2]


@pytest.mark.parametrize("num_workers", [1, 2, ROWS + 1])
def test_checkpoint_written_before_the_next_batch_is_consistent(num_workers: int, monkeypatch: Any) -> None:
    made, _ = batches()
    alone = build(*PLACEMENTS["single"])
    for batch in made[:2]:
        alone.forward_backward(batch)
    before = alone.recurrent_state.save_state()[0]["0"].asnumpy()
    alone.forward_backward(made[2])
    after = alone.recurrent_state.save_state()[0]["0"].asnumpy()
    rendezvous = Rendezvous(num_workers)
    monkeypatch.setattr(Threads, "rendezvous", rendezvous, raising=False)

    def work(world: World) -> Any:
        strategy = build(Single(), 1, Threads().build(world))
        strategy.recurrent_state.load_state({"0": before}, {}, "checkpoint")
        at_once = np.array(strategy.recurrent_state.save_state()[0]["0"])
        strategy.forward_backward(made[2].slice(*world.share(ROWS), ROWS))
        found = strategy.recurrent_state.save_state()[0]["0"]
        return at_once, found if num_workers > 1 else found.asnumpy()

    for at_once, later in rendezvous.run(work):
        assert np.array_equal(at_once, before) and np.array_equal(later, after)


def test_workers_hold_their_rows_and_a_checkpoint_has_all(monkeypatch: Any) -> None:
    made, wanted = batches()
    rendezvous = Rendezvous(3)
    monkeypatch.setattr(Threads, "rendezvous", rendezvous, raising=False)

    def work(world: World) -> Any:
        store = Threads().build(world)
        strategy = build(Single(), 1, store)
        begin, end = world.share(ROWS)
        sums = [strategy.forward_backward(batch.slice(begin, end, ROWS)) for batch in made]
        return [float(one[0].asscalar()) for one in sums], strategy.recurrent_state.save_state()[0]["0"]

    alone = build(*PLACEMENTS["single"])
    for batch in made:
        alone.forward_backward(batch)
    whole = alone.recurrent_state.save_state()[0]["0"].asnumpy()
    for losses, state in rendezvous.run(work):
        assert losses == wanted
        assert np.array_equal(state, whole)


def test_new_rows_begin_with_zeros_and_parts_keep_the_flag() -> None:
    batch = replace(batches()[0][1], continues_previous=True)
    assert batch.slice(2, 4).continues_previous and batch.cast("float64").continues_previous
    network = Adding()
    network.initialize()
    state = RecurrentState([(1,)], network)
    state.enter(replace(batch, continues_previous=False))
    state.leave([[nd.ones((ROWS, 1))]])
    assert state.enter(batch).inputs[2].asnumpy().min() == 1
    assert state.enter(replace(batch, continues_previous=False)).inputs[2].asnumpy().max() == 0
    with pytest.raises(AssertionError, match="continue the rows of the previous one"):
        state.enter(batch.slice(0, 3))
    assert RecurrentState([], network).enter(batch) is batch


def test_the_state_of_another_network_is_refused() -> None:
    network = Adding()
    network.initialize()
    with pytest.raises(CheckpointError, match="carried state of another network"):
        RecurrentState([(1,)], network).load_state({"0": np.zeros((8, 2))}, {}, "step-3")
