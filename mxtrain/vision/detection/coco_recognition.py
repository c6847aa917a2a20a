"""Recognises COCO's annotation files and the folders of their images, for `data guess`."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

from mxtrain.data.loading.dataset_files import as_posix
from mxtrain.data.loading.split_folders import parse_name
from mxtrain.data.recognition import FileTree, Setting
from mxtrain.types import Spec

SPLITS = ("train", "val", "test")


def recognise_coco(spec: Type[Spec], files: FileTree, has_points: bool) -> Optional[Dict[str, Setting]]:
    """Returns the settings that differ from the defaults of a dataset and with which it reads the annotation files in a
    folder; None if there are no such files.

    Args:
        spec: class of the dataset, for its defaults.
        files: the files.
        has_points: True for files whose categories have key points.
    """
    if files.is_file:
        return None
    groups: Dict[str, Dict[str, Tuple[str, Mapping[str, Any]]]] = {}
    for name in files.find(".json"):
        content = _read(files, name)
        if content is not None and _has_points(content) == has_points:
            group, split = _split_of(name)
            groups.setdefault(group, {}).setdefault(split, (name, content))
    # In order of names: COCO's instances_*.json come before stuff_*.json, which has boxes of regions.
    chosen = next((group for _, group in sorted(groups.items()) if "train" in group), None)
    if chosen is None:
        return None
    found: Dict[str, Optional[str]] = {}
    for split in SPLITS:
        name, content = chosen.get(split, ("", {}))
        found[f"{split}_annotations"] = name or None
        if name:
            found[f"{split}_images"] = _folder_of(files, name, split, content)
    defaults = {field: spec.model_fields[field].default for field in found}
    changed = {field: value or "null" for field, value in found.items() if value != defaults[field]}
    return {"root": files.typed(), **changed}


def _read(files: FileTree, name: str) -> Optional[Mapping[str, Any]]:
    """Returns the object of an annotation file with boxes; None for other files."""
    head = files.text(name)
    if not any(key in head for key in ('"images"', '"annotations"', '"categories"')):
        return None
    content = files.json(name)
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), list) for key in ("images", "annotations", "categories")
    ):
        return None
    first: Any = next(iter(content["annotations"]), None)
    return content if isinstance(first, dict) and "bbox" in first and content["categories"] else None


def _has_points(content: Mapping[str, Any]) -> bool:
    return any(isinstance(category, dict) and category.get("keypoints") for category in content["categories"])


def _split_of(name: str) -> Tuple[str, str]:
    """Returns the prefix and the split of an annotation file: by its name, else by that of its folder."""
    folder, _, file = name.rpartition("/")
    stem = file.partition(".")[0]
    parsed = parse_name(stem) or parse_name(folder.rpartition("/")[2])
    return parsed if parsed is not None else (stem, "train")


def _folder_of(files: FileTree, name: str, split: str, content: Mapping[str, Any]) -> str:
    """Returns the folder that the file names of the images in an annotation file are relative to."""
    images: List[Any] = content["images"][:1]
    image = as_posix(str(images[0].get("file_name"))) if images and isinstance(images[0], dict) else ""
    folders = sorted(
        each[: -len(image)].rstrip("/") for each in files.images if image and f"/{each}".endswith(f"/{image}")
    )
    beside = name.rpartition("/")[0]

    def rank(folder: str) -> Tuple[bool, bool]:
        parsed = parse_name(folder.rpartition("/")[2])
        return folder != beside, parsed is None or parsed[1] != split

    return min(folders, key=rank) or "." if folders else beside or "."
