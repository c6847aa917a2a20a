"""Problems of data: their kinds, their source locations, and collectors of problems while a dataset is opened.

A fact is a sentence that names the file, and the line or record in it: problems are read one by one, out of context.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Dict, Mapping, Optional, Sequence, Tuple, TypeVar

import numpy as np

from mxtrain.errors import DataError, LoaderError, WrongData, with_addresses

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from mxtrain.types.annotations import Json

log = logging.getLogger(__name__)

Given = TypeVar("Given")

CANNOT_OPEN = "cannot_open"
"""Kind of problem: the dataset as a whole, or a file that it requires, cannot be opened."""
WRONG_CHECKSUM = "wrong_checksum"
UNREADABLE_FILE = "unreadable_file"
UNREADABLE = "unreadable"
"""Kind of problem: a sample cannot be read, for a reason without a kind of its own."""
DUPLICATE = "duplicate"
DUPLICATE_ACROSS_SPLITS = "duplicate_across_splits"
LISTED_TWICE = "listed_twice"
MISSING_COUNTERPART = "missing_counterpart"
UNKNOWN_CLASS = "unknown_class"
EMPTY_CLASS = "empty_class"
LABEL_RANGE = "label_range"

UNREADABLE_IMAGE = "unreadable_image"
WRONG_FORMAT = "wrong_format"
DAMAGED_IMAGE = "damaged_image"
"""Kind of problem: an image is read, with pixels that its decoder has made up."""
IMAGE_TOO_LARGE = "image_too_large"
DAMAGED_RECORD = "damaged_record"
UNREADABLE_MASK = "unreadable_mask"
STRAY_MASK_VALUE = "stray_mask_value"
MASK_SIZE = "mask_size"
EMPTY_MASK = "empty_mask"
"""Kind of problem: an object's mask has no pixel."""
SHORT_POLYGON = "short_polygon"
MASK_OUTSIDE = "mask_outside"

SIZE_MISMATCH = "size_mismatch"
"""Kind of problem: an image's size differs from the one in its annotation."""
NOTHING_TO_LEARN = "nothing_to_learn"
"""Kind of problem: all annotations of a class are left out of training or of evaluation."""
EMPTY_BOX = "empty_box"
INVERTED_BOX = "inverted_box"
BOX_OUTSIDE = "box_outside"

EMPTY_TEXT = "empty_text"
LONG_TEXT = "long_text"
"""Kind of problem: a text has more tokens than a sample may have."""
LOST_TEXT = "lost_text"
"""Kind of problem: a text has characters that a given vocabulary drops."""
UNDECODABLE_TEXT = "undecodable_text"
SHORT_ROW = "short_row"
LONG_ROW = "long_row"
UNREADABLE_ROW = "unreadable_row"
NOT_A_NUMBER = "not_a_number"

UNREADABLE_AUDIO = "unreadable_audio"

KINDS = (
    CANNOT_OPEN,
    WRONG_CHECKSUM,
    UNREADABLE_FILE,
    UNREADABLE,
    DUPLICATE,
    DUPLICATE_ACROSS_SPLITS,
    LISTED_TWICE,
    MISSING_COUNTERPART,
    UNKNOWN_CLASS,
    EMPTY_CLASS,
    LABEL_RANGE,
    UNREADABLE_IMAGE,
    WRONG_FORMAT,
    DAMAGED_IMAGE,
    IMAGE_TOO_LARGE,
    DAMAGED_RECORD,
    UNREADABLE_MASK,
    STRAY_MASK_VALUE,
    MASK_SIZE,
    EMPTY_MASK,
    SHORT_POLYGON,
    MASK_OUTSIDE,
    SIZE_MISMATCH,
    NOTHING_TO_LEARN,
    EMPTY_BOX,
    INVERTED_BOX,
    BOX_OUTSIDE,
    EMPTY_TEXT,
    LONG_TEXT,
    LOST_TEXT,
    UNDECODABLE_TEXT,
    SHORT_ROW,
    LONG_ROW,
    UNREADABLE_ROW,
    NOT_A_NUMBER,
    UNREADABLE_AUDIO,
)
"""Kinds of problems of all datasets. A dataset lists further kinds of its own in `data_checks`."""


@dataclass(frozen=True)
class DataLocation:
    """Location of a sample, a row or a problem in a file.

    Attributes:
        file: its path; empty where a sample comes from no file.
        line: line of a text file, from 1.
        record: index in a file of many samples, or of a sample that comes from no file, from 0.
    """

    file: str = ""
    line: Optional[int] = None
    record: Optional[int] = None

    def __str__(self) -> str:
        if not self.file:
            return f"sample {self.record}"
        if self.line is not None:
            return f"{self.file}, line {self.line}"
        return f"'{self.file}'" if self.record is None else f"record {self.record} of '{self.file}'"


