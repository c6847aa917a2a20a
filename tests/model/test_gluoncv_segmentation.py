"""GluonCV's segmentation networks by name."""

import contextlib
import io

import numpy as np
import pydantic
import pytest

from mxtrain.errors import ConfigError
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.graph.trace import trace
from mxtrain.model.parameters import parameter_multipliers
from mxtrain.model.prepare import prepare_network
from mxtrain.model.weights import load_weights
from mxtrain.vision.segmentation.gluoncv_segmentation import (
    ARCHITECTURES,
    NUM_AUXILIARY,
    GluonCVSegmentation,
    without_dataset,
)

SIZE, ODD = (3, 64, 96), (3, 70, 101)
SMALLEST = [name for name in NUM_AUXILIARY if name.endswith("_resnet50") or name.partition("_")[0] not in ARCHITECTURES]
SMALLEST += ["deeplab_plus_xception", "deeplab_v3b_plus_wideresnet", "deeplab_resnest50"]
SMALLEST = list(dict.fromkeys(SMALLEST))

MARKS = {name: pytest.mark.zoo for name in ("deeplab_plus_xception", "deeplab_v3b_plus_wideresnet")}


def check_traced(name, aux):
    model = GluonCVSegmentation(name=name, aux=aux)
    assert model.num_auxiliary == (NUM_AUXILIARY[name] if aux else 0)
    network = model.build(7, SIZE)
    infer_shapes(network, SIZE, [(7, *SIZE[1:])] * (1 + model.num_auxiliary))
    used = trace(network, ODD)
    assert used.failure is None
    assert used.output_shapes == [(1, 7, *ODD[1:])] * (1 + model.num_auxiliary)
    parameters = {parameter.name for parameter in network.collect_params().values()}
    assert parameters == set(used.parameter_shapes)  # none that nothing reads


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_networks_give_maps_of_the_size_of_any_image(name):
    check_traced(name, aux=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["icnet_resnet50", "danet_resnet50", "fastscnn", "fcn_resnet50"])
def test_network_without_auxiliary_outputs(name):
    check_traced(name, aux=False)


@pytest.mark.zoo
@pytest.mark.parametrize("name", [name for name in NUM_AUXILIARY if name not in SMALLEST])
def test_larger_backbones_give_maps_of_the_size_of_any_image(name):
    check_traced(name, aux=True)


def test_names_equal_gluoncv():
    GluonCVSegmentation(name="fastscnn").build(3, SIZE)  # silences what GluonCV says when it is imported
    from gluoncv.model_zoo import get_model_list, segbase

    kinds = (*(f"{kind}_" for kind in ARCHITECTURES), "fastscnn")
    registered = [name for name in get_model_list() if name.startswith(kinds) and not name.endswith("_int8")]
    assert len(registered) >= 28
    assert {without_dataset(name) for name in registered} <= set(NUM_AUXILIARY)
    for name in registered:
        GluonCVSegmentation(name=name)
    with pytest.raises(ValueError) as refused:
        segbase.get_backbone("none")
    backbones = set(str(refused.value).split()[1:])
    assert {name.rpartition("_")[2] for name in NUM_AUXILIARY if name.startswith("fcn_")} == {
        name for name in backbones if name not in ("resnet18", "resnet34")
    }


def gluoncv_network(name, num_classes, side, **arguments):
    """GluonCV's own block."""
    from mxtrain.vision.segmentation.networks import BY_ARCHITECTURE, BY_NAME

    kind, backbone = BY_NAME.get(name), {}
    if kind is None:
        architecture, _, backbone["backbone"] = name.rpartition("_")
        kind = BY_ARCHITECTURE[architecture]
    with contextlib.redirect_stdout(io.StringIO()):
        return kind(num_classes, crop_size=side, pretrained_base=False, **backbone, **arguments)


def full_size(name, outputs, side):
    """GluonCV's outputs as ours: those of lower resolution at the image's size, and none twice."""
    from mxtrain.engine.backend import nd

    if name.startswith("icnet"):
        outputs = [nd.contrib.BilinearResize2D(one, height=side, width=side) for one in outputs]
        np.testing.assert_array_equal(outputs[0].asnumpy(), outputs[1].asnumpy())  # ICNetLoss counts it with 1.4
        outputs = [outputs[0], *outputs[2:]]
    return outputs


