"""Runs of GluonCV's detectors: placements compute what one device does, in bfloat16 too; files and refusals."""

import math
import warnings
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import running
from low_precision import needs_bfloat16
from tiers import rest_in_zoo

from mxtrain.cli.dispatch import run
from mxtrain.training.verification import verify
from mxtrain.vision.detection.boxes import NUM_COLUMNS

SSD = ("model.name=ssd_300_mobilenet0.25",)
SMALL_SSD = ("model.name=ssd_custom", "model.backbone=cifar_resnet20_v1", "model.filters=[16]")
YOLO3 = ("model.name=yolo3_mobilenet0.25",)
CENTER_NET = ("model.name=center_net_mobilenetv3_small_duc",)
SCENES = ("dataset.image_size=[64,64]", "dataset.num_train=32", "dataset.num_val=8", "dataset.batch_size=8")
FAMILIES = [(SSD, "multibox"), (YOLO3, "yolo3"), (CENTER_NET, "heatmap_focal")]
PLACEMENTS = [
    ("parallel=data",),
    ("parallel=pipeline", "parallel.microbatches=2"),
    ("parallel=hybrid", "parallel.microbatches=2", "trainer.grad_accumulation=2"),
    pytest.param(("parallel=data", "amp=bfloat16"), marks=needs_bfloat16),
]


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize("words, loss", FAMILIES)
def test_pipeline_equals_one_device(describe_run, words, loss):
    assert verify(describe_run(*words, *SCENES, *PLACEMENTS[1]), 1, 1e-5).passed


@pytest.mark.zoo
@pytest.mark.parametrize("words, loss", FAMILIES)
@pytest.mark.parametrize("placement", [PLACEMENTS[0], *PLACEMENTS[2:]])
def test_placements_equal_one_device(describe_run, words, loss, placement):
    assert verify(describe_run(*words, *SCENES, *placement), 1, 1e-5).passed


@pytest.mark.zoo_except("placement0")
@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placements_of_a_small_ssd_equal_one_device(describe_run, placement):
    """Its backbone is one block, which is known by its graph alone."""
    assert verify(describe_run(*SMALL_SSD, *SCENES, *placement), 1, 1e-5).passed


@pytest.mark.zoo
@pytest.mark.slow
def test_two_workers_equal_one_device():
    found = running.verify(*SMALL_SSD, *SCENES, "kvstore=dist_sync", "cluster.workers=2", "steps=2")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.zoo
def test_global_batch_norm_equals_one_device(describe_run):
    """Batch norms of a graph have no arguments where they are the usual ones."""
    assert verify(describe_run(*SMALL_SSD, *SCENES, "parallel=data", "parallel.batch_norm=global"), 1, 1e-5).passed


@pytest.mark.zoo
@pytest.mark.slow
def test_norms_over_all_devices_of_a_network_with_leaky_relus(describe_run):
    assert verify(describe_run(*YOLO3, *SCENES, "parallel=data", "parallel.batch_norm=global"), 1, 1e-6).passed


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize("words, loss", rest_in_zoo(FAMILIES, FAMILIES[2]))
def test_a_run_ends_is_evaluated_and_gluoncv_opens_its_file(train_run, describe_run, tmp_path, words, loss):
    _, result = train_run(*words, *SCENES, "trainer.max_epochs=1", "trainer.limit_train_batches=3")
    assert describe_run(*words).loss.option == loss
    assert result.exit_code == 0 and math.isfinite(result.metrics["val/loss"]) and "val/voc_ap" in result.metrics
    asked = ["split=val", "limit_batches=1", "explain=grad_cam", "explain_samples=2"]
    assert run(["eval", str(tmp_path / "run"), *asked]) == 0
    with (tmp_path / "run" / "eval" / "val" / "explain_grad_cam" / "explain.csv").open() as lines:
        assert len(list(lines)) == 3
    assert (tmp_path / "run" / "eval" / "val" / "metrics.json").exists()
    *_, file = sorted((tmp_path / "run" / "checkpoints").glob("step-*/model.params"))
    network = gluoncvs(words[0].partition("=")[2])
    network.load_parameters(str(file))  # has all of them, and no other


