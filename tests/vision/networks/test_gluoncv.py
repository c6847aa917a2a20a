"""GluonCV's networks by name."""

import re

import pytest

from mxtrain.errors import ConfigError
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.networks.gluoncv_names import CLASSIFICATION_NAMES, sizes_of

RUN = [
    ("resnet18_v1", {}, 64),
    ("resnet18_v1", {"thumbnail": True}, 32),
    ("resnet18_v1b", {}, 64),
    ("resnet50_v1b_gn", {}, 64),
    ("se_resnet18_v2", {}, 64),
    ("resnest14", {}, 64),
    ("mobilenet0.25", {}, 64),
    ("mobilenetv2_0.25", {}, 64),
    ("mobilenetv3_small", {}, 64),
    ("shufflenet_v2", {}, 64),
    ("squeezenet1.1", {}, 224),
    ("alexnet", {}, 64),
    ("dla34", {}, 64),
    ("resnet50_v1d_0.11", {}, 64),
    ("cifar_resnet20_v1", {}, 32),
    ("cifar_wideresnet16_10", {}, 8),
    ("cifar_residualattentionnet56", {}, 32),
]

# What is in GluonCV's registry and is no trainable image classifier.
OTHER_TASKS = (
    "ssd_",
    "faster_rcnn",
    "mask_rcnn",
    "custom_",
    "doublehead_",
    "yolo3_",
    "center_net",
    "simple_pose",
    "mobile_pose",
    "alpha_pose",
    "fcn_",
    "psp_",
    "deeplab_",
    "icnet_",
    "fastscnn",
    "danet",
    "monodepth2",
    "siamrpn",
    "i3d_",
    "c3d_",
    "p3d_",
    "r2plus1d_",
    "slowfast_",
)
OTHER_TASK_ENDINGS = ("_int8", "_ucf101", "_hmdb51", "_kinetics400", "_sthsthv2", "_custom", "_s")


@pytest.mark.zoo_except(
    "resnet18_v1b-64", "mobilenet0.25-64", "mobilenetv3_small-64", "squeezenet1.1-224", "cifar_resnet20_v1-32"
)
@pytest.mark.slow
@pytest.mark.parametrize("name,options,size", RUN, ids=[f"{name}-{size}" for name, _, size in RUN])
def test_families_build_and_run(name, options, size, prepare, train_step):
    model = GluonCV(name=name, options=options)
    shape = (3, size, size)
    network = prepare(model, 7, shape)
    network.hybridize()
    assert train_step(network, shape).shape == (2, 7)


def test_list_of_names_equals_gluoncv():
    GluonCV().build(3, (3, 64, 64))  # silences what GluonCV says when it is imported
    from gluoncv.model_zoo import get_model_list

    expected = {n for n in get_model_list() if not n.startswith(OTHER_TASKS) and not n.endswith(OTHER_TASK_ENDINGS)}
    assert set(CLASSIFICATION_NAMES) == expected and len(CLASSIFICATION_NAMES) == len(expected)


def smallest_of_families():
    """One name of those that differ in depth and width alone, and in no rule of sizes."""
    families = {}
    number = re.compile(r"(?<!v)\d+(?:\.\d+)?")  # no version
    for name in sorted(CLASSIFICATION_NAMES, key=lambda name: [float(found) for found in number.findall(name)]):
        families.setdefault((number.sub("", name), sizes_of(name)), name)
    return sorted(families.values())


NATIVE = ((1, 8, 8), (3, 70, 100), (3, 224, 224), (3, 299, 299), (3, 331, 331))


def test_every_name_has_a_size():
    for name in CLASSIFICATION_NAMES:
        sizes = sizes_of(name)
        for native in NATIVE:
            channels, *sides = GluonCV(name=name).input_shape(native)
            assert channels == 3 and min(sides) >= sizes.minimum
            assert all(side == sizes.usual or side % sizes.multiple == 0 for side in sides), name


@pytest.mark.zoo_except(
    "alexnet", "cifar_resnet20_v1", "googlenet", "inceptionv3", "mobilenetv2_0.25", "resnest14", "resnet18_v1b"
)
@pytest.mark.slow
@pytest.mark.parametrize("name", smallest_of_families())
def test_every_family_accepts_its_input_shape(name):
    model = GluonCV(name=name)
    for shape in sorted({model.input_shape(native) for native in NATIVE}):
        network = model.build(7, shape)
        infer_shapes(network, shape, [(7,)])
        assert all(0 not in parameter.shape for parameter in network.collect_params().values()), shape


@pytest.mark.parametrize(
    "name,native,wanted",
    [
        ("resnet18_v1", (1, 8, 8), (3, 224, 224)),
        ("resnet18_v1", (3, 64, 80), (3, 64, 80)),
        ("cifar_resnet20_v1", (1, 28, 28), (3, 28, 28)),
        ("cifar_residualattentionnet56", (1, 28, 28), (3, 32, 32)),
        ("densenet121", (3, 128, 128), (3, 224, 224)),
        ("inceptionv3", (3, 32, 32), (3, 299, 299)),
        ("nasnet_6_4032", (3, 331, 331), (3, 331, 331)),
        ("dla34", (3, 100, 64), (3, 128, 64)),
        ("residualattentionnet56", (3, 256, 256), (3, 224, 224)),
    ],
)
def test_input_shape(name, native, wanted):
    assert GluonCV(name=name).input_shape(native) == wanted


def test_group_norm_normalises_each_group():
    import numpy as np

    from mxtrain.engine.backend import nd
    from mxtrain.vision.networks.gluoncv import GroupNorm

    block = GroupNorm(ngroups=2, in_channels=4)
    block.initialize()
    block.gamma.set_data(nd.array([1, 2, 3, 4]))
    block.beta.set_data(nd.array([0, 1, 0, 0]))
    x = np.random.RandomState(0).randn(3, 4, 5, 6).astype("float32")
    groups = x.reshape(3, 2, -1)
    normal = ((groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)).reshape(x.shape)
    expected = normal * np.array([1, 2, 3, 4]).reshape(1, 4, 1, 1) + np.array([0, 1, 0, 0]).reshape(1, 4, 1, 1)
    np.testing.assert_allclose(block(nd.array(x)).asnumpy(), expected, atol=1e-5)
    block.hybridize()
    np.testing.assert_allclose(block(nd.array(x)).asnumpy(), expected, atol=1e-5)


def test_building_does_not_change_gluoncv():
    GluonCV().build(3, (3, 64, 64))
    import gluoncv.nn

    before = gluoncv.nn.GroupNorm
    GluonCV(name="resnet50_v1b_gn").build(3, (3, 64, 64))
    assert gluoncv.nn.GroupNorm is before


def test_a_wrong_option_is_named(prepare):
    with pytest.raises(ConfigError, match="thumbnial.*resnet18_v1"):
        prepare(GluonCV(options={"thumbnial": True}))


@pytest.mark.slow
def test_auxiliary_outputs_are_refused(prepare):
    with pytest.raises(ConfigError, match=r"one tensor of \(batch, 10\).*returns 2: 1x10, 1x10"):
        prepare(GluonCV(name="nasnet_4_1056", options={"use_aux": True}), 10, (3, 64, 64))
