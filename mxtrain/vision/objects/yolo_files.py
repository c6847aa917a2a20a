"""Finds the images, label files and class names of a YOLO dataset: by its `data.yaml` (Ultralytics, Roboflow), by
`obj.data` (Darknet, CVAT), or by its folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml

from mxtrain.data.checking.problems import MISSING_COUNTERPART, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import FileId, as_posix, exists, id_of, read_text, suggest_existing
from mxtrain.data.loading.split_folders import find_splits
from mxtrain.errors import DataError
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_integer
from mxtrain.vision.detection.boxed_classes import choose_class_names, first_twice
from mxtrain.vision.images.files import find_images

OPTION = "dataset=yolo"
SPLIT_KEYS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
_NO_PATH = ("", "null", "~")
_LAYOUT = (
    "It must hold a data.yaml with train, val and names, or images/ and labels/ with classes.txt, or images with .txt "
    "files beside them."
)


@dataclass(frozen=True)
class YoloData:
    """Content of a description of a dataset.

    Attributes:
        source: file or folder that says it, for messages.
        names: names of the classes; empty: unknown.
        splits: files or folders of images of each split.
        points: numbers of key points, and of numbers of each; None if there are none.
        point_names: names of the key points; empty: unknown.
        flips: index of the key point that each becomes in a mirrored image; None: unknown.
    """

    source: Path
    names: Sequence[str]
    splits: Mapping[str, Sequence[Path]]
    points: Optional[Tuple[int, int]] = None
    point_names: Sequence[str] = ()
    flips: Optional[Sequence[int]] = None


def read_data(root: Path, name: str) -> YoloData:
    """Reads the description of a dataset.

    Args:
        root: folder of the dataset, or its description.
        name: name of the description in the folder; auto: the only one.

    Raises:
        DataError: there is no dataset, or its description is wrong.
    """
    if not exists(root):
        raise DataError(
            f"{OPTION}: there is no folder '{root}'.{suggest_existing(root)} {_LAYOUT} Name yours with "
            "dataset.root=FOLDER."
        )
    path = root if not root.is_dir() else _find_description(root, name)
    if path is None:
        return _by_folders(root)
    return _read_darknet(path) if path.suffix == ".data" else _read_yaml(path)


def _find_description(root: Path, name: str) -> Optional[Path]:
    """Returns the description in a folder; None if there is none.

    Raises:
        DataError: there is no file of the name, or there are several.
    """
    if name != "auto":
        if not exists(root / name):
            raise DataError(f"dataset.data={name}: there is no file '{root / name}'.{suggest_existing(root / name)}")
        return root / name
    found = sorted(path for ending in ("*.yaml", "*.yml", "*.data") for path in root.glob(ending))
    found = [path for path in found if path.suffix == ".data" or _is_description(path)]
    named = [path for path in found if path.stem == "data"]
    if len(found) > 1 and len(named) != 1:
        names = ", ".join(path.name for path in found)
        raise DataError(f"{OPTION}: '{root}' has {names}. Type dataset.data=NAME for one of them.")
    return next(iter(named or found), None)


def _is_description(path: Path) -> bool:
    """Returns True for a file with splits or names, and for an empty data.yaml, which is not taken for absent."""
    lines = split_lines(read_text(path))
    return any(line.startswith(("names:", "train:")) for line in lines) or (path.stem == "data" and not any(lines))


def _read_yaml(path: Path) -> YoloData:
    """Reads a data.yaml.

    Raises:
        DataError: it is no YAML, or lacks train or names.
    """
    try:
        # Everything is text: safe_load would take the class `no` for false.
        content: Any = yaml.load(read_text(path), Loader=yaml.BaseLoader)  # builds no objects
    except (yaml.YAMLError, RecursionError) as error:
        raise DataError(f"'{path}' is no YAML: {' '.join(str(error).split())[:300]}.") from error
    if not isinstance(content, dict):
        raise DataError(f"'{path}' must have keys, e.g. train: images/train.")
    names = _read_names(path, content)
    splits: Dict[str, List[Path]] = {}
    for split, keys in SPLIT_KEYS.items():
        value = next((content[key] for key in keys if key in content), "")
        texts = value if isinstance(value, list) else [value]
        texts = [text for text in texts if text not in _NO_PATH]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(f"'{path}': {split} must be a path or a list of paths.")
        if texts:
            splits[split] = [_resolved(path, content.get("path", ""), text, split) for text in texts]
    if "train" not in splits:
        raise DataError(f"'{path}' has no train. Add e.g. train: images/train.")
    points, flips, point_names = _read_points(path, content)
    return YoloData(path, names, splits, points, point_names, flips)


def _read_names(path: Path, content: Mapping[str, Any]) -> List[str]:
    """Returns the names of the classes: a list, or a dict of numbers from 0.

    Raises:
        DataError: they are wrong.
    """
    names, count = content.get("names"), content.get("nc")
    if isinstance(names, dict):
        numbers = {parse_integer(str(number)): name for number, name in names.items()}
        if set(numbers) != set(range(len(names))):
            raise DataError(f"'{path}': names must have the numbers 0 to {len(names) - 1}; it has {', '.join(names)}.")
        names = [numbers[number] for number in range(len(names))]
    if names is None and count is not None:
        names = [str(number) for number in range(parse_integer(str(count), 1, 100_000) or 0)]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"'{path}' has no names of classes. Add e.g. names: [cat, dog].")
    if count is not None and parse_integer(str(count)) != len(names):
        raise DataError(f"'{path}': nc is {count}, and there are {len(names)} names. Correct one of them.")
    twice = first_twice(names)
    if twice is not None:
        raise DataError(f"'{path}' names the class '{twice}' twice. Give each class a name of its own.")
    return names


def _read_points(
    path: Path, content: Mapping[str, Any]
) -> Tuple[Optional[Tuple[int, int]], Optional[List[int]], List[str]]:
    """Returns kpt_shape, flip_idx and kpt_names.

    Raises:
        DataError: one of them is wrong.
    """
    if "kpt_shape" not in content:
        return None, None, []
    numbers = [parse_integer(str(number), 1, 10_000) for number in content["kpt_shape"]]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] not in (2, 3):
        raise DataError(f"'{path}': kpt_shape must be [number of key points, 2 or 3], e.g. [17, 3].")
    shape = (numbers[0], numbers[1])
    flips = content.get("flip_idx")
    if flips is not None:
        order = [parse_integer(str(number), 0, shape[0] - 1) for number in flips]
        if len(order) != shape[0] or None in order:
            raise DataError(f"'{path}': flip_idx must have {shape[0]} numbers from 0 to {shape[0] - 1}.")
        flips = [number for number in order if number is not None]
    names = content.get("kpt_names") or []
    names = next(iter(names.values()), []) if isinstance(names, dict) else names
    if names and (len(set(names)) != shape[0] or len(names) != shape[0]):
        raise DataError(f"'{path}': kpt_names must be {shape[0]} different names.")
    return shape, flips, list(names)


def _resolved(description: Path, path: str, text: str, split: str) -> Path:
    """Returns the file or folder of a split.

    Ultralytics and Roboflow write paths relative to `path`, to the folder of the description, or to its parent, and
    `../` where nothing is above.

    Raises:
        DataError: it does not exist.
    """
    folder = description.parent
    bases = [folder, folder.parent]
    if path and isinstance(path, str):
        above = Path(as_posix(path))
        bases = [above] if above.is_absolute() else [folder / above, Path(above), folder.parent / above, *bases]
        bases += [folder]
    tried = []
    for base in bases:
        for name in (text, text[3:] if text.startswith("../") else text):
            candidate = Path(os.path.normpath(base / as_posix(name)))
            if exists(candidate):
                return candidate
            tried.append(str(candidate))
    listed = ", ".join(f"'{each}'" for each in dict.fromkeys(tried))
    null = f" Or type dataset.{split}=null." if split != "train" else ""
    raise DataError(f"'{description}': {split} is '{text}', and there is no {listed}. Correct path or {split}.{null}")


def _read_darknet(path: Path) -> YoloData:
    """Reads an obj.data, whose paths often begin with a folder `data/` that is not there.

    Raises:
        DataError: it lacks train or names, or a file does not exist.
    """
    pairs = (line.partition("=")[::2] for line in split_lines(read_text(path)) if "=" in line)
    values = {key.strip(): value.strip() for key, value in pairs}

    def found(text: str) -> Path:
        folder = path.parent
        candidates = [folder / text, folder / text.partition("/")[2], folder.parent / text]
        existing = [candidate for candidate in candidates if exists(candidate) and candidate != folder]
        if not existing:
            raise DataError(f"'{path}' names '{text}', and there is no file '{candidates[0]}' or '{candidates[1]}'.")
        return existing[0]

    if "names" not in values:
        raise DataError(f"'{path}' has no names. Add e.g. names = obj.names.")
    names = [line.strip() for line in split_lines(read_text(found(values["names"]))) if line.strip()]
    splits = {
        split: [found(values[key]) for key in keys if values.get(key)][:1]
        for split, keys in SPLIT_KEYS.items()
        if any(values.get(key) for key in keys)
    }
    if "train" not in splits:
        raise DataError(f"'{path}' has no train. Add e.g. train = train.txt.")
    return YoloData(path, names, splits)


def _by_folders(root: Path) -> YoloData:
    """Finds the splits by the names of folders."""
    images = root / "images"
    if images.is_dir():
        splits = find_splits(images, OPTION) or {"train": images}
    else:
        parts = find_splits(root, OPTION) or {"train": root}
        splits = {split: each / "images" if (each / "images").is_dir() else each for split, each in parts.items()}
    names = choose_class_names((), root) or choose_class_names((), root / "labels")
    return YoloData(root, names, {split: [folder] for split, folder in splits.items()})


def label_of(image: str) -> str:
    """Returns the label file of an image: the last folder `images` of its path becomes `labels`; otherwise beside."""
    stem = os.path.splitext(image)[0]
    # A relative path may begin with `images/`.
    head, mark, tail = f"/{stem}".rpartition("/images/")
    return f"{head}/labels/{tail}.txt"[1:] if mark else f"{stem}.txt"


def list_split(entries: Sequence[Path], findings: Findings) -> Iterator[Tuple[str, FileId]]:
    """Yields path and identity of the images of a split; each is counted once.

    Args:
        entries: folders of images, lists of images (.txt), or images.
        findings: collects listed images that do not exist.
    """
    seen = set()
    for entry in entries:
        if entry.is_dir():
            listed = [(str(path), file_id) for path, file_id in find_images(entry, findings=findings)]
        elif entry.suffix.lower() == ".txt":
            listed = list(_read_list(entry, findings))
        else:
            listed = [(str(entry), id_of(entry))]
        for path, file_id in listed:
            if file_id not in seen:
                seen.add(file_id)
                yield path, file_id


def _read_list(path: Path, findings: Findings) -> Iterator[Tuple[str, FileId]]:
    """Yields the images that a list names. Paths are relative to the list, to a folder above, or to the current one."""
    problems: List[Problem] = []
    for line, text in enumerate(split_lines(read_text(path, findings)), 1):
        name = as_posix(text.strip())
        if not name:
            continue
        bases = [path.parent, path.parent.parent, Path()]
        candidates = [base / name for base in bases] + [path.parent / name.partition("/")[2]]
        image = next((each for each in candidates if not each.is_dir() and exists(each)), None)
        if image is not None:
            yield os.path.normpath(image), id_of(image)
            continue
        location = DataLocation(str(path), line)
        fact = f"{location} names '{name}', and there is no file '{candidates[0]}'."
        problems.append(Problem(MISSING_COUNTERPART, location, fact, "Add it, or remove the line."))
    if problems:
        count = f" ({len(problems):,} such lines)" if problems[1:] else ""
        findings.refuse(*problems, sentence=f"{problems[0].fact[:-1]}{count}. {problems[0].remedy}")
