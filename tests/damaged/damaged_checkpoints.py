"""Damaged checkpoints: files, manifests and states, of runs that would go on or be measured from them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple, Type

import numpy as np
from damage import Case, damage, kind

from mxtrain.checkpoint import CheckpointStore, Snapshot, open_checkpoint, verified
from mxtrain.checkpoint.contents import Checkpoint, write_contents
from mxtrain.data.signature import Signature, signature_of
from mxtrain.files.durable import write_json_atomic
from mxtrain.files.params_format import ARRAY_MAGIC_V2, LIST_MAGIC
from mxtrain.text.signature import TextSignature
from mxtrain.training import resume
from mxtrain.vision.images.signature import ImageSignature

GOING_ON, ASKED, ALL, STATE = "last checkpoint", "checkpoint that was asked for", "all checkpoints", "state.json"
STEPS = (10, 20)
CONFIG = {"model": {"hidden": 8}}

# What is done to the files of one checkpoint, and what is said of it.
DAMAGE: Dict[str, Tuple[Callable[[Path], Any], str]] = {
    "a bit of an array": (lambda d: flip(d / "model.params", 80), "model.params has SHA-256"),
    "a bit of state.json": (lambda d: flip(d / "state.json", 30), "state.json has SHA-256"),
    "arrays cut off": (lambda d: os.truncate(d / "optimizer.params", 50), "optimizer.params has 50 bytes"),
    "arrays missing": (lambda d: os.unlink(d / "model.params"), "model.params is missing"),
    "manifest missing": (lambda d: os.unlink(d / "manifest.json"), "manifest.json is missing"),
    "manifest empty": (lambda d: os.truncate(d / "manifest.json", 0), "manifest.json is not JSON"),
    "arrays longer": (lambda d: os.truncate(d / "model.params", 9999), "model.params has 9999 bytes"),
    "arrays empty": (lambda d: os.truncate(d / "model.params", 0), "model.params has 0 bytes"),
    "arrays are a folder": (lambda d: (os.unlink(d / "model.params"), os.mkdir(d / "model.params")), "model.params "),
    "state.json missing": (lambda d: os.unlink(d / "state.json"), "state.json is missing"),
    "state.json is a pipe": (lambda d: (os.unlink(d / "state.json"), os.mkfifo(d / "state.json")), "has 0 bytes"),
    "state.json not in the manifest": (
        lambda d: change(d / "manifest.json", lambda m: m["files"].pop("state.json")),
        "state.json is missing",
    ),
    "a path in the manifest": (
        lambda d: change(d / "manifest.json", lambda m: m["files"].update({"../x.params": {"size": 1, "sha256": "0"}})),
        "which no checkpoint has",
    ),
    "manifest of a terabyte": (lambda d: os.truncate(d / "manifest.json", 1 << 40), "larger than"),
    "no files": (lambda d: [os.unlink(d / name) for name in os.listdir(d)], "manifest.json is missing"),
    "an unknown file": (lambda d: (d / "notes.txt").write_text("x"), "notes.txt does not belong"),
    "made by a later mxtrain": (lambda d: change(d / "manifest.json", lambda m: m.update(version=2)), "later mxtrain"),
    "a shape beyond all memory": (lambda d: impossible(d, 2**62, 2**62), "impossible shape"),
    "a shape of no elements": (lambda d: impossible(d, 0, 2**62), "impossible shape"),
    "a shape of more bytes than there are": (lambda d: impossible(d, 2**30, 1), "it ends at byte"),
}
BY_NAME: Dict[str, Tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda d: (shutil.rmtree(d), d.write_text("x")), "Not a directory"),
    "another step under its name": (
        lambda d: (shutil.rmtree(d), shutil.copytree(d.parent / "step-00000010", d)),
        "it holds step 10",
    ),
}
OF_ARRAYS = {name for name in DAMAGE if name.startswith("a shape")}  # the files are as their manifest says

DECODING = {"shape": [1, 8, 8], "central_crop": 1.0}


def of_text(config: Dict[str, Any]) -> Dict[str, Any]:
    """The signature of texts that become tokens so."""
    return {"shape": [[8], [8], []], "mean": [], "std": [], "class_names": ["a", "b"], "tokenizer_config": config}


WRONG_STATE: Dict[str, Tuple[Callable[[Dict[str, Any]], Any], str]] = {
    "nothing in it": (lambda s: s.clear(), "'run' is missing"),
    "no description": (lambda s: s["run"].pop("description"), "'run.description' is missing"),
    "a description that is a list": (lambda s: s["run"].update(description=[]), "'run.description' is no object"),
    "no input": (lambda s: s["run"].pop("input"), "'run.input' is missing"),
    "class names that are numbers": (lambda s: s["run"]["input"].update(class_names=[1]), "class_names[]' is a int"),
    "no size of image files": (
        lambda s: s["run"]["input"].update(decoding={"central_crop": 1.0}),
        "'run.input.decoding.shape' is missing",
    ),
    "no length of texts": (
        lambda s: s["run"].update(input=of_text({"vocab": ["[PAD]"], "lowercase": True})),
        "'run.input.tokenizer_config.max_length' is missing",
    ),
    "a later version's word on inputs": (
        lambda s: s["run"]["input"].update(gamma=2.2),
        "holds 'run.input.gamma', which this version",
    ),
    "a later version's words on texts": (
        lambda s: s["run"].update(input=of_text({"vocab": [], "lowercase": True, "max_length": 8, "a": 1, "b": 2})),
        "holds 'run.input.tokenizer_config.a', 'run.input.tokenizer_config.b', which this version",
    ),
    "a later version's word on images": (
        lambda s: s["run"]["input"].update(decoding={"shape": [1, 8, 8], "central_crop": 1.0, "gamma": 2.2}),
        "or a later version made it",
    ),
    "a later version's state": (lambda s: s.update(replay={}), "holds 'replay', which this version"),
    "no counters": (lambda s: s["train"].pop("epoch_step"), "'train.epoch_step' is missing"),
    "a counter that is text": (lambda s: s["train"].update(epoch="1"), "'train.epoch' is a str"),
    "another step": (lambda s: s["train"].update(step=7), "is of step 20 and of 7"),
    "no optimizer": (lambda s: s.pop("optimizer"), "'optimizer' is missing"),
    "an attribute that is text": (lambda s: s["optimizer"]["attributes"].update(lr="x"), "'optimizer.attributes.lr'"),
}

CASES: List[Case] = [
    *(Case(GOING_ON, name, said, 0) for name, (_, said) in {**DAMAGE, **BY_NAME}.items() if name not in OF_ARRAYS),
    *(Case(ASKED, name, said) for name, (_, said) in DAMAGE.items()),
    *(Case(STATE, name, said) for name, (_, said) in WRONG_STATE.items()),
    Case(GOING_ON, "cannot be read: input/output error", "model.params cannot be read: Input/output error", 0),
    Case(ALL, "one bit in each", "start over with checkpoint.resume=never"),
    Case(ALL, "cannot be read: permission denied", "state.json cannot be opened: Permission denied"),
    Case(ALL, "the folder is a file", "checkpoints cannot be read: Not a directory"),
]


def state_of(step: int) -> Dict[str, Any]:
    """Returns the state that a run of mxtrain writes."""
    return {
        "run": {
            "description": CONFIG,
            "workers": 1,
            "updates": False,
            "threads": "1",
            "own_operators": "",
            "cut_before": [],
            "batch_size": 32,
            "input": {"shape": [1, 8, 8], "mean": [0.5], "std": [0.5], "class_names": ["a", "b"], "decoding": DECODING},
        },
        "train": {
            "step": step,
            "epoch": 1,
            "epoch_step": 0,
            "epoch_sums": [],
            "window_sums": [],
            "validated_step": 0,
            "values": {},
            "validation_due": False,
            "best": None,
            "unmoved": {},
            "early_stopping": {},
        },
        "optimizer": {"update_counts": {"w": step}, "attributes": {"num_update": step}, "cum_counts": {}},
    }


def write_run(folder: Path) -> None:
    """Two checkpoints of a run."""
    (folder / "checkpoints").mkdir()
    for step in STEPS:
        arrays = {"model": {"w": np.full((3, 4), step, "float32")}, "optimizer": {"w:0": np.ones((3, 4), "float32")}}
        write_contents(Snapshot(step, 1, arrays, state_of(step), step / 100), place(folder, step))


def place(folder: Path, step: int = STEPS[-1]) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


def go_on(folder: Path) -> str:
    """Opens the newest checkpoint of a run directory, like `train`."""
    said: List[str] = []
    store = CheckpointStore(folder / "checkpoints", keep_last=2, keep_top=1, report=said.append)
    try:
        found = resume.find_checkpoint("auto", store, CONFIG)
    finally:
        verified.os = os  # what a damage put in its place
    assert found is not None and found.step == (10 if said else 20)
    signature_of(found, kind_of(found))
    return " ".join(said)


def kind_of(checkpoint: Checkpoint) -> Type[Signature]:
    """The class of signature that the dataset of its run names."""
    return TextSignature if "tokenizer_config" in checkpoint.state["run"]["input"] else ImageSignature


def measure(path: Path) -> None:
    """Opens a named checkpoint, like `eval`."""
    checkpoint = open_checkpoint(path)
    resume.require_run_state(checkpoint)
    signature_of(checkpoint, kind_of(checkpoint))
    for stem in checkpoint.stems:
        checkpoint.arrays(stem)


@kind(GOING_ON)
@kind(ALL)
def _run(folder: Path) -> Callable[[], str]:
    write_run(folder)
    return lambda: go_on(folder)


@kind(STATE)
@kind(ASKED)
def _asked(folder: Path) -> Callable[[], None]:
    write_run(folder)
    return lambda: measure(place(folder))


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(bytes(data))


def change(path: Path, how: Callable[[Dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    how(value)
    write_json_atomic(path, value)


def impossible(directory: Path, *shape: int) -> None:
    """A file of weights with this shape and next to no bytes, and a manifest that agrees with it."""
    head = struct.pack("<QQQIiI", LIST_MAGIC, 0, 1, ARRAY_MAGIC_V2, 0, len(shape))
    (directory / "model.params").write_bytes(head + struct.pack(f"<{len(shape)}qiii", *shape, 1, 0, 0))
    agree(directory, "model.params")


def agree(directory: Path, name: str) -> None:
    """Makes the manifest right for a file that was changed: a checkpoint from a stranger looks so."""
    content = (directory / name).read_bytes()
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(directory / "manifest.json", lambda manifest: manifest["files"].update({name: entry}))


def _spoil_one(name: str) -> None:
    kinds = (ASKED,) if name in OF_ARRAYS else (GOING_ON,) if name in BY_NAME else (ASKED, GOING_ON)
    damage(*kinds, called=name)(lambda folder: {**DAMAGE, **BY_NAME}[name][0](place(folder)))


def _spoil_state(name: str) -> None:
    def spoil(folder: Path) -> None:
        change(place(folder) / "state.json", lambda header: WRONG_STATE[name][0](header["state"]))
        agree(place(folder), "state.json")

    damage(STATE, called=name)(spoil)


for _name in (*DAMAGE, *BY_NAME):
    _spoil_one(_name)
for _name in WRONG_STATE:
    _spoil_state(_name)


@damage(GOING_ON, called="cannot be read: input/output error")
def _faulty_disk(folder: Path) -> None:
    verified.os = FailingOs("readv", errno.EIO, str(place(folder) / "model.params"))


@damage(ALL, called="cannot be read: permission denied")
def _forbidden(folder: Path) -> None:
    verified.os = FailingOs("open", errno.EACCES, "state.json")


class FailingOs:
    """`os`, whose `open` or first `readv` fails for the files whose path ends so: root is forbidden nothing."""

    def __init__(self, call: str, number: int, end: str):
        self._call, self._number, self._end, self._fd = call, number, end, -1

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int) -> int:
        if not str(path).endswith(self._end):
            return os.open(path, flags)
        if self._call == "open":
            raise OSError(self._number, os.strerror(self._number))
        self._fd = os.open(path, flags)
        return self._fd

    def readv(self, fd: int, buffers: Any) -> int:
        if fd == self._fd:
            self._fd = -1
            raise OSError(self._number, os.strerror(self._number))
        return os.readv(fd, buffers)


@damage(ALL, called="one bit in each")
def _damage_all(folder: Path) -> None:
    for step in STEPS:
        flip(place(folder, step) / "model.params", 70)


@damage(ALL, called="the folder is a file")
def _no_folder(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").write_text("")