@pytest.mark.zoo
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("fastscnn", "icnet_resnet50") else pytest.param(name, marks=pytest.mark.zoo)
        for name in SMALLEST
        if "resnest" not in name
    ],
)
def test_values_and_files_equal_gluoncv(name, tmp_path):
    from mxtrain.engine.backend import nd

    side = 64
    ours = prepare_network(
        GluonCVSegmentation(name=name),
        num_classes=5,
        input_shape=(3, side, side),
        seed=0,
        output_shapes=[(5, side, side)] * (1 + NUM_AUXILIARY[name]),
    ).network
    gluoncvs = gluoncv_network(name, 5, side, aux=True)
    ours.save_parameters(str(tmp_path / "ours.params"))
    gluoncvs.load_parameters(str(tmp_path / "ours.params"))
    image = nd.array(np.random.RandomState(0).randn(1, 3, side, side))
    found = ours(image)
    found = found if isinstance(found, tuple) else (found,)
    wanted = full_size(name, gluoncvs(image), side)
    assert len(found) == len(wanted) == 1 + NUM_AUXILIARY[name]
    for one, other in zip(found, wanted):
        largest = np.abs(other.asnumpy()).max()
        assert largest > 0
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), atol=1e-5 * largest, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fastscnn", pytest.param("icnet_resnet50", marks=pytest.mark.zoo)])
def test_files_of_gluoncvs_open_and_heads_for_other_classes_are_replaced(name, tmp_path):
    from mxtrain.engine.backend import mx

    gluoncvs = gluoncv_network(name, 5, 64, aux=True)
    infer_shapes(gluoncvs, (3, 64, 64))
    gluoncvs.initialize(force_reinit=True)
    gluoncvs.save_parameters(str(tmp_path / "theirs.params"))
    for num_classes, replaced in ((5, 0), (3, 1 + NUM_AUXILIARY[name])):
        network = GluonCVSegmentation(name=name).build(num_classes, (3, 64, 64))
        infer_shapes(network, (3, 64, 64))
        network.initialize(mx.init.Zero(), force_reinit=True)
        report = load_weights(network, tmp_path / "theirs.params")
        assert not report.left and not report.unused
        assert len({one.rpartition(".")[0] for one in report.replaced}) == replaced
        parameters = gluoncvs._collect_params_with_prefix()
        for one in report.matched:
            found = network._collect_params_with_prefix()[one].data().asnumpy()
            np.testing.assert_array_equal(found, parameters[one].data().asnumpy())


def hybridized(name):
    from mxtrain.training.network import hybridize

    network = prepare_network(
        GluonCVSegmentation(name=name),
        num_classes=4,
        input_shape=(3, 64, 64),
        seed=0,
        output_shapes=[(4, 64, 64)] * 2,
    ).network
    hybridize(network)
    return network


@pytest.mark.zoo_except("fastscnn")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fastscnn", "fcn_resnet50"])
def test_one_traced_network_takes_several_sizes(name):
    from mxtrain.engine.backend import nd

    network = hybridized(name)
    random = np.random.RandomState(0)
    images = [nd.array(random.randn(1, 3, *size)) for size in ((64, 64), (90, 75), (64, 64))]
    found = [[one.asnumpy() for one in network(image)] for image in images]
    for image, outputs in zip(images, found):
        assert [one.shape for one in outputs] == [(1, 4, *image.shape[2:])] * 2
    network.hybridize(False)
    for image, outputs in zip(images, found):
        for one, other in zip(outputs, network(image)):
            np.testing.assert_allclose(one, other.asnumpy(), atol=1e-5)


@pytest.mark.slow
def test_gradients_equal_gluoncv(tmp_path):
    from mxtrain.engine.backend import autograd, nd

    ours = hybridized("fastscnn")
    gluoncvs = gluoncv_network("fastscnn", 4, 64)
    ours.save_parameters(str(tmp_path / "ours.params"))
    gluoncvs.load_parameters(str(tmp_path / "ours.params"))
    random = np.random.RandomState(0)
    image = nd.array(random.randn(2, 3, 64, 64))
    heads = [nd.array(random.randn(2, 4, 64, 64)) for _ in range(2)]
    for network in (ours, gluoncvs):
        with autograd.record(train_mode=False):  # dropout is random
            outputs = network(image)
        autograd.backward(outputs, heads)
    found, wanted = (network._collect_params_with_prefix() for network in (ours, gluoncvs))
    assert set(found) == set(wanted)
    gradients = {name: one.grad().asnumpy() for name, one in wanted.items() if one.grad_req != "null"}
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        tolerance = 1e-4 * np.abs(gradient).max() + 1e-6 * largest
        np.testing.assert_allclose(found[name].grad().asnumpy(), gradient, atol=tolerance, rtol=0, err_msg=name)


