"""Wrong values of networks are refused, and describing a network imports no MXNet."""

from pathlib import Path

import pydantic
import pytest

from mxtrain.model.mlp import MLP
from mxtrain.model.spec import ParamGroup
from mxtrain.text.bert import Bert
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.classification.resnet import ResNet

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP(hidden=[0]),
        lambda: MLP(activation="rellu"),
        lambda: MLP(dropout=1.0),
        lambda: LeNet(channels=[]),
        lambda: LeNet(chanels=[8]),
        lambda: ResNet(depth=21),
        lambda: ResNet(width=0.0),
        lambda: ResNet(init="he"),
        lambda: ParamGroup(pattern="*", lr_mult=-1.0),
        lambda: Bert(units=32, num_heads=5),
        lambda: Bert(size="huge"),
        lambda: GluonCV(options={"classes": 3}),
        lambda: GluonCV(options={"pretrained": True}),
        lambda: GluonCV(options={"ctx": "cpu"}),
    ],
)
def test_wrong_values_are_refused(make):
    with pytest.raises(pydantic.ValidationError):
        make()


def test_a_wrong_gluoncv_name_names_the_nearest():
    with pytest.raises(pydantic.ValidationError, match="Did you mean .*'resnet50_v1b'.*There are 129: alexnet"):
        GluonCV(name="resnet50v1b")
    with pytest.raises(pydantic.ValidationError, match="no classification network 'ssd_512_resnet50_v1_voc'"):
        GluonCV(name="ssd_512_resnet50_v1_voc")


def test_pretrained_is_refused_with_an_alternative():
    with pytest.raises(pydantic.ValidationError, match="model.weights=PATH"):
        GluonCV(options={"pretrained": True})
    assert GluonCV(options={"pretrained": False}).options == {"pretrained": False}
