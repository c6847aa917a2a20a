"""The part `export`: onnxruntime against MXNet, int8 against float32, one and two replicas of Ray Serve."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from bench_parts import export_side
from bench_parts.export_side import FUSED, MXNET, ONNX
from bench_parts.harness import ONE_THREAD, Measured, Options, ask, run, say, train, tuned_environment

ONE_STEP = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=1",
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "dataset.batch_size=4",
    "dataset.eval_batch_size=4",
)
"""A run whose weights are as good as random ones: for times, not for metrics."""
WHOLE = "limit_batches=1000"


class Family(NamedTuple):
    """A network whose export is timed.

    Attributes:
        name: for readers.
        overrides: of a run.
        rounds: calls of each engine.
        length: tokens of a text; 0 = as the data are.
        int8_batch: samples of a call in which int8 is compared with float32; 0 = it is not.
    """

    name: str
    overrides: Sequence[str]
    rounds: int
    length: int = 0
    int8_batch: int = 0


def _bert(layers: int, units: int, vocab: int) -> Sequence[str]:
    return (
        "dataset=text",
        "model=bert",
        f"model.num_layers={layers}",
        f"model.units={units}",
        f"model.hidden_size={4 * units}",
        f"model.num_heads={units // 64}",
        f"dataset.vocab_size={vocab}",
        "dataset.max_length=128",
    )


def _gluoncv(name: str) -> Sequence[str]:
    return "model=gluoncv", f"model.name={name}", "dataset.image_size=[224,224]"


FAMILIES = (
    Family("ResNet-50, 224 px", _gluoncv("resnet50_v1b"), 9, int8_batch=32),
    Family("MobileNet, 224 px", _gluoncv("mobilenet1.0"), 15),
    Family("LeNet, digits", (), 60),
    Family("BERT-base, 128 tokens", _bert(12, 768, 30522), 9, 128, 8),
    Family("detection, default", ("task=detection",), 15),
    Family("segmentation, default", ("task=segmentation",), 15),
    Family("speech recognition, default", ("task=speech_recognition",), 15),
    Family("translation, default", ("task=translation", "dataset.batch_tokens=null"), 15),
    Family("table, default", ("task=tabular",), 60),
    Family("recommendation, default", ("task=recommendation",), 60),
)
QUICK_FAMILIES = (Family("LeNet, digits", (), 3, int8_batch=2), Family("BERT, 16 tokens", _bert(1, 64, 300), 3, 16, 2))
ACCURACY = (
    ("digits", ("model=resnet",)),
    ("passages of Python's reference", ("dataset=text", "model=bert")),
)
"""Runs to the end, of the default data."""
FASTER, MAX_LOST, QUARTER = 1.8, 0.01, 3.5


def why_not(options: Options) -> str:
    """The reason why the part cannot be measured, or nothing."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def measure(options: Options) -> Measured:
    """Times, sizes and metrics of exported networks; parts of it by --only."""
    found = Measured()
    for family in QUICK_FAMILIES if options.quick else FAMILIES:
        if options.only.lower() in family.name.lower():
            _time(family, options, found)
    for name, overrides in ACCURACY[:1] if options.quick else ACCURACY:
        if options.only.lower() in f"accuracy, {name}".lower():
            _accuracy(name, overrides, options, found)
    if options.only.lower() in "replicas":
        _replicas(options, found)
    return found


def _folder(options: Options, name: str) -> Path:
    return options.work / re.sub(r"\W+", "-", name)


def _export(run_dir: Path, name: str, *settings: str) -> Tuple[Path, Dict[str, Any]]:
    out = run_dir.parent / name
    run(["-m", "mxtrain", "export", str(run_dir), f"out={out}", *settings], tuned_environment(), run_dir.parent)
    return out, json.loads((out / "export.json").read_text())


def _environment() -> Dict[str, str]:
    return {**tuned_environment(), **ONE_THREAD}


