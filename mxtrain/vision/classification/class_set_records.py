"""Records of images with any number of classes each, as MXNet writes labels of several numbers.

A label is a vector, with 0 or 1 for each class, or a list of the indices of the classes, of any length.

Legend: N records, K classes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import LABEL_RANGE, STRICT, Findings
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.images.record_file import RecordFile, may_be_indices, may_be_vector
from mxtrain.vision.images.record_layout import FRAME, HEADER

LabelForm = Literal["auto", "vector", "indices"]

_MAX_CLASSES = 1 << 14
"""Limit on class indices if the classes have no names: a damaged index must not lead to a huge matrix of targets."""
_ASKED = "Type dataset.label_form=vector or dataset.label_form=indices"

log = logging.getLogger(__name__)


class SetLabels(NamedTuple):
    """Interpretation of the numbers in labels.

    Attributes:
        form: "vector" or "indices".
        num_classes: K.
        has_lists_of_one: True if some record has a list of one index. Its writer wrote no bare numbers, so that a bare
            0, as MXNet writes an empty list, may be no class or class 0.
    """

    form: str
    num_classes: int
    has_lists_of_one: bool = False


class ClassSetRecords(RecordFile):
    """Records with a set of classes each. The label of a record is its number, which `target_N` is looked up with."""

    target_N: np.ndarray
    """Classes of the records, (N, K) of 0 and 1, int32; zeros for a bad label, which is reported when it is read."""
    weight_N: Optional[np.ndarray] = None

    def __init__(self, path: Path, num_classes: int = 0, findings: Findings = STRICT) -> None:
        super().__init__(path, num_classes, findings)
        self._labels: Dict[int, np.ndarray] = {}
        self._found = SetLabels("vector", num_classes)

    def read(self, index: int) -> Tuple[bytes, int]:
        """Returns the encoded image and the number of its record.

        Raises:
            LoaderError: the record or its label is damaged.
        """
        content, numbers = self.read_image_and_numbers(index)
        self._classes_of(index, numbers)
        return content, index

    def read_labels(self) -> np.ndarray:
        """Returns the numbers of the records, (N,); see the class."""
        return np.arange(len(self))

    def recognise_labels(self, form: LabelForm, num_classes: int) -> SetLabels:
        """Returns the form of the labels, decided by all of them and logged.

        Args:
            form: setting `label_form`.
            num_classes: number of the names of classes; 0 if there are none.

        Raises:
            DataError: a record is damaged, or the labels allow both forms, or some are vectors and some lists.
        """
        labels = self._read_numbers()
        listed = [index for index, numbers in labels.items() if may_be_indices(numbers)]
        vectors = [index for index, numbers in labels.items() if may_be_vector(numbers)]
        chosen: str = form
        if form == "auto":
            chosen = self._choose_form(listed, vectors, num_classes)
            meaning = "vectors of 0 and 1" if chosen == "vector" else "lists of class indices"
            log.info("'%s': labels are %s (dataset.label_form=%s)", self.path, meaning, chosen)
        if chosen == "vector":
            lengths = [len(labels[index]) for index in vectors]
            return SetLabels(chosen, num_classes or (int(np.bincount(lengths).argmax()) if lengths else 0))
        largest = max((labels[index].max() for index in listed if labels[index].max() < _MAX_CLASSES), default=0)
        of_one = [index for index in listed if len(labels[index]) == 1]
        bare = [index for index in of_one if not self._is_list(index)]
        zeros = sum(not labels[index].any() for index in bare)
        if zeros and len(bare) == len(of_one):
            log.info(
                "'%s': %d records have the number 0 alone: class 0. MXNet writes an empty list in the same way; for "
                "images without a class write vectors of 0 and 1.",
                self.path,
                zeros,
            )
        return SetLabels(chosen, num_classes or int(largest) + 1, len(bare) < len(of_one))

    def read_sets(self, found: SetLabels) -> None:
        """Reads the classes of all records into `target_N`.

        Raises:
            DataError: a record is damaged, or its label is not allowed.
        """
        self._found = found
        self.target_N = np.zeros((len(self), found.num_classes), np.int32)
        for index, numbers in self._read_numbers().items():
            try:
                self.target_N[index, self._classes_of(index, numbers)] = 1
            except LoaderError as error:
                if not self._findings.keeps_going:
                    raise DataError(str(error)) from error
        self._labels = {}

    def _read_numbers(self) -> Dict[int, np.ndarray]:
        """Returns the numbers of the label of each record, without damaged records; kept until the sets are read."""
        for index in range(len(self)) if not self._labels else ():
            try:
                self._labels[index] = self.read_numbers(index)
            except LoaderError as error:
                if not self._findings.keeps_going:
                    raise DataError(str(error)) from error
        return self._labels

    def _is_list(self, index: int) -> bool:
        """Returns False if the label is a bare number in the header of the record."""
        head = self._read_bytes(index, int(self.offset_N[index]) + FRAME.size, HEADER.size)
        return int(HEADER.unpack(head)[0]) > 0

    def _choose_form(self, listed: Sequence[int], vectors: Sequence[int], num_classes: int) -> str:
        """Returns the only form that the labels allow. A vector repeats a number, unless there are two classes; a list
        does not.

        Args:
            listed, vectors: records whose labels may be lists, and those whose labels may be vectors.
            num_classes: see `recognise_labels`.

        Raises:
            DataError: see `recognise_labels`.
        """
        may_be_list, may_be_vector = set(listed), set(vectors)
        # A vector of a single class is of no use, and one has a number for each name.
        lengths = {2} if num_classes in (0, 2) else set()
        only_list = [index for index in listed if index not in may_be_vector or len(self._labels[index]) not in lengths]
        only_vector = [index for index in vectors if index not in may_be_list]
        if only_list and only_vector:
            raise DataError(
                f"{self.name(only_vector[0])} has a vector of 0 and 1, and {self.name(only_list[0])} a list of class "
                f"indices, {_shown(self._labels[only_list[0]])}. {_ASKED}: records of the other form are then wrong."
            )
        if not listed and not vectors:
            raise DataError(
                f"'{self.path}' has no label of class indices or of 0 and 1; that of record 0 is "
                f"{_shown(self._labels.get(0, np.empty(0)))}. For a vector with 0 or 1 for each class, or a list of "
                "class indices from 0 on."
            )
        if not only_list and not only_vector:
            raise DataError(
                f"'{self.path}': all labels are 0 1 or 1 0, which are vectors of two classes, or lists of two indices. "
                f"{_ASKED}."
            )
        return "indices" if only_list else "vector"

    def _classes_of(self, index: int, numbers: np.ndarray) -> List[int]:
        """Returns the classes of a record.

        Raises:
            LoaderError: the label is not allowed.
        """
        form, count, has_lists_of_one = self._found
        fact, remedy = "", ""
        if form == "vector":
            wrong = numbers[(numbers != 0) & (numbers != 1)]
            if len(numbers) != count:
                fact = f"has {len(numbers)} numbers; a vector of {count} classes has {count}"
                remedy = "For lists of class indices type dataset.label_form=indices."
            elif len(wrong):
                fact = f"has {wrong[0]:g} in its vector of classes; allowed are 0 and 1"
        else:
            wrong = numbers[~((numbers >= 0) & (numbers < count) & (numbers == np.floor(numbers)))]  # NaN is wrong
            found, times = np.unique(numbers, return_counts=True)
            if len(wrong):
                fact = f"has the class index {wrong[0]:g}; allowed are whole numbers from 0 to {count - 1}"
                # A common way to bring lists to one length.
                remedy = "Lists may differ in length: leave out numbers that fill them up." if wrong[0] < 0 else ""
            elif len(found) < len(numbers):
                fact = f"names the class index {found[times > 1][0]:g} twice"
                remedy = "For vectors of 0 and 1 type dataset.label_form=vector."
            elif has_lists_of_one and len(numbers) == 1 and not numbers[0] and not self._is_list(index):
                fact = "has the number 0 outside of a list, as MXNet writes an empty list: it may be class 0, or none"
                remedy = "Write class 0 as a list, or vectors of 0 and 1 for images without a class."
        if fact:
            raise LoaderError(f"{self.name(index)} {fact}.", remedy, LABEL_RANGE)
        return np.flatnonzero(numbers).tolist() if form == "vector" else numbers.astype(int).tolist()


def _shown(numbers: np.ndarray) -> str:
    """Returns the first numbers of a label for messages."""
    return " ".join(f"{number:g}" for number in numbers[:8].tolist()) + " ..." * (len(numbers) > 8)
