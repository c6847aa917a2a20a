"""GluonCV's detectors by name: their values, their files, and what is refused."""

import warnings

import numpy as np
import pydantic
import pytest
from two_stages import prepared

from mxtrain.errors import ConfigError, WeightsError
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.graph.trace import blocks_by_path, trace
from mxtrain.model.parameters import parameter_multipliers
from mxtrain.model.weights import load_weights
from mxtrain.vision.detection.gluoncv_centernet import GluonCVCenterNet as CenterNet
from mxtrain.vision.detection.networks import gluoncv_detectors
from mxtrain.vision.detection.ssd import SSD
from mxtrain.vision.detection.yolo3 import YOLO3
from mxtrain.vision.images.class_lists import COCO_CLASSES, VOC_CLASSES

SMALL_SSD = {"name": "ssd_custom", "backbone": "cifar_resnet20_v1", "filters": [16]}
SMALL = [
    (SSD, "ssd_300_mobilenet0.25", "_voc", 300),
    (YOLO3, "yolo3_mobilenet0.25", "_voc", 96),
    (CenterNet, "center_net_mobilenetv3_small_duc", "_voc", 64),
]
LARGE = [
    (SSD, "ssd_300_vgg16_atrous", "_voc", 300),
    (SSD, "ssd_300_vgg16_atrous_coco", "", 300),
    (SSD, "ssd_512_vgg16_atrous", "_voc", 512),
    (SSD, "ssd_300_resnet34_v1b", "_voc", 300),
    (SSD, "ssd_512_resnet18_v1", "_voc", 512),
    (SSD, "ssd_512_resnet50_v1_coco", "", 512),
    (SSD, "ssd_512_resnet101_v2", "_voc", 512),
    (SSD, "ssd_512_mobilenet1.0", "_voc", 512),
    (SSD, "ssd_300_mobilenet1.0_lite_coco", "", 300),
    (YOLO3, "yolo3_darknet53", "_voc", 96),
    (YOLO3, "yolo3_mobilenet1.0_coco", "", 96),
    (CenterNet, "center_net_resnet18_v1b", "_voc", 64),
    (CenterNet, "center_net_resnet50_v1b", "_coco", 64),
    (CenterNet, "center_net_resnet101_v1b", "_voc", 64),
    (CenterNet, "center_net_dla34", "_voc", 64),
    (CenterNet, "center_net_mobilenetv3_large_duc", "_voc", 64),
]


def gluoncv_network(name):
    """GluonCV's own network of that name with a dataset."""
    from mxtrain.vision.networks import gluoncv

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gluoncv.get_model(name, pretrained=False, pretrained_base=False)


def spread(network, image):
    """Heads whose values differ from place to place: those of a fresh network are all alike, or beyond all bounds."""
    draw = np.random.RandomState(1)

    def fill(layer, inputs):
        shape, size = layer.weight.shape, max(float(inputs[0].asnumpy().std()), 1e-30)
        layer.weight.set_data(_nd(draw.randn(*shape) * 1.5 / (size * np.prod(shape[1:]) ** 0.5)))
        # Widths and heights of a CenterNet are not logarithms: GluonCV's may be below 0, ours are not.
        least = 8.0 if layer is sizes else 0.0
        layer.bias.set_data(_nd(draw.randn(*layer.bias.shape) * 0.5 + least))

    sizes = network.heads[1][-1] if hasattr(network, "heads") else None
    beginnings = ("class_predictors.", "box_predictors.", "heads.", *network.class_heads)
    handles = [
        block.register_forward_pre_hook(fill)
        for path, block in blocks_by_path(network)
        if path.startswith(beginnings) and hasattr(block, "weight")
    ]
    network(image)
    for handle in handles:
        handle.detach()


def _nd(array):
    from mxtrain.engine.backend import nd

    return nd.array(array)


