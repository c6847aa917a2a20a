"""Parsing of the names of parameters."""

import pytest

from mxtrain.engine.parameter_names import role_of


@pytest.mark.parametrize(
    "name, role",
    [
        ("features.0.gamma", "gamma"),
        ("features.mobilenet0_batchnorm1_gamma", "gamma"),
        ("features.expand_bn0_moving_var", "running_var"),
        ("features.resnetv10_batchnorm0_running_mean", "running_mean"),
        ("output.bias", "bias"),
        ("running_mean", "running_mean"),
        ("anchor_generators.0.anchors", "anchors"),
        ("encoder.position_weight", "weight"),
        ("layer.alphabet", "alphabet"),
    ],
)
def test_roles(name, role):
    assert role_of(name) == role
