"""`data guess`: names the dataset option that reads a folder or a file, with counts and the command to type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Sequence

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.checking.problems import NoUsableSamples
from mxtrain.data.loading.described_paths import local_name
from mxtrain.data.recognition import FileTree, Recognised, best_first, recognise_all, unquoted
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import DataError, MxtrainError, first_line
from mxtrain.terminal.tables import on_one_line

MAX_SHOWN = 10
_SINGULAR = {"images": "image", "boxes": "box", "classes": "class", "samples": "sample", "objects": "object"}
COMMAND = "python -m mxtrain"
Open = Callable[[List[str]], BaseDataset]
"""Function that returns the dataset of some overrides."""


@dataclass(frozen=True)
class DataForm:
    """A way to read the files.

    Attributes:
        option: option of conf/dataset, e.g. "voc".
        form: the format in words.
        counts: numbers of what is in the files, e.g. ``{"images": 100, "boxes": 250, "classes": 3}``.
        class_names: names of the classes; empty if they are not known.
        splits: number of samples of each split; empty if the files were not opened.
        num_problems: number of problems found while opening; ``data check`` lists them.
        remark: what is to know or to complete; the error if the files cannot be opened.
        overrides: overrides of the command line, e.g. ``["dataset=voc", "dataset.root=FOLDER"]``.
    """

    option: str
    form: str
    counts: Mapping[str, int]
    class_names: Sequence[str]
    splits: Mapping[str, int]
    num_problems: int
    remark: str
    overrides: Sequence[str]

    @property
    def command(self) -> str:
        """Returns the command to type."""
        return " ".join([COMMAND, *self.overrides])

    def lines(self) -> List[str]:
        """Returns the text of the form: what it is, what is in it, and the command."""
        counts = [
            f"{count:,} {_SINGULAR.get(name, name) if count == 1 else name}" for name, count in self.counts.items()
        ]
        splits = [f"{split} {count:,}" for split, count in self.splits.items()]
        names = f" ({', '.join(self.class_names[:MAX_SHOWN])}{', ...' * (len(self.class_names) > MAX_SHOWN)})"
        facts = f": {', '.join(counts)}{names * bool(self.class_names)}" if counts else ""
        divided = f"; {', '.join(splits)}" if splits else ""
        lines = [f"{self.form}{facts}{divided}", f"  {self.command}"]
        if self.num_problems:
            check = " ".join([COMMAND, "data check", *self.overrides])
            problems = "1 problem" if self.num_problems == 1 else f"{self.num_problems:,} problems"
            lines.append(f"  {problems}; `{check}` lists them")
        return lines + ([f"  {on_one_line(self.remark)}"] if self.remark else [])


@dataclass(frozen=True)
class DataGuess:
    """Result of `guess_data`; its text names the forms and the commands to type.

    Attributes:
        path: the folder or file.
        forms: ways to read it, the most certain first.
    """

    path: str
    forms: Sequence[DataForm]

    @property
    def best(self) -> DataForm:
        """Returns the most certain form."""
        return self.forms[0]

    def __str__(self) -> str:
        first, *others = ["\n".join(form.lines()) for form in self.forms]
        return "\n".join([f"'{self.path}': {first}", *(f"or {other}" for other in others)])

    __repr__ = __str__


def guess_data_of(path: str, classes: Mapping[str, type], open_dataset: Open) -> DataGuess:
    """Returns the ways in which datasets read a folder or a file.

    Args:
        path: the folder or file.
        classes: class of each option of conf/dataset.
        open_dataset: composes a dataset.

    Raises:
        DataError: the path does not exist, or no dataset reads it.
    """
    files = FileTree(local_name(path))
    guesses = recognise_all(classes, files)
    if not guesses:
        raise DataError(
            f"'{path}': no dataset recognises it. It has {_listed(files)}. The forms that are read are listed in "
            "docs/data/which-dataset-reads-my-files.md."
        )
    return DataGuess(path, [_opened(option, guess, open_dataset) for option, guess in best_first(guesses)])


def _listed(files: FileTree) -> str:
    """Describes the content of a folder by the extensions of its files."""
    kinds = [f"{count:,} {ending or 'without extension'}" for ending, count in files.endings.most_common(MAX_SHOWN)]
    return f"{len(files.names):,} files ({', '.join(kinds)})" if kinds else "no files"


def _opened(option: str, guess: Recognised, open_dataset: Open) -> DataForm:
    """Opens the dataset of a guess to count what is in it. Its images or sounds are not read."""
    overrides = guess.overrides(option)
    typed = [*overrides, *guess.asks]
    if guess.asks or not guess.is_quick:
        return DataForm(option, guess.form, guess.counts, (), {}, 0, guess.remark, typed)
    findings = CollectedFindings()
    try:
        splits = open_dataset(unquoted(overrides)).examine(findings)
    except NoUsableSamples:
        return DataForm(option, guess.form, guess.counts, (), {}, sum(findings.counts.values()), guess.remark, typed)
    except (MxtrainError, OSError) as error:
        # Samples with problems, such as missing images, are left out. If too few remain, the problems are the cause.
        num_problems = sum(findings.counts.values())
        remark = guess.remark if num_problems else f"It cannot be opened: {first_line(error)}"
        return DataForm(option, guess.form, guess.counts, (), {}, num_problems, remark, typed)
    sizes: Dict[str, int] = {
        name: len(part)
        for name, part in (("train", splits.train), ("val", splits.val), ("test", splits.test))
        if part is not None
    }
    counts = {**guess.counts, **splits.counts()}
    names, num_problems = list(splits.class_names), sum(findings.counts.values())
    return DataForm(option, guess.form, counts, names, sizes, num_problems, guess.remark, typed)
