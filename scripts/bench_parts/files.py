"""Made-up files that several sides read: images in CIFAR-10's files, images in PASCAL VOC's layout, RecordIO, texts
and tables."""

from __future__ import annotations

import csv
import random
import re
import shutil
import sysconfig
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import STRICT
from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.loading.splitting import choose_statistics
from mxtrain.data.spec import Splits
from mxtrain.vision.classification.cifar import Cifar10
from mxtrain.vision.images.class_lists import VOC_CLASSES

CIFAR_CLASSES, RECORD_SIDE, RECORD_CLASSES = 10, 32, 1000


def write_cifar(folder: Path, samples_per_file: int) -> None:
    """Five files to train on and one to test on: a pattern per class, half of each pixel noise.

    Args:
        folder: Is made.
        samples_per_file: The official files have 10,000.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    pattern_KP = rng.randint(0, 256, (CIFAR_CLASSES, 3 * 32 * 32))
    for name in (*Cifar10.train_sha1, *Cifar10.test_sha1):
        label_N = rng.randint(0, CIFAR_CLASSES, samples_per_file)
        noise_NP = rng.randint(0, 256, (samples_per_file, pattern_KP.shape[1]))
        image_NP = (pattern_KP[label_N] + noise_NP) // 2
        np.concatenate([label_N[:, None], image_NP], axis=1).astype(np.uint8).tofile(folder / name)


class SameWork(Cifar10):
    """CIFAR-10 whose training files are all trained on and whose test file is the validation split."""

    def open(self) -> Splits:
        """See `Dataset.open`."""
        root = self._find()
        class_names = self._class_names(root)
        image_NCHW, label_N, _ = self._read_files(root, self.train_sha1, len(class_names), STRICT)
        val = MemorySource(*self._read_files(root, self.test_sha1, len(class_names), STRICT))
        mean, std = choose_statistics(self.mean, self.std, image_NCHW)
        return Splits(
            train=MemorySource(image_NCHW, label_N),
            val=val,
            test=None,
            class_names=class_names,
            shape=(3, 32, 32),
            mean=mean,
            std=std,
        )


# Images in PASCAL VOC's layout.

IMAGES, VAL_IMAGES = 64, 4
"""Images that differ."""
DETECTION_SIZE, SEGMENTATION_SIZE = (375, 500), (240, 320)
"""Height and width; the former is the commonest in PASCAL VOC."""
DETECTION_YEAR, DETECTION_SPLIT, DETECTION_VAL_SPLIT = "VOC2007", "trainval", "test"
SEGMENTATION_CLASSES = 21


def write_detection(devkit: Path, num_names: int) -> None:
    """Writes a year of VOC with boxes into `devkit`, with the lists trainval and test.

    Args:
        devkit: is made.
        num_names: that a training epoch holds; the images come again under other names.
    """
    root = devkit / DETECTION_YEAR
    lists = {DETECTION_SPLIT: True, DETECTION_VAL_SPLIT: False}
    _write_voc(root, {"JPEGImages": "jpg", "Annotations": "xml"}, "Main", lists, num_names, _scene_with_boxes)


def write_segmentation(devkit: Path, num_names: int) -> None:
    """Writes VOC2012 with masks into `devkit`, as `write_detection` does.

    GluonCV's VOCSegmentation trains on trainval.txt when it is told train, mxtrain on train.txt: both hold the same.
    """
    folders = {"JPEGImages": "jpg", "SegmentationClass": "png"}
    lists = {"train": True, "trainval": True, "val": False}
    _write_voc(devkit / "VOC2012", folders, "Segmentation", lists, num_names, _scene_with_mask)


def _write_voc(
    root: Path,
    folders: Mapping[str, str],
    lists_in: str,
    lists: Mapping[str, bool],
    num_names: int,
    draw: Callable[[np.ndarray, np.random.RandomState, Sequence[Path]], None],
) -> None:
    """Images made of scikit-learn's photographs, with shapes drawn on them.

    Args:
        folders: name -> ending of its files.
        lists: name -> whether it holds the images of training.
        draw: is given a photograph, random numbers, and the files of an image.
    """
    from sklearn.datasets import load_sample_images

    photographs, rng = load_sample_images().images, np.random.RandomState(0)
    for folder in (*folders, f"ImageSets/{lists_in}"):
        (root / folder).mkdir(parents=True)
    names = [f"train_{number:06d}" for number in range(num_names)]
    val = [f"val_{number:06d}" for number in range(VAL_IMAGES)]
    for number, name in enumerate([*names[:IMAGES], *val]):
        paths = [root / folder / f"{name}.{ending}" for folder, ending in folders.items()]
        draw(photographs[number % len(photographs)], rng, paths)
    for number in range(IMAGES, num_names):
        for folder, ending in folders.items():
            first = root / folder / f"{names[number % IMAGES]}.{ending}"
            shutil.copyfile(first, root / folder / f"{names[number]}.{ending}")
    for split, is_train in lists.items():
        (root / "ImageSets" / lists_in / f"{split}.txt").write_text("\n".join(names if is_train else val) + "\n")


def _cut_out(photograph_HWC: np.ndarray, size: Tuple[int, int], rng: np.random.RandomState) -> Any:
    """A part of a photograph, as an image of Pillow's."""
    from PIL import Image

    height, width = size
    top = rng.randint(photograph_HWC.shape[0] - height + 1)
    left = rng.randint(photograph_HWC.shape[1] - width + 1)
    return Image.fromarray(photograph_HWC[top : top + height, left : left + width])


