import numpy as np
import pytest
from sklearn import metrics as reference

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.metric import metrics
from mxtrain.metric.meter import Meter, read_vectors

RNG = np.random.RandomState(0)
SCORES = RNG.randn(200, 5).astype("float32")
LABELS = np.where(RNG.rand(200) < 0.5, SCORES.argmax(1), RNG.randint(0, 5, 200)).astype("float32")
PREDICTED = SCORES.argmax(1)
PROBABILITIES = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)


def measure(metric, batches=3):
    """Over several batches of unequal size, as a run does."""
    meter = Meter({"m": metric}, 5)
    vectors = []
    for part in np.array_split(np.arange(200), batches):
        scores, labels = nd.array(SCORES[part]), nd.array(LABELS[part])
        vectors.append(meter(nd.ones((len(part),)), scores, labels))
    values = meter.values(read_vectors(vectors).sum(axis=0), 200)
    assert values["loss"] == 1.0
    return values["m"]


@pytest.mark.parametrize(
    "metric, expected",
    [
        (metrics.Accuracy(), reference.accuracy_score(LABELS, PREDICTED)),
        (metrics.TopKAccuracy(top_k=2), reference.top_k_accuracy_score(LABELS, SCORES, k=2)),
        (metrics.CrossEntropy(), reference.log_loss(LABELS, PROBABILITIES)),
        (metrics.Perplexity(), np.exp(reference.log_loss(LABELS, PROBABILITIES))),
        (metrics.F1(), reference.f1_score(LABELS, PREDICTED, average="macro")),
        (metrics.F1(average="micro"), reference.f1_score(LABELS, PREDICTED, average="micro")),
        (metrics.MCC(), reference.matthews_corrcoef(LABELS, PREDICTED)),
        (metrics.MSE(), np.mean((PROBABILITIES - np.eye(5)[LABELS.astype(int)]) ** 2)),
        (metrics.RMSE(), np.sqrt(np.mean((PROBABILITIES - np.eye(5)[LABELS.astype(int)]) ** 2))),
        (metrics.MAE(), np.mean(np.abs(PROBABILITIES - np.eye(5)[LABELS.astype(int)]))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, metrics.Metric) else "",
)
def test_equals_scikit_learn(metric, expected):
    assert measure(metric) == pytest.approx(expected, rel=1e-5)
    assert measure(metric, batches=7) == pytest.approx(measure(metric, batches=1), rel=1e-5)


def test_accuracy_and_top_k_equal_mxnets():
    top_3 = (metrics.TopKAccuracy(top_k=3), mx.metric.TopKAccuracy(3))
    for ours, theirs in [(metrics.Accuracy(), mx.metric.Accuracy()), top_3]:
        theirs.update([nd.array(LABELS)], [nd.array(PROBABILITIES)])
        assert measure(ours) == pytest.approx(theirs.get()[1])


def test_mixed_labels_count_for_their_likeliest_class():
    meter = Meter({"accuracy": metrics.Accuracy()}, 5, dense=True)
    mixed = 0.7 * np.eye(5)[LABELS.astype(int)] + 0.3 / 5
    sums = meter(nd.zeros((200,)), nd.array(SCORES), nd.array(mixed)).asnumpy()
    assert sums[1] / 200 == pytest.approx(np.mean(PREDICTED == LABELS))


def test_direction_is_the_metrics_own():
    meter = Meter({"accuracy": metrics.Accuracy(), "perplexity": metrics.Perplexity()}, 5)
    assert [meter.direction(name) for name in ("loss", "accuracy", "perplexity")] == ["min", "max", "min"]


def test_hidden_tokens_have_equal_weight_in_all_samples():
    scores = RNG.randn(3, 2, 5).astype("float32")
    labels = np.array(
        [[scores[0, 0].argmax(), -1], [scores[1, 0].argmax(), scores[1, 1].argmin()], [-1, -1]], "float32"
    )
    chosen = {"a": metrics.PositionAccuracy(), "p": metrics.PositionPerplexity()}
    meter = Meter(chosen, 5)
    found = meter.values(read_vectors([meter(nd.ones((3,)), nd.array(scores), nd.array(labels))]).sum(axis=0), 3)
    assert found["a"] == pytest.approx(2 / 3)
    loss = -(scores - np.log(np.exp(scores).sum(-1, keepdims=True)))
    picked = [loss[0, 0].min(), loss[1, 0].min(), loss[1, 1].max()]
    assert found["p"] == pytest.approx(np.exp(np.mean(picked)), rel=1e-5)


@pytest.mark.slow
def test_pairs_of_many_classes_are_counted_to_the_last_and_more_are_refused():
    cells = metrics.MAX_CONFUSION_CLASSES**2
    number = np.concatenate([RNG.randint(0, cells, 1000), [0, cells - 2, cells - 1, cells - 1]])
    counted = metrics.count_cells(nd, nd.array(np.append(number, -1), dtype="float32"), cells).asnumpy()
    np.testing.assert_array_equal(counted, np.bincount(number, minlength=cells))
    with pytest.raises(ConfigError, match="of which 2,001 classes have 4,004,001"):
        metrics.F1().size(2001)


def test_sums_of_another_size_name_the_sizes():
    class Pair(metrics.Accuracy):
        def sums(self, F, scores_BK, label_B, num_classes):
            return F.array([1.0, 2.0])

    def sums_of(**measured):
        meter = Meter(measured, num_classes=2)
        meter.hybridize(False)
        return meter.require_width(meter(nd.ones((4,)), nd.ones((4, 2)), nd.zeros((4,)))).asnumpy().tolist()

    assert sums_of(accuracy=metrics.Accuracy()) == [4.0, 4.0]
    said = "sums and measure return 3 numbers for a batch, and the sizes of the metrics are accuracy=1, pair=1. Return"
    with pytest.raises(ConfigError, match=said):
        sums_of(accuracy=metrics.Accuracy(), pair=Pair())