class DataLocations:
    """Locations of the samples of a source: file, and line or record."""

    def __init__(
        self, files: Sequence[str], number_N: ArrayLike, file_N: Optional[ArrayLike] = None, are_records: bool = False
    ) -> None:
        """Keeps the numbers.

        Args:
            files: paths.
            number_N: the line of each sample from 1, or its record from 0.
            file_N: index of each sample's file; None = all are in the first.
            are_records: whether the numbers are records.
        """
        self._files, self._are_records = files, are_records
        # Arrays and not a list of locations: a corpus has millions of lines.
        self._number_N = np.asarray(number_N, np.int64)
        self._file_N = None if file_N is None else np.asarray(file_N, np.int32)

    def __getitem__(self, index: int) -> DataLocation:
        file = self._files[0 if self._file_N is None else int(self._file_N[index])]
        number = int(self._number_N[index])
        return DataLocation(file, record=number) if self._are_records else DataLocation(file, number)

    @property
    def number_N(self) -> np.ndarray:
        """Returns the line or the record of each sample."""
        return self._number_N

    def by_file(self) -> Sequence[Tuple[str, np.ndarray]]:
        """Returns each file that has samples, and their indices."""
        if self._file_N is None:
            return [(self._files[0], np.arange(len(self._number_N)))] if len(self._number_N) else []
        return [(self._files[file], np.flatnonzero(self._file_N == file)) for file in np.unique(self._file_N)]

    def take(self, index_N: ArrayLike) -> DataLocations:
        """Returns the locations of some of the samples."""
        index_N = np.asarray(index_N, np.int64)
        file_N = None if self._file_N is None else self._file_N[index_N]
        return DataLocations(self._files, self._number_N[index_N], file_N, self._are_records)


PROBLEM_COLUMNS = ("kind", "file", "line", "record", "fact", "remedy")


@dataclass(frozen=True)
class Problem:
    """One problem of the data.

    Attributes:
        kind: one of `KINDS`, or a kind of the dataset's own.
        location: source location, for messages.
        fact: the problem in one sentence, including the location.
        remedy: what to do, in a sentence; empty if the fact contains it.
    """

    kind: str
    location: DataLocation
    fact: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """Returns the fact and the remedy."""
        return f"{self.fact} {self.remedy}".rstrip()

    def with_addresses(self) -> Problem:
        """Returns the problem with addresses of objects in place of their local names."""
        location = replace(self.location, file=with_addresses(self.location.file))
        return replace(self, location=location, fact=with_addresses(self.fact), remedy=with_addresses(self.remedy))

    def to_row(self) -> Dict[str, Json]:
        """Returns a row of a table of problems."""
        location = self.location
        values = (self.kind, location.file, location.line, location.record, self.fact, self.remedy)
        return dict(zip(PROBLEM_COLUMNS, values))


def problem_of(error: Exception, location: DataLocation, kind: str = UNREADABLE) -> Problem:
    """Converts an error to a problem.

    Args:
        error: what reading a sample raised; a `LoaderError` may say its kind itself.
        location: source location, for messages.
        kind: used if the error does not name one.
    """
    if isinstance(error, LoaderError):
        return Problem(error.kind or kind, location, error.fact, error.remedy)
    fact = str(error) if isinstance(error, DataError) else f"{location} raises {type(error).__name__}: {error}"
    return Problem(kind, location, fact)


class NoUsableSamples(DataError):
    """Raised if the problems leave no samples to build splits from; each problem was reported before."""


class Findings:
    """Receives the problems found while a dataset is opened for training: the first one raises.

    `CollectedFindings` of `data check` overrides both methods to continue without the wrong samples.
    """

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        """Reports problems that prevent training; if it returns, the caller continues without the affected data.

        Args:
            problems: problems of one kind, in order; with none, nothing happens.
            sentence: message of the error in training; empty: the sentence of the first problem.

        Raises:
            WrongData: problems are not collected.
        """
        if problems:
            raise WrongData(sentence or problems[0].sentence)

    def remark(self, problem: Problem) -> None:
        """Reports a problem that only `data check` lists: training skips the affected data, or does not notice it."""

    def warn(self, problem: Problem) -> None:
        """Reports a problem that does not prevent training: `data check` lists it, and a run logs a warning."""
        self.remark(problem)
        if not self.keeps_going:
            log.warning("%s", with_addresses(problem.sentence))

    def leave_out(self, option: str, reasons: Mapping[str, int]) -> None:
        """Reports annotations that no dataset reads, e.g. lines. They are logged.

        Args:
            option: option of the dataset, for the message.
            reasons: what they are, in words -> their number.
        """
        facts = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        if facts:
            log.info("%s: %s are left out", option, " and ".join(facts))

    @property
    def keeps_going(self) -> bool:
        """Returns True if `refuse` collects problems and returns, and each sample is read later. Callers then skip
        checks that read samples while the dataset is opened, e.g. of the first mask or of all labels."""
        return False


STRICT = Findings()


def call_or_report(
    findings: Findings, location: DataLocation, read: Callable[[], Given], kind: str = CANNOT_OPEN
) -> Optional[Given]:
    """Calls a function; returns None if it raises a `DataError`, which goes to the findings."""
    try:
        return read()
    except NoUsableSamples:
        return None
    except DataError as error:
        findings.refuse(Problem(kind, location, str(error)))
        return None


def out_of_range(location: DataLocation, label: object, num_classes: int) -> Problem:
    """Returns the problem of a label that is not a class index."""
    fact = f"{location} has the label {label}; allowed is 0 to {num_classes - 1}."
    return Problem(LABEL_RANGE, location, fact, "Give it the number of a class, or remove it.")


def refuse_labels(
    findings: Findings, label_N: np.ndarray, num_classes: int, locations: DataLocations, sentence: str
) -> np.ndarray:
    """Refuses labels that are too large for a class index.

    Args:
        findings: collects a problem for each wrong label.
        label_N: label of each sample, not negative.
        num_classes: number of classes; labels must be less.
        locations: source location of each sample.
        sentence: message of the error in training, in which `{label}` stands for the highest label.

    Returns:
        The indices of the samples with valid labels.
    """
    wrong_N = np.flatnonzero(label_N >= num_classes)
    if len(wrong_N):
        message = sentence.replace("{label}", str(label_N.max()))
        for index in wrong_N.tolist():
            findings.refuse(out_of_range(locations[index], label_N[index], num_classes), sentence=message)
    return np.flatnonzero(label_N < num_classes)
