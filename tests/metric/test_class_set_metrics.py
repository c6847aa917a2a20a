"""Metrics of samples with any number of classes, compared with scikit-learn; and the choice of thresholds."""

import numpy as np
import pytest
from sklearn import metrics as reference

from mxtrain.metric.multi_label import (
    ChosenThresholds,
    ClassSetScores,
    DecisionCurve,
    HammingLoss,
    MacroF1,
    MeanAveragePrecision,
    MicroF1,
    SubsetAccuracy,
    choose_thresholds,
)

DRAW = np.random.RandomState(0)
TARGETS = DRAW.rand(60, 4) < [0.5, 0.2, 0.1, 0.4]
SCORES = (DRAW.randn(60, 4) + 1.5 * TARGETS).round(1)  # with ties
PROBABILITIES = 1 / (1 + np.exp(-SCORES))


def collected(scores=SCORES, targets=TARGETS):
    """In two parts, of which the second has samples of the first again, in another order."""
    found = ClassSetScores()
    order = DRAW.permutation(len(scores))
    for part in (order[:40], order[30:]):
        found.update(part, scores[part], targets[part].astype("float32"), None)
    return found


def test_mean_average_precision_equals_scikit_learn():
    expected = reference.average_precision_score(TARGETS, SCORES, average="macro")
    assert MeanAveragePrecision().compute(collected()) == pytest.approx(expected, rel=1e-12)


def test_classes_without_samples_do_not_count():
    targets = TARGETS.copy()
    targets[:, 1] = False
    expected = reference.average_precision_score(targets[:, [0, 2, 3]], SCORES[:, [0, 2, 3]], average="macro")
    assert MeanAveragePrecision().compute(collected(targets=targets)) == pytest.approx(expected, rel=1e-12)
    scores = SCORES.copy()
    scores[:, 1] = -9
    predicted = 1 / (1 + np.exp(-scores)) >= 0.5
    expected = reference.f1_score(targets[:, [0, 2, 3]], predicted[:, [0, 2, 3]], average="macro")
    assert MacroF1(threshold=0.5).compute(collected(scores, targets)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_decisions_equal_scikit_learn(threshold):
    predicted, found = PROBABILITIES >= threshold, collected()
    expected = {
        MicroF1: reference.f1_score(TARGETS, predicted, average="micro"),
        MacroF1: reference.f1_score(TARGETS, predicted, average="macro"),
        SubsetAccuracy: reference.accuracy_score(TARGETS, predicted),
        HammingLoss: reference.hamming_loss(TARGETS, predicted),
    }
    for kind, value in expected.items():
        assert kind(threshold=threshold).compute(found) == pytest.approx(value, rel=1e-12), kind


def test_metrics_without_samples_and_without_classes_are_undefined():
    none = np.zeros((5, 3), bool)
    for kind in (MeanAveragePrecision, MicroF1, MacroF1, SubsetAccuracy, HammingLoss):
        assert np.isnan(kind().compute(ClassSetScores())), kind
    found = collected(np.full((60, 4), -9.0), np.zeros((60, 4), bool))
    assert np.isnan(MeanAveragePrecision().compute(found))
    assert np.isnan(MicroF1(threshold=0.5).compute(found)) and np.isnan(MacroF1(threshold=0.5).compute(found))
    assert SubsetAccuracy(threshold=0.5).compute(found) == 1 and HammingLoss(threshold=0.5).compute(found) == 0
    assert choose_thresholds(np.zeros((5, 3)), none) == [0.5] * 3


def test_chosen_thresholds_have_the_highest_f1():
    chosen = choose_thresholds(SCORES, TARGETS)
    for k, threshold in enumerate(chosen):
        candidates = [0.0, *np.unique(PROBABILITIES[:, k])]
        best = max(reference.f1_score(TARGETS[:, k], PROBABILITIES[:, k] >= each) for each in candidates)
        assert reference.f1_score(TARGETS[:, k], PROBABILITIES[:, k] >= threshold) == pytest.approx(best)
        assert np.abs(PROBABILITIES[:, k] - threshold).min() > 1e-4  # no sample is on the edge


def test_curve_equals_scikit_learn():
    curve = DecisionCurve(PROBABILITIES[:, 0], TARGETS[:, 0])
    precision, recall, _ = reference.precision_recall_curve(TARGETS[:, 0], PROBABILITIES[:, 0])
    np.testing.assert_allclose(curve.precision_T, precision[:-1][::-1])
    np.testing.assert_allclose(curve.recall_T, recall[:-1][::-1])
    f1 = [reference.f1_score(TARGETS[:, 0], PROBABILITIES[:, 0] >= each) for each in curve.threshold_T]
    np.testing.assert_allclose(curve.f1_T, f1)


def test_a_class_that_all_samples_have_is_always_predicted():
    (threshold,) = choose_thresholds(np.full((4, 1), -3000.0), np.ones((4, 1), bool))
    assert 0 < threshold < 1e-30
    assert choose_thresholds(np.full((4, 1), np.nan), np.ones((4, 1), bool)) == [0.5]


def test_a_pass_keeps_what_it_has_chosen_unless_thresholds_are_given():
    keeper, chosen = ChosenThresholds(), choose_thresholds(SCORES, TARGETS)
    value = MacroF1().with_chosen(None, keeper).compute(collected())
    expected = reference.f1_score(TARGETS, PROBABILITIES >= np.array(chosen), average="macro")
    assert value == pytest.approx(expected) and keeper.values == chosen
    for other in (MeanAveragePrecision(), MacroF1(threshold=0.5)):  # predictions need thresholds nevertheless
        kept = ChosenThresholds()
        other.with_chosen(None, kept).compute(collected())
        assert kept.values == chosen
    restored = ChosenThresholds()
    restored.load_state({}, keeper.save_state()[1], "")
    assert restored.values == chosen
    other = MacroF1().with_chosen([0.5] * 4, keeper).compute(collected())
    assert other == pytest.approx(reference.f1_score(TARGETS, PROBABILITIES >= 0.5, average="macro"))
    assert keeper.values == chosen
