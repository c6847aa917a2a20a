"""Classification dataset of videos in one folder per class."""

from __future__ import annotations

import itertools
import logging
import os
import re
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.data.checking.problems import (
    EMPTY_CLASS,
    STRICT,
    UNREADABLE_FILE,
    WRONG_FORMAT,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.given_samples import as_array
from mxtrain.data.loading.class_folders import (
    folders_in,
    match_classes,
    refuse_empty_class,
    refuse_linked_classes,
    refuse_undecodable,
    require_root,
    require_two_classes,
)
from mxtrain.data.loading.dataset_files import is_hidden, refuse_shared, walk
from mxtrain.data.loading.input_files import find_given
from mxtrain.data.loading.opening import VIDEO_EXTENSIONS
from mxtrain.data.loading.samples import Samples, Source
from mxtrain.data.loading.split_folders import find_splits
from mxtrain.data.predict_inputs import as_list, undecodable_input
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.types import BatchSize, PathText, Positive, Shape
from mxtrain.types.kinds import ClassIndex, Gives
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.decoding import EncodedImages, known_statistics
from mxtrain.vision.images.files import owner_of
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.signature import ImageSignature
from mxtrain.vision.kinds import Videos
from mxtrain.vision.video.frames import irregular_frames, is_frame_folder
from mxtrain.vision.video.source import GivenVideos, VideoFiles, VideoSource
from mxtrain.vision.video.video_file import FrameSampling

log = logging.getLogger(__name__)
_CLIP_NAME = re.compile(r"(.+_g\d{2})_c\d{2}|(.+)_\d{6}_\d{6}")
"""Name of a clip in UCF101, and in Kinetics: recording, first and last second."""
READABLE = "videos (uint8 arrays of frames x height x width x 3, in RGB) and paths of videos"


class VideoFolder(DecodedDataset):
    """Videos in `root/train/CLASS/` with `root/val/` and `root/test/` beside, or all in `root/CLASS/`.

    A video is a file (.mp4, .avi, .mkv, .mov, .webm and others), or a folder with its frames as images. The classes are
    the folder names in alphabetical order. A sample is (3 T, H, W): T frames after each other, three channels each.
    """

    gives: ClassVar[Gives] = Gives(Videos, ClassIndex, usual_model="gluoncv_video")

    root: PathText = "data/video_folder"
    """Folder of the videos; by default in the folder that MXTRAIN_DATA names, else in data/."""
    frames: Annotated[int, pydantic.Field(ge=1, le=64)] = 8
    """Number of frames of a sample."""
    sampling: Literal["segments", "clip"] = "segments"
    """Choice of the frames: segments = one of each of as many equal parts of the video, as TSN does;
    clip = frames at equal distances. In training they are drawn anew in each epoch, otherwise they are central."""
    frame_step: Positive = 2
    """Distance of neighbouring frames for sampling=clip."""
    largest_batch: ClassVar[int] = 16
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 16, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 16
    split_by: Literal["auto", "video", "recording", "folder"] = "auto"
    """Videos that stay together if validation samples are held out: video = each by itself; recording = clips whose
    names say that they are of one recording, as in UCF101 (NAME_g01_c03) and Kinetics (NAME_000010_000020); folder =
    those in a folder below that of the class; auto = recording."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        videos = files.find(*VIDEO_EXTENSIONS)
        folders = {name.rpartition("/")[0] for name in videos}
        if len(folders) < 2 or "" in folders:
            return None
        return Recognised(
            "videos in a folder for each class", {"root": files.typed()}, "classification", Certainty.LIKELY
        )

    @pydantic.model_validator(mode="after")
    def _check_frame_channels(self) -> VideoFolder:
        if self.channels not in ("auto", 3):
            raise ValueError(f"channels is auto or 3: frames are read in colour, but {self.channels} was given")
        return self

    @property
    def frame_sampling(self) -> FrameSampling:
        """Returns the choice of frames."""
        return FrameSampling(self.frames, self.frame_step if self.sampling == "clip" else None)

    def decoded_as(self, decoding: Decoding) -> DecodedDataset:
        """See `Dataset.decoded_as`; channels are those of a frame."""
        return super().decoded_as(decoding).model_copy(update={"channels": "auto"})

    def decoded_shape(self) -> Shape:
        """Returns (3 T, H, W)."""
        return (3 * self.frames, *super().decoded_shape()[1:])

    def input_shape(self, native: Shape) -> Shape:
        """Returns (3 T, H, W) of the network's input."""
        return (3 * self.frames, *super().input_shape(native)[1:])

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = Path(self.root)
        require_root(root, "dataset=video_folder", "videos")
        roots = find_splits(root, "dataset=video_folder") or {"train": root}
        class_names = folders_in(roots["train"])
        remedy = "Sort the videos into CLASS folders, or name another folder with dataset.root=FOLDER."
        require_two_classes(roots["train"], class_names, "dataset=video_folder", remedy)
        refuse_undecodable(roots["train"], class_names, findings)
        files = {name: _list_split(folder, class_names, findings) for name, folder in roots.items()}
        refuse_shared({name: each.paths for name, each in files.items()}, findings)
        return self.make_splits(
            (files["train"], files["train"].label_N), files.get("val"), files.get("test"), class_names, findings
        )

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: exported folders read video files, and arrays (N, 3 T, H, W) of frames."""
        return DatasetExport("mxtrain.vision.video.exported_videos", {"frame_step": self.frame_sampling.step})

    def source_of(self, encoded: EncodedImages, signature: Signature) -> VideoSource:
        """Returns a source of videos without labels, to predict for."""
        assert isinstance(encoded, VideoFiles)
        return VideoSource(encoded, ImageSignature.cast(signature).decoding, self.frame_sampling)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        from mxtrain.vision.images.files import BlankForUnreadable

        files = VideoFiles([str(path) for path in find_given(names, find_videos, "video", skip_unreadable)])
        source = self.source_of(files, signature)
        return BlankForUnreadable(source, unreadable) if skip_unreadable else source, files.paths

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns videos to predict for, in memory: a uint8 array (T, H, W, 3) in RGB, or a list of such arrays of any
        numbers of frames."""
        is_array = isinstance(value, np.ndarray) or hasattr(value, "asnumpy")
        objects = list(as_array(value)) if is_array and np.ndim(value) == 5 else [value] if is_array else as_list(value)
        return self.source_of(GivenVideos([_checked(one, number) for number, one in enumerate(objects)]), signature)

    def _choose_statistics(
        self, encoded: EncodedImages, in_train: np.ndarray
    ) -> Tuple[Sequence[float], Sequence[float]]:
        mean, std = (
            known if isinstance(given, str) else given
            for given, known in zip((self.mean, self.std), known_statistics(3))
        )
        return list(mean) * (self.frames if len(mean) == 3 else 1), list(std) * (self.frames if len(std) == 3 else 1)

    def units(self, encoded: EncodedImages) -> Optional[np.ndarray]:
        """See `DecodedDataset.units`: clips of one recording are a unit."""
        assert isinstance(encoded, VideoFiles)
        if self.split_by == "video":
            return None
        is_by_folder = self.split_by == "folder"
        owners = encoded.owners if is_by_folder else [recording_of(path) for path in encoded.paths]
        names, unit_N = np.unique(owners, return_inverse=True)
        if len(names) == len(owners):
            return None
        what = "folders" if is_by_folder else "recordings"
        log.info("dataset=video_folder: %d videos of %d %s, each in one split", len(owners), len(names), what)
        return unit_N

    def _make_source(self, encoded: EncodedImages) -> Source:
        assert isinstance(encoded, VideoFiles)
        return VideoSource(encoded, self.decoding(), self.frame_sampling, crop_scale=self.augment.crop_scale)


def recording_of(path: str) -> str:
    """Returns the path of a video without the part of its name that numbers the clips of one recording, as UCF101 and
    Kinetics name them; the path of another video."""
    folder, name = os.path.split(path)
    stem, ending = (name, "") if os.path.isdir(path) else os.path.splitext(name)
    match = _CLIP_NAME.fullmatch(stem)
    return os.path.join(folder, f"{match[1] or match[2]}{ending}") if match else path


def find_videos(folder: Path, findings: Findings = STRICT) -> List[Path]:
    """Returns the videos in a folder and below, sorted by path; the folder itself if it holds the frames of one.

    Raises:
        DataError: a folder cannot be read, there is no video, or a folder holds videos beside images.
    """
    files = [path for path, _ in walk(folder, VIDEO_EXTENSIONS, findings=findings)]
    folders = _frame_folders(folder)
    if mixed := sorted({path.parent for path in files}.intersection(folders)):
        fact = f"'{mixed[0]}' holds images beside videos: its images would be the frames of a video."
        remedy = "Move the images, such as previews of the videos, to another folder, or the videos."
        findings.refuse(Problem(WRONG_FORMAT, DataLocation(str(mixed[0])), fact, remedy))
    for path, reason in itertools.chain.from_iterable(map(irregular_frames, folders)):
        findings.refuse(Problem(UNREADABLE_FILE, DataLocation(path), reason))
    if folder in folders:
        return [folder]
    if not files and not folders and not findings.keeps_going:
        raise DataError(
            f"'{folder}' holds no videos: no file there or below ends in {', '.join(VIDEO_EXTENSIONS)}, and no folder "
            "holds images."
        )
    return sorted([*files, *folders])


def _frame_folders(folder: Path) -> List[Path]:
    """Returns a folder and those below that hold frames. Links are followed; each real folder counts once."""
    found: List[Path] = []
    visited = {os.path.realpath(folder)}
    for name, below, _ in os.walk(folder, followlinks=True):
        found += [Path(name)] if is_frame_folder(name) else []
        real_of = {each: os.path.realpath(os.path.join(name, each)) for each in sorted(below) if not is_hidden(each)}
        # os.walk visits what is left in the list: hidden folders hold previews, as @eaDir does, and no videos.
        below[:] = [each for each, real in real_of.items() if real not in visited]
        visited.update(real_of.values())
    return found


def _list_split(folder: Path, class_names: Sequence[str], findings: Findings) -> VideoFiles:
    """Returns the videos in `folder/CLASS/`."""
    paths: List[str] = []
    owners: List[str] = []
    labels: List[int] = []
    folder_names = match_classes(folder, folders_in(folder), class_names, "videos", findings)
    for label, name in enumerate(folder_names):
        below = folder / name
        if below.is_dir() and is_frame_folder(below):
            fact = f"The class folder '{below}' holds images: a video is a file, or a folder of its frames."
            findings.refuse(
                Problem(
                    EMPTY_CLASS, DataLocation(str(below)), fact, f"Put the frames of each video into {name}/VIDEO/."
                )
            )
            continue
        videos = find_videos(below, _Going(findings)) if below.is_dir() else []
        if not videos:
            refuse_empty_class(below, "videos", VIDEO_EXTENSIONS, findings)
        paths += map(str, videos)
        owners += [owner_of(str(path), below) for path in videos]
        labels += [label] * len(videos)
    refuse_linked_classes(zip(labels, paths), "a video", findings)
    return VideoFiles(paths, np.asarray(labels, np.int32), owners)


class _Going(Findings):
    """Passes problems on, and lets a folder be empty, which the caller reports."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        """See `Findings.refuse`."""
        self._findings.refuse(*problems, sentence=sentence)

    @property
    def keeps_going(self) -> bool:
        """Returns True."""
        return True


def _checked(one: Any, number: int) -> np.ndarray:
    if not isinstance(one, np.ndarray) and not hasattr(one, "asnumpy"):
        raise undecodable_input(number, one, READABLE)
    array = as_array(one)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3 or not array.size:
        raise ConfigError(
            f"predict: input {number} is a {array.dtype} array of shape {array.shape}. Give uint8 frames (frames, "
            "height, width, 3) in RGB."
        )
    return array