def gluoncvs(name):
    """GluonCV's own network for digits."""
    from mxtrain.vision.networks import gluoncv

    names = [str(digit) for digit in range(10)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not name.startswith("center_net"):
            return gluoncv.get_model(f"{name}_custom", classes=names, pretrained_base=False)
    from gluoncv.model_zoo.center_net import center_net, duc_mobilenet  # there is none for other classes

    heads = OrderedDict(heatmap={"num_output": 10}, wh={"num_output": 2}, reg={"num_output": 2})
    return center_net.CenterNet(duc_mobilenet.mobilenetv3_small_duc(), heads, names, head_conv_channel=64)


@pytest.mark.slow
@pytest.mark.parametrize("words", [SMALL_SSD, YOLO3])
@pytest.mark.parametrize("place", [0, -1])
def test_grad_cam_finds_the_origin_of_a_detection_in_each_map(describe_run, words, place):
    """The first box is of one end of the maps, the last one of the other."""
    from mxtrain.data.spec import open_splits
    from mxtrain.engine.backend import mx, nd
    from mxtrain.training.attribution import build_method
    from mxtrain.training.network import build_network
    from mxtrain.types import Batch

    description = describe_run(*words, *SCENES)
    task, model = description.task, description.model
    signature = description.dataset.infer_signature(open_splits(description.dataset), model)
    network = build_network(description, signature, mx.cpu())
    network.initialize(mx.init.Xavier(magnitude=6), force_reinit=True)
    method = build_method("grad_cam", network, "auto", signature.shape)
    mx.random.seed(1)
    box_BMD = np.full((6, 1, NUM_COLUMNS), -1, np.float32)
    batch = Batch((nd.random.uniform(-2, 2, (6, *signature.shape)),), (nd.array(box_BMD),), 6)

    def heat(sign):
        def choose(outputs, batch):
            scores = model.box_coding(10, signature.shape).scores
            number = place % scores(outputs).shape[1]
            explained = task.explained(description, signature, outputs, batch)
            return replace(explained, score=lambda given: sign * scores(given)[:, number])

        return method(batch, choose)[2]

    assert heat(1).any() or heat(-1).any(), "what speaks for or what speaks against"


@pytest.mark.slow
@pytest.mark.parametrize("words, loss", FAMILIES)
def test_a_batch_without_objects_is_learned_from(describe_run, words, loss):
    """Loss and gradients are finite, and say that nothing is there."""
    from mxtrain.data.spec import open_splits
    from mxtrain.engine.backend import autograd, mx, nd
    from mxtrain.parallel.stage import as_list
    from mxtrain.training.network import build_network
    from mxtrain.training.objective import build_loss

    description = describe_run(*words, *SCENES)
    signature = description.dataset.infer_signature(open_splits(description.dataset), description.model)
    network = build_network(description, signature, mx.cpu())
    block, _ = build_loss(description, signature, training=True)
    box_BMD = np.full((2, 3, NUM_COLUMNS), -1, np.float32)
    targets = description.task.build_encode(description, signature, training=True)(box_BMD)
    with autograd.record():
        outputs = network(nd.random.uniform(-1, 1, (2, *signature.shape)))
        loss_B = as_list(block(*outputs, *map(nd.array, targets)))[0]
    loss_B.backward()
    assert loss_B.shape == (2,) and (loss_B.asnumpy() > 0).all()
    gradients = [p.grad().asnumpy() for p in network.collect_params().values() if p.grad_req != "null"]
    assert all(np.isfinite(one).all() for one in gradients) and any(one.any() for one in gradients)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("model.name=ssd_512_resnet5_v1_voc", "Did you mean 'ssd_512_resnet50_v1'"),
        ("model.name=yolo3_darknet", "Did you mean 'yolo3_darknet53'"),
        ("task=detection model.name=retinanet", "GluonCV has no detection network 'retinanet'"),
        ("model=ssd loss=yolo3", "loss: YOLOLoss does not fit what SSD returns. Type loss=multibox."),
        ("model=yolo3 loss.label_smoothing=0.1", "Type loss.label_smoothing=0."),
        ("model=ssd task=classification", "the model SSD do not fit: it is for detection"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(capsys, words, said):
    assert run([*words.split(), "logger=[]"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
