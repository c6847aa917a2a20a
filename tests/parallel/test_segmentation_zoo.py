"""GluonCV's segmentation networks can be cut, auxiliary outputs and all, and compute the same in two stages."""

import numpy as np
import pytest
import running

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.metric.meter import Meter, MeterOutputs
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.prepare import prepare_network
from mxtrain.parallel.cut import Graph
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import ModelParallel, Single
from mxtrain.training.network import hybridize
from mxtrain.training.verification import disable_dropout
from mxtrain.types import Batch
from mxtrain.vision.segmentation.gluoncv_segmentation import GluonCVSegmentation

SHAPE = (3, 64, 64)


class PixelLoss(gluon.HybridBlock):
    """(main, auxiliary, labels) -> loss (B,)."""

    def hybrid_forward(self, F, main, auxiliary, labels):
        losses = [-F.pick(F.log_softmax(one, axis=1), labels, axis=1) for one in (main, auxiliary)]
        return F.mean(losses[0] + 0.4 * losses[1], axis=(1, 2))


def build(placement):
    network = prepare_network(
        GluonCVSegmentation(name="fastscnn"),
        num_classes=5,
        input_shape=SHAPE,
        seed=0,
        device=mx.cpu(0),
        output_shapes=[(5, 64, 64)] * 2,
    ).network
    disable_dropout(network, SHAPE)
    hybridize(network)
    meter = Meter({}, 5, outputs=MeterOutputs(2))
    return placement.build(Objective(network, hybridize(PixelLoss()), meter, SHAPE, 4), 1)


@pytest.mark.slow
def test_two_stages_equal_one_device(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.RandomState(0)
    labels = nd.array(rng.randint(0, 5, (4, 64, 64)))
    batch = Batch((nd.array(rng.randn(4, *SHAPE)),), (labels,), 4)
    whole, staged = build(Single()), build(ModelParallel(stages=2))
    assert len(staged.layout.cut_before) == 1
    sums = [side.forward_backward(batch) for side in (whole, staged)]
    np.testing.assert_allclose(*(total.asnumpy() for total in sums), rtol=1e-5)
    largest = max(float(one.replicas[0].abs().max().asscalar()) for one in whole.reductions)
    assert len(whole.reductions) == len(staged.reductions)
    for one, two in zip(whole.reductions, staged.reductions):
        wanted, found = one.replicas[0].asnumpy(), two.replicas[0].asnumpy()
        np.testing.assert_allclose(found, wanted, atol=1e-2 * max(np.abs(wanted).max(), 1e-2 * largest), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fcn_resnet50", "psp_resnet50", "icnet_resnet50", "deeplab_plus_xception"])
def test_large_networks_can_be_cut(name):
    network = GluonCVSegmentation(name=name).build(5, SHAPE)
    infer_shapes(network, SHAPE)
    graph = Graph(network)
    middle = len(graph) // 2
    cuts = [position for position in range(middle, middle + 20) if graph.can_cut(position)]
    assert cuts
    shapes = graph.shapes(SHAPE, 2)
    first, second = graph.cut(cuts[:1])
    assert set(second.inputs) <= {*first.outputs, *graph.inputs}
    assert all(shapes[tensor] for tensor in graph.crossing(cuts[0]))
    assert not set(first.parameters) & set(second.parameters)


@pytest.mark.zoo
@pytest.mark.slow
def test_hybrid_equals_one_device():
    done = running.verify(
        "task=segmentation",
        "model=gluoncv_segmentation",
        "model.name=fastscnn",
        "parallel=hybrid",
        "dataset.num_train=32",
        "dataset.num_val=8",
        "dataset.batch_size=8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same as on one device" in done.stdout
