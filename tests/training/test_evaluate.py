"""One pass over a split: what is counted, when it is broken off, and how fast it was."""

from __future__ import annotations

import io
import itertools
import weakref
from types import SimpleNamespace
from typing import Any, Iterator, List, Tuple

import numpy as np
import pytest

from mxtrain.cluster.stopping import PassInterrupted
from mxtrain.engine.backend import gluon, nd
from mxtrain.engine.predictions import BATCHES_AHEAD
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.task.sample_results import SampleResults
from mxtrain.training import evaluate
from mxtrain.training.evaluate import VECTORS_PER_READ, Collector, Evaluator, joined
from mxtrain.types import Batch


class Identity:
    """A strategy whose scores are the inputs."""

    objective = SimpleNamespace(state_shapes=(), network=None)

    def predict(self, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
        return inputs


class Batches:
    """Batches of these sizes, the scores of the right class being 1 and 3 in turns, and every fifth label wrong."""

    def __init__(self, sizes: Any, breaks_after: int = -1) -> None:
        rng = np.random.RandomState(0)
        self.scores = [rng.randn(size, 3) for size in sizes]
        self.labels = [rng.randint(0, 3, size) for size in sizes]
        self._breaks_after = breaks_after

    def epoch(self, number: int = 0, start: int = 0, consumer: Any = None) -> Iterator[Batch]:
        assert number == 0
        for done, (score_BK, label_B) in enumerate(zip(self.scores, self.labels)):
            if done == self._breaks_after:
                raise PassInterrupted
            empty = not len(label_B)
            arrays = ((), ()) if empty else ((nd.array(score_BK),), (nd.array(label_B),))
            yield Batch(*arrays, len(label_B), 7)

    def expected(self) -> dict:
        score_NK, label_N = np.concatenate(self.scores), np.concatenate(self.labels)
        log_p_NK = score_NK - np.log(np.exp(score_NK).sum(axis=1, keepdims=True))
        loss_N = -log_p_NK[np.arange(len(label_N)), label_N]
        return {"loss": loss_N.mean(), "accuracy": (score_NK.argmax(axis=1) == label_N).mean()}


def evaluator() -> Evaluator:
    loss = SoftmaxCrossEntropy(label_smoothing=0.5).build(3, training=False)
    return Evaluator(Identity(), loss, Meter({"accuracy": Accuracy()}, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sizes", [[5], [7, 7, 1], [0, 3, 0, 2], [2] * VECTORS_PER_READ, [3, 1] * VECTORS_PER_READ + [2, 2]], ids=len
)
def test_each_sample_counts_once(sizes: Any, monkeypatch: Any) -> None:
    loader, times, seen = Batches(sizes), iter([100.0, 102.0]), []
    monkeypatch.setattr(evaluate.time, "monotonic", lambda: next(times))

    def watch(batch: Batch, outputs: Tuple[Any, ...]) -> None:
        seen.append((batch.size, *(output.shape for output in outputs)))

    found = evaluator().measure(loader, watch)
    assert found.pop("samples_per_s") == sum(sizes) / 2
    assert found == pytest.approx(loader.expected(), rel=1e-5)
    assert seen == [(size, (size, 3)) for size in sizes if size]


def test_interrupted_pass_measures_nothing() -> None:
    with pytest.raises(PassInterrupted):
        evaluator().measure(Batches([3] * 9, breaks_after=4))


class Kept:
    """A collector of predictions that forgets them."""

    @classmethod
    def from_metrics(cls, metrics: Any) -> Kept:
        return cls()

    def update(self, *arrays: Any) -> None:
        pass


def test_inputs_are_freed_while_results_wait_to_be_read() -> None:
    """Metrics, reports and files of samples read a batch some batches later; four batches of images are 100 MiB."""

    def decode(outputs: Any, batch: Batch) -> Any:
        return outputs[0]

    reader: Any = SimpleNamespace(predictions=lambda batch, outputs: outputs[0], rows=lambda *arrays: ())
    metric: Any = SimpleNamespace(collects=Kept, takes_weights=False)
    collector, report = Collector({"kept": metric}, decode), CollectingReport(decode, Kept())  # type: ignore[arg-type]
    for update in (
        collector.add,
        report.update,
        SampleResults(reader, io.BytesIO(), lambda batch, outputs: []).update,
    ):
        image: Any = Kept()  # an array of MXNet has no weak references
        is_alive = weakref.ref(image)
        update(Batch((image,), (nd.ones((2,)),), 2, index_B=np.arange(2)), (nd.ones((2, 3)),))
        del image
        assert is_alive() is None


@pytest.mark.parametrize("columns, ahead", [(3, BATCHES_AHEAD), (1 << 19, 1)], ids=["small", "large"])
def test_few_batches_are_queued_if_they_are_large(columns: int, ahead: int) -> None:
    waited: List[int] = []

    class Output:
        def __init__(self, number: int) -> None:
            self._number = number

        def wait_to_read(self) -> None:
            waited.append(self._number)

    numbers = itertools.count()
    strategy: Any = SimpleNamespace(objective=Identity.objective, predict=lambda inputs: (Output(next(numbers)),))
    image_BK = nd.zeros((2, columns))
    loader: Any = SimpleNamespace(epoch=lambda consumer: (Batch((image_BK,), (), 2) for _ in range(6)))
    for number, _ in enumerate(Evaluator(strategy, SoftmaxCrossEntropy(), Meter({}, 3)).predict(loader)):  # type: ignore[arg-type]
        assert waited == list(range(number + 1 - ahead))


class Remembering:
    """A strategy whose loss for a row is the sum of all that the row has had."""

    objective = SimpleNamespace(state_shapes=[(1,)], network=gluon.nn.Dense(1, in_units=1))

    def predict(self, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
        given_B1, state_B1 = inputs
        return given_B1 + state_B1, given_B1 + state_B1


class Rows:
    """Batches of ones whose rows go on."""

    def epoch(self, epoch: int = 0, start: int = 0, consumer: Any = None) -> Iterator[Batch]:
        for number in range(3):
            yield Batch((nd.ones((2, 1)),), (nd.ones((2,)),), 2, continues_previous=number > 0)


def test_recurrent_state_starts_with_zeros_in_each_pass_and_stays_private() -> None:
    Remembering.objective.network.initialize()
    evaluator = Evaluator(Remembering(), lambda *arrays: arrays[0], Meter({}, 1))  # type: ignore[arg-type]
    for _ in range(2):
        found = list(evaluator.predict(Rows()))  # type: ignore[arg-type]
        assert [len(outputs) for _, outputs in found] == [1, 1, 1]
        assert [outputs[0].asnumpy().ravel().tolist() for _, outputs in found] == [[1, 1], [2, 2], [3, 3]]


def test_targets_of_samples_of_different_lengths_are_shown_together():
    short_BT, long_BT = np.array([[1, 2]], np.int32), np.array([[3, 4, 5], [6, 7, 8]], np.int32)
    found = joined([short_BT, long_BT])
    assert found.tolist() == [[1, 2, -1], [3, 4, 5], [6, 7, 8]] and found.dtype == np.int32
    assert joined([np.array([1.5]), np.array([2.5, 3.5])]).tolist() == [1.5, 2.5, 3.5]
