"""Shared by the tests of networks of two stages: ours and GluonCV's with the same values, and what they detect."""

import warnings

import numpy as np

from mxtrain.model.prepare import prepare_network

SIDE = 96


def prepared(model, num_classes=3, side=SIDE, **arguments):
    """The coding and the network of a description."""
    coding = model.box_coding(num_classes, (3, side, side))
    network = prepare_network(
        model,
        num_classes=num_classes,
        input_shape=(3, side, side),
        seed=3,
        output_shapes=coding.output_shapes,
        **arguments,
    ).network
    return coding, network


def stock(name, **arguments):
    """GluonCV's, as the first of a process: it counts the networks of a kind in their names."""
    from mxtrain.engine.backend import mx
    from mxtrain.vision.networks import gluoncv

    with warnings.catch_warnings(), mx.name.NameManager():
        warnings.simplefilter("ignore")
        return gluoncv.get_model(name, pretrained_base=False, **arguments)


def nd_array(array):
    from mxtrain.engine.backend import nd

    return nd.array(array)


def images(count, side=SIDE):
    return nd_array(np.random.RandomState(0).uniform(-2, 2, (count, 3, side, side)))


def spread(network, image):
    """Heads whose values differ from place to place: those of a fresh network are all alike."""
    draw = np.random.RandomState(1)
    masks = [network.mask.mask] if hasattr(network, "mask") else []
    factors = {id(network.class_predictor): 1.5, id(network.box_predictor): 0.4, **{id(layer): 2 for layer in masks}}

    def fill(layer, inputs):
        size = max(float(inputs[0].asnumpy().std()), 1e-30)
        shape = layer.weight.shape
        # A sigmoid that is 1 would leave GluonCV's order of proposals to chance.
        scale = factors.get(id(layer), 0.25) / (size * np.prod(shape[1:]) ** 0.5)
        layer.weight.set_data(nd_array(draw.randn(*shape) * scale))

    head = getattr(network.rpn, "rpn_head", network.rpn)
    # What proposes decides what comes to the others.
    for layers in ((head.score, head.loc), (network.class_predictor, network.box_predictor), masks):
        handles = [layer.register_forward_pre_hook(fill) for layer in layers]
        network(image)
        for handle in handles:
            handle.detach()


def with_area(found_NR):
    """Detections of something."""
    return found_NR[(found_NR[:, 0] >= 0) & (found_NR[:, 4:6] > found_NR[:, 2:4]).all(axis=1)]


def check_values(coding, ours, theirs, path, side=SIDE, least=60, least_classes=2):
    """Checks that both detect the same with one file.

    Args:
        least: detections that are to be compared at least.
        least_classes: how many classes these are of.
    """
    image = images(2, side)
    spread(ours, image)
    ours.save_parameters(path)
    theirs.load_parameters(path)  # has all of them, and no other
    ours.hybridize()
    outputs = ours(image)
    assert [one.shape[1:] for one in outputs] == list(coding.output_shapes)
    found_BNR = coding.decode(outputs).asnumpy()
    for row in range(2):  # GluonCV's takes one image at a time
        arrays = [one.asnumpy()[0] for one in theirs(image[row : row + 1])]
        wanted_NR = np.concatenate([one.reshape(len(one), -1) for one in arrays], axis=1)
        # Where it has fewer regions than it expects it looks at ones without an area.
        found_NR, wanted_NR = with_area(found_BNR[row]), with_area(wanted_NR)
        wanted_NR = wanted_NR[np.argsort(-wanted_NR[:, 1], kind="stable")]
        number = min(len(found_NR), len(wanted_NR))
        found_NR, wanted_NR = found_NR[:number], wanted_NR[:number]
        assert number >= least and len(set(wanted_NR[:, 0])) >= least_classes
        assert len(set(wanted_NR[:, 1])) > least / 2 and found_NR.shape == wanted_NR.shape
        assert wanted_NR.shape[1] == 6 or wanted_NR[:, 6:].std() > 0.05
        np.testing.assert_allclose(found_NR[:, 1], wanted_NR[:, 1], atol=1e-4)
        # Of equal scores either may come first.
        same_N = (np.abs(found_NR - wanted_NR) <= 1e-3 * (1 + np.abs(wanted_NR))).all(axis=1)
        assert same_N.mean() > 0.95, (found_NR[~same_N][:3], wanted_NR[~same_N][:3])


def check_names(ours, theirs):
    """Checks that names and shapes of all arrays and the initial boxes are equal."""
    from mxtrain.model.graph.shapes import infer_shapes

    infer_shapes(ours, (3, 96, 96))
    found, wanted = (one._collect_params_with_prefix() for one in (ours, theirs))
    assert set(found) == set(wanted)
    for key, parameter in wanted.items():
        known = parameter.shape is not None and 0 not in parameter.shape and -1 not in parameter.shape
        assert not known or parameter.shape == found[key].shape, key
    for key in ours.computed:
        np.testing.assert_array_equal(found[key].value.asnumpy(), wanted[key].value.asnumpy())
