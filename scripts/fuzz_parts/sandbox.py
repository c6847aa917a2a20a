"""The folder in which a command line runs: data, a finished run, classes and presets of a user's, right and wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Callable, Dict, Sequence

HERE = "home/work"
"""The working directory of a case in its folder: `..` and `~` stay inside it."""

MINE = """
from mxnet.gluon import nn

class Net(nn.HybridSequential):
    def __init__(self, classes=10):
        super().__init__()
        self.add(nn.Flatten(), nn.Dense(classes))

def net(num_classes):
    return Net(num_classes)

def no_return(num_classes):
    Net(num_classes)

def wrong_return(num_classes):
    return [num_classes]

def wrong_shape(num_classes):
    return nn.Conv2D(4, 3)

def raises(num_classes):
    raise RuntimeError("out of order")

def needs(num_classes, depth):
    return Net(num_classes)

def Metric():
    return None

nothing = None
"""
PRESETS = {
    "good": "# @package _global_\noptimizer:\n  lr: 0.01\n",
    "no_global": "optimizer:\n  lr: 0.01\n",
    "not_yaml": "# @package _global_\noptimizer: [\n",
    "unknown_group": "# @package _global_\ndefaults:\n  - override /optimiser: sgd\n",
    "unknown_setting": "# @package _global_\noptimizer:\n  learning: 0.01\n",
    "a_list": "# @package _global_\n- 1\n- 2\n",
    "empty": "",
    "number": "5\n",
    "latin": "# @package _global_\n# Gr\xfc\xdfe\noptimizer:\n  lr: 0.01\n",
    "defaults": "# @package _global_\ndefaults: 3\n",
}


def make_template(folder: Path, train: Callable[[Path, Sequence[str]], None]) -> None:
    """Fills the folder that each case gets a copy of.

    Args:
        folder: where.
        train: trains in a folder with these arguments.
    """
    work = folder / HERE
    work.mkdir(parents=True)
    (folder / "home/outside").mkdir()
    (folder / "tmp").mkdir()
    (work / "folder").mkdir()
    (work / "noentry").write_text("a file, where a folder is wanted\n")
    (work / "file.txt").write_text("a line\n")
    (work / "mine.py").write_text(MINE)
    (work / "broken.py").write_text("import nothing_of_this_name\n")
    rows = [
        f"{'good fine nice' if number % 2 else 'bad sad ugly'} words {number}\t{number % 2}" for number in range(60)
    ]
    (work / "texts.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (work / "book.txt").write_text("\n\n".join(f"a sentence of words and number {n} " * 3 for n in range(60)) + "\n")
    os.symlink("nowhere", work / "dangling")
    os.symlink("loop", work / "loop")
    _make_images(work)
    (work / "presets/experiment").mkdir(parents=True)
    for name, text in PRESETS.items():
        (work / f"presets/experiment/{name}.yaml").write_bytes(text.encode("latin-1"))
    train(
        work,
        [
            "hydra.run.dir=run",
            "model=mlp",
            "model.hidden=[8]",
            "dataset=image_folder",
            "dataset.root=pictures",
            "dataset.image_size=[8,8]",
            "dataset.batch_size=8",
            "debug=fast",
        ],
    )


def _make_images(work: Path) -> None:
    from PIL import Image

    for split, count in (("train", 20), ("val", 6)):
        for number, name in enumerate(("a", "b")):
            place = work / "pictures" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (16, 16), (100 * number, 10 * index, 50)).save(place / f"{index}.png")
    (work / "empty.png").write_bytes(b"")


def snapshot(folder: Path) -> Dict[str, str]:
    """Every file, link and folder below, with its content; bytecode and lock files apart, which say nothing."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            if name == ".lock":
                continue
            content = os.readlink(path) if os.path.islink(path) else ""
            if not content and os.path.isfile(path):
                with open(path, "rb") as stream:
                    content = hashlib.sha256(stream.read()).hexdigest()
            found[os.path.relpath(path, folder)] = content
    return found


def copy_template(template: Path, folder: Path) -> Dict[str, str]:
    """A case's own copy, and what is in it."""
    shutil.copytree(template, folder, symlinks=True)
    return snapshot(folder)
