"""Default runs: from the command to its exit, for five seeds."""

from __future__ import annotations

import json
import resource
import time
from typing import Any, Dict, List, Sequence, Tuple

from bench_parts.measured import Measured, Options, Series, Target, say
from bench_parts.processes import train

MAX_WALL_S = 60.0
MIN_ACCURACY = 0.985
MAX_SCENES_WALL_S = 180.0
MIN_MEAN_IOU = 0.80
MIN_VOC_AP = 0.95


def measure(options: Options) -> Measured:
    """`python -m mxtrain trainer.seed=S`."""
    found, details = run_seeds(options, [])
    test = [status["metrics"]["test/accuracy"] for status in found["status"]]
    return Measured(
        series=[
            Series("wall time, command to exit", "s", found["wall"]),
            Series("best validation accuracy", "fraction", found["best"]),
            Series("test accuracy of the best weights", "fraction", test),
        ],
        targets=[
            Target("default run: longest wall time, s", max(found["wall"]), MAX_WALL_S, at_least=False),
            Target("default run: lowest best validation accuracy", min(found["best"]), MIN_ACCURACY, at_least=True),
        ],
        notes=[
            "`python -m mxtrain trainer.seed=S` for S = " + ", ".join(map(str, details["seeds"])) + ", process start "
            "included.",
            "The digits dataset holds out 270 validation and 270 test samples: one sample is 0.0037.",
        ],
        details=details,
    )  # fmt: skip


def measure_segmentation(options: Options) -> Measured:
    """`python -m mxtrain task=segmentation trainer.seed=S`."""
    return measure_scenes(options, "segmentation", "mean IoU", MIN_MEAN_IOU)


def measure_detection(options: Options) -> Measured:
    """`python -m mxtrain task=detection trainer.seed=S`."""
    return measure_scenes(options, "detection", "VOC AP", MIN_VOC_AP)


def measure_scenes(options: Options, task: str, metric: str, least: float) -> Measured:
    """The default of a task that is trained on made scenes.

    Args:
        options: of the call.
        task: an option of conf/task/.
        metric: what is monitored, in words.
        least: the target of its best validation.
    """
    found, details = run_seeds(options, [f"task={task}"])
    return Measured(
        series=[
            Series("wall time, command to exit", "s", found["wall"]),
            Series(f"best validation {metric}", "fraction", found["best"]),
            Series("processor time, all threads", "s", found["cpu"]),
        ],
        targets=[
            Target(f"{task}: longest wall time, s", max(found["wall"]), MAX_SCENES_WALL_S, at_least=False),
            Target(f"{task}: lowest best {metric}", min(found["best"]), least, at_least=True),
        ],
        notes=[
            f"`python -m mxtrain task={task} trainer.seed=S` for S = " + ", ".join(map(str, details["seeds"]))
            + ", process start included. 300 validation scenes, of digits and halves of photographs that training does "
            "not see; settings were chosen on the same scenes, with the first seeds.",
        ],
        details=details,
    )  # fmt: skip


def run_seeds(options: Options, overrides: Sequence[str]) -> Tuple[Dict[str, List[Any]], Dict[str, Any]]:
    """Wall and processor time in s, best monitored value and status.json of each seed's run; and the seeds and steps.
    The first call of all warms the disk cache and is not counted."""
    seeds, more = (range(1), ["trainer.max_epochs=1"]) if options.quick else (range(5), [])
    if not options.quick:
        train(["debug=fast", *overrides], options.work / "warm_up")
    found: Dict[str, List[Any]] = {"wall": [], "cpu": [], "best": [], "status": []}
    for seed in seeds:
        started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        run_dir = train([f"trainer.seed={seed}", *overrides, *more], options.work / f"seed{seed}")
        found["wall"].append(time.perf_counter() - started)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        found["cpu"].append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
        found["status"].append(json.loads((run_dir / "status.json").read_text()))
        found["best"].append(found["status"][-1]["best"]["value"])
        say(f"  seed {seed}: {found['wall'][-1]:.1f} s, best {found['best'][-1]:.4f}")
    return found, {"seeds": list(seeds), "steps": [status["step"] for status in found["status"]]}
