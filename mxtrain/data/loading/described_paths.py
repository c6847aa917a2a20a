"""Finds the paths in a dataset's description, and the paths that do not exist."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, TypeVar, get_args

from mxtrain.files.object_store.address import is_address
from mxtrain.types import expand_path

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from mxtrain.data.spec import BaseDataset

AnyDataset = TypeVar("AnyDataset", bound="BaseDataset")


def lost_paths(dataset: BaseDataset) -> Dict[str, List[str]]:
    """Returns the paths that do not exist, seen from the current folder, by setting; other settings are left out."""
    lost = {name: [path for path in paths if not path_exists(path)] for name, paths in named_paths(dataset).items()}
    return {name: paths for name, paths in lost.items() if paths}


def named_paths(dataset: BaseDataset) -> Dict[str, List[str]]:
    """Returns the paths that each setting names."""
    return {name: _each(getattr(dataset, name)) for name in _path_fields(dataset)}


def with_local_names(dataset: AnyDataset) -> AnyDataset:
    """Returns the dataset with local names in place of addresses of objects; see `files.object_store.local_names`.

    Raises:
        DataError: nothing is at an address, or the object store refuses or does not answer.
    """
    names = set(_path_fields(dataset))
    # Files of a dataset without a root are no paths of their own, but may be addresses.
    names |= {name for name in ("train", "val", "test") if _holds_texts(getattr(dataset, name, None))}
    remote = [name for name in sorted(names) if any(map(is_address, _each(getattr(dataset, name))))]
    if not remote:
        return dataset
    return with_paths(dataset, remote, local_name)


def local_name(path: str) -> str:
    """Returns the local name of an address of objects, and any other path unchanged.

    Raises:
        DataError: nothing is at an address, or the object store refuses or does not answer.
    """
    if not is_address(path):
        return path
    from mxtrain.files.object_store.local_names import local_path

    return local_path(path)


def _holds_texts(value: Any) -> bool:
    return isinstance(value, str) or isinstance(value, list) and all(isinstance(item, str) for item in value)


def with_paths(dataset: AnyDataset, names: Iterable[str], change: Callable[[str], str]) -> AnyDataset:
    """Returns the dataset with each path of some settings changed."""

    def of(value: Any) -> Any:
        return change(value) if isinstance(value, str) else list(map(change, value))

    return dataset.model_copy(update={name: of(getattr(dataset, name)) for name in names})


def path_exists(path: str) -> bool:
    """Returns True if a file or a folder exists, files with this prefix and an extension, as parallel texts have, or
    files that match a pattern."""
    if is_address(path):  # reading it says whether anything is there
        return True
    try:
        # A broken link counts as existing: reading it gives a better message than that there is no such path.
        return os.path.lexists(path) or any(map(glob.glob, (f"{glob.escape(path)}.*", path)))
    except ValueError:  # not a valid path
        return False


def _path_fields(dataset: BaseDataset) -> List[str]:
    fields = type(dataset).model_fields
    return [name for name, field in fields.items() if _is_path(field.annotation, field.metadata)]


def _is_path(annotation: Any, metadata: Iterable[Any] = ()) -> bool:
    """Returns True if an annotation is `PathText`, or has it among its alternatives or elements."""
    parts = get_args(annotation)
    return any(getattr(item, "func", None) is expand_path for item in (*metadata, *parts)) or any(map(_is_path, parts))


def _each(value: Any) -> List[str]:
    return [value] if isinstance(value, str) else list(value or ())


def with_current_folder(fields: Mapping[str, FieldInfo], values: Any) -> Any:
    """Completes settings of datasets that look for their files in `root`, or use bundled data if `root` is null.

    If a file is given but no `root`, the path of the file is used unchanged, and splits without a file are held out.

    Args:
        fields: `root`, `train`, `val` and `test` of the dataset's class, among others.
        values: settings as the user gave them.
    """
    if not isinstance(values, dict) or values.get("root") is not None:
        return values
    settings = {name: values.get(name, fields[name].default) for name in ("train", "val", "test")}
    paths = {
        name: expand_path(file) if isinstance(file, str) else list(map(expand_path, file))
        for name, file in settings.items()
        if _are_paths(file) and file != fields[name].default
    }
    if not paths:
        return values
    return {**values, "root": os.curdir, "train": settings["train"], "val": None, "test": None, **paths}


def _are_paths(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(file, str) for file in value))
