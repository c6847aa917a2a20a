"""Trains with GluonCV: its scripts, and the steps of its scripts for detectors.

Parts that cannot be compared here, or keep a script from running, are replaced:

| replaced | why |
| --- | --- |
| the check that CIFAR-10's files are the official ones | they are made up |
| `autogluon.utils.pil_transforms`, by nothing | train_horovod.py imports it and does not use it below 320 pixels |
| random jitter of colours and lighting, by nothing | the work that is compared has none |
| the level of logging | without mpi4py, train_horovod.py's first message sets it to warnings: no speed is told |
| the store of `gluon.Trainer`, where DMLC_ROLE is set | the classification scripts have no option for it |
| of segmentation: the pretrained backbone, by an initialised one | nothing is downloaded |
| of segmentation: Gaussian blur, by nothing | the work that is compared has none |
| of segmentation: tqdm's bar, by one that takes turns | steps are timed in blocks |

    python -m bench_parts.gluoncv_side SCRIPT ARGUMENTS...
"""

from __future__ import annotations

import functools
import logging
import os
import runpy
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from bench_parts.files import DETECTION_SPLIT, DETECTION_YEAR
from bench_parts.turn import Turns

warnings.simplefilter("ignore")


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs a script of classification, alone or as one of several workers."""
    # NumPy's old names first: MXNet needs them with some NumPy versions.
    import mxtrain.engine.backend  # noqa: F401, I001
    from mxnet import gluon
    from mxnet.gluon.data.vision import datasets, transforms

    datasets.check_sha1 = lambda path, checksum: True
    for name in ("autogluon", "autogluon.utils", "autogluon.utils.pil_transforms"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["autogluon.utils"].pil_transforms = sys.modules["autogluon.utils.pil_transforms"]  # type: ignore
    for name in ("RandomColorJitter", "RandomLighting"):
        setattr(transforms, name, lambda *_, **__: transforms.Cast("uint8"))
    if "DMLC_ROLE" in os.environ:
        gluon.Trainer = functools.partial(gluon.Trainer, kvstore="dist_sync")
    logging.basicConfig(level=logging.INFO)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def segment(block_steps: int, hybridized: bool, script: str, arguments: Sequence[str]) -> None:
    """Runs scripts/segmentation/train.py in turns with others, without end. HOME/.mxnet/datasets/voc holds the files.
    The script does not hybridize its network."""
    # NumPy's old names first: MXNet needs them with some NumPy versions.
    import mxtrain.engine.backend  # noqa: F401, I001
    import tqdm
    from gluoncv.model_zoo import segbase
    from PIL import ImageFilter

    ImageFilter.GaussianBlur = _Same  # type: ignore[assignment, misc]
    tqdm.tqdm = functools.partial(_TurnsBar, block_steps=block_steps)
    segbase.resnet50_v1s = functools.partial(_initialised_backbone, segbase.resnet50_v1s)
    made = segbase.get_segmentation_model

    def get(**given: Any) -> Any:
        network = made(**given)
        if hybridized:
            network.hybridize()
        return network

    segbase.get_segmentation_model = get
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def _initialised_backbone(backbone: Any, pretrained: Any = False, **arguments: Any) -> Any:
    network = backbone(pretrained=False, **arguments)
    network.initialize()
    return network


class _Same:
    """A filter of Pillow's that changes nothing."""

    def __init__(self, radius: float = 2) -> None:
        pass

    def filter(self, image: Any) -> Any:
        return image


class _TurnsBar:
    """Goes through batches like tqdm, and ends a block after so many."""

    def __init__(self, batches: Iterable[Any], block_steps: int) -> None:
        self._batches, self._block_steps = batches, block_steps

    def __iter__(self) -> Iterator[Any]:
        from mxtrain.engine.backend import nd

        turns = Turns()
        for number, batch in enumerate(self._batches, 1):
            yield batch
            if number % self._block_steps == 0:
                nd.waitall()
                turns.next(self._block_steps)

    def set_description(self, text: str) -> None:
        """Keeps the description that tqdm would show in each step."""
        print(text, file=sys.stderr, flush=True)


