"""Losses of several targets and of quantiles, against scikit-learn and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics as reference

RNG = np.random.default_rng(0)
TARGETS, SCALES = RNG.normal(size=(5, 2)) * [2, 30] + [1, 9], [(1.0, 2.0), (9.0, 30.0)]
SCALED = (TARGETS - [1, 9]) / [2, 30]


def called(loss: Any, *arrays: np.ndarray, hybridized: bool = False) -> np.ndarray:
    from mxnet import nd

    loss.hybridize(hybridized)
    return loss(*[nd.array(array) for array in arrays]).asnumpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("hybridized", [False, True])
def test_quantile_loss_is_twice_the_pinball_loss_of_scikit_learn(hybridized: bool) -> None:
    from mxtrain.loss.blocks import TargetsLoss
    from mxtrain.loss.quantile import QuantileLoss

    levels, output = [0.1, 0.5, 0.8], RNG.normal(size=(5, 6))
    loss = TargetsLoss(QuantileLoss().build_quantiles(2, levels), SCALES)
    expected = [
        reference.mean_pinball_loss(SCALED[:, target], output[:, 3 * target + number], alpha=level)
        for target in range(2)
        for number, level in enumerate(levels)
    ]
    assert called(loss, output, TARGETS, hybridized=hybridized).mean() == pytest.approx(2 * np.mean(expected), rel=1e-5)


def test_losses_of_several_targets_are_means_over_standardised_targets() -> None:
    from mxnet import gluon

    from mxtrain.loss.blocks import TargetsLoss

    output = RNG.normal(size=(5, 2))
    error = np.abs(output - SCALED)
    found = called(TargetsLoss(gluon.loss.L2Loss(), SCALES), output, TARGETS)
    np.testing.assert_allclose(found, (error**2).mean(1) / 2, rtol=1e-5)
    huber = np.where(error > 0.5, error - 0.25, error**2)
    found = called(TargetsLoss(gluon.loss.HuberLoss(0.5), SCALES), output, TARGETS)
    np.testing.assert_allclose(found, huber.mean(1), rtol=1e-5)
    found = called(TargetsLoss(gluon.loss.L1Loss(), SCALES[:1]), output[:, :1], TARGETS[:, 0])
    np.testing.assert_allclose(found, error[:, 0], rtol=1e-5)
