"""Texts by beam search: with the weights of the moment, limits of lengths, and predictions that hold scores and tokens
exactly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List, Tuple

import numpy as np
import pydantic
import pytest

from mxtrain.engine.backend import gluon, host_view, mx, nd
from mxtrain.model.parameters import distinct_parameters
from mxtrain.task.decoding_network import DecodingNetwork
from mxtrain.task.spec import Task
from mxtrain.text.translation.beam_searching import (
    BeamSearching,
    BeamSearchTask,
    Hypothesis,
    LengthLimits,
    hypotheses_of,
)
from mxtrain.types import Batch

V, BOS, EOS = 7, 1, 2


class Bigrams(gluon.Block):
    """Log p of a token from the one before it and from the source."""

    max_positions = 6

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.after = gluon.nn.Embedding(V, V)
            self.of_source = gluon.nn.Dense(V, in_units=1, flatten=False)

    def initial_state(self, *inputs: Any) -> Tuple[List[Any], List[Any]]:
        return [self.of_source(inputs[0].reshape((-1, 1)))], []

    def step(self, token_R: Any, place: int, fixed: List[Any], moving: List[Any]) -> Tuple[Any, List[Any]]:
        assert place < self.max_positions
        of_source = nd.repeat(fixed[0], len(token_R) // len(fixed[0]), axis=0)
        return nd.log_softmax(self.after(token_R) + of_source), []


def placed(seed: int) -> Any:
    """A strategy that has weights."""
    mx.random.seed(seed)
    network = Bigrams()
    network.initialize(mx.init.Normal(1.0))
    values = {name: parameter.data() for name, parameter in distinct_parameters(network).items()}
    layout, objective = SimpleNamespace(devices=[[mx.cpu()]]), SimpleNamespace(network=network)
    return SimpleNamespace(layout=layout, values=values, objective=objective)


def batch() -> Batch:
    return Batch((nd.array([0.5, -1.0, 2.0]), nd.array([3, 1, 4])), (), 3)


def read(given: Batch) -> Tuple[List[Any], np.ndarray]:
    return [given.inputs[0]], given.inputs[1].asnumpy()


def greedy(strategy: Any, source: float, limit: int) -> List[int]:
    network, tokens, last = strategy.objective.network, [], BOS
    fixed, _ = network.initial_state(nd.array([source]))
    while len(tokens) < limit:
        log_p, _ = network.step(nd.array([last], dtype="int32"), 0, fixed, [])
        last = int(log_p.argmax(axis=1).asscalar())
        if last == EOS:
            break
        tokens.append(last)
    return tokens


def test_search_uses_current_weights() -> None:
    strategy, task = placed(0), BeamSearchTask(beam_size=1, max_length_ratio=1.0, max_length_offset=1)
    decode = task.build_searching(DecodingNetwork(Bigrams, {}, strategy), task.build_beam(BOS, EOS), read)
    found = []
    for seed in (0, 3):
        strategy.values = placed(seed).values
        for name, parameter in distinct_parameters(strategy.objective.network).items():
            parameter.set_data(strategy.values[name])
        prediction = decode((), batch()).asnumpy()
        assert prediction.dtype == np.float64 and prediction.shape[:2] == (3, 1)
        tokens = [hypotheses_of(one)[0].tokens for one in prediction]
        assert all(one.dtype == np.int32 for one in tokens)
        found.append([one.tolist() for one in tokens])
        assert found[-1] == [greedy(strategy, s, limit) for s, limit in ((0.5, 4), (-1.0, 2), (2.0, 5))]
    assert found[0] != found[1] and any(found[0])


def test_search_shares_weights_without_gradients() -> None:
    strategy = placed(0)
    own = DecodingNetwork(Bigrams, {}, strategy)
    for _ in range(2):
        parameters = distinct_parameters(own.current())
        for name, parameter in parameters.items():
            value = strategy.values[name]
            assert parameter.grad_req == "null" and parameter.list_ctx() == [mx.cpu()]
            assert np.shares_memory(host_view(parameter.data(mx.cpu())), host_view(value))
            value *= 2  # as an update does
            np.testing.assert_array_equal(parameter.data().asnumpy(), value.asnumpy())


def test_weights_on_another_device_are_copied_for_a_search() -> None:
    strategy = placed(0)
    strategy.layout.devices = [[mx.cpu(1)]]
    own = DecodingNetwork(Bigrams, {}, strategy)
    for _ in range(2):
        parameters = distinct_parameters(own.current())
        for name, value in strategy.values.items():
            assert parameters[name].list_ctx() == [mx.cpu(1)]
            np.testing.assert_array_equal(parameters[name].data(mx.cpu(1)).asnumpy(), value.asnumpy())
            value *= 2


def test_hypotheses_are_sorted_by_score() -> None:
    task = BeamSearchTask(beam_size=5, num_best=3, length_penalty=1.0)
    decode = task.build_searching(DecodingNetwork(Bigrams, {}, placed(1)), task.build_beam(BOS, EOS, never=[0]), read)
    assert isinstance(decode, BeamSearching)
    for prediction in decode((), batch()).asnumpy():
        best = hypotheses_of(prediction)
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True) and len(best) == 3
        assert len({tuple(one.tokens) for one in best}) == 3
        assert all(
            len(one.tokens) <= Bigrams.max_positions - 1 and not {0, EOS} & {*one.tokens.tolist()} for one in best
        )


def test_length_limits_follow_the_source_up_to_a_maximum() -> None:
    length = np.array([0, 3, 100])
    assert LengthLimits(1.5, 2, 50).max_lengths(length).tolist() == [2, 6, 50]
    assert LengthLimits(0.0, 7, 50).max_lengths(length).tolist() == [7, 7, 7]
    assert LengthLimits(1.0, 50, 256, max_positions=40).max_lengths(length).tolist() == [39, 39, 39]


def test_predictions_that_hold_fewer_sequences() -> None:
    rows = np.array([[-0.25, 5, 6, -1], [-np.inf, -1, -1, -1]])
    (only,) = hypotheses_of(rows)
    assert only.score == -0.25 and only.tokens.tolist() == [5, 6]
    (none,) = hypotheses_of(rows[1:])
    assert isinstance(none, Hypothesis) and none.score == -np.inf and not len(none.tokens)


def test_validation_uses_its_own_beam_size() -> None:
    task = BeamSearchTask(beam_size=4, num_best=2, length_penalty=0.6)
    quick = task.in_training()
    assert (quick.beam_size, quick.num_best, quick.search_signature) == (1, 1, "decoding:greedy")
    assert task.search_signature == "decoding:beam4|length_penalty:0.6"
    assert BeamSearchTask(validation_beam_size=2).in_training().beam_size == 2
    assert Task().in_training() == Task()


def test_more_sequences_than_are_kept_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="num_best=5 must be at most beam_size=4"):
        BeamSearchTask(num_best=5)
