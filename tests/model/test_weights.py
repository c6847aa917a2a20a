"""Loading weights: what matches, what is replaced, what is left, and what is refused."""

import numpy as np
import pytest
from tiers import rest_in_zoo

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.errors import WeightsError
from mxtrain.model.mlp import MLP
from mxtrain.model.prepare import prepare_network
from mxtrain.model.weights import load_weights
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.classification.resnet import ResNet

SHAPE = (3, 32, 32)


def values(network):
    return {name: p.data().asnumpy().copy() for name, p in network._collect_params_with_prefix().items()}


def same(ours, theirs, names=None):
    return all(np.array_equal(ours[name], theirs[name]) for name in names or ours)


@pytest.mark.parametrize("model", [MLP(), LeNet(), ResNet(depth=8), GluonCV(name="cifar_resnet20_v2")])
def test_weights_are_exchanged_with_gluon(model, prepare, tmp_path):
    path = str(tmp_path / "net.params")
    source, other = prepare(model, seed=1), prepare(model, seed=2)
    assert not same(values(source), values(other))
    source.save_parameters(path)
    report = load_weights(other, path)
    assert same(values(source), values(other))
    assert report.matched == list(values(source)) and not (report.replaced or report.left or report.unused)

    canonical = {name: nd.array(value) for name, value in values(other).items()}
    nd.save(path, canonical)
    plain = model.build(10, SHAPE)
    plain.load_parameters(path)
    assert same(values(plain), values(source))


@pytest.mark.zoo_cases("resnet18_v1b-shape0", "vgg11-shape8", "googlenet-shape10", "dla34-shape12")
@pytest.mark.parametrize(
    "name,shape",
    rest_in_zoo(
        [
            ("resnet18_v1b", (3, 64, 64)),
            ("squeezenet1.1", (3, 224, 224)),
            ("mobilenetv2_0.25", (3, 64, 64)),
            ("densenet121", (3, 224, 224)),
            ("alexnet", (3, 64, 64)),
            ("nasnet_4_1056", (3, 64, 64)),
            ("resnet50_v1d_0.11", (3, 64, 64)),
            ("hrnet_w18_small_v1_c", (3, 64, 64)),
            ("vgg11", (3, 32, 32)),
            ("inceptionv3", (3, 299, 299)),
            ("googlenet", (3, 224, 224)),
            ("xception", (3, 64, 64)),
            ("dla34", (3, 64, 64)),
            ("mobilenetv3_small", (3, 64, 64)),
            ("se_resnext50_32x4d", (3, 64, 64)),
        ],
        ("resnet18_v1b", (3, 64, 64)),
        ("squeezenet1.1", (3, 224, 224)),
        ("alexnet", (3, 64, 64)),
        ("vgg11", (3, 32, 32)),
        ("dla34", (3, 64, 64)),
        ("googlenet", (3, 224, 224)),
    ),
)
@pytest.mark.slow
def test_the_head_of_every_family_is_found(name, shape, prepare, tmp_path):
    path = str(tmp_path / "net.params")
    prepare(GluonCV(name=name), 13, shape, seed=1).save_parameters(path)
    network = prepare(GluonCV(name=name), 5, shape, seed=2)
    report = load_weights(network, path)
    parameters = network._collect_params_with_prefix()
    # Distinct parameters: GoogLeNet has its last layer under two names.
    assert 1 <= len({parameters[name].name for name in report.replaced}) <= 2 and not report.left and not report.unused


