"""conf/model and the classes say the same, and describing a network imports no MXNet."""

import importlib
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
from omegaconf import OmegaConf

from mxtrain.model.base import Model, ParamGroup
from mxtrain.model.bert import Bert
from mxtrain.model.gluoncv import GluonCV
from mxtrain.model.lenet import LeNet
from mxtrain.model.mlp import MLP
from mxtrain.model.resnet import ResNet

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"


@pytest.mark.parametrize(
    "name",
    [
        "mlp", "lenet", "resnet", "gluoncv", "gluoncv_segmentation", "ssd", "yolo3", "faster_rcnn", "center_net",
        "mask_rcnn", "bert", "pose_fpn", "simple_pose",
    ],  # fmt: skip
)
def test_yaml_lists_every_field_with_the_default_and_a_comment(name):
    path = CONF / f"{name}.yaml"
    values = OmegaConf.to_container(OmegaConf.load(path))
    values.pop("defaults", None)
    module, _, kind = values.pop("_target_").rpartition(".")
    spec = getattr(importlib.import_module(module), kind)
    assert issubclass(spec, Model)
    assert spec.model_validate(values) == spec() and set(values) == set(spec.model_fields)
    _, _, fields = path.read_text().partition("\n_target_:")
    assert all(" # " in line for line in fields.splitlines()[1:])


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


def test_pretrained_says_what_to_do_instead():
    with pytest.raises(pydantic.ValidationError, match="model.weights=PATH"):
        GluonCV(options={"pretrained": True})
    assert GluonCV(options={"pretrained": False}).options == {"pretrained": False}


def test_describing_imports_nothing_heavy():
    program = (
        "import sys\n"
        "from mxtrain.model import base, bert, gluoncv, gluoncv_segmentation, lenet, mlp, pose_fpn, prepare, resnet\n"
        "from mxtrain.model import simple_pose\n"
        "from mxtrain.model import weights\n"
        "from mxtrain.model.graph import summary\n"
        "gluoncv.GluonCV(name='densenet121').input_shape((1, 8, 8))\n"
        "heavy = {'mxnet', 'gluoncv', 'matplotlib', 'sklearn', 'rich', 'tensorboardX'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CONF.parents[1])
    assert done.returncode == 0, done.stderr
