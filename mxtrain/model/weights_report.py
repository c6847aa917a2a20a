"""Report on loaded weights, and the layout of layers that score classes. Every run and network reads this module; the
readers of weights files (`weights`) are imported when there is a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Sequence

MAX_NAMES = 4
"""Number of names that a message lists."""


@dataclass(frozen=True)
class ClassRows:
    """Layout of the outputs of a layer that scores classes, so that single classes can be copied from a file.

    The outputs consist of `groups` blocks (e.g. one per anchor). Each block has `leading` outputs without a class,
    followed by `per_class` outputs for each class. Networks list such layers by path in `class_heads`.

    Attributes:
        groups: number of blocks.
        leading: outputs at the beginning of each block that belong to no class, e.g. background.
        per_class: consecutive outputs of one class.
    """

    groups: int
    leading: int
    per_class: int = 1

    def num_classes(self, num_rows: int) -> Optional[int]:
        """Returns the number of classes for a number of outputs; None if it is not an integer."""
        per_group, group_remainder = divmod(num_rows, self.groups)
        classes, class_remainder = divmod(per_group - self.leading, self.per_class)
        return classes if not group_remainder and not class_remainder and classes > 0 else None


@dataclass(frozen=True)
class WeightsReport:
    """Result of loading a weights file. All names are structural names, except those in `unused` and `dropped`, which
    are names in the file.

    Attributes:
        path: path of the file; "" if none was loaded.
        matched: parameters that were loaded completely.
        replaced: parameters of the file for another number of classes; they keep their fresh initialisation.
        left: parameters that are not in the file; they keep their fresh initialisation.
        unused: arrays of the file that the network does not have.
        adapted: parameters of which single outputs were loaded, because the file was made for other classes: outputs of
            `reused` classes, and outputs that belong to no class. The others keep their fresh initialisation.
        reused: names of classes that are both in the file and in the data.
        names_classes: True if the class names of the file were given.
        remarks: findings on weights of other libraries.
        dropped: arrays of the file that the network computes itself, such as positions.
    """

    path: str = ""
    matched: List[str] = field(default_factory=list)
    replaced: List[str] = field(default_factory=list)
    left: List[str] = field(default_factory=list)
    unused: List[str] = field(default_factory=list)
    adapted: List[str] = field(default_factory=list)
    reused: List[str] = field(default_factory=list)
    names_classes: bool = False
    remarks: Sequence[str] = ()
    dropped: Sequence[str] = ()

    @property
    def fresh(self) -> List[str]:
        """Returns the parameters that are not, or not completely, from the file."""
        return [*self.replaced, *self.left, *self.adapted]

    def __str__(self) -> str:
        if not self.path:
            return "weights: freshly initialised"
        lines = [f"weights: {len(self.matched)} arrays loaded from {self.path}"]
        lines += [f"  {remark}" for remark in self.remarks]
        for names, meaning in (
            (self.replaced, "replaced by fresh ones, for another number of classes"),
            (self.left, "not in the file, freshly initialised"),
            (self.unused, "in the file but not in the network, not used"),
            (list(self.dropped), "in the file, which the network needs no array for"),
        ):
            if names:
                lines.append(f"  {len(names)} {meaning}: {brief(names)}")
        if self.adapted:
            classes = f"{len(self.reused)} by their names: {brief(self.reused)}" if self.reused else "none"
            lines.append(
                f"  {len(self.adapted)} loaded but for classes, of which {classes}; the others are freshly initialised"
            )
            if not self.names_classes:
                lines.append(
                    "  model.weights_classes=[NAME,...] names the classes of the file: classes of the data are kept"
                )
        return "\n".join(lines)


def brief(names: List[str]) -> str:
    """Joins names for a message; only the first ones of a long list."""
    shown = ", ".join(names[:MAX_NAMES])
    return shown + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