def test_heads_learn_ten_times_as_fast_as_in_gluoncvs_recipe():
    for name, heads in (("fcn_resnet50", ("head.", "auxlayer.")), ("fastscnn", ("auxlayer.",))):
        model = GluonCVSegmentation(name=name)
        multipliers = parameter_multipliers(model, model.build(4, SIZE))
        assert {rate for rate, _ in multipliers.values()} == {1.0, 10.0}
        assert all((rate == 10) == one.startswith(heads) for one, (rate, _) in multipliers.items())


@pytest.mark.parametrize(
    "old,new", [((4, 4), (9, 13)), ((1, 1), (5, 3)), ((6, 7), (6, 7)), ((8, 9), (3, 4)), ((2, 3), (1, 1))]
)
def test_resizing_equals_mxnet(old, new):
    from mxtrain.engine.backend import autograd, nd
    from mxtrain.vision.segmentation.networks import resize_like

    random = np.random.RandomState(0)
    maps, head = nd.array(random.randn(2, 3, *old)), nd.array(random.randn(2, 3, *new))
    maps.attach_grad()
    results = []
    for resize in (
        lambda x: resize_like(nd, x, nd.zeros((2, 1, *new))),
        lambda x: nd.contrib.BilinearResize2D(x, height=new[0], width=new[1]),
    ):
        with autograd.record():
            resized = resize(maps)
        resized.backward(head)
        results.append((resized.asnumpy(), maps.grad.asnumpy()))
    for found, wanted in zip(*results):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    "fields,said",
    [
        ({"name": "fcn_resnet18"}, "fcn takes no resnet18.*fcn_resnet50.*fastscnn"),
        ({"name": "icnet_resnet34_citys"}, "icnet takes no resnet34"),
        ({"name": "fcn_resnet5"}, "Did you mean .*'fcn_resnet50'.*There are 38: fcn_resnet50"),
        ({"name": "unet"}, "no segmentation network 'unet'"),
        ({"name": "fcn_resnet101_voc_int8"}, "no segmentation network"),
        ({"options": {"pretrained_base": True}}, "model.weights=PATH"),
        ({"options": {"crop_size": 480}}, "any size"),
        ({"options": {"nclass": 4}}, "comes from the dataset"),
        ({"options": {"backbone": "resnet50"}}, "model.name"),
        ({"options": {"aux": False}}, "model.aux"),
        ({"options": {"norm_layer": "SyncBatchNorm"}}, "parallel.batch_norm"),
    ],
)
def test_refused(fields, said):
    with pytest.raises(pydantic.ValidationError, match=said):
        GluonCVSegmentation(**fields)


@pytest.mark.parametrize(
    "name,option,said",
    [
        ("icnet_resnet50", "norm_kwarg", "Did you mean 'norm_kwargs'.*norm_kwargs, use_global_stats"),
        ("fastscnn", "lr_mult", "fastscnn takes no option 'lr_mult'"),
    ],
)
def test_an_option_that_gluoncv_would_overlook_is_refused(name, option, said):
    with pytest.raises(pydantic.ValidationError, match=said):
        GluonCVSegmentation(name=name, options={option: 1})


def test_an_option_that_gluoncv_refuses_is_named():
    with pytest.raises(ConfigError, match="model.options=.*norm_kwargs.*psp_resnet50 refuses"):
        GluonCVSegmentation(name="psp_resnet50", options={"norm_kwargs": {"momentun": 0.9}}).build(3, SIZE)


def test_options_reach_the_network():
    from mxtrain.engine.backend import gluon
    from mxtrain.model.graph.trace import blocks_by_path

    for name in ("fastscnn", "fcn_resnet50"):
        network = GluonCVSegmentation(name=name, options={"norm_kwargs": {"momentum": 0.7}}).build(3, SIZE)
        kinds = {type(block) for _, block in blocks_by_path(network) if isinstance(block, gluon.nn.BatchNorm)}
        momenta = {
            block._kwargs["momentum"]
            for _, block in blocks_by_path(network)
            if hasattr(block, "_kwargs") and isinstance(block, gluon.nn.BatchNorm)
        }
        assert kinds == {gluon.nn.BatchNorm} and 0.7 in momenta


def test_own_network_declares_its_number_of_auxiliary_outputs():
    from mxtrain.config.specs import build_spec
    from mxtrain.model.custom import CustomModel
    from mxtrain.vision.classification.lenet import LeNet

    node = {"_target_": "mxnet.gluon.nn.HybridSequential", "auxiliary_outputs": 2}
    model = build_spec(node, "model", CustomModel, lambda path: path)
    assert model.num_auxiliary == 2 and model.arguments == {}
    assert LeNet().num_auxiliary == 0
