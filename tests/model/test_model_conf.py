"""Wrong values of networks are refused, and describing a network imports no MXNet."""

import subprocess
import sys
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


@pytest.mark.slow
def test_describing_loads_no_heavy_packages():
    program = (
        "import sys\n"
        "from mxtrain.model import base, mlp, prepare, weights\n"
        "from mxtrain.text import bert\n"
        "from mxtrain.vision.classification import gluoncv, lenet, resnet\n"
        "from mxtrain.vision.pose import pose_fpn, simple_pose\n"
        "from mxtrain.vision.segmentation import gluoncv_segmentation\n"
        "from mxtrain.model.graph import summary\n"
        "gluoncv.GluonCV(name='densenet121').input_shape((1, 8, 8))\n"
        "heavy = {'mxnet', 'gluoncv', 'matplotlib', 'sklearn', 'rich', 'tensorboardX'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CONF.parents[1])
    assert done.returncode == 0, done.stderr