def check_values(kind, name, dataset, side, tmp_path):
    num_classes = len(COCO_CLASSES if (name + dataset).endswith("coco") else VOC_CLASSES)
    coding, ours = prepared(kind(name=name, init="msra"), num_classes, side)
    image = _nd(np.random.RandomState(0).uniform(-2, 2, (2, 3, side, side)))
    spread(ours, image)
    ours.save_parameters(str(tmp_path / "ours.params"))
    gluoncvs = gluoncv_network(name + dataset)
    gluoncvs.load_parameters(str(tmp_path / "ours.params"))  # has all of them, and no other
    ids, scores, boxes = (array.asnumpy() for array in gluoncvs(image))
    wanted_BN6 = np.concatenate([ids.reshape(*boxes.shape[:2], 1), scores.reshape(*boxes.shape[:2], 1), boxes], axis=2)
    found_BN6 = coding.decode(ours(image)).asnumpy()
    number = min(found_BN6.shape[1], wanted_BN6.shape[1])
    assert number >= 40 and (wanted_BN6[..., 0] >= 0).sum() > 20 and len(set(wanted_BN6[..., 1].ravel())) > 20
    found_BN6, wanted_BN6 = found_BN6[:, :number], wanted_BN6[:, :number]
    np.testing.assert_allclose(found_BN6[..., 1], wanted_BN6[..., 1], atol=2e-5)
    # Of equal scores either may come first.
    same_BN = (np.abs(found_BN6 - wanted_BN6) <= 1e-3 * (1 + np.abs(wanted_BN6))).all(axis=2)
    assert same_BN.mean() > 0.95, (found_BN6[~same_BN][:3], wanted_BN6[~same_BN][:3])


@pytest.mark.slow
@pytest.mark.parametrize("kind, name, dataset, side", SMALL)
def test_predictions_equal_gluoncv_with_the_same_file(kind, name, dataset, side, tmp_path):
    check_values(kind, name, dataset, side, tmp_path)


@pytest.mark.zoo
@pytest.mark.parametrize("kind, name, dataset, side", LARGE)
def test_predictions_of_larger_networks_equal_gluoncv(kind, name, dataset, side, tmp_path):
    check_values(kind, name, dataset, side, tmp_path)


@pytest.mark.slow
def test_scaled_boxes_are_saved_with_weights(tmp_path):
    """GluonCV keeps the boxes of its own sizes, unless a file has others."""
    coding, ours = prepared(SSD(name="ssd_300_mobilenet0.25", init="msra"), 20, 128)
    ours.save_parameters(str(tmp_path / "ours.params"))
    gluoncvs = gluoncv_network("ssd_300_mobilenet0.25_voc")
    gluoncvs.load_parameters(str(tmp_path / "ours.params"))
    from mxtrain.engine.backend import autograd

    with autograd.train_mode():
        _, _, anchor_1N4 = gluoncvs(_nd(np.zeros((1, 3, 128, 128))))
    np.testing.assert_array_equal(anchor_1N4.asnumpy()[0], coding.anchor_N4)


@pytest.mark.zoo_cases("YOLO3-yolo3_mobilenet0.25-_voc-96", "GluonCVCenterNet-center_net_mobilenetv3_small_duc-_voc-64")
@pytest.mark.slow
@pytest.mark.parametrize("kind, name, dataset, side", SMALL)
def test_files_of_gluoncvs_open_and_classes_are_found_by_their_names(kind, name, dataset, side, tmp_path):
    gluoncvs = gluoncv_network(name + dataset)
    infer_shapes(gluoncvs, (3, 96, 96))
    for parameter in gluoncvs.collect_params().values():
        if parameter.init is None and parameter.name.endswith("_var"):
            parameter.init = "ones"
    gluoncvs.initialize(force_reinit=True)
    gluoncvs.save_parameters(str(tmp_path / "theirs.params"))
    known = gluoncvs._collect_params_with_prefix()
    path = str(tmp_path / "theirs.params")
    side = 64 if kind is SSD else side

    _, whole = prepared(kind(name=name, weights=path), 20, side)
    for one, parameter in whole._collect_params_with_prefix().items():
        if one not in getattr(whole, "computed", ()):
            np.testing.assert_array_equal(parameter.data().asnumpy(), known[one].data().asnumpy())

    classes = ["zebra", "person", "cat"]
    _, fresh = prepared(kind(name=name), 3, side)
    _, found = prepared(kind(name=name, weights=path, weights_classes="voc"), 3, side, output_names=classes)
    for layer, rows in found.class_heads.items():
        for part in ("weight", "bias"):
            ours, theirs_, start = (
                network._collect_params_with_prefix()[f"{layer}.{part}"].data().asnumpy()
                for network in (found, gluoncvs, fresh)
            )
            by_group = [array.reshape(rows.groups, -1, *array.shape[1:]) for array in (ours, theirs_, start)]
            lead = rows.leading
            np.testing.assert_array_equal(by_group[0][:, :lead], by_group[1][:, :lead])
            np.testing.assert_array_equal(by_group[0][:, lead], by_group[2][:, lead])  # no zebra in VOC
            for place, old in ((1, VOC_CLASSES.index("person")), (2, VOC_CLASSES.index("cat"))):
                np.testing.assert_array_equal(by_group[0][:, lead + place], by_group[1][:, lead + old])


