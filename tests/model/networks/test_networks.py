"""Our own networks: they build, run and learn on the shapes they promise."""

import pytest

from mxtrain.errors import ConfigError
from mxtrain.model.mlp import MLP
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.classification.resnet import ResNet

SMALL, COLOUR, LARGE = (1, 8, 8), (3, 32, 24), (3, 64, 64)
CASES = [
    (MLP(), SMALL),
    (MLP(hidden=[]), COLOUR),
    (MLP(hidden=[7], activation="gelu", dropout=0.5), (5,)),
    (LeNet(), SMALL),
    (LeNet(), (1, 28, 28)),
    (LeNet(batch_norm=False, dropout=0.0, activation="tanh"), COLOUR),
    (LeNet(channels=[4, 8, 8], activation="swish"), LARGE),
    (ResNet(depth=8), SMALL),
    (ResNet(depth=8, version=2), COLOUR),
    (ResNet(), COLOUR),
    (ResNet(depth=8, width=0.5), LARGE),
    (ResNet(depth=18, version=2, width=0.25), LARGE),
    (ResNet(depth=50, width=0.125), COLOUR),
    (ResNet(depth=50, version=2, width=0.125, stem="large"), COLOUR),
]


@pytest.mark.slow_cases("12-ResNet-imperative", "12-ResNet-hybridized", "13-ResNet-imperative", "13-ResNet-hybridized")
@pytest.mark.parametrize("hybridized", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("model,shape", CASES, ids=[f"{i}-{type(m).__name__}" for i, (m, _) in enumerate(CASES)])
def test_forward_and_backward(model, shape, hybridized, prepare, train_step):
    network = prepare(model, 7, shape)
    if hybridized:
        network.hybridize(static_alloc=True)
    assert train_step(network, shape).shape == (2, 7)
    unmoved = [
        name
        for name, parameter in network._collect_params_with_prefix().items()
        if parameter.grad_req != "null" and name.endswith("weight") and not parameter.grad().asnumpy().any()
    ]
    assert not unmoved


# Published numbers of parameters: He et al. (2015), table 6, and torchvision's for ImageNet.
@pytest.mark.parametrize(
    "depth,classes,millions", [(20, 10, 0.27), (56, 10, 0.85), (18, 1000, 11.69), (34, 1000, 21.80)]
)
def test_resnets_equal_the_published_sizes(depth, classes, millions, prepare):
    from mxtrain.model.graph.summary import summarize

    shape = (3, 32, 32) if depth in (20, 56) else (3, 224, 224)
    found = summarize(prepare(ResNet(depth=depth), classes, shape), shape).parameters / 1e6
    assert found == pytest.approx(millions, abs=0.006)


def test_stem_follows_the_size_of_the_images(prepare):
    def stem(model, shape):
        return prepare(model, 10, shape).features[0]._kwargs["kernel"]

    assert stem(ResNet(depth=8), (3, 32, 32)) == (3, 3)
    assert stem(ResNet(depth=8), (3, 64, 64)) == (7, 7)
    assert stem(ResNet(depth=8, stem="small"), (3, 64, 64)) == (3, 3)
    assert stem(ResNet(depth=8, stem="large"), (3, 32, 32)) == (7, 7)


@pytest.mark.slow
def test_version_2_activates_before_the_sum(prepare):
    """The output of a version 1 stage is never negative, that of version 2 is."""
    from mxtrain.engine.backend import nd

    for version, negative in ((1, False), (2, True)):
        network = prepare(ResNet(depth=8, version=version))
        stage = next(i for i, block in enumerate(network.features) if "stage1" in block.name)
        value = nd.random.normal(shape=(2, 3, 32, 32))
        for block in list(network.features)[: stage + 1]:
            value = block(value)
        assert bool((value.asnumpy() < 0).any()) is negative


def test_lenet_refuses_images_that_are_too_small(prepare):
    with pytest.raises(ConfigError, match=r"needs at least 16x16, but samples are 8x8.*dataset.image_size=\[16,16\]"):
        prepare(LeNet(channels=[4, 4, 4, 4]), 10, SMALL)


def test_the_mean_pools_without_the_pooling_operator(prepare):
    """Global pooling's gradient comes in a layout that halves the speed (notes: memory formats)."""
    from mxtrain.model.graph.trace import trace

    ops = {node.op for node in trace(prepare(ResNet(depth=8)), (3, 32, 32)).nodes}
    assert "mean" in ops and "Pooling" not in ops
