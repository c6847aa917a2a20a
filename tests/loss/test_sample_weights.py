"""The loss of samples with weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

WEIGHT, TARGET = np.array([0.0, 2.0, 0.5], np.float32), np.array([1.0, -1.0, 3.0], np.float32)
PREDICTED = np.array([[0.5], [1.0], [2.0]], np.float32)


def arrays_of(*arrays: np.ndarray) -> Any:
    from mxnet import nd

    return [nd.array(array) for array in arrays]


@pytest.mark.parametrize("num_after", [0, 2])
def test_weights_multiply_a_loss_and_become_its_weight(num_after: int) -> None:
    from mxnet import gluon

    from mxtrain.loss.blocks import RegressionLoss, SampleWeightLoss

    class Ignoring(gluon.Block):
        def forward(self, prediction: Any, target: Any, *more: Any) -> Any:
            assert len(more) == num_after
            return RegressionLoss(gluon.loss.L2Loss())(prediction, target)

    loss = SampleWeightLoss(Ignoring(), num_after)
    after = [np.full(3, 9.0)] * num_after
    loss_B, weight_B = loss(*arrays_of(PREDICTED, TARGET, WEIGHT, *after))
    np.testing.assert_allclose(loss_B.asnumpy(), WEIGHT * (PREDICTED[:, 0] - TARGET) ** 2 / 2)
    np.testing.assert_array_equal(weight_B.asnumpy(), WEIGHT)
    assert loss.weighted and loss.sample_weighted and not loss.parts


@pytest.mark.parametrize("hybridized", [False, True])
def test_weights_multiply_the_weight_and_the_parts_of_a_loss(hybridized: bool) -> None:
    from mxtrain.loss.blocks import SampleWeightLoss
    from mxtrain.loss.function_block import FunctionBlock

    def compute(F: Any, prediction: Any, target: Any) -> Any:
        return F.square(target) + 0 * prediction.reshape((-1,)), F.abs(target), target

    own = FunctionBlock(compute, weighted=True, least_weight=0.25)
    own.parts = ("size",)
    loss = SampleWeightLoss(own)
    loss.hybridize(hybridized)
    results = [one.asnumpy() for one in loss(*arrays_of(PREDICTED, TARGET, WEIGHT))]
    np.testing.assert_allclose(results, [WEIGHT * TARGET**2, WEIGHT * np.abs(TARGET), WEIGHT * TARGET])
    assert loss.parts == ("size",) and loss.least_weight == 0.25
