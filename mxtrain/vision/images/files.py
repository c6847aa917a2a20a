"""Finds image files in folders, and opens them as a source."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Dict, Iterable, List, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import STRICT, UNREADABLE_IMAGE, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import FileId, open_regular, prefix_length, read_bytes, walk
from mxtrain.data.loading.input_files import find_given
from mxtrain.data.loading.opening import EXTENSIONS as IMAGE_EXTENSIONS
from mxtrain.data.loading.opening import VIDEO_EXTENSIONS
from mxtrain.data.loading.samples import Source
from mxtrain.errors import DataError, LoaderError
from mxtrain.files.regular_files import prefetch_files
from mxtrain.vision.images import nifti
from mxtrain.vision.images.dicom import HEAD_BYTES, is_dicom, require_pydicom
from mxtrain.vision.images.dicom_place import PLACE_BYTES, SlicePlace, read_place

if TYPE_CHECKING:
    from mxtrain.vision.images.decoding import EncodedImages

DICOM_EXTENSIONS = (".dcm", ".dicom")
EXTENSIONS = (*IMAGE_EXTENSIONS, *DICOM_EXTENSIONS, *nifti.ENDINGS)
_UNREAD_EXTENSIONS = (
    ".heic",
    ".heif",
    ".avif",
    ".jp2",
    ".j2k",
    ".jxl",
    ".psd",
    ".tga",
    ".exr",
    ".dng",
    ".cr2",
    ".nef",
    ".arw",
    ".svg",
    ".pdf",
    *VIDEO_EXTENSIONS,
)
"""Extensions of images and videos in formats that are not supported. A warning names skipped files."""
MAX_BYTES = 2 << 30
"""Largest allowed size of a file, above that of the largest supported image."""


class LabelledFiles:
    """Files and their labels."""

    def __init__(self, paths: Sequence[Union[str, Path]], label_N: Optional[np.ndarray] = None) -> None:
        """Stores paths and labels.

        Args:
            paths: files.
            label_N: class index of each path; None: unknown, all become -1.
        """
        self.paths = [str(path) for path in paths]
        self.label_N = np.full(len(self.paths), -1, np.int32) if label_N is None else np.asarray(label_N, np.int32)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """Returns the path in quotes."""
        return f"'{self.paths[index]}'"

    def location(self, index: int) -> DataLocation:
        """Returns the file."""
        return DataLocation(self.paths[index])

    def prefetch(self, index_N: np.ndarray) -> None:
        """Receives the files that will be read soon; see `SupportsPrefetch`."""
        prefetch_files(self.paths[index] for index in index_N.tolist())

    def read_labels(self) -> np.ndarray:
        """Returns the class of each file."""
        return self.label_N


class ImageFiles(LabelledFiles):
    """Image files and their labels, as `EncodedImages`."""

    def __init__(
        self,
        paths: Sequence[Union[str, Path]],
        label_N: Optional[np.ndarray] = None,
        owners: Optional[Sequence[str]] = None,
    ) -> None:
        """Stores paths and labels.

        Args:
            paths, label_N: see `LabelledFiles`.
            owners: folder of each file that has the files of one owner, such as a patient, or the file itself; None:
                the folders in which the files lie.
        """
        super().__init__(paths, label_N)
        self.owners = [os.path.dirname(path) for path in paths] if owners is None else list(owners)

    def read(self, index: int) -> Tuple[bytes, int]:
        """Returns the file's bytes, and its label."""
        return read_bytes(self.paths[index], MAX_BYTES), int(self.label_N[index])


def read_content(encoded: EncodedImages, index: int) -> bytes:
    """Returns the content of the file or record of an image.

    Raises:
        DataError: the image is a slice of a volume, which has no file of its own.
    """
    content, _ = encoded.read(index)
    if not isinstance(content, bytes):
        raise DataError(f"{encoded.name(index)} has no file of its own. Write the slices to PNG files first.")
    return content


def find_images(
    folder: Union[str, Path], excluded: Collection[FileId] = (), findings: Findings = STRICT
) -> List[Tuple[Path, FileId]]:
    """Returns the image files in a folder and below, sorted by path: files with an image extension, and DICOM files
    without an extension, as archives name them.

    Args:
        folder: folder to search; see `walk`.
        excluded: identities of folders that are skipped.
        findings: collects problems, and a warning if there are images in unsupported formats.

    Raises:
        DataError: a folder cannot be read, or contains DICOM files and pydicom is not installed.
    """
    unread: List[str] = []

    def matches(path: str) -> bool:
        # `walk` calls this for all files with other extensions, so files of unsupported formats are noted here, too.
        if path.lower().endswith(_UNREAD_EXTENSIONS):
            unread.append(path)
        return is_nameless_dicom(path)

    images = walk(folder, EXTENSIONS, excluded, matches, findings)
    require_pydicom_for(path for path, _ in images)
    if unread:
        endings = sorted({Path(path).suffix.lower() for path in unread})
        fact = f"'{folder}' holds {len(unread):,} files ending in {', '.join(endings)}, such as '{min(unread)}': "
        fact += "these formats are not supported, and the files are left out."
        remedy = "Convert them to JPEG or PNG, or remove them. dataset=video_folder reads videos."
        findings.warn(Problem(UNREADABLE_IMAGE, DataLocation(min(unread)), fact, remedy))
    return images