def _color(kind: int) -> Tuple[int, int, int]:
    return 12 * kind, 255 - 12 * kind, 40 * kind % 256


def _scene_with_boxes(photograph_HWC: np.ndarray, rng: np.random.RandomState, paths: Sequence[Path]) -> None:
    """A part of a photograph with up to four ellipses in colours of their classes, and their exact boxes as VOC's tools
    write them: coordinates count from 1, and the last pixel is part of a box."""
    from PIL import ImageDraw

    height, width = DETECTION_SIZE
    image, objects = _cut_out(photograph_HWC, DETECTION_SIZE, rng), ""
    for _ in range(rng.randint(1, 5)):
        kind = int(rng.randint(len(VOC_CLASSES)))
        own_width, own_height = int(rng.randint(40, 240)), int(rng.randint(40, 240))
        x, y = int(rng.randint(width - own_width)), int(rng.randint(height - own_height))
        # Pillow's last pixel is part of what is drawn.
        shape = [x, y, x + own_width - 1, y + own_height - 1]
        ImageDraw.Draw(image).ellipse(shape, fill=_color(kind))
        box = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + own_width}</xmax><ymax>{y + own_height}</ymax>"
        objects += f"<object><name>{VOC_CLASSES[kind]}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>\n"
    image.save(paths[0], quality=90)
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    paths[1].write_text(f"<annotation>\n{size}\n{objects}</annotation>\n")


def _scene_with_mask(photograph_HWC: np.ndarray, rng: np.random.RandomState, paths: Sequence[Path]) -> None:
    """A part of a photograph with up to four ellipses in colours of their classes, and its mask with a palette."""
    from PIL import Image, ImageDraw

    height, width = SEGMENTATION_SIZE
    image, mask = _cut_out(photograph_HWC, SEGMENTATION_SIZE, rng), Image.new("P", (width, height))
    mask.putpalette([int(value) for value in np.random.RandomState(1).randint(0, 256, 256 * 3)])
    for _ in range(rng.randint(1, 5)):
        kind = int(rng.randint(1, SEGMENTATION_CLASSES))
        x, y = int(rng.randint(width - 40)), int(rng.randint(height - 40))
        box = [x, y, x + int(rng.randint(40, 160)), y + int(rng.randint(40, 160))]
        ImageDraw.Draw(image).ellipse(box, fill=_color(kind))
        # 255 is ignored: as VOC outlines its objects.
        ImageDraw.Draw(mask).ellipse(box, fill=kind, outline=255, width=3)
    image.save(paths[0], quality=90)
    mask.save(paths[1])


