"""SSD detectors from the graphs of MXNet's example/ssd and of GluonCV's export, compared with these graphs."""

import warnings

import numpy as np
import pytest

import mxtrain
from mxtrain.config.groups import build_group
from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.model.prepare import prepare_network
from mxtrain.vision.detection.boxes import Column
from mxtrain.vision.detection.symbol_ssd import StoredAnchors

SIZE = 48
VARIANCES = "(0.1, 0.2, 0.2, 0.3)"


def maps_of(data):
    """Two maps; the first one is normalised with a scale that is trained, as in SSD-300 with VGG-16."""
    sym = mx.sym
    first = sym.Convolution(data, num_filter=6, kernel=(3, 3), stride=(8, 8), pad=(1, 1), name="conv1")
    first = sym.Activation(sym.BatchNorm(first, name="bn1", fix_gamma=False), act_type="relu", name="relu1")
    second = sym.Convolution(first, num_filter=8, kernel=(3, 3), stride=(2, 2), pad=(1, 1), name="conv2")
    second = sym.Activation(second, act_type="relu", name="relu2")
    scale = sym.var("relu1_scale", shape=(1, 6, 1, 1), init=mx.init.Constant(20), attr={"__wd_mult__": "0.1"})
    return [sym.broadcast_mul(scale, sym.L2Normalization(first, mode="channel")), second]


def heads(num_classes, steps=(-1.0, -1.0)):
    """Offsets, class scores and anchors, joined as by `multibox_layer` of example/ssd."""
    sym = mx.sym
    joined = {"offsets": [], "scores": [], "anchors": []}
    for number, (layer, anchors) in enumerate(zip(maps_of(sym.var("data")), (4, 3))):
        for kind, channels in (("scores", anchors * (1 + num_classes)), ("offsets", anchors * 4)):
            bias = sym.var(f"{kind}{number}_conv_bias", attr={"__lr_mult__": "2.0"})
            each = sym.Convolution(
                layer, bias=bias, num_filter=channels, kernel=(3, 3), pad=(1, 1), name=f"{kind}{number}_conv"
            )
            joined[kind].append(sym.Flatten(sym.transpose(each, axes=(0, 2, 3, 1))))
        prior = sym.contrib.MultiBoxPrior(
            layer,
            sizes=(0.2 + number / 4, 0.3 + number / 4),
            ratios=(1, 2, 0.5)[: anchors - 1],
            steps=steps,
            name=f"prior{number}",
        )
        joined["anchors"].append(sym.Flatten(prior))
    offsets, scores, anchors = (sym.Concat(*joined[kind], dim=1) for kind in ("offsets", "scores", "anchors"))
    scores = sym.transpose(sym.Reshape(scores, shape=(0, -1, 1 + num_classes)), axes=(0, 2, 1), name="cls_pred")
    return offsets, scores, sym.Reshape(anchors, shape=(0, -1, 4))


def deploy_graph(num_classes=3, steps=(-1.0, -1.0), **arguments):
    offsets, scores, anchors = heads(num_classes, steps)
    return mx.sym.contrib.MultiBoxDetection(
        mx.sym.softmax(scores, axis=1, name="cls_prob"),
        offsets,
        anchors,
        name="detection",
        **{"nms_threshold": 0.4, "nms_topk": 60, "variances": VARIANCES, **arguments},
    )


def training_graph(num_classes=3, shown=True):
    """The group of `get_symbol_train`: probabilities, loss of offsets, targets, and detections if `shown`."""
    sym = mx.sym
    offsets, scores, anchors = heads(num_classes)
    target = sym.contrib.MultiBoxTarget(
        anchors, sym.var("label"), scores, negative_mining_ratio=3, variances=VARIANCES, name="multibox_target"
    )
    probability = sym.SoftmaxOutput(
        scores, target[2], ignore_label=-1, use_ignore=True, multi_output=True, name="cls_prob"
    )
    loss = sym.MakeLoss(sym.smooth_l1(target[1] * (offsets - target[0]), scalar=1.0), name="loc_loss")
    group = [probability, loss, sym.MakeLoss(target[2], grad_scale=0, name="cls_label")]
    if shown:
        found = sym.contrib.MultiBoxDetection(
            probability, offsets, anchors, nms_threshold=0.4, nms_topk=60, variances=VARIANCES, name="detection"
        )
        group.append(sym.MakeLoss(found, grad_scale=0, name="det_out"))
    return sym.Group(group)


