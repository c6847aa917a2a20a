"""Lines of real handwritten digits, which come with scikit-learn: what CTC does with speech, without sound.

Digits of training, validation and test are different ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import Findings
from mxtrain.data.corpus.shards import Ragged
from mxtrain.data.digits import read_digits
from mxtrain.data.loading.dataset_files import read_bytes, walk
from mxtrain.data.loading.input_files import find_given, key_of_file
from mxtrain.data.loading.opening import EXTENSIONS, open_image
from mxtrain.data.loading.splitting import refuse_empty, split_indices
from mxtrain.data.spec import Samples, Splits
from mxtrain.errors import DataError
from mxtrain.speech.base import TranscribedDataset
from mxtrain.speech.lines import DIGITS, WrittenLines, image_frames
from mxtrain.speech.source import TranscribedSource
from mxtrain.types import BatchSize, OpenFraction, Positive, Range, shapes_of

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature


class DigitLines(TranscribedDataset):
    """Lines of digits, whose columns are frames."""

    length: Range[Positive] = [3, 8]
    """Minimum and maximum number of digits in a line."""
    height: Annotated[int, pydantic.Field(ge=8, le=128)] = 24
    """Height of a line in pixels, i.e. number of values per frame."""
    num_train: Positive = 6000
    """Training lines; how they are written differs from epoch to epoch."""
    num_val: Positive = 500
    """Validation lines; as many to test with."""
    batch_size: BatchSize = 32
    val_fraction: OpenFraction = 0.15
    """Share of the 1,797 digits that only validation lines are made of."""
    test_fraction: OpenFraction = 0.15
    """Share of the 1,797 digits that only test lines are made of."""

    @pydantic.model_validator(mode="after")
    def _check_length(self) -> DigitLines:
        if self.length[1] > 64:
            raise ValueError(f"length can be 64 at most, got {self.length}")
        return self

    @property
    def transcript_signature(self) -> str:
        return "digits"

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        image_N1GG, label_N = read_digits()
        # Digits are split before lines are composed of them, so no digit of the test is in a line of training.
        parts = split_indices(label_N, self.val_fraction, self.test_fraction, self.split_seed)
        refuse_empty("dataset=digit_lines", len(parts[0]), len(parts[1]), self.val_fraction)
        sizes = (self.num_train, self.num_val, self.num_val)
        sources: List[WrittenLines] = []
        for number, (index_N, size) in enumerate(zip(parts, sizes)):
            if not len(index_N):
                continue
            if len(np.unique(label_N[index_N])) < 10:
                raise DataError(
                    f"dataset=digit_lines: of {len(index_N)} digits held out not every one is there. Choose a larger "
                    "dataset.val_fraction and dataset.test_fraction (or dataset.test_fraction=0)."
                )
            first = sum(sizes[:number])
            sources.append(
                WrittenLines(
                    image_N1GG[index_N, 0],
                    label_N[index_N],
                    range(first, first + size),
                    (self.length[0], self.length[1]),
                    self.height,
                    self.split_seed,
                )
            )
        return Splits(sources[0], sources[1], sources[2] if len(sources) > 2 else None, class_names=DIGITS.characters)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens images of lines, white on black, which are resized to the height of training."""
        height, locations, frames = shapes_of(signature.shape)[0][1], [], []
        for number, file in enumerate(find_given(names, list_images, "image", skip_unreadable)):
            try:
                frames.append(read_line(file, read_bytes(file), height))
                locations.append(str(file))
            except DataError as error:
                if not skip_unreadable:
                    raise DataError(f"{error} Or type skip_unreadable=true to go on without such files.") from error
                unreadable[key_of_file(number)] = str(error)
        return GivenFrames(frames, height), locations


def list_images(folder: Path, findings: Findings) -> List[Path]:
    """Lists the image files in a folder and below, sorted by path.

    Raises:
        DataError: there are no image files.
    """
    files = [path for path, _ in walk(folder, EXTENSIONS, findings=findings)]
    if not files and not findings.keeps_going:
        raise DataError(f"'{folder}' holds no images: no file there or below ends in {', '.join(EXTENSIONS)}.")
    return files


def read_line(file: Path, content: bytes, height: int) -> np.ndarray:
    """Returns the frames of an image file.

    Raises:
        DataError: it is no image that can be read.
    """
    try:
        with open_image(content) as image:
            return image_frames(image, height)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
        raise DataError(f"'{file}' is not a readable image: {type(error).__name__}: {error}.") from error


class GivenFrames(TranscribedSource):
    """Frames in memory, without transcripts.

    Args:
        frames: (T, F) of each sample.
        width: F.
    """

    def __init__(self, frames: Sequence[np.ndarray], width: int) -> None:
        no_labels = Ragged(np.zeros(0, np.int32), np.zeros(len(frames) + 1, np.int64))
        super().__init__(np.array([len(frames_TF) for frames_TF in frames], np.int64), width, no_labels, DIGITS)
        self._frames = frames

    def read(self, index: int, *, seed: int, epoch: int, train: bool) -> np.ndarray:
        """See `TranscribedSource.read`."""
        return self._frames[index]

    def take(self, indices: Sequence[int]) -> GivenFrames:
        """See `TranscribedSource.take`."""
        return GivenFrames([self._frames[index] for index in indices if index < len(self)], self.width)
