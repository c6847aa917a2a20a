"""Kinds of samples and of targets. Datasets declare the kinds that they give; tasks, models, losses and metrics the
kinds that they take. `mxtrain.task.fit` compares them.

A kind is a class without instances. A subclass is a special case of its base class and fits wherever that one fits. The
kinds that only one field has are in `kinds.py` of that field's package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, List, Optional, Tuple, Type, Union

REPLACED = ("tasks", "sample_type", "input_types")
"""Attributes by which classes of earlier versions named the tasks and samples that they fit."""


def explain_replaced(owner: str, name: str, gives: bool = False) -> str:
    """Returns the message for a user's class or module that still sets one of `REPLACED`.

    Args:
        owner: the class, or its module.
        name: the attribute.
        gives: True for a dataset, which gives samples and targets; other classes take them.
    """
    word = "gives = Gives(Images, ClassIndex)" if gives else "takes = Takes(ClassIndex)"
    return (
        f"{owner} sets '{name}', which was replaced by kinds of samples and targets. Write e.g. `{word}` with the "
        "classes of mxtrain.types.kinds; see docs/extending/your-own-parts.md."
    )


class SampleKind:
    """Base of the kinds of samples, i.e. of the inputs of a network."""

    name: ClassVar[str] = ""
    """Name in messages and in the signature of an exported network."""
    has_text: ClassVar[bool] = False
    """True if a Python string is a sample, not the path of a file."""


class Arrays(SampleKind):
    """One array of a fixed shape, (B, ...)."""

    name: ClassVar[str] = "arrays"


class Images(Arrays):
    """Images (B, C, H, W)."""

    name: ClassVar[str] = "images"


class Numbers(Arrays):
    """Rows of numbers (B, N)."""

    name: ClassVar[str] = "numbers"


class SeveralArrays(SampleKind):
    """Several arrays, (B, ...) each."""

    name: ClassVar[str] = "several arrays"


class TableFeatures(SampleKind):
    """Indices of categories (B, F) and numbers (B, N) of a row of a table."""

    name: ClassVar[str] = "features"


class IndexedFeatures(SampleKind):
    """Any number of features of a row by index, with their values."""

    name: ClassVar[str] = "indexed_features"


class TargetKind:
    """Base of the kinds of targets, i.e. of the values to predict."""


class ClassIndex(TargetKind):
    """The index of one class, (B,). Networks score each class, (B, K)."""


class RowClass(TargetKind):
    """The class of a row of a table, (B,). Networks give one logit for two classes, (B, 1), scores (B, K) for more."""


class ClassSet(TargetKind):
    """The classes of a sample, any number of them: 1 for each class that it has, otherwise 0, (B, K). Networks score
    each class, (B, K)."""


class Number(TargetKind):
    """A number, (B,)."""


class Preference(TargetKind):
    """The items that a user wants, or the rating of an item."""


class PositionLabels(TargetKind):
    """The label of each position of a sample, (B, M); -1 excludes a position."""


class Tokens(TargetKind):
    """The tokens of a text, each predicted from those before it, (B, T)."""


class Sentence(TargetKind):
    """A text that is compared with a predicted one."""


class Translations(Tokens, Sentence):
    """The text in another language or form."""


def kind_names(kind: Optional[Type[TargetKind]]) -> List[str]:
    """Returns the names of a kind of targets and of its base classes; the most special one first."""
    bases = () if kind is None else kind.__mro__
    return [base.__name__ for base in bases if issubclass(base, TargetKind) and base is not TargetKind]


Kind = Union[Type[SampleKind], Type[TargetKind]]


@dataclass(frozen=True, init=False)
class Takes:
    """Kinds that a task, model, loss or metric takes, in order of preference.

    Attributes:
        samples: kinds of samples; empty: any.
        targets: kinds of targets; empty: any.
        makes: of a task, the kind of the targets that its `build_collate` makes in place of those of the dataset:
            models, losses and metrics must take it. None: those of the dataset stay, or the kind has no name.
    """

    samples: Tuple[Type[SampleKind], ...]
    targets: Tuple[Type[TargetKind], ...]
    makes: Optional[Type[TargetKind]] = None

    def __init__(self, *kinds: Kind, makes: Optional[Type[TargetKind]] = None) -> None:
        _require_kinds(kinds, (SampleKind, TargetKind))
        _require_kinds(() if makes is None else (makes,), (TargetKind,))
        object.__setattr__(self, "makes", makes)
        object.__setattr__(self, "samples", tuple(kind for kind in kinds if issubclass(kind, SampleKind)))
        object.__setattr__(self, "targets", tuple(kind for kind in kinds if issubclass(kind, TargetKind)))

    def takes_sample(self, kind: Type[SampleKind]) -> bool:
        """Returns True if samples of this kind fit."""
        return not self.samples or issubclass(kind, self.samples)

    def takes_target(self, kind: Type[TargetKind]) -> bool:
        """Returns True if targets of this kind fit."""
        return not self.targets or issubclass(kind, self.targets)


@dataclass(frozen=True, init=False)
class Gives:
    """Kinds that a dataset gives.

    Attributes:
        sample: kind of its samples.
        targets: kinds of targets that its samples can have; the first one is used if only the dataset is chosen.
        usual_model: option of conf/model/ for runs in which only the dataset is chosen; empty: that of the task.
    """

    sample: Type[SampleKind]
    targets: Tuple[Type[TargetKind], ...]
    usual_model: str = ""

    def __init__(self, sample: Type[SampleKind], *targets: Type[TargetKind], usual_model: str = "") -> None:
        _require_kinds((sample,), (SampleKind,))
        _require_kinds(targets, (TargetKind,))
        object.__setattr__(self, "sample", sample)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "usual_model", usual_model)


def _require_kinds(given: Tuple[object, ...], bases: Tuple[type, ...]) -> None:
    """Raises: TypeError: a value is no kind, such as the name of a task."""
    for value in given:
        if not (isinstance(value, type) and issubclass(value, bases)):
            expected = " or ".join(base.__name__ for base in bases)
            raise TypeError(f"{value!r} is no kind. Give subclasses of {expected} of mxtrain.types.kinds")
