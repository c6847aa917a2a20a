"""Every family of GluonCV's classification networks can be cut, and computes the same in two stages.

In float32 a ReLU now and then falls on the other side of 0: `verify`, in float64, is what shows that numbers agree.
"""

import numpy as np
import pytest
from tiers import rest_in_zoo

from mxtrain.engine.backend import mx, nd
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.model.prepare import prepare_network
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import ModelParallel, Single
from mxtrain.training.network import hybridize
from mxtrain.training.verification import disable_dropout
from mxtrain.types import Batch
from mxtrain.vision.classification.gluoncv import GluonCV

FAMILIES = [
    ("resnet18_v1", 64),
    ("resnet50_v1b_gn", 64),
    ("se_resnet18_v2", 64),
    ("resnest14", 64),
    ("mobilenet0.25", 64),
    ("mobilenetv2_0.25", 64),
    ("mobilenetv3_small", 64),
    ("shufflenet_v2", 64),
    ("squeezenet1.1", 224),
    ("alexnet", 64),
    ("dla34", 64),
    ("resnet50_v1d_0.11", 64),
    ("cifar_resnet20_v1", 32),
    ("cifar_residualattentionnet56", 32),
    ("inceptionv3", 299),
    ("vgg11", 32),
    ("xception", 64),
    ("googlenet", 224),
]


def build(name, size, placement):
    shape = (3, size, size)
    network = prepare_network(GluonCV(name=name), num_classes=5, input_shape=shape, seed=0, device=mx.cpu(0)).network
    disable_dropout(network, shape)
    hybridize(network)
    loss, meter = SoftmaxCrossEntropy().build(5, training=True), Meter({"accuracy": Accuracy()}, 5)
    return placement.build(Objective(network, loss, meter, shape, 2), 1)


@pytest.mark.zoo_cases("resnest14", "mobilenetv2_0.25", "googlenet")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name,size",
    rest_in_zoo(FAMILIES, ("resnet18_v1", 64), ("mobilenetv2_0.25", 64), ("googlenet", 224), ("resnest14", 64)),
    ids=[name for name, _ in FAMILIES],
)
def test_two_stages_equal_one_device(name, size, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.RandomState(0)
    batch = Batch((nd.array(rng.randn(2, 3, size, size)),), (nd.array(rng.randint(0, 5, 2)),), 2)
    whole, staged = build(name, size, Single()), build(name, size, ModelParallel(stages=2))
    assert len(staged.layout.cut_before) == 1
    for side in (whole, staged):
        side.forward_backward(batch)
    largest = max(float(one.replicas[0].abs().max().asscalar()) for one in whole.reductions)
    for one, two in zip(whole.reductions, staged.reductions):
        wanted, found = one.replicas[0].asnumpy(), two.replicas[0].asnumpy()
        np.testing.assert_allclose(found, wanted, atol=1e-2 * max(np.abs(wanted).max(), 1e-2 * largest), rtol=0)
