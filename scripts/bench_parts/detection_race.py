"""Training of detectors against GluonCV's scripts for them: the same files, network and batch, in turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Sequence

from bench_parts.detection_files import HEIGHT, SPLIT, VAL_SPLIT, WIDTH, write_files
from bench_parts.measured import Measured, Options, Series, Target, ratios, say
from bench_parts.processes import (
    default_environment,
    mxtrain_arguments,
    train,
    tuned_environment,
    untouched_environment,
)
from bench_parts.turns import Side, TurnsCallback, in_turns
from mxtrain.parallel.usage import Usage
from mxtrain.types import Callback

if TYPE_CHECKING:
    from mxtrain.annotations import UsageReport

TARGET = 1.3
MAX_WAITING = 0.05
WORKERS, SHIPPED_WORKERS = 2, 4
"""Processes that load pictures for GluonCV: as many as cores, and what its scripts take where nothing is said."""
AHEAD = 12
"""Blocks' worth of steps that no side reaches: the epoch must not end, since what follows it is not compared."""
SGD = (
    "optimizer=sgd", "optimizer.lr=0.001", "optimizer.momentum=0.9", "optimizer.wd=0.0005",
    "model.no_decay_norm_and_bias=false",
)  # fmt: skip
FROZEN = ("features.*batchnorm*", "features.resnetv1b_conv0_*", "features.resnetv1b_layers1_*")
"""What GluonCV does not train of its Faster R-CNN around a ResNet (`train_patterns`)."""
ADAM = ("optimizer=adam", "optimizer.lr=0.000125", "optimizer.wd=0.0001")


@dataclass(frozen=True)
class Case:
    """A network, and what is trained.

    Attributes:
        model: an option of conf/model/.
        name: GluonCV's name of the network.
        size: of the square that enters it, in pixels; of Faster R-CNN the shorter side.
        overrides: of our side: the script's optimizer, and what else the network needs.
        width: of what enters it where that is no square.
        ours: its name here, where that is another.
    """

    model: str
    name: str
    size: int
    batch_size: int
    block_steps: int
    overrides: Sequence[str] = SGD
    width: int = 0
    ours: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.size} px, batch {self.batch_size}"


CASES = (
    Case("ssd", "ssd_512_mobilenet1.0", 512, 8, 3),
    Case("ssd", "ssd_300_vgg16_atrous", 300, 4, 1),
    Case("yolo3", "yolo3_mobilenet1.0", 320, 8, 2),
    Case("center_net", "center_net_resnet18_v1b", 256, 8, 3, ADAM),
    Case(
        "faster_rcnn", "faster_rcnn_fpn_resnet18_v1b", 320, 2, 1,
        (*SGD, "model.backbone=resnet18_v1b", f"model.freeze={json.dumps(FROZEN)}"), width=427,
        ours="faster_rcnn_fpn_custom",
    ),
)
QUICK_CASES = (Case("yolo3", "yolo3_mobilenet0.25", 96, 2, 2),)
BLOCKS, QUICK_BLOCKS = 5, 2
OURS, BFLOAT16 = "mxtrain", "mxtrain, bfloat16"
SAME, SHIPPED = "GluonCV, our environment", "GluonCV, as installed"
NOTES = (
    f"Pictures of {WIDTH} x {HEIGHT} pixels: scikit-learn's photographs with drawn ellipses, in PASCAL VOC's layout, "
    "20 classes. Both sides decode, change and resize them anew in each step, and match boxes to them. Each side is a "
    "process of its own, started once for each network; blocks of steps are taken in turns, and a side is stopped "
    "(SIGSTOP) while it is not its turn, so that nothing is loaded ahead outside of what is timed. Everything up to "
    "the end of the second block is left out: start, compilation, warm-up. No epoch ends within a measurement: neither "
    "validation nor a checkpoint is in.",
    "Ours: `python -m mxtrain task=detection dataset=voc model.name=...`, with the optimizer of GluonCV's script, and "
    "default changes of pictures, callbacks and loggers. Pictures are changed as for SSD also where the network is a "
    "CenterNet, which GluonCV trains on warped ones. Of the Faster R-CNN both leave the first convolution, the first "
    "stage and all batch norms as they are. Its dense layers see 7 x 7 cells of a region here, and there 4 x 4, which "
    "are means of them: 13.9 million weights against 5.2.",
    "GluonCV's: what its scripts train_ssd.py, train_yolo3.py --no-random-shape, "
    "train_center_net.py and train_faster_rcnn.py custom-model do in a step, "
    "with its datasets, transforms, targets, losses and metrics (scripts/bench_parts/gluoncv_detection.py). Weights "
    "are initialised, since pretrained ones are a download. The target is about the process that runs with the "
    f"variables that mxtrain sets for itself, the number of threads among them, and with {WORKERS} processes that load "
    f"(its {SHIPPED_WORKERS} would crowd two cores). A further one has MXNet's defaults and {SHIPPED_WORKERS} such "
    "processes, as its scripts are.",
    "What can be had at most: convolutions and dense layers, which oneDNN computes on both sides, take 79 % "
    "(ssd_512_mobilenet1.0), 93 % (ssd_300_vgg16_atrous), 86 % (center_net_resnet18_v1b) and 86 % "
    "(faster_rcnn_fpn_resnet18_v1b) of our time in operators, as `trainer.profile=true` says of a run with one thread. "
    "In processor time of such runs, two pairs in turn, GluonCV's step takes 1.18, 1.06, 1.17 and 1.79 times as much "
    "as ours; if all else took no time, it would be 1.5, 1.14, 1.35 and 2.1 times. The ratios of the table are of wall "
    "time with two threads: they also hold how long each side waits. (AMD EPYC with AVX-512, 2026-11-25.)",
    "Memory: the most that the training process had (VmHWM), and what its further processes had for themselves alone, "
    "the most at the end of a block.",
)