def write(folder, graph, name="ssd", data=(2, 3, SIZE, SIZE)):
    """Writes a graph and random weights as `Module.save_checkpoint` does; returns the prefix."""
    rng = np.random.RandomState(5)
    inputs = {"data": data, "label": (2, 4, 5)}
    shapes, _, states = graph.infer_shape(**{key: inputs[key] for key in graph.list_arguments() if key in inputs})
    arrays = {
        f"arg:{key}": rng.randn(*shape) * (0.1 if key.endswith("weight") else 0.3) + 3 * key.endswith("scale")
        for key, shape in zip(graph.list_arguments(), shapes)
        if key not in inputs
    }
    for key, shape in zip(graph.list_auxiliary_states(), states):
        arrays[f"aux:{key}"] = np.abs(rng.randn(*shape)) + 0.1
    prefix = str(folder / name)
    graph.save(f"{prefix}-symbol.json")
    mx.nd.save(f"{prefix}-0000.params", {key: nd.array(array) for key, array in arrays.items()})
    return prefix


def described(**settings):
    target = "mxtrain.vision.detection.symbol_ssd.SymbolSSD"
    return build_group("model", {"_target_": target, **settings}, lambda path: "test")


def prepared(model, num_classes=3, size=(SIZE, SIZE), **rest):
    coding = model.box_coding(num_classes, (3, *size))
    network = prepare_network(
        model,
        num_classes=num_classes,
        input_shape=(3, *size),
        seed=0,
        output_shapes=coding.output_shapes,
        **rest,
    )
    return network, coding


def images_of(size=(SIZE, SIZE)):
    return nd.array(np.random.RandomState(1).randn(2, 3, *size))


def own_detections(prefix, output="detection_output", size=(SIZE, SIZE)):
    """Detections of the graph itself, by MXNet's Module: class, score, and edges relative to the image."""
    symbol, arguments, states = mx.model.load_checkpoint(prefix, 0)
    module = mx.mod.Module(symbol.get_internals()[output], label_names=None)
    module.bind([("data", (2, 3, *size))], for_training=False)
    module.set_params(arguments, states, allow_extra=True)
    module.forward(mx.io.DataBatch([images_of(size)]), is_train=False)
    return module.get_outputs()[0].asnumpy()


def assert_same(detections, expected, size=(SIZE, SIZE)):
    """Compares detections with rows (class, score, edges relative to the image). Equal scores have no order."""
    scale = np.array([1, 1, *[size[1], size[0]] * 2])
    for ours_N6, theirs_N6 in zip(detections, expected):
        ours_N6, theirs_N6 = ours_N6[ours_N6[:, 0] >= 0], theirs_N6[theirs_N6[:, 0] >= 0] * scale
        theirs_N6 = theirs_N6[np.argsort(-theirs_N6[:, 1], kind="stable")][: len(ours_N6)]
        assert len(theirs_N6) == len(ours_N6) > 5
        np.testing.assert_allclose(ours_N6[:, 1], theirs_N6[:, 1], rtol=1e-5)
        distance_NN = np.abs(ours_N6[:, None] - theirs_N6[None]).max(axis=2)
        is_clear_N = theirs_N6[:, 1] > theirs_N6[-1, 1] + 1e-5  # at the limit either of two may be cut off
        assert distance_NN.min(axis=0)[is_clear_N].max() < 2e-3
        assert is_clear_N.mean() > 0.9


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"clip": False},
        {"force_suppress": True},
        {"threshold": 0.4},
        {"nms_topk": 12},
        {"nms_topk": -1},
        {"variances": "(0.1, 0.1, 0.2, 0.2)"},
        {"steps": (0.15, 0.1)},
    ],
)
def test_detections_are_those_of_the_deploy_graph(tmp_path, arguments):
    prefix = write(tmp_path, deploy_graph(**arguments))
    network, coding = prepared(described(prefix=prefix, max_detections=300))
    expected = own_detections(prefix)
    assert_same(coding.decode(network.network(images_of())).asnumpy(), expected)
    for ours_N6, theirs_N6 in zip(coding.decode(network.network(images_of())).asnumpy(), expected):
        assert (ours_N6[:, 0] >= 0).sum() == (theirs_N6[:, 0] >= 0).sum()


def test_images_need_not_be_square(tmp_path):
    size = (40, 64)
    prefix = write(tmp_path, deploy_graph(), data=(2, 3, *size))
    network, coding = prepared(described(prefix=prefix), size=size)
    assert_same(coding.decode(network.network(images_of(size))).asnumpy(), own_detections(prefix, size=size), size)