# Detection.

SEED = 233
FASTER_RCNN_VARIABLES = {
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": "999",
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": "25",
    "MXNET_OPTIMIZER_AGGREGATION_SIZE": "54",
}
"""train_faster_rcnn.py sets these for itself; others that it sets are for GPUs."""
FASTER_RCNN = "faster_rcnn_fpn_"
FASTER_RCNN_OPTIONS: Dict[str, Any] = dict(
    max_size=1333,
    min_stage=2,
    max_stage=6,
    nms_thresh=0.5,
    nms_topk=-1,
    post_nms=-1,
    roi_mode="align",
    roi_size=(7, 7),
    strides=(4, 8, 16, 32, 64),
    clip=4.14,
    rpn_channel=256,
    base_size=16,
    scales=(2, 4, 8, 16, 32),
    ratios=(0.5, 1, 2),
    alloc_size=(384, 384),
    rpn_nms_thresh=0.7,
    rpn_train_pre_nms=12000,
    rpn_train_post_nms=2000,
    rpn_test_pre_nms=6000,
    rpn_test_post_nms=1000,
    rpn_min_size=1,
    num_sample=512,
    pos_iou_thresh=0.5,
    pos_ratio=0.25,
    max_num_gt=100,
)
"""Default options of train_faster_rcnn.py custom-model."""
Updates = List[Tuple[Any, Any]]
"""Arguments of the update of each metric."""


@dataclass(frozen=True)
class Work:
    """Network and data of a measurement.

    Attributes:
        network: GluonCV's name, without a dataset.
        size: of the square that enters the network; of Faster R-CNN the shorter side.
        batch_size: images of a step.
        workers: processes of the loader.
        devkit: folder of VOC's files.
    """

    network: str
    size: int
    batch_size: int
    workers: int
    devkit: Path


@dataclass(frozen=True)
class Recipe:
    """Parts of a training script.

    Attributes:
        loader: gives batches, lists of arrays of which the first are the images.
        trainer: MXNet's.
        step_size: what gradients are divided by.
        compute: is given the arrays of a batch, and leaves gradients in the parameters.
        metrics: are updated after each step, which they wait for.
    """

    loader: Any
    trainer: Any
    step_size: int
    compute: Callable[..., Updates]
    metrics: Sequence[Any]


def detect(network: str, size: int, batch_size: int, workers: int, devkit: str) -> Tuple[Callable, Callable]:
    """Blocks of training of a detector as GluonCV's script for it does it.

    What GluonCV gives is used as its scripts use it: reading, augmentation and targets in the loader's processes
    (gluoncv.data.transforms.presets), network, loss, and in each step the losses' metrics, which wait for the step.

    | network | script in scripts/detection/ |
    | --- | --- |
    | ssd_... | ssd/train_ssd.py |
    | yolo3_... | yolo/train_yolo3.py --no-random-shape |
    | center_net_... | center_net/train_center_net.py |
    | faster_rcnn_fpn_... | faster_rcnn/train_faster_rcnn.py custom-model |

    Left out: the pretrained backbone, which is a download, schedules of the learning rate, validation and checkpoints.
    """
    if network.startswith(FASTER_RCNN):
        os.environ.update(FASTER_RCNN_VARIABLES)
    from mxtrain.engine.backend import nd

    steps = train(build_recipe(Work(network, size, batch_size, workers, Path(devkit))))
    return lambda: next(steps), nd.waitall


def build_recipe(work: Work) -> Recipe:
    """The recipe of a network's script."""
    # NumPy's old names first: MXNet needs them with some NumPy versions.
    import mxtrain.engine.backend  # noqa: F401, I001
    from gluoncv.utils import random

    random.seed(SEED)
    (build,) = (build for begin, build in RECIPES.items() if work.network.startswith(begin))
    return build(work)