class UsageCallback(Callback):
    """Writes what share of the time devices waited in the steps that trainer.profile looks at first."""

    STEPS = 15
    """So many have to be trained: three are looked at after the first ten."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    @classmethod
    def overrides(cls, path: Path) -> List[str]:
        """What notes it in a run."""
        target = "+callback.usage._target_=bench_parts.detection_race.UsageCallback"
        return [target, f"+callback.usage.path={path}", "trainer.profile=true", f"trainer.max_steps={cls.STEPS}"]

    def on_usage(self, usage: UsageReport) -> None:
        if isinstance(usage, Usage) and not self._path.exists():
            self._path.write_text(json.dumps(usage.bubble))


def measure(options: Options) -> Measured:
    """samples/s and memory of each side."""
    measured = Measured(notes=list(NOTES))
    measured.table.append(["MiB of memory", OURS, BFLOAT16, SAME, SHIPPED])
    blocks = options.turns or (QUICK_BLOCKS if options.quick else BLOCKS)
    cases = QUICK_CASES if options.quick else CASES
    for case in cases:
        _race(case, options.steps or case.block_steps, blocks, options.work / case.name, measured)
    _look(cases[0], options.work, measured)
    return measured


def _race(case: Case, steps: int, blocks: int, folder: Path, measured: Measured) -> None:
    """Measures the sides of a network in turns."""
    say(f"  {case.title}")
    devkit = folder / "VOCdevkit"
    write_files(devkit, case.batch_size * steps * (blocks + AHEAD))
    ours = [*_overrides(case, devkit), *TurnsCallback.overrides(steps)]
    sides = {
        OURS: _ours(ours),
        BFLOAT16: _ours([*ours, "amp=bfloat16"]),
        SAME: _theirs(case, steps, WORKERS, tuned_environment(), devkit),
        SHIPPED: _theirs(case, steps, SHIPPED_WORKERS, default_environment(), devkit),
    }
    memory: Dict[str, float] = {}
    found = in_turns(sides, blocks, folder, memory)
    rates = {name: [steps * case.batch_size / value for value in values] for name, values in found.items()}
    measured.series += [Series(f"{case.title}: {name}", "samples/s", values) for name, values in rates.items()]
    measured.compare(f"{case.title}: {OURS} / {SAME}", rates[OURS], rates[SAME], TARGET)
    for above, below in ((OURS, SHIPPED), (BFLOAT16, OURS)):
        shares = ratios(rates[above], rates[below])
        measured.series.append(Series(f"{case.title}: {above} / {below}, pair by pair", "ratio", shares))
    measured.table.append([case.title, *(f"{memory[name]:,.0f}" for name in sides)])


def _look(case: Case, folder: Path, measured: Measured) -> None:
    """Measures which share of a step the device waits, for pictures and targets among other things."""
    devkit, report = folder / "looked_at" / "VOCdevkit", folder / "looked_at" / "usage.json"
    write_files(devkit, case.batch_size * UsageCallback.STEPS)
    overrides = [*_overrides(case, devkit), *UsageCallback.overrides(report)]
    train([*overrides, "trainer.max_epochs=1", "checkpoint=off"], report.parent)
    name = f"{case.title}: share of a step in which the device waits, by trainer.profile"
    measured.targets.append(Target(name, json.loads(report.read_text()), MAX_WAITING, at_least=False))


def _overrides(case: Case, devkit: Path) -> List[str]:
    return [
        "task=detection", "dataset=voc", f"dataset.root={devkit}", f"dataset.train_split={SPLIT}",
        f"dataset.val_split={VAL_SPLIT}", f"dataset.image_size=[{case.size},{case.width or case.size}]",
        f"dataset.batch_size={case.batch_size}", f"model={case.model}", f"model.name={case.ours or case.name}",
        *case.overrides, "lr_scheduler=constant", "early_stopping=off",
    ]  # fmt: skip


def _ours(overrides: Sequence[str]) -> Side:
    return Side(mxtrain_arguments(overrides), untouched_environment(), stopped_between=True)


def _theirs(case: Case, steps: int, workers: int, environment: Dict[str, str], devkit: Path) -> Side:
    given = [str(number) for number in (case.size, case.batch_size, workers)]
    arguments = ["-m", "bench_parts.gluoncv_detection", str(steps), case.name, *given, str(devkit)]
    return Side(arguments, environment, stopped_between=True)
