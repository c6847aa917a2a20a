"""Classification dataset of images in one folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import Collection, Dict, List, Optional, Sequence

import numpy as np

from mxtrain.data.checking.problems import (
    EMPTY_CLASS,
    LISTED_TWICE,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.class_folders import (
    folders_in,
    match_classes,
    refuse_empty_class,
    refuse_undecodable,
    require_root,
    require_two_classes,
)
from mxtrain.data.loading.dataset_files import (
    FileId,
    files_in,
    id_of,
)
from mxtrain.data.loading.opening import VIDEO_EXTENSIONS
from mxtrain.data.loading.split_folders import WORDS, find_splits
from mxtrain.data.recognition import VOLUMES, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.types import PathText
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.files import EXTENSIONS, ImageFiles, find_images, owner_of
from mxtrain.vision.images.volume_files import sliced
from mxtrain.vision.images.volume_settings import VolumeSettings, volume_settings


class ImageFolder(VolumeSettings, DecodedDataset):
    """Image files in `root/train/CLASS/` with `root/val/` and `root/test/` beside, or all in `root/CLASS/`.

    Other usual names of splits are understood (`training_set`, `Valid`, `dev`; see `split_folders`). The classes are
    the folder names in alphabetical order. Missing splits are held out of the training images by `val_fraction` and
    `test_fraction`, seeded and stratified. Each slice of a volume is a sample; see `VolumeSettings`.
    """

    root: PathText = "data/image_folder"
    """Folder of the files; by default in the folder that MXTRAIN_DATA names, else in data/."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        above = {name.rpartition("/")[0] for name in files.images}
        if not above or "" in above or len(above) < 2 or files.endings.keys() & {".xml", ".json", ".rec"}:
            return None
        if files.find(*VIDEO_EXTENSIONS) or files.endings[".txt"] * 2 > len(files.images):  # videos, or label files
            return None
        last = {name.rpartition("/")[2].lower() for name in above}
        if last <= {"images", "masks", "labels", "annotations", *(word for words in WORDS.values() for word in words)}:
            return None
        settings = {"root": files.typed(), **volume_settings(files.find(*VOLUMES))}
        return Recognised("images in a folder for each class", settings, "classification")

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = Path(self.root)
        require_root(root, "dataset=image_folder", "images")
        roots = find_roots(root)
        class_names = _list_classes(roots["train"], findings, self.split_by == "folder")
        finder = _ClassFinder(root, roots.values(), class_names, findings)
        files = {
            name: finder.list_split(folder)
            for name, folder in roots.items()
            if name == "train" or _has_classes(folder, findings)
        }
        is_strict = not findings.keeps_going
        samples = {name: sliced(each, self.slice_axis, is_strict) for name, each in files.items()}
        train = samples["train"]
        return self.make_splits((train, train.label_N), samples.get("val"), samples.get("test"), class_names, findings)


def find_roots(root: Path) -> Dict[str, Path]:
    """Returns split -> folder with the class folders. Without splits, the root is the training split.

    A folder called `train` that contains images, beside other folders, is a class (a vehicle) and not a split.
    """
    splits = find_splits(root, "dataset=image_folder")
    others = set(folders_in(root)) - {path.name for path in splits.values()}
    return {"train": root} if not splits or (others and _holds_images(splits["train"])) else splits


def _holds_images(folder: Path) -> bool:
    """Returns True if a folder directly contains images, not only in its subfolders."""
    return any(name.lower().endswith(EXTENSIONS) for name in files_in(folder))


def _has_classes(folder: Path, findings: Findings) -> bool:
    """Returns True if a split has class folders or is empty. Rejects a split with images but no class folders, such as
    test images of competitions."""
    if folders_in(folder) or not _holds_images(folder):
        return True
    fact = f"'{folder}' holds images, but no class folders, so the classes of the images are unknown."
    remedy = "Sort them into CLASS folders, or move the folder elsewhere: `predict` reads images without classes."
    findings.refuse(Problem(EMPTY_CLASS, DataLocation(str(folder)), fact, remedy))
    return False