def test_a_head_for_other_classes_is_replaced(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    model = ResNet(depth=8)
    source = prepare(model, 100, seed=1)
    source.save_parameters(path)
    network = prepare(model, 7, seed=2)
    fresh = values(network)
    report = load_weights(network, path)
    assert report.replaced == ["output.weight", "output.bias"]
    assert same(values(network), fresh, report.replaced) and same(values(network), values(source), report.matched)
    text = str(report)
    assert "2 replaced by fresh ones" in text and "output.weight, output.bias" in text and path in text


def test_left_and_unused_are_reported(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    network = prepare(LeNet(), seed=1)
    arrays = {name: nd.array(value) + 1 for name, value in values(network).items() if name != "output.bias"}
    nd.save(path, {**arrays, "extra.weight": nd.ones((2,))})
    report = load_weights(network, path)
    assert report.left == ["output.bias"] and report.unused == ["extra.weight"]
    assert "1 not in the file, freshly initialised: output.bias" in str(report)
    assert "1 in the file but not in the network, not used: extra.weight" in str(report)


def test_wrong_shape_is_refused_without_changes(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    prepare(LeNet(channels=[8, 64])).save_parameters(path)
    network = prepare(LeNet(channels=[16, 64]), seed=3)
    before = values(network)
    with pytest.raises(WeightsError, match=r"'features.0.weight' has the shape \(16, 3, 3, 3\).*has \(8, 3, 3, 3\)"):
        load_weights(network, path)
    assert same(values(network), before)


def test_head_with_another_input_size_is_refused(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    prepare(MLP(hidden=[16]), 10).save_parameters(path)
    arrays = nd.load(path)
    arrays["output.weight"] = nd.ones((12, 20))
    nd.save(path, arrays)
    with pytest.raises(WeightsError, match="'output.weight'"):
        load_weights(prepare(MLP(hidden=[16]), 10), path)


def test_file_without_matching_parameters_is_refused(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    nd.save(path, {"backbone.0.weight": nd.ones((2,))})
    with pytest.raises(WeightsError, match="Nothing in the weights file.*backbone.0.weight.*features.1.weight"):
        load_weights(prepare(MLP()), path)


def test_values_that_are_not_finite_are_refused(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    network = prepare(MLP())
    nd.save(path, {name: nd.array(value) * np.nan for name, value in values(network).items()})
    with pytest.raises(WeightsError, match="not finite in 'features.1.weight'"):
        load_weights(network, path)


def test_a_file_with_few_of_the_parameters_is_refused(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    name, array = next(iter(values(prepare(ResNet(depth=8), seed=1)).items()))
    nd.save(path, {name: nd.array(array)})
    network = prepare(ResNet(depth=8), seed=2)
    before = values(network)
    with pytest.raises(WeightsError, match="Only 1 of the network's"):
        load_weights(network, path)
    assert same(values(network), before)


@pytest.mark.slow
@pytest.mark.parametrize("model", [LeNet(), ResNet(depth=8), GluonCV(name="cifar_resnet20_v1")])
def test_legacy_names(model, prepare, tmp_path):
    """Full names, names without the network's prefix, and Module's."""
    source = prepare(model, seed=1)
    full = {p.name: p.data() for p in source._collect_params_with_prefix().values()}
    stripped = {name[len(source.prefix) :]: value for name, value in full.items()}
    module = {("aux:" if "running" in name else "arg:") + name: value for name, value in full.items()}
    renamed = {"elsewhere7_" + name: value for name, value in stripped.items()}
    for number, arrays in enumerate((full, stripped, module, renamed)):
        path = str(tmp_path / f"{number}.params")
        nd.save(path, arrays)
        network = prepare(model, seed=2)
        report = load_weights(network, path)
        assert same(values(network), values(source)) and not report.left and not report.unused, number


def test_exported_weights(prepare, tmp_path):
    source = prepare(ResNet(depth=8), seed=1)
    source.hybridize()
    source(nd.zeros((1, *SHAPE)))
    source.export(str(tmp_path / "net"))
    network = prepare(ResNet(depth=8), seed=2)
    load_weights(network, tmp_path / "net-0000.params")
    assert same(values(network), values(source))


def test_counters_in_legacy_names_may_differ(tmp_path):
    """Layers made outside a name scope are counted over the whole process: dense4 and dense11 here, dense0 there."""

    def build():
        network = gluon.nn.HybridSequential()
        for _ in range(12):
            network.add(gluon.nn.Dense(4, in_units=4))
        network.initialize(mx.init.Normal(1))
        return network

    source, network = build(), build()
    path = str(tmp_path / "net.params")
    nd.save(path, {p.name: p.data() for p in source.collect_params().values()})
    load_weights(network, path)
    assert same(values(network), values(source))


def test_legacy_names_with_other_layers_are_not_guessed(tmp_path):
    path = str(tmp_path / "net.params")
    nd.save(path, {"conv0_kernel": nd.ones((2, 2)), "conv1_kernel": nd.ones((2, 2))})
    network = gluon.nn.Dense(2, in_units=2)
    network.initialize()
    with pytest.raises(WeightsError, match="Nothing"):
        load_weights(network, path)


def test_model_weights_are_loaded_when_preparing(prepare, tmp_path):
    path = str(tmp_path / "net.params")
    source = prepare(LeNet(), seed=1)
    source.save_parameters(path)
    prepared = prepare_network(LeNet(weights=path), num_classes=10, input_shape=SHAPE, seed=2)
    assert same(values(prepared.network), values(source)) and prepared.weights_report.path == path


def test_shared_parameters_load_once(tmp_path):
    def build():
        network = gluon.nn.HybridSequential()
        first = gluon.nn.Dense(3, in_units=3)
        network.add(first, gluon.nn.Dense(3, in_units=3, params=first.params))
        network.initialize(mx.init.Normal(1))
        return network

    source, network = build(), build()
    path = str(tmp_path / "net.params")
    source.save_parameters(path, deduplicate=True)
    report = load_weights(network, path)
    assert same(values(network), values(source)) and not report.left and not report.unused