def write_records(folder: str, num_images: int, num_val_images: int) -> None:
    """Made-up images as RecordIO files, whose names of classes are as many as train_horovod.py's network has."""
    from mxtrain.engine.backend import mx

    root = Path(folder)
    root.mkdir(parents=True)
    rng = np.random.RandomState(0)
    for split, count in (("train", num_images), ("val", num_val_images)):
        prefix = str(root / f"images_{split}")
        record = mx.recordio.MXIndexedRecordIO(f"{prefix}.idx", f"{prefix}.rec", "w")
        for index in range(count):
            header = mx.recordio.IRHeader(0, float(rng.randint(RECORD_CLASSES)), index, 0)
            image = rng.randint(0, 256, (RECORD_SIDE + 4, RECORD_SIDE + 4, 3)).astype(np.uint8)
            record.write_idx(index, mx.recordio.pack_img(header, image, quality=95, img_fmt=".jpg"))
        record.close()
    (root / "images_classes.txt").write_text("".join(f"class{number}\n" for number in range(RECORD_CLASSES)))


# Texts and tables.


def base_paragraphs() -> List[List[str]]:
    """The words of every paragraph of the standard library's sources and of the language's reference."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8", "replace") for path in sorted(library.glob("*.py"))]
    parts = (part.split() for text in [*texts, *topics.values()] for part in re.split(r"\n\s*\n", text))
    return [words for words in parts if 8 <= len(words) <= 400]


def paragraphs(seed: int = 0) -> Iterator[str]:
    """Without end; a tenth of the words is exchanged for others, so that hardly a paragraph comes twice."""
    rng, base = random.Random(seed), base_paragraphs()
    known = [word for words in base for word in words]
    while True:
        words = list(rng.choice(base))
        for _ in range(max(1, len(words) // 10)):
            words[rng.randrange(len(words))] = rng.choice(known)
        yield " ".join(words)


def write_text(path: Path, megabytes: float) -> None:
    """A file of paragraphs."""
    size, most = 0, megabytes * 1e6
    with open(path, "w", encoding="utf-8") as file:
        for text in paragraphs():
            size += file.write(f"{text}\n\n")
            if size >= most:
                return


def write_table(path: Path, megabytes: float, num_rows: int) -> None:
    """A CSV of texts of about the same length, and classes that say how many words these have."""
    length = int(megabytes * 1e6 / num_rows) - 10
    source = paragraphs()
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "label"])
        rest = ""
        for _ in range(num_rows):
            while len(rest) < length:
                rest += " " + next(source)
            text, rest = rest[:length], rest[length:]
            rows.writerow([text, "many" if text.count(" ") > length // 7 else "few"])


def write_lines(path: Path, vocab_size: int, length: int, count: int) -> None:
    """So many lines of so many words: every word of the vocabulary, then random ones."""
    from mxtrain.text.tokenizing.base import OWN_SPECIAL

    words = _words(vocab_size - len(OWN_SPECIAL))
    path.write_text("".join(f"{' '.join(islice(words, length))}\n" for _ in range(count)))


def _words(number_of: int) -> Iterator[str]:
    names, random_ = [f"w{number}" for number in range(number_of)], random.Random(0)
    yield from names
    while True:
        yield random_.choice(names)


def write_uniform(path: Path, rows: int, columns: int, samples: int) -> Path:
    """Codes that are as likely as each other, and a target that none of them says."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, rows, (samples, columns))
    lines = [",".join([*(f"v{code}" for code in row), str(row[0] % 2)]) for row in codes.tolist()]
    path.write_text("\n".join([",".join([*(f"c{n}" for n in range(columns)), "target"]), *lines]) + "\n")
    return path


def write_skewed(path: Path, samples: int) -> Path:
    """Codes of which few are frequent, and a target that is drawn from the sum of an effect of each."""
    rng = np.random.default_rng(0)
    codes = (10_000 * rng.random((samples, 4)) ** 3).astype(int)
    effects = rng.normal(size=(4, 10_000))
    chance = 1 / (1 + np.exp(-sum(effects[number, codes[:, number]] for number in range(4))))
    target = (rng.random(samples) < chance).astype(int)
    lines = [",".join([*(f"v{code}" for code in row), str(one)]) for row, one in zip(codes.tolist(), target)]
    path.write_text("\n".join(["c0,c1,c2,c3,target", *lines]) + "\n")
    return path
