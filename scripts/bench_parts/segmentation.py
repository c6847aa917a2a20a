"""Training of segmentation against GluonCV's own script: the same files, network and batch, in turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

from bench_parts import gluoncv_cifar
from bench_parts.gluoncv_segmentation import AS_SHIPPED, HYBRIDIZED
from bench_parts.measured import Measured, Options, Series, ratios
from bench_parts.processes import default_environment, mxtrain_arguments, tuned_environment, untouched_environment
from bench_parts.segmentation_files import HEIGHT, WIDTH, write_files
from bench_parts.turns import Side, TurnsCallback, in_turns

TARGET = 1.2
WORKERS = 2
"""Processes that load pictures for the script: as many as cores. Its own 16 would crowd them."""
AHEAD = 8
"""Blocks' worth of steps that no side reaches: the epoch must not end, since what follows it is not compared."""
LR, MOMENTUM, WD = "0.001", "0.9", "0.0001"


@dataclass(frozen=True)
class Case:
    """A network, and what is trained.

    Attributes:
        architecture: what the script calls it.
        name: what GluonCV's model zoo and mxtrain call it.
    """

    architecture: str
    name: str
    crop: int
    batch_size: int
    block_steps: int

    @property
    def title(self) -> str:
        return f"{self.name}, {self.crop} px, batch {self.batch_size}"


CASES = (Case("fcn", "fcn_resnet50", 128, 4, 3), Case("fastscnn", "fastscnn", 128, 8, 10))
QUICK_CASES = (Case("fastscnn", "fastscnn", 64, 2, 2),)
BLOCKS, QUICK_BLOCKS = 8, 2
SHIPPED, AS_OURS = "train.py, MXNet's defaults", "train.py, our environment, hybridized"
NOTES = (
    f"Pictures of {WIDTH} x {HEIGHT} pixels: scikit-learn's photographs with drawn ellipses, in PASCAL VOC's layout, "
    "21 classes. Both sides decode, mirror, resize by 0.5 to 2 and cut them anew in each step; SGD with momentum and "
    "the polynomial schedule, auxiliary loss of weight 0.5, float32. Each side is a process of its own, started once "
    "for each network; blocks of steps are taken in turns, and a side is stopped (SIGSTOP) while it is not its turn, "
    "so that nothing is loaded ahead outside of what is timed. Everything up to the end of the second block is left "
    "out: start, compilation, warm-up. No epoch ends within a measurement: neither validation nor a checkpoint is in.",
    "Ours: `python -m mxtrain task=segmentation dataset=voc_segmentation model=gluoncv_segmentation`, with its "
    "default metrics (mean IoU and pixel accuracy of training), callbacks and loggers.",
    "GluonCV's: scripts/segmentation/train.py with --no-cuda --aux --workers 2 (its 16 would crowd two cores). The "
    "download of a pretrained backbone, random blur, which we do not have, and tqdm's bar, which times the blocks, are "
    "replaced (scripts/bench_parts/gluoncv_segmentation.py); all "
    "else is the script's. It does not hybridize its network, since nothing in it reads --mode. So a second process "
    "runs it hybridized and with the variables that mxtrain sets for itself; the target is not about that one.",
)


def missing(cifar_script: str) -> str:
    """Why this part can't be measured, or nothing."""
    reason = gluoncv_cifar.missing(cifar_script)
    if reason or segmentation_script(cifar_script).is_file():
        return reason
    return f"{segmentation_script(cifar_script)} is not there, in the same checkout"


def segmentation_script(cifar_script: str) -> Path:
    """GluonCV's script of segmentation in the same checkout: scripts/classification/cifar/ leads to it."""
    return Path(cifar_script).resolve().parents[2] / "segmentation" / "train.py"


def measure(options: Options) -> Measured:
    """samples/s of each side."""
    measured = Measured(notes=list(NOTES))
    blocks = options.turns or (QUICK_BLOCKS if options.quick else BLOCKS)
    for case in QUICK_CASES if options.quick else CASES:
        steps = options.steps or case.block_steps
        folder = options.work / case.name
        devkit = folder / "home" / ".mxnet" / "datasets" / "voc"
        write_files(devkit, case.batch_size * steps * (blocks + AHEAD))
        script = segmentation_script(options.gluoncv_script)
        sides = {
            "mxtrain": _ours(case, steps, devkit),
            SHIPPED: _theirs(case, steps, script, AS_SHIPPED, default_environment(), folder),
            AS_OURS: _theirs(case, steps, script, HYBRIDIZED, tuned_environment(), folder),
        }
        memory: Dict[str, float] = {}
        found = in_turns(sides, blocks, folder, memory)
        rates = {name: [steps * case.batch_size / value for value in values] for name, values in found.items()}
        measured.series += [Series(f"{case.title}: {name}", "samples/s", values) for name, values in rates.items()]
        measured.compare(f"{case.title}: mxtrain / {SHIPPED}", rates["mxtrain"], rates[SHIPPED], TARGET)
        name = f"{case.title}: mxtrain / {AS_OURS}, pair by pair"
        measured.series.append(Series(name, "ratio", ratios(rates["mxtrain"], rates[AS_OURS])))
        measured.details[f"{case.title}: most memory of its processes, MiB"] = memory
    return measured


def _ours(case: Case, steps: int, devkit: Path) -> Side:
    overrides = [
        "task=segmentation", "dataset=voc_segmentation", f"dataset.root={devkit}",
        f"dataset.image_size=[{case.crop},{case.crop}]", f"dataset.batch_size={case.batch_size}",
        "model=gluoncv_segmentation", f"model.name={case.name}", "optimizer=sgd", f"optimizer.lr={LR}",
        f"optimizer.momentum={MOMENTUM}", f"optimizer.wd={WD}", "lr_scheduler=poly", "lr_scheduler.power=0.9",
        "early_stopping=off", *TurnsCallback.overrides(steps),
    ]  # fmt: skip
    return Side(mxtrain_arguments(overrides), untouched_environment(), stopped_between=True)


def _theirs(case: Case, steps: int, script: Path, way: str, environment: Dict[str, str], folder: Path) -> Side:
    arguments: List[str] = [
        "--no-cuda", "--dataset", "pascal_voc", "--model", case.architecture, "--aux", "--aux-weight", "0.5",
        "--base-size", str(max(HEIGHT, WIDTH)), "--crop-size", str(case.crop), "--batch-size", str(case.batch_size),
        "--workers", str(WORKERS), "--lr", LR, "--momentum", MOMENTUM, "--weight-decay", WD, "--no-val",
        "--save-dir", "params",
    ]  # fmt: skip
    command = ["-m", "bench_parts.gluoncv_segmentation", str(steps), way, str(script), *arguments]
    return Side(command, {**environment, "HOME": str(folder / "home")}, stopped_between=True)