def train(recipe: Recipe) -> Iterator[Any]:
    """Trains without end, and gives the images of each step once it is done."""
    while True:
        for batch in recipe.loader:
            arrays = [_on_cpu(part) for part in batch]
            updates = recipe.compute(*arrays)
            recipe.trainer.step(recipe.step_size)
            for metric, update in zip(recipe.metrics, updates):
                metric.update(*update)
            yield arrays[0]


def _on_cpu(part: Any) -> Any:
    """An array of a batch; of a loader that splits batches for devices, the only one in the list."""
    import mxnet as mx
    from mxnet import gluon

    if isinstance(part, (list, tuple)):
        return part[0].as_in_context(mx.cpu())
    return gluon.utils.split_and_load(part, ctx_list=[mx.cpu()], batch_axis=0)[0]


def _ssd(work: Work) -> Recipe:
    import mxnet as mx
    from gluoncv.data.batchify import Stack, Tuple
    from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform
    from gluoncv.loss import SSDMultiBoxLoss
    from mxnet import autograd

    network = _initialised(work)
    with autograd.train_mode():
        anchors = network(mx.nd.zeros((1, 3, work.size, work.size)))[2]
    loader = _loader(work, SSDDefaultTrainTransform(work.size, work.size, anchors), Tuple(*[Stack()] * 3))
    network.hybridize(static_alloc=True, static_shape=True)
    loss = SSDMultiBoxLoss()

    def compute(image: Any, classes: Any, boxes: Any) -> Updates:
        with autograd.record():
            class_scores, offsets, _ = network(image)
            total, *parts = loss([class_scores], [offsets], [classes], [boxes])
            autograd.backward(total)
        return [(0, [value * work.batch_size for value in part]) for part in parts]

    return Recipe(loader, _sgd(network.collect_params()), 1, compute, _loss_metrics(2))


def _yolo3(work: Work) -> Recipe:
    from gluoncv.data.batchify import Pad, Stack, Tuple
    from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform
    from mxnet import autograd

    network = _initialised(work)
    batchify = Tuple(*[Stack()] * 6, Pad(axis=0, pad_val=-1))
    loader = _loader(work, YOLO3DefaultTrainTransform(work.size, work.size, network), batchify)
    network.hybridize()

    def compute(image: Any, *targets: Any) -> Updates:
        with autograd.record():
            losses = network(image, targets[-1], *targets[:-1])
            autograd.backward([losses[0] + losses[1] + losses[2] + losses[3]])
        return [(0, [loss]) for loss in losses]

    return Recipe(loader, _sgd(network.collect_params()), work.batch_size, compute, _loss_metrics(4))


def _center_net(work: Work) -> Recipe:
    from gluoncv.data.batchify import Stack, Tuple
    from gluoncv.data.transforms.presets.center_net import CenterNetDefaultTrainTransform
    from gluoncv.loss import HeatmapFocalLoss, MaskedL1Loss
    from mxnet import autograd, gluon

    network = _initialised(work)
    transform = CenterNetDefaultTrainTransform(
        work.size, work.size, num_class=len(network.classes), scale_factor=network.scale
    )
    loader = _loader(work, transform, Tuple(*[Stack()] * 6))
    for parameter in network.collect_params(".*bias").values():
        parameter.wd_mult = 0.0
    trainer = gluon.Trainer(network.collect_params(), "adam", {"learning_rate": 1.25e-4, "wd": 1e-4})
    network.hybridize()
    heat_loss, size_loss, place_loss = HeatmapFocalLoss(from_logits=True), MaskedL1Loss(0.1), MaskedL1Loss(1.0)

    def compute(image: Any, heat: Any, size: Any, size_mask: Any, place: Any, place_mask: Any) -> Updates:
        with autograd.record():
            found_heat, found_size, found_place = network(image)
            losses = (
                heat_loss(found_heat, heat),
                size_loss(found_size, size, size_mask),
                place_loss(found_place, place, place_mask),
            )
            autograd.backward([losses[0] + losses[1] + losses[2]])
        return [(0, [loss]) for loss in losses]

    return Recipe(loader, trainer, 1, compute, _loss_metrics(3))