def _refuse_folders_of_classes(folder: Path, names: Sequence[str]) -> None:
    """Rejects a root whose folders all have the same subfolders and no images: classes are one level below.

    Raises:
        DataError: this is the case; the message says what to type.
    """
    subfolders = [set(folders_in(folder / name)) for name in names]
    are_alike = len(names) > 1 and len(subfolders[0]) > 1 and all(each == subfolders[0] for each in subfolders)
    if are_alike and not any(_holds_images(folder / name) for name in names):
        listed = ", ".join(f"{name}/" for name in sorted(subfolders[0])[:5])
        raise DataError(
            f"dataset=image_folder: the folders {', '.join(f'{name}/' for name in names[:5])} in '{folder}' hold "
            f"no images, but all the same folders ({listed}), so these seem to be the classes. Type "
            f"dataset.root={folder / names[0]}, or rename the folders train/, val/ and test/ if they are splits, or "
            "type dataset.split_by=folder if each of them is a patient."
        )


def _list_classes(folder: Path, findings: Findings, holds_folders: bool) -> List[str]:
    """Returns the names of the classes: the folders in the training split, sorted.

    Args:
        folder: the training split.
        findings: collects names that are not UTF-8.
        holds_folders: True if the folders of classes hold folders, such as patients.

    Raises:
        DataError: there are fewer than two classes.
    """
    names = folders_in(folder)
    if len(names) < 2:
        remedy = "Sort the images into CLASS folders, or name another folder with dataset.root=FOLDER."
        below = folder / names[0] if names else folder
        if names and len(folders_in(below)) > 1 and not _holds_images(below):  # as archives are unpacked
            remedy = f"That one holds folders itself: type dataset.root={below} if these are the classes or the splits."
        require_two_classes(folder, names, "dataset=image_folder", remedy)
    if not holds_folders:
        _refuse_folders_of_classes(folder, names)
    refuse_undecodable(folder, names, findings)
    return names


class _ClassFinder:
    """Lists the images of each class. Each real file is listed once, although links may lead anywhere, or form
    cycles."""

    def __init__(self, root: Path, roots: Collection[Path], class_names: Sequence[str], findings: Findings) -> None:
        self._class_names, self._findings = class_names, findings
        self._seen: Dict[FileId, Path] = {}
        folders = [root, *roots, *(folder / name for folder in roots for name in class_names)]
        self._known = {id_of(folder) for folder in folders if folder.is_dir()}
        """Folders whose images a class never gets by a link: the root, the splits and the classes."""

    def list_split(self, folder: Path) -> ImageFiles:
        """Returns the images in `folder/CLASS/`.

        Raises:
            DataError: a class is unknown or empty, or an image was seen before, in another class or split.
        """
        folder_names = match_classes(folder, folders_in(folder), self._class_names, "images", self._findings)
        paths: List[Path] = []
        labels: List[int] = []
        owners: List[str] = []
        for label, name in enumerate(folder_names):
            has_folder = (folder / name).is_dir()
            images = find_images(folder / name, self._known, self._findings) if has_folder else []
            if not images:
                refuse_empty_class(folder / name, "images", EXTENSIONS, self._findings)
            for path, file_id in images:
                earlier = self._seen.setdefault(file_id, path)
                if earlier != path:
                    fact = (
                        f"'{path}' and '{earlier}' are the same file, by a link: an image has one class, and is either "
                        "trained on or measured."
                    )
                    self._findings.refuse(
                        Problem(LISTED_TWICE, DataLocation(str(path)), fact, "Remove one of the two.")
                    )
                    continue
                paths.append(path)
                labels.append(label)
                owners.append(owner_of(str(path), folder / name))
        return ImageFiles(paths, np.asarray(labels), owners)
