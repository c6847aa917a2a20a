"""GluonCV's own scripts as two workers against us: its Horovod script, and its CIFAR script over a parameter server."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Callable, Dict, List, Mapping, Sequence

import numpy as np

from bench_parts import clock, gluoncv_cifar
from bench_parts.measured import Measured, Options, Series, in_turn
from bench_parts.processes import TIMEOUT_S, ProcessFailed, run, train, tuned_environment
from mxtrain.kvstore import has_horovod

WORKERS = 2
CIFAR_MODEL, RECORD_MODEL = gluoncv_cifar.MODEL, "resnest14"
SIDE, CLASSES = 32, 1000
RECORD_EPOCH = re.compile(r"Epoch\[\d+\]\tSpeed: (\S+) samples/sec")
NOTES = (
    "Two workers on one machine, one thread and (theirs) one loading process each, the same network, batch and images, "
    "made up, of 32 pixels, NAG. A value is the median of a run's epochs but the first; the sides take turns. "
    "Samples/s are those of both workers.",
    'As they are shipped, neither runs here. train_horovod.py ends with "ModuleNotFoundError: No module named '
    "'autogluon'\": it imports autogluon.utils.pil_transforms, which later versions do not have, and uses "
    'it from 320 pixels on. With any network but ResNeSt it ends with "TypeError: HybridBlock.__init__() got an '
    "unexpected keyword argument 'input_size'\". GluonCV's classification scripts have no option for a kvstore: the "
    "store of their gluon.Trainer is replaced by dist_sync, whose servers then hold the optimizer, as MXNet's defaults "
    "have it. scripts/bench_parts/gluoncv_worker.py replaces these, and the jitter of colours and lighting, which we "
    "do not have; all else is theirs.",
    "train_cifar10.py does not share the images: each worker goes through all of them, and validates on all. So its "
    "epoch is twice ours, and both spend the same part of it on validation, which is included. train_horovod.py times "
    "training alone, and so do the rows of our metrics.jsonl.",
)


def missing(script: str) -> str:
    """Why this part can't be measured, or nothing."""
    reason = gluoncv_cifar.missing(script)
    if reason or horovod_script(script).is_file():
        return reason
    return f"{horovod_script(script)} is not there, beside {script}"


def horovod_script(cifar_script: str) -> Path:
    """GluonCV's Horovod script in the same checkout."""
    return Path(cifar_script).resolve().parents[1] / "imagenet" / "train_horovod.py"


def measure(options: Options) -> Measured:
    """samples/s of both workers together."""
    measured = Measured(notes=list(NOTES))
    repetitions = 1 if options.quick else 5
    comparisons: Dict[str, Dict[str, Callable[[int], float]]] = {"dist_sync": _cifar(options)}
    if has_horovod():
        comparisons["horovod"] = _records(options)
    else:
        measured.notes.append("Horovod is not built here (scripts/horovod): train_horovod.py was not measured.")
    for store, sides in comparisons.items():
        found: Dict[str, List[float]] = in_turn(sides, repetitions)
        network = CIFAR_MODEL if store == "dist_sync" else RECORD_MODEL
        for name, values in found.items():
            measured.series.append(Series(f"{network}, {store}: {name}", "samples/s", values))
        ours, theirs = found.values()
        measured.compare(f"{network}, {store}: our samples/s / GluonCV's", ours, theirs, 1.0)
    return measured


def _environment() -> Dict[str, str]:
    return {**tuned_environment(), "OMP_NUM_THREADS": "1"}


def _cifar(options: Options) -> Dict[str, Callable[[int], float]]:
    samples_per_file, batch_size, epochs = (16, 8, 2) if options.quick else (512, 64, 4)
    from bench_parts.cifar_files import write_files

    home = options.work / "home"
    files = home / "datasets" / "cifar10"
    write_files(files, samples_per_file)

    def ours(number: int) -> float:
        overrides = [
            f"model.name={CIFAR_MODEL}", "dataset=cifar10", "dataset._target_=bench_parts.cifar_files.SameWork",
            f"dataset.root={files}", "dataset.verify_checksum=false", f"dataset.eval_batch_size={batch_size}",
            f"dataset.mean={gluoncv_cifar.MEAN}", f"dataset.std={gluoncv_cifar.STD}", "optimizer.lr=0.1",
        ]  # fmt: skip
        folder = options.work / f"ours-cifar-{number}"
        times = folder / "clock.json"
        _ours("dist_sync", [*overrides, *clock.overrides(times)], batch_size, epochs, folder)
        return 5 * samples_per_file / median(clock.epoch_seconds(times))

    def theirs(number: int) -> float:
        arguments = ["--model", CIFAR_MODEL, "--mode", "hybrid", "--save-dir", "params", "--batch-size",
                     str(batch_size), "--num-epochs", str(epochs), "-j", "1"]  # fmt: skip
        worker = ["-m", "bench_parts.gluoncv_worker", str(Path(options.gluoncv_script).resolve()), *arguments]
        said = _group(worker, {**_environment(), "MXNET_HOME": str(home)}, options.work / f"theirs-{number}")
        seconds = [float(found) for _, found in gluoncv_cifar.EPOCH_LINE.findall(said)][1:]
        return WORKERS * 5 * samples_per_file / median(seconds)

    return {"mxtrain": ours, "train_cifar10.py": theirs}