@pytest.mark.slow
def test_loaded_weights_are_reported_and_wrong_classes_refused(tmp_path):
    _, before = prepared(SSD(**SMALL_SSD), 3, 48)
    path = str(tmp_path / "three.params")
    before.save_parameters(path)
    _, network = prepared(SSD(**SMALL_SSD), 2, 48)
    report = load_weights(network, path, ["cat", "dog", "cow"], ["cow", "horse"])
    assert report.reused == ["cow"] and len(report.adapted) == 6 and not report.left and not report.unused
    assert "6 loaded but for classes, of which 1 by their names: cow; the others are freshly initialised" in str(report)
    assert "model.weights_classes" not in str(report)
    assert "model.weights_classes=[NAME,...]" in str(load_weights(network, path))
    with pytest.raises(WeightsError, match="scores 3 classes, but model.weights_classes names 20"):
        load_weights(network, path, VOC_CLASSES, ["cow", "horse"])
    # As many classes, in another order.
    _, network = prepared(SSD(**SMALL_SSD), 3, 48)
    report = load_weights(network, path, ["cat", "dog", "cow"], ["cow", "cat", "dog"])
    name = "class_predictors.0.predictor.bias"
    assert report.reused == ["cow", "cat", "dog"] and name in report.adapted
    report = load_weights(network, path, ["cat", "dog", "cow"], ["cat", "dog", "cow"])
    assert report.adapted == [] and name in report.matched


def test_names_and_classes_equal_gluoncv():
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.data import COCODetection, VOCDetection  # isort: skip
    from gluoncv.model_zoo import get_model_list  # isort: skip

    assert VOCDetection.CLASSES == VOC_CLASSES and tuple(COCODetection.CLASSES) == COCO_CLASSES
    registered = [name for name in get_model_list() if not name.endswith("_int8")]
    for kind, beginning in ((SSD, "ssd_"), (YOLO3, "yolo3_"), (CenterNet, "center_net_")):
        names = [name for name in registered if name.startswith(beginning) and "dcnv2" not in name]
        assert len(names) >= 9 and {kind(name=name).plain_name for name in names} == set(kind.known) - {"ssd_custom"}


@pytest.mark.parametrize("backbone", ["resnet18_v1", "mobilenetv3_small", "squeezenet1.0"])
def test_an_ssd_around_any_backbone(backbone):
    model = SSD(name="ssd_custom", backbone=backbone)
    shape = (3, 96, 160)
    coding = model.box_coding(3, shape)
    networks = [model.build(3, shape) for _ in range(2)]
    for network in networks:
        infer_shapes(network, shape, coding.output_shapes)
    first, second = (list(network._collect_params_with_prefix()) for network in networks)
    assert first == second  # a checkpoint opens in another process
    used = set(trace(networks[0], shape).parameter_shapes)
    assert {parameter.name for parameter in networks[0].collect_params().values()} == used
    sizes = coding.anchor_N4[:, 2:].prod(axis=1) ** 0.5
    assert 10 < sizes.min() < 15 and 80 < sizes.max() < 130
    assert (coding.anchor_N4[:, :2] > 0).all() and (coding.anchor_N4[:, :2] < (160, 96)).all()


def test_features_and_sizes_can_be_typed():
    model = SSD(
        name="ssd_custom",
        backbone="resnet18_v1",
        features=["stage2_activation1", "stage4_activation1"],
        filters=[],
        anchor_sizes=[0.1, 0.3, 0.6],
    )
    coding = model.box_coding(3, (3, 64, 64))
    assert len(coding.anchor_N4) == (8 * 8 + 2 * 2) * 4
    np.testing.assert_allclose(coding.anchor_N4[0, 2:], 6.4, rtol=1e-6)
    with pytest.raises(ConfigError, match="no output 'stage2_activation9'.*Did you mean 'stage2_activation"):
        SSD(name="ssd_custom", backbone="resnet18_v1", features=["stage2_activation9"]).box_coding(3, (3, 64, 64))
    with pytest.raises(ConfigError, match="the network has 2 maps, so 3 sizes are wanted"):
        SSD(name="ssd_custom", backbone="resnet18_v1", filters=[], anchor_sizes=[0.1, 0.2]).box_coding(3, (3, 64, 64))
    with pytest.raises(ConfigError, match="dla34: the network has no two maps"):
        SSD(name="ssd_custom", backbone="dla34").box_coding(3, (3, 64, 64))


