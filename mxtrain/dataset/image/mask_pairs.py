"""Which mask belongs to which picture: found by the names of the files, before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.dataset.image.files import EXTENSIONS, find_images
from mxtrain.dataset.loading.regular_files import FileId, exists, walk
from mxtrain.errors import DataError

MASK_EXTENSIONS = (".png", ".bmp", ".gif", ".tif", ".tiff", ".pgm")
_LOSSY_EXTENSIONS = (".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class MaskPairs:
    """Pictures and their masks, in the same order.

    Attributes:
        pictures: files of pictures.
        masks: the mask of each.
        ids: device and inode of each picture, by which the same file is known under another name.
    """

    pictures: Sequence[str]
    masks: Sequence[str]
    ids: Sequence[FileId]

    def __len__(self) -> int:
        return len(self.pictures)


Files = Dict[str, Tuple[Path, FileId]]
"""By what a picture and its mask have in common in their names: where a file stands, and its identity."""


def same_stem(name: str) -> Optional[str]:
    """What a file is known by: its path without the ending. DICOM files may have none, or dots in their names."""
    stem, dot, ending = name.rpartition(".")
    return stem if dot + ending.lower() in EXTENSIONS else name


def with_ending(ending: str) -> Callable[[str], Optional[str]]:
    """What files are known by whose names end so: the rest of the path; others don't count."""
    return lambda name: name[: -len(ending)] if name.endswith(ending) else None


def list_pictures(
    folder: Path, known_by: Callable[[str], Optional[str]] = same_stem, pattern: str = ""
) -> Files:  # fmt: skip
    """The pictures in a folder and below.

    Args:
        folder: where to look.
        known_by: by which part of its path below the folder a picture is found; None = it does not count.
        pattern: what their names look like, for messages.

    Raises:
        DataError: there is no such folder, none are in it, or two would have the same mask.
    """
    if not exists(folder) or not folder.is_dir():
        raise DataError(f"There is no folder '{folder}' of pictures.")
    found = _listed(folder, find_images(folder), known_by, "pictures")
    if not found:
        wanted = f"is called {pattern}" if pattern else f"ends in {', '.join(EXTENSIONS)}"
        raise DataError(f"'{folder}' holds no pictures: no file there or below {wanted}.")
    return found


def list_masks(
    folder: Path, known_by: Callable[[str], Optional[str]] = same_stem, pattern: str = ""
) -> Files:  # fmt: skip
    """The masks in a folder and below; arguments as those of `list_pictures`.

    Raises:
        DataError: there is no such folder, or none are in it.
    """
    if not exists(folder) or not folder.is_dir():
        raise DataError(f"There is no folder '{folder}' of masks.")
    found = _listed(folder, walk(folder, MASK_EXTENSIONS), known_by, "masks")
    if not found:
        lossy = walk(folder, _LOSSY_EXTENSIONS)
        why = f"no file there or below is called {pattern}" if pattern else "save each as PNG, one value a pixel"
        why = f"'{lossy[0][0]}' is none, since JPEG and WebP change values. Save each as PNG" if lossy else why
        raise DataError(f"'{folder}' holds no masks: {why}.")
    return found


def _listed(
    folder: Path, files: Sequence[Tuple[Path, FileId]], known_by: Callable[[str], Optional[str]], what: str
) -> Files:  # fmt: skip
    found: Files = {}
    start = len(str(folder)) + 1
    for path, number in files:
        name = known_by(str(path)[start:])
        if name is None:
            continue
        if name in found:
            raise DataError(
                f"'{found[name][0]}' and '{path}' are {what} of one name. Remove one, or name it otherwise."
            )
        found[name] = (path, number)
    return found


def pair(pictures: Files, masks: Files, mask_folder: Path, ending: str = ".png") -> MaskPairs:
    """Every picture with its mask.

    Args:
        pictures: as `list_pictures` gave them.
        masks: as `list_masks` gave them.
        mask_folder: where they lie.
        ending: of a mask's name after what it shares with its picture's.

    Raises:
        DataError: a picture has no mask, or a mask no picture; names the first and says how many.
    """
    # Two names of one real file are listed once, but pictures may share a mask, e.g. one in which nothing is.
    masks = {**masks, **{name: (path, (0, 0)) for name in pictures if name not in masks
                         if exists(path := mask_folder / f"{name}{ending}")}}  # fmt: skip
    alone = [name for name in pictures if name not in masks]
    if alone:
        raise DataError(
            f"'{pictures[alone[0]][0]}' has no mask: there is no '{mask_folder / alone[0]}{ending}' "
            f"({_count(alone, pictures, 'pictures')} without). Add the masks, or move these pictures elsewhere."
        )
    alone = [name for name in masks if name not in pictures]
    if alone:
        raise DataError(
            f"'{masks[alone[0]][0]}' is the mask of no picture ({_count(alone, masks, 'masks')} without). Add the "
            "pictures, or move these masks elsewhere."
        )
    return chosen(list(pictures), pictures, masks)


def chosen(names: Sequence[str], pictures: Files, masks: Files) -> MaskPairs:
    """Pictures and masks of these names, all of which there are."""
    return MaskPairs(
        [str(pictures[name][0]) for name in names], [str(masks[name][0]) for name in names],
        [pictures[name][1] for name in names],
    )  # fmt: skip


def _count(alone: Sequence[str], among: Mapping[str, object], what: str) -> str:
    return f"{len(alone):,} of {len(among):,} {what}"


def refuse_shared_pictures(splits: Mapping[str, Optional[MaskPairs]], remedy: str) -> None:
    """Raises: DataError: a picture is both trained on and measured.

    Args:
        splits: by name.
        remedy: what to do, in a sentence.
    """
    owner: Dict[FileId, Tuple[str, str]] = {}
    shared: List[Tuple[str, str, str, str]] = []
    for split, pairs in splits.items():
        for path, number in zip(pairs.pictures, pairs.ids) if pairs else ():
            before = owner.setdefault(number, (split, path))
            if before[0] != split:
                shared.append((*before, split, path))
    if shared:
        first, path, second, other = shared[0]
        named = f"'{path}' belongs" if path == other else f"'{path}' and '{other}' are the same file, which belongs"
        more = f" ({len(shared):,} pictures)" if len(shared) > 1 else ""
        raise DataError(f"{named} to {first} and to {second}{more}: what is trained on is not measured. {remedy}")