@pytest.mark.parametrize("shown", [True, False])
def test_graphs_for_training_are_read(tmp_path, shown):
    """SageMaker's archives hold this graph. Without detections, thresholds are MXNet's defaults."""
    prefix = write(tmp_path, training_graph(shown=shown))
    network, coding = prepared(described(prefix=prefix))
    assert network.network.collect_params().keys() == {
        name.partition(":")[2] for name in mx.nd.load(f"{prefix}-0000.params")
    }
    other = write(tmp_path, deploy_graph(nms_topk=60 if shown else -1, nms_threshold=0.4 if shown else 0.5), "other")
    arrays = mx.nd.load(f"{prefix}-0000.params")
    mx.nd.save(f"{other}-0000.params", arrays)
    assert_same(coding.decode(network.network(images_of())).asnumpy(), own_detections(other))


def test_targets_are_those_of_the_training_graph(tmp_path):
    """`MultiBoxTarget` gives class and offsets of each anchor for the same boxes."""
    offsets, scores, anchors = heads(3)
    label_BM5 = np.full((2, 4, 5), -1, np.float32)
    rng = np.random.RandomState(0)
    for row, count in enumerate((4, 3)):
        low, side = rng.uniform(0, 0.45, (count, 2)), np.repeat(rng.uniform(0.2, 0.55, (count, 1)), 2, axis=1)
        label_BM5[row, :count] = np.concatenate([rng.randint(0, 3, (count, 1)), low, low + side], axis=1)
    graph = mx.sym.contrib.MultiBoxTarget(anchors, mx.sym.var("label"), scores, variances=VARIANCES)
    executor = graph.simple_bind(mx.cpu(), data=(2, 3, SIZE, SIZE), label=(2, 4, 5))
    executor.arg_dict["label"][:] = label_BM5
    offset_BN, mask_BN, class_BN = (array.asnumpy() for array in executor.forward())
    model = described(prefix=write(tmp_path, deploy_graph()))
    box_BMD = np.zeros((2, 4, 7), np.float32)
    box_BMD[..., Column.CLASS] = label_BM5[..., 0]
    box_BMD[..., :4] = label_BM5[..., 1:] * SIZE
    our_class_BN, our_offset_BN4 = model.box_coding(3, (3, SIZE, SIZE)).encode(box_BMD)
    np.testing.assert_array_equal(our_class_BN, class_BN)
    assert (class_BN > 0).sum() > 6
    np.testing.assert_allclose(our_offset_BN4.reshape(2, -1), offset_BN * mask_BN, rtol=1e-3, atol=1e-4)


