"""Finds invalid boxes, and rejects or mends them.

A box that reaches less than a pixel beyond its image is rounding, and an empty box is left out; both occur in COCO and
VOC. Anything else is usually a mistake of a converter that affects all boxes, so it is refused. Clipping silently would
hide it.

Legend: R boxes of a file, M boxes of an image, N numbers of a row, K classes.
"""

from __future__ import annotations

from typing import Dict, List, Protocol, Sequence

import numpy as np

from mxtrain.data.checking.problems import (
    BOX_OUTSIDE,
    EMPTY_BOX,
    INVERTED_BOX,
    NOT_A_NUMBER,
    NOTHING_TO_LEARN,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.vision.detection.boxes import Column, Flag, has_area

TOLERANCE = 1.0
"""Pixels by which a box may exceed its image, since annotators round. Such boxes are clipped silently."""
NORMALIZED_TOLERANCE = 0.02
"""Amount by which a normalized coordinate may be below 0 or above 1."""
REMEDY = (
    "Correct it, or type dataset.wrong_boxes=mend to clip boxes to their images and leave out boxes of which nothing "
    "remains."
)


class BoxNotes(Protocol):
    """Protocol of objects that describe boxes in messages, in the terms of their file format."""

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a box."""

    def shown(self, index: int) -> str:
        """Returns the box as its file writes it, e.g. `[x, y, width, height] = [1, 2, 3, 4]`."""


def find_faults(edge_R4: np.ndarray, size_R2: np.ndarray, tolerance: float = TOLERANCE) -> Dict[str, np.ndarray]:
    """Returns kind of fault -> mask of the boxes with it, (R,). A box has at most one fault.

    Args:
        edge_R4: left, top, right, bottom.
        size_R2: width and height of the image of each box; NaN if unknown.
        tolerance: distance in pixels by which a box may exceed its image.
    """
    is_number_R = np.isfinite(edge_R4).all(axis=1)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        side_R2 = edge_R4[:, 2:] - edge_R4[:, :2]
    is_inverted_R = is_number_R & (side_R2 < 0).any(axis=1)
    is_empty_R = is_number_R & ~is_inverted_R & (side_R2 == 0).any(axis=1)
    is_outside_R = is_number_R & ~is_inverted_R & ~is_empty_R & (excess(edge_R4, size_R2) > tolerance)
    return {
        NOT_A_NUMBER: ~is_number_R,
        INVERTED_BOX: is_inverted_R,
        EMPTY_BOX: is_empty_R,
        BOX_OUTSIDE: is_outside_R,
    }


def excess(edge_R4: np.ndarray, size_R2: np.ndarray) -> np.ndarray:
    """Returns the distance in pixels by which each box exceeds its image, (R,); 0 if it does not, or if the size is
    unknown."""
    with np.errstate(invalid="ignore"):
        beyond_R2 = edge_R4[:, 2:] - size_R2
    return np.maximum(np.nan_to_num(beyond_R2, nan=0.0, posinf=np.inf).max(axis=1), -edge_R4[:, :2].min(axis=1)).clip(0)


def are_corners(edge_R4: np.ndarray, size_R2: np.ndarray, min_share: float = 0.2) -> bool:
    """Returns True if boxes that were read as left, top, width and height can only be two opposite corners: all of them
    fit into their images as corners (see `as_corners`), and at least `min_share` of them do not fit as they were read.

    Args:
        edge_R4: left, top, right, bottom, as they follow from left, top, width and height.
        size_R2: width and height of the image of each box; NaN if unknown.
        min_share: smallest share of boxes that do not fit.
    """
    is_known_R = np.isfinite(edge_R4).all(axis=1) & np.isfinite(size_R2).all(axis=1)
    edge_R4, size_R2 = edge_R4[is_known_R], size_R2[is_known_R]
    if len(edge_R4) < 3:
        return False
    corner_R4 = as_corners(edge_R4)
    fits = (corner_R4[:, 2:] >= corner_R4[:, :2]).all() and (excess(corner_R4, size_R2) <= TOLERANCE).all()
    return bool(fits and (excess(edge_R4, size_R2) > TOLERANCE).mean() >= min_share)


def are_normalized(edge_R4: np.ndarray) -> bool:
    """Returns True if boxes seem to be relative to the width and height of their images: all numbers are between 0 and
    1, and not all are 0 or 1."""
    return len(edge_R4) > 0 and bool(in_unit_square(edge_R4).all() and (edge_R4 != np.floor(edge_R4)).any())


def in_unit_square(number_RN: np.ndarray) -> np.ndarray:
    """Returns a mask of the rows in which all numbers lie between 0 and 1, (R,)."""
    with np.errstate(invalid="ignore"):
        return ((number_RN >= -NORMALIZED_TOLERANCE) & (number_RN <= 1 + NORMALIZED_TOLERANCE)).all(axis=1)


def as_corners(edge_R4: np.ndarray) -> np.ndarray:
    """Returns left, top, right and bottom of boxes that were read as left, top, width and height, but are two corners.
    If the first corner is the right bottom one in all boxes, the corners are swapped."""
    first_R2, second_R2 = edge_R4[:, :2], edge_R4[:, 2:] - edge_R4[:, :2]
    is_reversed = len(edge_R4) > 0 and bool((second_R2 <= first_R2).all())
    return np.concatenate([second_R2, first_R2] if is_reversed else [first_R2, second_R2], axis=1)


def fault_text(kind: str, edge_4: np.ndarray, size_2: np.ndarray) -> str:
    """Describes the fault of a box, as the end of a sentence.

    Args:
        kind: kind of fault, see `find_faults`.
        edge_4: left, top, right, bottom.
        size_2: width and height of the image; 1 and 1 for normalized boxes.
    """
    if kind == BOX_OUTSIDE:
        width, height = size_2
        far = float(excess(edge_4[None], size_2[None])[0])
        if not np.isfinite(width + height):
            return f"reaches {far:.4g} pixels beyond the left or top edge of its image"
        if width == height == 1:
            return f"reaches {far:.4g} beyond 0 to 1"
        return f"reaches {far:.4g} pixels beyond its image of {width:g} x {height:g}"
    return {
        NOT_A_NUMBER: "holds a number that is not finite",
        INVERTED_BOX: "ends before it begins",
        EMPTY_BOX: "has no width or no height",
    }[kind]


def refuse_wrong_boxes(
    edge_R4: np.ndarray,
    size_R2: np.ndarray,
    notes: BoxNotes,
    findings: Findings,
    mends: bool,
    tolerance: float = TOLERANCE,
) -> np.ndarray:
    """Rejects invalid boxes. Empty boxes are always dropped silently: COCO's own files have two.

    Args:
        edge_R4: left, top, right, bottom of all boxes of a file.
        size_R2: width and height of the image of each box; NaN if unknown.
        notes: locations and values of the boxes, for messages.
        findings: collects the problems.
        mends: if True, boxes that exceed their image are kept, and other invalid boxes are dropped silently.
        tolerance: see `find_faults`.

    Returns:
        A mask of the boxes to use, (R,).
    """
    faults = find_faults(edge_R4, size_R2, tolerance)
    is_kept_R = np.ones(len(edge_R4), bool)
    refused: List[Problem] = []
    for kind, has_fault_R in faults.items():
        is_mended = mends or kind == EMPTY_BOX
        for index in np.flatnonzero(has_fault_R).tolist():
            location = notes.location(index)
            fact = f"{location}: the box {notes.shown(index)} {fault_text(kind, edge_R4[index], size_R2[index])}."
            if is_mended:
                findings.remark(Problem(kind, location, fact, "It is left out." if kind == EMPTY_BOX else REMEDY))
            else:
                refused.append(Problem(kind, location, fact, REMEDY))
        if not (mends and kind == BOX_OUTSIDE):
            is_kept_R &= ~has_fault_R
    refuse_all(findings, refused, "boxes")
    return is_kept_R


def refuse_all(findings: Findings, problems: List[Problem], kind: str) -> None:
    """Rejects problems. In training the message contains the first one and their number."""
    if problems:
        more = f" ({len(problems):,} such {kind})" if problems[1:] else ""
        first = problems[0]
        findings.refuse(*problems, sentence=f"{first.fact[:-1]}{more}. {first.remedy}".rstrip())


def clip_boxes(row_MD: np.ndarray, width: float, height: float) -> np.ndarray:
    """Clips boxes to their image of that width and height in pixels. Returns the rows that still have an area."""
    row_MD = row_MD.copy()
    row_MD[:, :4] = np.clip(row_MD[:, :4], 0, [width, height, width, height])
    return row_MD[has_area(row_MD)]


def refuse_unusable_split(
    name: str,
    row_RD: np.ndarray,
    class_names: Sequence[str],
    location: DataLocation,
    option: str,
    crowd_remedy: str,
    findings: Findings,
) -> None:
    """Rejects a training split without boxes, or with crowd regions only, and warns of each class that is not trained
    or measured.

    Args:
        name: name of the split: train, val or test.
        row_RD: boxes, with the columns of `boxes.Column`.
        class_names: name of each class.
        location: source location of the split, for messages.
        option: option of the dataset, for messages.
        crowd_remedy: sentence that says what to type if crowd regions are objects.
        findings: collects the problems.

    Raises:
        DataError: nothing can be learned.
    """
    is_train = name == "train"
    use = "learned" if is_train else "measured"
    if not len(row_RD):
        fact = f"{option}: no image of the split {name} has a box, so nothing is {use}."
        problem = Problem(NOTHING_TO_LEARN, location, fact, "Name annotations that have some.")
        if is_train:
            findings.refuse(problem)
        else:
            findings.warn(problem)
        return
    class_R, flag_R = row_RD[:, Column.CLASS].astype(np.int64), row_RD[:, Column.FLAGS].astype(np.int64)
    # Difficult boxes are trained on, and ignored in evaluations.
    excluded = Flag.CROWD if is_train else Flag.CROWD | Flag.DIFFICULT
    all_K = np.bincount(class_R, minlength=len(class_names))
    used_K = np.bincount(class_R[flag_R & excluded == 0], minlength=len(class_names))
    for number in np.flatnonzero((all_K > 0) & (used_K == 0)).tolist():
        is_crowd = bool((flag_R[class_R == number] & Flag.CROWD).any())
        kind, remedy = ("crowd regions (iscrowd)", crowd_remedy) if is_crowd else ("difficult", "Write difficult as 0.")
        fact = (
            f"{option}: all {all_K[number]:,} boxes of the class '{class_names[number]}' in the split {name} are "
            f"{kind}, so nothing of it is {use}."
        )
        problem = Problem(NOTHING_TO_LEARN, location, fact, remedy)
        if is_train and not used_K.any():
            findings.refuse(problem)
        else:
            findings.warn(problem)
