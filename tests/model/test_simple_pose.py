"""GluonCV's networks for key points by name: the same arithmetic and parameter names, weights both ways."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.graph.trace import trace
from mxtrain.model.prepare import prepare_network
from mxtrain.model.weights import load_weights
from mxtrain.training.verification import verify
from mxtrain.vision.pose.simple_pose import NAMES, SimplePose, plain_name

SIZE = (3, 64, 96)


def gluoncv_network(name: str, num_points: int) -> Any:
    """GluonCV's own block."""
    SimplePose().build(1, SIZE)  # silences what GluonCV says when it is imported
    from gluoncv.model_zoo import get_model

    return get_model(name, num_joints=num_points)


@pytest.mark.parametrize("name", [name for name in NAMES if "101" not in name and "152" not in name])
def test_maps_are_a_quarter_of_the_image(name: str) -> None:
    model = SimplePose(name=name)
    network = model.build(5, SIZE)
    shape = (5, *model.map_size(SIZE))
    infer_shapes(network, SIZE, [shape])
    used = trace(network, SIZE)
    assert used.failure is None and used.output_shapes == [(1, *shape)] == [(1, 5, 16, 24)]
    parameters = {parameter.name for parameter in network.collect_params().values()}
    assert parameters == set(used.parameter_shapes)  # none that nothing reads


def test_names_equal_gluoncv() -> None:
    SimplePose().build(1, SIZE)
    from gluoncv.model_zoo import get_model_list

    registered = [name for name in get_model_list() if name.startswith("simple_pose") and not name.endswith("_int8")]
    assert sorted(registered) == sorted(NAMES)
    assert {plain_name(f"{name}{ending}") for name in NAMES for ending in ("", "_coco", "_custom")} == set(NAMES)


@pytest.mark.slow
def test_weights_are_exchanged_with_gluoncv(tmp_path: Path) -> None:
    name = "simple_pose_resnet18_v1b"
    other = gluoncv_network(name, 5)
    other.initialize()
    image = nd.array(np.random.RandomState(0).rand(2, *SIZE).astype(np.float32))
    expected = other(image).asnumpy()
    other.save_parameters(str(tmp_path / "theirs.params"))
    model = SimplePose(name=f"{name}_coco")
    network = prepare_network(
        model.model_copy(update={"weights": str(tmp_path / "theirs.params")}),
        num_classes=5,
        input_shape=SIZE,
        seed=0,
        output_shapes=[(5, 16, 24)],
    ).network
    np.testing.assert_allclose(network(image).asnumpy(), expected, rtol=1e-4, atol=1e-6)
    network.save_parameters(str(tmp_path / "ours.params"))
    back = gluoncv_network(name, 5)
    back.load_parameters(str(tmp_path / "ours.params"))
    np.testing.assert_allclose(back(image).asnumpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_weights_for_other_key_points_replace_the_last_layer(tmp_path: Path) -> None:
    other = gluoncv_network("simple_pose_resnet18_v1b", 17)
    other.initialize()
    other(nd.zeros((1, *SIZE)))
    other.save_parameters(str(tmp_path / "theirs.params"))
    network = SimplePose().build(5, SIZE)
    network.initialize()
    network(nd.zeros((1, *SIZE)))
    report = load_weights(network, tmp_path / "theirs.params")
    assert report.replaced == ["final_layer.weight", "final_layer.bias"] and not report.left and not report.unused


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"name": "simple_pose_resnet50_v1"}, "Did you mean 'simple_pose_resnet50_v1.'"),
        ({"name": "simple_pose_resnet34_v1b"}, "no key point network 'simple_pose_resnet34_v1b'"),
        ({"name": "mobile_pose_resnet18_v1b"}, "There are 7: simple_pose_resnet18_v1b"),
        ({"options": {"num_joints": 3}}, "the number of key points comes from the dataset"),
        ({"options": {"num_deconv_filter": [8]}}, "Did you mean 'num_deconv_filters'"),
        ({"options": {"pretrained_base": True}}, "pretrained weights are not an option"),
    ],
)
def test_unknown_gluoncv_names_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        SimplePose(**settings)


def test_options_equal_gluoncv() -> None:
    model = SimplePose(options={"num_deconv_layers": 2, "num_deconv_filters": [16, 8], "num_deconv_kernels": [4, 4]})
    network = model.build(3, SIZE)
    network.initialize()
    assert network(nd.zeros((1, *SIZE))).shape[2:] == model.map_size(SIZE) == (8, 12)
    with pytest.raises(ConfigError, match="model.options=.*GluonCV's simple_pose_resnet18_v1b refuses them"):
        SimplePose(options={"num_deconv_layers": 2}).build(3, SIZE)


@pytest.mark.slow
def test_sizes_that_its_maps_would_not_fit_are_refused(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    with pytest.raises(ConfigError, match=r"Type dataset.image_size=\[96,192\]"):
        SimplePose().map_size((3, 100, 192))
    monkeypatch.chdir(tmp_path)
    words = ["task=pose_estimation", "model=simple_pose", "dataset.image_size=[60,64]", "logger=[]"]
    assert run(words) == 2 and "dataset.image_size=[64,64]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_wrong_name_is_refused_before_mxnet_is_imported() -> None:
    program = (
        "import sys\nfrom mxtrain.cli.dispatch import run\n"
        "code = run(['model.name=simple_pose_resnet18_v1c', 'logger=[]'])\n"
        "assert 'mxnet' not in sys.modules\nsys.exit(code)"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and "Did you mean 'simple_pose_resnet18_v1b'" in found.stderr, found.stderr


@pytest.mark.zoo
@pytest.mark.slow
def test_two_stages_equal_one_device(describe_run: Any) -> None:
    words = (
        "task=pose_estimation",
        "model=simple_pose",
        "model.options={num_deconv_filters:[16,16,16]}",
        "dataset.batch_size=4",
        "dataset.image_size=[64,64]",
        "parallel=pipeline",
        "parallel.microbatches=2",
    )
    found = verify(describe_run(*words), 2, 1e-4)
    assert found.passed, found