@pytest.mark.parametrize(
    "kind, fields, said",
    [
        (SSD, {"name": "ssd_512_resnet5_v1_voc"}, "Did you mean 'ssd_512_resnet50_v1'.*There are 11: ssd_300_vgg16"),
        (SSD, {"name": "ssd_custom"}, "type model.backbone=NAME, e.g. resnet18_v1"),
        (SSD, {"name": "ssd_custom", "backbone": "resnet18v1"}, "Did you mean 'resnet18_v1'"),
        (SSD, {"backbone": "resnet18_v1"}, "backbone is part of ssd_512_mobilenet1.0. Type model.name=ssd_custom"),
        (SSD, {"filters": [3]}, "filters is part of ssd_512_mobilenet1.0"),
        (SSD, {"weights_classes": ["a", "a"]}, "should be voc, coco, or the names of all classes"),
        (SSD, {"options": {"pretrained_base": True}}, "model.weights=pretrained"),
        (SSD, {"nms_candidates": -1}, "greater than 0"),
        (YOLO3, {"name": "yolov3_darknet53"}, "Did you mean 'yolo3_darknet53'"),
        (YOLO3, {"anchors": [[1.0, 2.0]]}, "three lists of six numbers"),
        (CenterNet, {"name": "center_net_resnet34_v1b"}, "Did you mean 'center_net_resnet"),
        (CenterNet, {"name": "center_net_resnet18_v1b_dcnv2_voc"}, "no gradients of deformable convolutions"),
    ],
)
def test_unsupported_settings_are_refused_with_alternatives(kind, fields, said):
    with pytest.raises(pydantic.ValidationError, match=said):
        kind(**fields)


def test_image_sizes_that_do_not_fit_are_refused_with_suitable_ones():
    with pytest.raises(ConfigError, match=r"multiples of 32, but they are 100x64. Type dataset.image_size=\[128,64\]"):
        CenterNet().box_coding(3, (3, 100, 64))
    with pytest.raises(ConfigError, match=r"multiples of 32, but they are 64x90. Type dataset.image_size=\[64,96\]"):
        YOLO3().box_coding(3, (3, 64, 90))
    with pytest.raises(ConfigError, match=r"cannot take samples of 3x64x64.*try dataset.image_size=\["):
        SSD(name="ssd_300_vgg16_atrous").box_coding(3, (3, 64, 64))


@pytest.mark.slow
def test_norms_and_biases_of_a_graph_have_no_weight_decay_and_can_be_frozen():
    from mxtrain.engine.backend import autograd

    _, network = prepared(SSD(**SMALL_SSD, freeze=["features.*"]), 3, 48)
    multipliers = parameter_multipliers(SSD(**SMALL_SSD), network)
    assert multipliers["features.expand_bn0_beta"][1] == 0
    assert multipliers["features.cifarresnetv10_stage1_batchnorm0_gamma"][1] == 0
    assert multipliers["features.cifarresnetv10_stage1_conv0_weight"][1] == 1
    before = {name: p.data().asnumpy() for name, p in network._collect_params_with_prefix().items()}
    network.hybridize()
    with autograd.record():
        score, offset = network(_nd(np.random.RandomState(0).randn(2, 3, 48, 48)))
        total = score.sum() + offset.sum()
    total.backward()
    for name, parameter in network._collect_params_with_prefix().items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), before[name], err_msg=name)
    assert any("running_mean" in name for name in before) and any("moving_mean" in name for name in before)


def test_sizes_of_multi_boxes_fit_each_other():
    for name, made_of in gluoncv_detectors.SSD.items():
        num_maps = len(made_of.ratios)
        assert len(made_of.sizes) == num_maps + 1 and len(made_of.steps) == num_maps, name
        assert not made_of.features or len(made_of.features) + len(made_of.filters) == num_maps, name