def _faster_rcnn(work: Work) -> Recipe:
    from gluoncv.data.batchify import FasterRCNNTrainBatchify
    from gluoncv.data.sampler import SplitSortedBucketSampler
    from gluoncv.data.transforms.presets.rcnn import FasterRCNNDefaultTrainTransform
    from gluoncv.model_zoo.rcnn.faster_rcnn.data_parallel import ForwardBackwardTask

    # By its module: in GluonCV 0.11 the zoo has another network of the same name, which cannot train.
    from gluoncv.model_zoo.rcnn.faster_rcnn.faster_rcnn import custom_faster_rcnn_fpn
    from gluoncv.utils.metrics import rcnn
    from mxnet import gluon

    images = open_images(work)
    network = custom_faster_rcnn_fpn(
        images.CLASSES,
        dataset="voc",
        pretrained_base=False,
        base_network_name=work.network[len(FASTER_RCNN) :],
        short=work.size,
        per_device_batch_size=work.batch_size,
        **FASTER_RCNN_OPTIONS,
    )
    network.initialize()
    sampler = SplitSortedBucketSampler([1.0] * len(images), work.batch_size, num_parts=1, part_index=0, shuffle=True)
    transform = FasterRCNNDefaultTrainTransform(
        network.short, network.max_size, network, ashape=network.ashape, multi_stage=True
    )
    loader = gluon.data.DataLoader(
        images.transform(transform),
        batch_sampler=sampler,
        batchify_fn=FasterRCNNTrainBatchify(network, 1),
        num_workers=work.workers,
    )
    network.collect_params().setattr("grad_req", "null")
    network.collect_train_params().setattr("grad_req", "write")
    trainer = _sgd(network.collect_train_params())
    network.hybridize()
    losses = gluon.loss
    task = ForwardBackwardTask(
        network,
        trainer,
        losses.SigmoidBinaryCrossEntropyLoss(from_sigmoid=False),
        losses.HuberLoss(rho=1 / 9),
        losses.SoftmaxCrossEntropyLoss(),
        losses.HuberLoss(rho=1.0),
        mix_ratio=1.0,
        amp_enabled=False,
    )

    def compute(*arrays: Any) -> Updates:
        found = task.forward_backward(arrays)
        return [*((0, [loss]) for loss in found[:4]), *((labels, given) for labels, given in found[4:])]

    further = [rcnn.RPNAccMetric(), rcnn.RPNL1LossMetric(), rcnn.RCNNAccMetric(), rcnn.RCNNL1LossMetric()]
    return Recipe(loader, trainer, work.batch_size, compute, [*_loss_metrics(4), *further])


RECIPES: Dict[str, Callable[[Work], Recipe]] = {
    "ssd_": _ssd,
    "yolo3_": _yolo3,
    "center_net_": _center_net,
    FASTER_RCNN: _faster_rcnn,
}
"""Prefix of a network's name -> its recipe."""


def _initialised(work: Work) -> Any:
    from gluoncv.model_zoo import get_model

    network = get_model(f"{work.network}_voc", pretrained=False, pretrained_base=False)
    network.initialize()
    return network


def _sgd(parameters: Any) -> Any:
    from mxnet import gluon

    return gluon.Trainer(parameters, "sgd", {"learning_rate": 0.001, "wd": 0.0005, "momentum": 0.9})


def _loss_metrics(count: int) -> List[Any]:
    import mxnet as mx

    return [mx.metric.Loss() for _ in range(count)]


def open_images(work: Work) -> Any:
    """Opens the training images."""
    import mxtrain.engine.backend  # noqa: F401, I001
    from gluoncv.data import VOCDetection

    return VOCDetection(root=str(work.devkit), splits=[(int(DETECTION_YEAR[3:]), DETECTION_SPLIT)])


def _loader(work: Work, transform: Any, batchify: Any) -> Any:
    from mxnet import gluon

    return gluon.data.DataLoader(
        open_images(work).transform(transform),
        work.batch_size,
        True,
        batchify_fn=batchify,
        last_batch="rollover",
        num_workers=work.workers,
    )


if __name__ == "__main__":
    run_script(sys.argv[1], sys.argv[2:])
