"""Pairs masks with images by the names of their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Union

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MASK_SIZE,
    MISSING_COUNTERPART,
    STRICT,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import FileId, exists, normalize_name, prefix_length, walk
from mxtrain.errors import DataError
from mxtrain.vision.images import nifti
from mxtrain.vision.images.files import (
    DICOM_EXTENSIONS,
    EXTENSIONS,
    ImageFiles,
    find_images,
    is_nameless_dicom,
    place_of,
    require_pydicom_for,
)
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.volume_files import SlicedFiles, is_volume, sliced
from mxtrain.vision.segmentation.masked_images import JointAugment, MaskCoding, MaskedImages
from mxtrain.vision.segmentation.masked_volumes import MaskedVolumes

MASK_EXTENSIONS = (".png", ".bmp", ".gif", ".tif", ".tiff", ".pgm", *nifti.ENDINGS, *DICOM_EXTENSIONS)
_LOSSY_EXTENSIONS = (".jpg", ".jpeg", ".webp")
_WHY_NOT_SHARED = "training samples must not be measured."


@dataclass(frozen=True)
class MaskPairs:
    """Images and their masks, in the same order.

    Attributes:
        images: files of images.
        masks: the mask of each.
        ids: device and inode of each image, which identify a file with several names.
    """

    images: Sequence[str]
    masks: Sequence[str]
    ids: Sequence[FileId]

    def __len__(self) -> int:
        return len(self.images)

    def open(
        self, coding: MaskCoding, decoding: Decoding, mean: Sequence[float], augment: Optional[JointAugment] = None
    ) -> MaskedImages:
        """Returns the source of the images and masks; arguments as in `MaskedImages`.

        Raises:
            DataError: a volume cannot be opened.
        """
        encoded = self.encoded(decoding.slice_axis)
        if isinstance(encoded, SlicedFiles):
            return MaskedVolumes(encoded, self.masks, coding, decoding, mean, augment)
        return MaskedImages(encoded, self.masks, coding, decoding, mean, augment)

    def owners(self) -> Sequence[str]:
        """Returns the owner of each image, see `ImageFiles`; by default the image."""
        return self.images

    def encoded(self, direction: str, is_strict: bool = True) -> Union[ImageFiles, SlicedFiles]:
        """Returns the images, or the slices of volumes; arguments as in `SlicedFiles`."""
        return sliced(ImageFiles(self.images, owners=self.owners()), direction, is_strict)


Files = Dict[str, Tuple[Path, FileId]]
"""Key, which an image and its mask share -> path and identity of a file."""


def stem_key(name: str) -> Optional[str]:
    """Returns the path of a file without its extension. DICOM files may have no extension, or dots in their names."""
    for ending in nifti.ENDINGS:
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    stem, dot, ending = name.rpartition(".")
    return stem if dot + ending.lower() in EXTENSIONS else name


def suffix_remover(ending: str) -> Callable[[str], Optional[str]]:
    """Returns the function from a path with this suffix to the rest of the path, and to None for other paths."""
    return lambda name: name[: -len(ending)] if name.endswith(ending) else None


def list_images(
    folder: Path, key_of: Callable[[str], Optional[str]] = stem_key, pattern: str = "", findings: Findings = STRICT
) -> Files:
    """Returns the images in a folder and below.

    Args:
        folder: folder of the images.
        key_of: function from a path relative to the folder to the key that an image and its mask share; None: ignore
            the file.
        pattern: pattern of the names, for messages.
        findings: collects files with the same key.

    Raises:
        DataError: the folder does not exist or contains no images, or two images have the same key.
    """
    if not exists(folder) or not folder.is_dir():
        raise DataError(f"There is no folder '{folder}' of images.")
    images = _listed(folder, find_images(folder, findings=findings), key_of, "images", findings)
    if not images:
        expected = f"is called {pattern}" if pattern else f"ends in {', '.join(EXTENSIONS)}"
        raise DataError(f"'{folder}' holds no images: no file there or below {expected}.")
    return images


def list_masks(
    folder: Path, key_of: Callable[[str], Optional[str]] = stem_key, pattern: str = "", findings: Findings = STRICT
) -> Files:
    """Returns the masks in a folder and below; arguments as in `list_images`.

    Raises:
        DataError: the folder does not exist or contains no masks, or two masks have the same key.
    """
    if not exists(folder) or not folder.is_dir():
        raise DataError(f"There is no folder '{folder}' of masks.")
    files = walk(folder, MASK_EXTENSIONS, matches=is_nameless_dicom, findings=findings)
    require_pydicom_for(path for path, _ in files)
    masks = _listed(folder, files, key_of, "masks", findings)
    if not masks:
        lossy = walk(folder, _LOSSY_EXTENSIONS)
        reason = f"no file there or below is called {pattern}" if pattern else "save each as PNG, one value a pixel"
        reason = f"'{lossy[0][0]}' is none, since JPEG and WebP change values. Save each as PNG" if lossy else reason
        raise DataError(f"'{folder}' holds no masks: {reason}.")
    return masks


def _listed(
    folder: Path,
    files: Sequence[Tuple[Path, FileId]],
    key_of: Callable[[str], Optional[str]],
    kind: str,
    findings: Findings,
) -> Files:
    """Returns files by key; arguments as in `list_images`. The paths of `files` begin with `folder`."""
    files_by_key: Files = {}
    start = prefix_length(folder)
    for path, file_id in files:
        key = key_of(normalize_name(str(path)[start:]))
        if key is None:
            continue
        if key in files_by_key:
            fact = f"'{files_by_key[key][0]}' and '{path}' are {kind} with the same name."
            findings.refuse(Problem(LISTED_TWICE, DataLocation(str(path)), fact, "Remove one, or name it otherwise."))
            continue
        files_by_key[key] = (path, file_id)
    return files_by_key


def pair(
    images: Files, masks: Files, mask_folder: Path, ending: str = ".png", findings: Findings = STRICT
) -> MaskPairs:
    """Pairs every image with its mask.

    Args:
        images: result of `list_images`.
        masks: result of `list_masks`.
        mask_folder: folder of the masks.
        ending: part of a mask's name after its key.
        findings: collects images and masks without a counterpart.

    Raises:
        DataError: an image has no mask, or a mask no image; the message names the first one and their number.
    """
    # Folders list a file with several names (links) once, but images may share a mask, e.g. one without objects.
    masks = dict(masks)

    def expected(name: str) -> Path:
        """Returns the usual path of a mask."""
        return mask_folder / f"{name}{nifti.ENDINGS[-1] if is_volume(str(images[name][0])) else ending}"

    for name in images:
        path = expected(name)
        if name not in masks and exists(path):
            masks[name] = (path, (0, 0))  # the identity of a mask is not used
    unmatched = [name for name in images if name not in masks]
    refuse_unpaired(
        [DataLocation(str(images[name][0])) for name in unmatched],
        [f"'{images[name][0]}' has no mask: there is no '{expected(name)}'" for name in unmatched],
        f"({len(unmatched):,} of {len(images):,} images without)",
        "Add the masks, or move these images elsewhere.",
        findings,
    )
    masks_alone = [name for name in masks if name not in images]
    refuse_unpaired(
        [DataLocation(str(masks[name][0])) for name in masks_alone],
        [f"'{masks[name][0]}' is the mask of no image" for name in masks_alone],
        f"({len(masks_alone):,} of {len(masks):,} masks without)",
        "Add the images, or move these masks elsewhere.",
        findings,
    )
    paired = [name for name in images if name in masks]
    _refuse_displaced([(str(images[name][0]), str(masks[name][0])) for name in paired], findings)
    return select_pairs(paired, images, masks)


def _refuse_displaced(pairs: Sequence[Tuple[str, str]], findings: Findings) -> None:
    """Rejects DICOM masks that lie elsewhere in the patient than their images, both of one frame, if both say it."""
    for image, mask in pairs:
        places = (place_of(mask), place_of(image))
        if places[0] is None or places[1] is None:
            continue
        distance = places[0].distance(places[1])
        if distance > places[1].tolerance:
            fact = f"'{mask}' lies {distance:.4g} mm away from its image '{image}', by their ImagePositionPatient and "
            fact += "ImageOrientationPatient."
            remedy = "Names of images and masks must belong to one slice."
            findings.refuse(Problem(MASK_SIZE, DataLocation(mask), fact, remedy))


def refuse_unpaired(
    locations: Sequence[DataLocation], facts: Sequence[str], count: str, remedy: str, findings: Findings
) -> None:
    """Rejects files without a counterpart.

    Args:
        locations: source location of each file.
        facts: message for each file, without a full stop.
        count: clause with the number of files, for the message in training.
        remedy: sentence that says what to do.
        findings: collects the problems.
    """
    problems = [Problem(MISSING_COUNTERPART, location, f"{fact}.", remedy) for location, fact in zip(locations, facts)]
    findings.refuse(*problems, sentence=f"{facts[0]} {count}. {remedy}" if facts else "")


@dataclass(frozen=True)
class OwnedPairs(MaskPairs):
    """Images and masks of owners, such as patients.

    Attributes:
        owner_of_image: owner of each image.
    """

    owner_of_image: Sequence[str]

    def owners(self) -> Sequence[str]:
        """Returns the owner of each image."""
        return self.owner_of_image


def select_pairs(names: Sequence[str], images: Files, masks: Files) -> MaskPairs:
    """Returns the images and masks with these keys, all of which must exist. Images in one of the folders have one
    owner."""
    return OwnedPairs(
        [str(images[name][0]) for name in names],
        [str(masks[name][0]) for name in names],
        [images[name][1] for name in names],
        [name.partition("/")[0] for name in names],
    )


class ListedImages(Protocol):
    """Protocol of splits whose images are files."""

    @property
    def images(self) -> Sequence[str]:
        """Returns the files."""

    @property
    def ids(self) -> Sequence[FileId]:
        """Returns device and inode of each file."""


def refuse_shared_images(
    splits: Mapping[str, Optional[ListedImages]], remedy: str, findings: Findings = STRICT
) -> None:
    """Rejects images that belong to two splits.

    Args:
        splits: splits by name.
        remedy: sentence that says what to do.
        findings: collects the images.

    Raises:
        DataError: an image belongs to two splits.
    """
    owner: Dict[FileId, Tuple[str, str]] = {}
    clauses: List[str] = []
    shared: List[Problem] = []
    for split, pairs in splits.items():
        for path, file_id in zip(pairs.images, pairs.ids) if pairs else ():
            first_split, first_path = owner.setdefault(file_id, (split, path))
            if first_split != split:
                subject = f"'{path}' belongs"
                if path != first_path:
                    subject = f"'{first_path}' and '{path}' are the same file, which belongs"
                clauses.append(f"{subject} to {first_split} and to {split}")
                shared.append(Problem(LISTED_TWICE, DataLocation(path), f"{clauses[-1]}: {_WHY_NOT_SHARED}", remedy))
    if shared:
        more = f" ({len(shared):,} images)" if len(shared) > 1 else ""
        findings.refuse(*shared, sentence=f"{clauses[0]}{more}: {_WHY_NOT_SHARED} {remedy}".rstrip())