def test_other_classes_renew_the_layers_of_scores(tmp_path):
    """Each anchor keeps its background, and the class that both have."""
    prefix = write(tmp_path, deploy_graph())
    model = described(prefix=prefix, weights_classes=["cat", "dog", "cow"])
    names = ["bird", "cow", "fish", "hen", "yak"]
    network, coding = prepared(model, 5, output_names=names)
    assert network.weights_report.adapted == [f"scores{n}_conv_{role}" for n in range(2) for role in ("weight", "bias")]
    assert network.weights_report.reused == ["cow"] and not network.weights_report.left
    logit_BNK, offset_BN4 = (array.asnumpy() for array in network.network(images_of()))
    same, _ = prepared(described(prefix=prefix))
    old_BNK, old_offset_BN4 = (array.asnumpy() for array in same.network(images_of()))
    np.testing.assert_allclose(logit_BNK[..., [0, 2]], old_BNK[..., [0, 3]], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(offset_BN4, old_offset_BN4)
    assert coding.output_shapes[0][1] == 6


def test_graph_is_kept_without_its_files(tmp_path):
    prefix = write(tmp_path, deploy_graph())
    model = described(prefix=prefix)
    for path in tmp_path.glob("ssd-*"):
        path.unlink()
    kept = described(prefix=prefix, **model.recorded)
    np.testing.assert_array_equal(
        kept.box_coding(3, (3, SIZE, SIZE)).anchor_N4, model.box_coding(3, (3, SIZE, SIZE)).anchor_N4
    )


def test_thresholds_may_be_typed(tmp_path):
    prefix = write(tmp_path, deploy_graph())
    network, coding = prepared(described(prefix=prefix, nms_iou=0.1, nms_candidates=9, max_detections=5))
    assert coding.decode(network.network(images_of())).shape == (2, 5, 6)
    other = write(tmp_path, deploy_graph(nms_threshold=0.1, nms_topk=9), "other")
    mx.nd.save(f"{other}-0000.params", mx.nd.load(f"{prefix}-0000.params"))
    expected = own_detections(other)
    for ours_N6, theirs_N6 in zip(coding.decode(network.network(images_of())).asnumpy(), expected):
        np.testing.assert_allclose(ours_N6[:3, 1], theirs_N6[theirs_N6[:, 0] >= 0][:3, 1], rtol=1e-5)


@pytest.mark.slow
def test_detections_are_those_of_an_export_of_gluoncv(tmp_path):
    """Its anchors are among the weights, in pixels, and a box may be a detection of several classes."""
    from mxtrain.vision.networks import gluoncv

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = gluoncv.get_model("ssd_300_mobilenet0.25_custom", classes=["a", "b"], pretrained_base=False)
    mx.random.seed(0)
    network.initialize()
    size = (300, 300)
    network(images_of(size))
    rng = np.random.RandomState(2)
    for name, parameter in network.collect_params().items():
        if name.endswith("weight"):  # outputs depend on the image, and are neither 0 nor very large
            scale = (0.1 if "predictor" in name else 2) / np.prod(parameter.shape[1:])
            parameter.set_data(nd.array(rng.randn(*parameter.shape) * scale**0.5))
        elif name.endswith(("gamma", "var")):
            parameter.set_data(nd.ones(parameter.shape))
    network.hybridize()
    network(images_of(size))
    ids, scores, boxes = (array.asnumpy() for array in network(images_of(size)))
    prefix = str(tmp_path / "exported")
    network.export(prefix)
    model = described(prefix=prefix)
    found, coding = prepared(model, 2, size)
    assert_same(
        coding.decode(found.network(images_of(size))).asnumpy(),
        np.concatenate([ids, scores, boxes / 300], axis=2),
        size,
    )
    (anchors,) = (name for name in network.collect_params() if name.endswith("anchorgenerator0_anchor_0"))
    assert anchors not in found.network.collect_params()
    kept = described(symbol=f"{prefix}-symbol.json", **model.recorded)
    np.testing.assert_array_equal(kept.box_coding(2, (3, *size)).anchor_N4, coding.anchor_N4)
    network.save_parameters(f"{prefix}.params")
    by_structure, same = prepared(
        described(symbol=f"{prefix}-symbol.json", weights=f"{prefix}.params"), num_classes=2, size=size
    )
    np.testing.assert_array_equal(same.anchor_N4, coding.anchor_N4)
    assert not by_structure.weights_report.left
    for ours, theirs in zip(by_structure.network(images_of(size)), found.network(images_of(size))):
        np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy())
    with pytest.raises(ConfigError, match="anchors of this graph.*are among its weights. Type model.weights"):
        described(symbol=f"{prefix}-symbol.json").require_known(())
    mx.nd.save(f"{prefix}-0000.params", {"arg:other": nd.ones(3)})
    with pytest.raises(ConfigError, match=f"do not hold '{anchors}'"):
        described(prefix=prefix)


def test_anchors_must_be_a_grid():
    grid = StoredAnchors(cells=[2, 3], step=[8.0, 10.0], shapes=[[4.0, 5.0], [6.0, 7.0]])
    array = grid.array()
    assert array.shape == (1, 1, 2, 3, 8) and array[0, 0, 1, 2].tolist() == [25, 12, 4, 5, 25, 12, 6, 7]
    assert StoredAnchors.of("a", array) == grid
    array[0, 0, 1, 1, 2] += 1
    with pytest.raises(ValueError, match="anchors 'a' in the weights are no regular grid"):
        StoredAnchors.of("a", array)
    with pytest.raises(ValueError, match="no anchors in the form of GluonCV"):
        StoredAnchors.of("a", array[0])


def test_sizes_of_images_that_do_not_fit_are_refused(tmp_path):
    small = detector(mx.sym.Concat(flat(convolution(2, "a"))), mx.sym.Concat(flat(convolution(4, "b"))), of="a")
    small.save(str(tmp_path / "small-symbol.json"))
    with pytest.raises(ConfigError, match="no anchors for images of 2x2: .*Type a larger dataset.image_size"):
        described(symbol=str(tmp_path / "small-symbol.json")).box_coding(3, (3, 2, 2))
    model = described(prefix=write(tmp_path, deploy_graph()))
    with pytest.raises(ConfigError, match="dataset.image_sizes: the anchors"):
        model.require_sizes([[32, 32]])


def flat(layer):
    """Channels of a map, put last and flattened."""
    return mx.sym.Flatten(mx.sym.transpose(layer, axes=(0, 2, 3, 1)))


def convolution(channels, name):
    return mx.sym.Convolution(mx.sym.var("data"), num_filter=channels, kernel=(3, 3), name=name)