def _time(family: Family, options: Options, found: Measured) -> None:
    say(f"  {family.name}")
    folder = _folder(options, family.name)
    run_dir = train([*ONE_STEP, *family.overrides], folder, (0, 75))
    exported, report = _export(run_dir, "float32", "limit_batches=1")
    found.at_most(f"{family.name}: largest relative error", max(report["errors"].values()), 1e-5)
    rounds = options.turns or family.rounds
    times = ask(
        "export_side:engines",
        str(run_dir),
        str(exported),
        family.length,
        rounds,
        environment=_environment(),
        folder=folder,
    )
    for engine, values in times.items():
        found.add(f"{family.name}: {engine}", "ms", values)
    for engine in (MXNET, FUSED):
        if engine in times:
            found.compare(
                f"{family.name}: {engine} / {ONNX}", times[engine], times[ONNX], 1.0 if engine == MXNET else None
            )
    if family.int8_batch:
        _int8(family, run_dir, exported, rounds, found)


def _int8(family: Family, run_dir: Path, exported: Path, rounds: int, found: Measured) -> None:
    small, report = _export(
        run_dir, "int8", "limit_batches=1", "quantize=int8", "max_loss=1000", "calibration_samples=16"
    )
    folders = {"float32": str(exported), "int8": str(small)}
    title = f"{family.name}, batch {family.int8_batch}"
    times = ask(
        "export_side:forms",
        folders,
        family.int8_batch,
        family.length,
        max(rounds // 2, 3),
        environment=_environment(),
        folder=run_dir.parent,
    )
    for form, values in times.items():
        found.add(f"{title}: {form}", "ms", values)
    found.compare(f"{title}: float32 / int8", times["float32"], times["int8"], FASTER)
    sizes = {form: export_side.file_MB(place) for form, place in folders.items()}
    for form, size in sizes.items():
        found.add(f"{family.name}: file, {form}", "MB", [size])
    found.at_least(f"{family.name}: size of float32 / int8", sizes["float32"] / sizes["int8"], QUARTER)
    found.details[title] = report["compression"]


def _accuracy(name: str, overrides: Sequence[str], options: Options, found: Measured) -> None:
    say(f"  accuracy, {name}")
    folder = _folder(options, name)
    run_dir = train([*overrides, *(("trainer.max_epochs=2",) if options.quick else ())], folder)
    for form in ("int8", "float16", "bfloat16"):
        _, report = _export(run_dir, form, f"quantize={form}", WHOLE, "max_loss=1")
        compared = report["compression"]
        metric = compared["metric"]
        for one in ("float32", form) if form == "int8" else (form,):
            found.add(f"{name}: {metric['name']}, {one}", "", [metric[one]])
        found.at_most(f"{name}: {metric['name']} lost by {form}", metric["float32"] - metric[form], MAX_LOST)
        found.details[f"{name}, {form}"] = compared


def _replicas(options: Options, found: Measured) -> None:
    if importlib.util.find_spec("ray") is None:
        found.notes.append("Ray is not installed: replicas were not measured.")
        return
    say("  replicas")
    folder, overrides = options.work / "replicas", () if options.quick else _gluoncv("resnet50_v1b")
    run_dir = train([*overrides, *ONE_STEP], folder, (0, 75))
    out, _ = _export(run_dir, "served", "limit_batches=1", "for=ray", "name=served")
    environment = _environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(out)])
    rates: Dict[str, List[float]] = ask(
        "ray_side:throughput",
        [1, 2],
        2 if options.quick else 5,
        2.0 if options.quick else 15.0,
        environment=environment,
        folder=folder,
    )
    one, two = rates["1"], rates["2"]
    found.add("Ray Serve, 1 replica", "requests/s", one)
    found.add("Ray Serve, 2 replicas", "requests/s", two)
    found.compare("Ray Serve, 2 replicas / 1", two, one, None)