def _records(options: Options) -> Dict[str, Callable[[int], float]]:
    num_images, batch_size, epochs = (32, 8, 2) if options.quick else (512, 32, 4)
    folder = options.work / "records"
    write_records(folder, num_images, WORKERS * batch_size)

    def ours(number: int) -> float:
        overrides = [
            f"model.name={RECORD_MODEL}", "dataset=image_record", f"dataset.root={folder}",
            f"dataset.image_size=[{SIDE},{SIDE}]", "dataset.augment.crop_scale=[0.08,1.0]", "optimizer.lr=0.01",
            "trainer.limit_val_batches=1",
        ]  # fmt: skip
        run_dir = _ours("horovod", overrides, batch_size, epochs, options.work / f"ours-records-{number}")
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        return median([row["samples_per_s"] for row in rows if row["split"] == "train" and row["epoch"] > 1])

    def theirs(number: int) -> float:
        arguments = ["--rec-train", str(folder / "images_train.rec"), "--rec-val", str(folder / "images_val.rec"),
                     "--model", RECORD_MODEL, "--batch-size", str(batch_size), "--num-epochs", str(epochs), "--no-cuda",
                     "--input-size", str(SIDE), "--data-nthreads", "1", "--log-interval", "0", "--save-frequency", "0",
                     "--lr", "0.005", "--warmup-epochs", "0"]  # fmt: skip
        script = str(horovod_script(options.gluoncv_script))
        launcher = ["-m", "horovod.runner.launch", "-np", str(WORKERS), "--gloo"]
        worker = [sys.executable, "-m", "bench_parts.gluoncv_worker", script, *arguments]
        done = run([*launcher, *worker], _environment(), options.work / f"theirs-records-{number}")
        return median([float(speed) for speed in RECORD_EPOCH.findall(done.stdout + done.stderr)][1:])

    return {"mxtrain": ours, "train_horovod.py": theirs}


def _ours(store: str, overrides: Sequence[str], batch_size: int, epochs: int, folder: Path) -> Path:
    """Trains with `batch_size` samples of each batch for each worker; returns the run directory."""
    common = [
        f"kvstore={store}", f"cluster.workers={WORKERS}", f"dataset.batch_size={WORKERS * batch_size}",
        f"trainer.max_epochs={epochs}", "optimizer=nag", "optimizer.momentum=0.9",
        "optimizer.wd=0.0001", "lr_scheduler=constant", "early_stopping=off", "trainer.test=false",
    ]  # fmt: skip
    return train([*common, *overrides], folder, environment={"OMP_NUM_THREADS": "1"})


def _group(worker: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """Runs scheduler, server and workers by dmlc's variables; what the first worker printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tracker = {
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port), "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(WORKERS), "DMLC_NUM_SERVER": "1",
    }  # fmt: skip
    importing = ["-c", "import mxtrain.engine.backend"]  # MXNet serves while it is imported
    orders = [("scheduler", importing), ("server", importing), *[("worker", list(worker))] * WORKERS]
    with ExitStack() as stack:
        logs, processes = [], []
        for number, (role, arguments) in enumerate(orders):
            own = folder / f"{role}-{number}"
            own.mkdir(parents=True)
            logs.append(own / "log")
            process = subprocess.Popen(
                [sys.executable, *arguments], env={**environment, **tracker, "DMLC_ROLE": role}, cwd=own,
                stdin=subprocess.DEVNULL, stdout=stack.enter_context(open(logs[-1], "w")), stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            stack.callback(partial(_end, process))
            processes.append(process)
        for process, log in zip(processes[2:], logs[2:]):
            if process.wait(TIMEOUT_S) != 0:
                raise ProcessFailed(f"exit code {process.returncode}\n{log.read_text()[-2000:]}")
    return logs[2].read_text()


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its loaders' processes."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait()


def write_records(folder: Path, num_images: int, num_val_images: int) -> None:
    """Made-up images as RecordIO files, whose names of classes are as many as train_horovod.py's network has."""
    from mxtrain.engine.backend import mx

    folder.mkdir(parents=True)
    rng = np.random.RandomState(0)
    for split, count in (("train", num_images), ("val", num_val_images)):
        prefix = str(folder / f"images_{split}")
        record = mx.recordio.MXIndexedRecordIO(f"{prefix}.idx", f"{prefix}.rec", "w")
        for index in range(count):
            header = mx.recordio.IRHeader(0, float(rng.randint(CLASSES)), index, 0)
            image = rng.randint(0, 256, (SIDE + 4, SIDE + 4, 3)).astype(np.uint8)
            record.write_idx(index, mx.recordio.pack_img(header, image, quality=95, img_fmt=".jpg"))
        record.close()
    (folder / "images_classes.txt").write_text("".join(f"class{number}\n" for number in range(CLASSES)))