def detector(scores, offsets, num_classes=2, of=""):
    sym = mx.sym
    layer = scores.get_internals()[f"{of}_output"] if of else sym.var("data")
    anchors = sym.contrib.MultiBoxPrior(layer, sizes=(0.2,), name="prior")
    shaped = sym.transpose(sym.Reshape(scores, shape=(0, -1, num_classes)), axes=(0, 2, 1))
    return sym.contrib.MultiBoxDetection(sym.softmax(shaped, axis=1), offsets, anchors, name="detection")


def wrong_graphs():
    sym = mx.sym
    a, b = convolution(3, "a"), convolution(4, "b")
    join = sym.Concat
    prior = sym.contrib.MultiBoxPrior(sym.var("data"), name="prior")
    target = sym.contrib.MultiBoxTarget(prior, sym.var("label"), a, name="target")
    return [
        (sym.SoftmaxOutput(sym.FullyConnected(sym.var("data"), num_hidden=2), name="softmax"), "not that of an SSD"),
        (
            detector(flat(a), join(flat(b), dim=1)),
            "class scores come from 'a' .Convolution., where an SSD .* by Concat",
        ),
        (detector(join(flat(a), dim=1), b), "box offsets come from 'b'"),
        (detector(join(sym.Flatten(a), dim=1), join(flat(b), dim=1)), "map of 'a' .Convolution. is not that of"),
        (detector(join(flat(sym.relu(a, name="r")), dim=1), join(flat(b), dim=1)), "map of 'r' .relu. is not"),
        (detector(join(flat(a), dim=1), join(flat(convolution(6, "c")), dim=1)), "'a' has 3 channels and 'c' 6"),
        (detector(join(flat(convolution(1, "d")), dim=1), join(flat(b), dim=1)), "'d' has 1 channels and 'b' 4"),
        (detector(join(flat(convolution(9, "e")), dim=1), join(flat(convolution(8, "f")), dim=1)), "'e' has 9"),
        (
            detector(join(flat(a), flat(convolution(2, "g")), dim=1), join(flat(b), flat(b), dim=1)),
            "2 layers score 1 or 2 classes",
        ),
        (detector(join(flat(a), flat(a), dim=1), join(flat(b), dim=1)), "2 layers score 2 classes, and 1 layers give"),
        (
            sym.Group([detector(join(flat(a), dim=1), join(flat(b), dim=1)) for _ in range(2)]),
            "2 operators MultiBoxDetection",
        ),
        (sym.Group([target[2]]), "nothing is compared with the box offsets"),
    ]


@pytest.mark.parametrize("number", range(12))
def test_other_graphs_are_refused(tmp_path, number):
    graph, message = wrong_graphs()[number]
    graph.save(str(tmp_path / "a-symbol.json"))
    with pytest.raises(ConfigError, match=message):
        described(symbol=str(tmp_path / "a-symbol.json"))


def test_classifiers_are_told_from_detectors(tmp_path):
    prefix = write(tmp_path, deploy_graph())
    settings = {"_target_": "mxtrain.model.symbol.model.SymbolFile", "prefix": prefix}
    with pytest.raises(ConfigError, match="is the graph of an SSD detector. Type model=symbol_ssd task=detection"):
        build_group("model", settings, lambda path: "test")
    assert build_group("model", {**settings, "output": "conv2"}, lambda path: "test")


def test_file_must_be_named():
    with pytest.raises(ConfigError, match="model=symbol_ssd needs the name of a file. Type model.symbol=old"):
        mxtrain.compose("model=symbol_ssd", "task=detection")


def test_detectors_are_inspected(tmp_path):
    prefix = write(tmp_path, training_graph())
    found = mxtrain.inspect(f"{prefix}-symbol.json")
    assert found.seems == "an SSD detector" and found.inputs == ["data"]
    assert found.command == f"model=symbol_ssd task=detection model.prefix={prefix} model.epoch=0"
    assert found.prediction.count("(Concat)") == 2
    assert [name for name, *_ in found.layers][-1] == "offsets1_conv"
    assert "3 classes and the background, with 2 maps" in found.remarks[0] and "not in the weights" not in found.remarks
    assert found.remarks[1] == "Boxes of an IoU above 0.4 are suppressed, of the 60 with the highest scores."
    wrong_graphs()[1][0].save(f"{prefix}-symbol.json")
    found = mxtrain.inspect(f"{prefix}-symbol.json")
    assert not found.command and not found.prediction and "come from 'a'" in found.remarks[0]