def is_nameless_dicom(path: str) -> bool:
    """Returns True if a file is DICOM by its content, and its name has no extension: no dot, or a number behind the
    last one, as in 1.2.840.113619."""
    name = path.rpartition("/")[2]
    # DICOM archives name files by UIDs, which end in a dot and digits.
    if not re.fullmatch(r"[^.]+|.*\.\d+", name) or name == "DICOMDIR":  # DICOMDIR is a table of contents
        return False
    try:
        with open_regular(path) as (file, _):
            return is_dicom(file.read(HEAD_BYTES))
    except DataError:  # an unreadable file that need not be an image
        return False


def require_pydicom_for(paths: Iterable[Path]) -> None:
    """Rejects DICOM files if pydicom is not installed.

    Raises:
        DataError: there is such a file, and pydicom is not installed.
    """
    first = next((path for path in paths if not path.name.lower().endswith((*IMAGE_EXTENSIONS, *nifti.ENDINGS))), None)
    if first is not None:
        require_pydicom(str(first))


def is_medical(path: str) -> bool:
    """Returns True if a file is a volume or DICOM, by its name."""
    return not path.lower().endswith(IMAGE_EXTENSIONS)


def owner_of(path: str, folder: Union[str, Path]) -> str:
    """Returns the folder directly below a folder in which a file lies, or the path of the file if it lies in none.

    Args:
        path: a file, whose path begins with that of the folder.
        folder: the folder.
    """
    start = prefix_length(folder)
    first, slash, _ = path[start:].partition("/")
    return path[:start] + first if slash else path


def list_images(folder: Union[str, Path], findings: Findings = STRICT) -> List[Path]:
    """Lists the image files in a folder and below, sorted by path, without hidden ones.

    Args:
        folder: folder to search. Links are followed; each real folder and file counts once.
        findings: collects problems; if it continues after a problem, the result may be empty.

    Returns:
        Paths of the images.

    Raises:
        DataError: the folder does not exist, or contains no image.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"'{folder}' is not a folder. Give a folder that holds images ({', '.join(EXTENSIONS)}).")
    paths = [path for path, _ in find_images(folder, findings=findings)]
    if not paths and not findings.keeps_going:
        raise DataError(f"'{folder}' holds no images: no file there or below ends in {', '.join(EXTENSIONS)}.")
    return paths


def list_slices(folder: Union[str, Path], findings: Findings = STRICT) -> List[Path]:
    """Lists the images in a folder as `list_images`, but the DICOM files of each folder by their series and their
    position in the patient, if all of them say it: the names of files often have another order."""
    ordered: List[Path] = []
    paths_in: Dict[Path, List[Path]] = {}  # the images of a folder may lie on both sides of those of a subfolder
    for path in list_images(folder, findings):
        paths_in.setdefault(path.parent, []).append(path)
    for paths in paths_in.values():
        places = [place_of(str(path)) for path in paths] if all(is_medical(str(path)) for path in paths) else []
        keys = [(place.series, place.height) for place in places if place is not None]
        if len(keys) == len(paths):
            paths = [path for _, path in sorted(zip(keys, paths))]
        ordered += paths
    return ordered


def place_of(path: str) -> Optional[SlicePlace]:
    """Returns the place of the slice in a DICOM file; None for other files, and for files that do not say it."""
    if not is_medical(path) or path.lower().endswith(nifti.ENDINGS):
        return None
    try:
        with open_regular(path) as (file, _):
            return read_place(file.read(PLACE_BYTES))
    except DataError:  # reading the image raises it
        return None


def find_files(paths: Sequence[Union[str, Path]], skip_unreadable: bool = False) -> List[Path]:
    """Returns the paths of files, and of all images in folders, DICOM slices by their position; see `find_given`."""
    files = find_given(paths, list_slices, "image", skip_unreadable)
    require_pydicom_for(path for path in files if path.suffix.lower() in DICOM_EXTENSIONS)
    return files


class Unlabelled(Source, Protocol):
    """A source of images to predict for, which has a sample in place of an unreadable image."""

    def blank(self) -> Tuple[np.ndarray, ...]:
        """Returns a black image without annotations, as `fetch` returns one sample."""


class BlankForUnreadable:
    """Wraps a source: unreadable images become blank ones."""

    def __init__(self, source: Unlabelled, unreadable: Dict[int, str]) -> None:
        """Wraps a source.

        Args:
            source: source of the files; its `blank()` replaces an unreadable image.
            unreadable: collects errors of images by index when they are fetched.
        """
        self.source = source
        self.shape = source.shape
        self.samples_per_task = source.samples_per_task
        self.unreadable = unreadable

    def __len__(self) -> int:
        return len(self.source)

    def index_in_source(self, index: int) -> int:
        """Returns the index unchanged; see `Wrapper`."""
        return index

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, ...]:
        """Returns samples of the source, and its blank sample for each unreadable image."""
        options = {"seed": seed, "epoch": epoch, "train": train}
        return tuple(map(np.concatenate, zip(*(self._fetch_one(int(index), options) for index in index_B))))

    def _fetch_one(self, index: int, options: Dict[str, Any]) -> Tuple[np.ndarray, ...]:
        try:
            return self.source.fetch(np.array([index]), **options)
        except LoaderError as error:
            self.unreadable[index] = error.fact
            return self.source.blank()
