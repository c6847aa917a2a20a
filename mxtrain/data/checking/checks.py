"""Checks of samples: the protocol that sources implement, and the default for other sources.

Legend: N samples, B batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Optional, Protocol, Sequence, runtime_checkable

import numpy as np

from mxtrain.data.checking.problems import NOT_A_NUMBER, DataLocation, DataLocations, Problem, problem_of
from mxtrain.data.loading.samples import Source
from mxtrain.errors import LoaderError

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Checked:
    """One sample after it was read.

    Attributes:
        problems: problems of the sample.
        digest: hash of its content, by which duplicates are found; empty = it is not compared.
        classes: its class, or the classes that occur in it, for counting.
    """

    problems: Sequence[Problem] = ()
    digest: bytes = b""
    classes: Sequence[int] = ()


class Checks(Protocol):
    """Checks that `data check` runs on each sample of a source. Sources return it from their method `checks()`.

    Must be safe to call from several threads at once, and read a sample's file once.
    """

    def __len__(self) -> int:
        """Returns the number of samples."""

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a sample."""

    def check(self, index: int) -> Checked:
        """Reads a whole sample, and returns all of its problems; an exception counts as one more problem."""


@runtime_checkable
class ChecksWithTexts(Protocol):
    """Checks that know which texts of a sample are tokenized."""

    def texts(self, index: int) -> Sequence[str]:
        """Returns the texts of a sample that are tokenized; empty if it has none."""


@runtime_checkable
class ChecksWithContents(Protocol):
    """Checks of samples whose content is in another file, such as recordings that a manifest names."""

    def content_location(self, index: int) -> DataLocation:
        """Returns the source location from which a sample is read; without a file if it is only a part of one."""


@runtime_checkable
class CheckableSource(Protocol):
    """A source that provides its own checks of samples."""

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""


def digest_of(*contents: bytes) -> bytes:
    """Returns a digest of `DIGEST_BYTES`; the same for the same contents in the same order."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for content in contents:
        # The length keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.digest()


class SourceChecks:
    """Base of the checks of a source: number of samples, and their source locations."""

    def __init__(self, source: Any, locations: Optional[DataLocations] = None) -> None:
        """Keeps the source.

        Args:
            source: its length is the number of samples.
            locations: source locations of the samples, if known.
        """
        self._source, self._locations = source, locations

    def __len__(self) -> int:
        return len(self._source)

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        return DataLocation(record=index) if self._locations is None else self._locations[index]

    def texts(self, index: int) -> Sequence[str]:
        """Returns the texts of a sample that are tokenized; empty if it has none."""
        return ()


class FetchedChecks(SourceChecks):
    """Fetches each sample as validation would: the checks of a source that has none of its own and is no text."""

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        location = self.location(index)
        if not isinstance(self._source, Source):
            return Checked()  # samples without `fetch` are read by a loader of their own, and `open` has checked them
        try:
            arrays = self._source.fetch(np.array([index]), seed=0, epoch=0, train=False)
        except LoaderError as error:
            return Checked((problem_of(error, location),))
        input_1, *targets = (np.asarray(array) for array in arrays)
        problems: Sequence[Problem] = ()
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in (input_1, *targets)):
            fact = f"{location} holds values that are no finite numbers."
            problems = (Problem(NOT_A_NUMBER, location, fact, "Replace or remove it."),)
        classes = targets[0] if targets and targets[0].dtype.kind in "iu" else np.empty(0, np.int64)
        # In a map of classes, -1 marks ignored positions; as the class of a whole sample it would be a mistake.
        class_values = np.unique(classes[classes >= 0] if classes.ndim > 1 else classes)
        return Checked(problems, digest_of(np.ascontiguousarray(input_1).tobytes()), class_values.tolist())


class SubsetChecks:
    """The checks of some samples of a source."""

    def __init__(self, checks: Checks, index_N: np.ndarray) -> None:
        self._checks, self._index_N = checks, index_N

    def __len__(self) -> int:
        return len(self._index_N)

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        return self._checks.location(int(self._index_N[index]))

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        return self._checks.check(int(self._index_N[index]))

    def texts(self, index: int) -> Sequence[str]:
        """See `SourceChecks`."""
        return texts_of(self._checks, int(self._index_N[index]))

    def content_location(self, index: int) -> DataLocation:
        """See `ChecksWithContents`."""
        return content_location_of(self._checks, int(self._index_N[index]))


def texts_of(checks: Checks, index: int) -> Sequence[str]:
    """Returns the texts of a sample that are tokenized, if the checks provide them."""
    return checks.texts(index) if isinstance(checks, ChecksWithTexts) else ()


def content_location_of(checks: Checks, index: int) -> DataLocation:
    """Returns the source location from which a sample is read: its place, unless the checks provide another."""
    return checks.content_location(index) if isinstance(checks, ChecksWithContents) else checks.location(index)


def checks_of(source: Any) -> Checks:
    """Returns the checks of a source: its own, or checks that fetch each sample."""
    return source.checks() if isinstance(source, CheckableSource) else FetchedChecks(source)
