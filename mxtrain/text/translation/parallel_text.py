"""Datasets of translations: pairs of text files with aligned lines, or tables with two columns."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar, Dict, Iterator, List, Literal, Optional, Sequence, Set, Tuple, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import (
    EMPTY_TEXT,
    MISSING_COUNTERPART,
    DataLocation,
    DataLocations,
    Findings,
    NoUsableSamples,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import exists, files_in, list_first, refuse_shared
from mxtrain.data.loading.file_patterns import expand_files
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.loading.text_stream import GZIP, ending_of, open_text
from mxtrain.data.recognition import FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.data.table.columns import PARQUET, TABLES, location_of, stream_rows
from mxtrain.data.table.text_rows import Column
from mxtrain.errors import DataError, did_you_mean
from mxtrain.text.stored import TextRecord
from mxtrain.text.text_files import name_of, prepare_texts
from mxtrain.text.translation.parallel import StoredParallel
from mxtrain.text.translation.translation import TranslationDataset
from mxtrain.types import BatchSize, Files, OpenFraction, Positive

_STRUCT = "translation."
"""Beginning of the names of columns by which `data guess` recognises translations in tables."""
NumberedPair = Tuple[int, Sequence[str]]
"""Line or record number of a pair, and its two texts."""


class ParallelText(TranslationDataset):
    """Translations in files.

    A split is a table with a column for each language, or two text files with the same prefix, e.g. `wmt16/train` for
    `wmt16/train.en` and `wmt16/train.de`.
    """

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    train: Files = None
    """Common prefix of two files, or a .tsv, .csv, .jsonl or .parquet file; or a list of these. Names may end in .gz,
    except for .parquet, and names of tables may contain * and ?: train-*.parquet."""
    val: Files = None
    """The same for validation; null = val_fraction of the training pairs."""
    test: Files = None
    """The same for testing; null = test_fraction of the training pairs."""
    source: Column = "en"
    """Source texts: extension of their files, or name of their column in a table, or its number from 0."""
    target: Column = "de"
    """Translations: extension or column, like `source`."""
    header: bool = True
    """If true, the first row of a TSV or CSV file names the columns."""
    vocab_size: Annotated[int, pydantic.Field(ge=100)] = 8000
    max_length: Annotated[int, pydantic.Field(ge=8)] = 100
    """Maximum number of tokens of a text, including one special token; longer texts are not used in training."""
    batch_tokens: Optional[Positive] = 4096
    batch_size: BatchSize = 64
    """With batch_tokens=null: pairs per optimizer step, over all devices and workers together."""
    val_fraction: OpenFraction = 0.01
    """Share of the training pairs held out for validation where there are no files of it."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        found: Dict[str, List[str]] = {}
        for name in files.names:
            stem, _, ending = name.rpartition(".")
            found.setdefault(stem, []).append(ending)
        pairs = {stem: sorted(both) for stem, both in found.items() if stem}
        pairs = {stem: both for stem, both in pairs.items() if len(both) == 2 and all(len(word) <= 3 for word in both)}
        pairs = {
            stem: both
            for stem, both in pairs.items()
            if all(word.isalpha() and files.text(f"{stem}.{word}") for word in both)
        }
        splits = files.typed_splits(sorted(pairs))
        if not splits:
            return _recognise_structs(files)
        if len({tuple(both) for both in pairs.values()}) > 1:
            return None
        both = next(iter(pairs.values()))
        source, target = ("en", next(word for word in both if word != "en")) if "en" in both else both
        settings = {**splits, "source": source, "target": target}
        return Recognised("aligned files in two languages", settings, "translation", is_quick=False)

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> ParallelText:
        if self.source == self.target:
            raise ValueError(f"source={self.source} and target={self.target} must differ")
        return self

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.require_libraries()
        if self.train is None:
            raise DataError(
                "dataset.train: name the training pairs, e.g. dataset.train=wmt16/train dataset.source=en "
                "dataset.target=de for wmt16/train.en and wmt16/train.de."
            )
        settings = {"train": self.train, "val": self.val, "test": self.test}
        files = {name: [self._files_of(path) for path in _expanded(paths)] for name, paths in settings.items() if paths}
        refuse_shared({name: itertools.chain(*groups) for name, groups in files.items()}, findings)
        splits = {
            name: call_or_report(findings, DataLocation(str(groups[0][0])), partial(self._read, groups, findings))
            for name, groups in files.items()
        }
        train = splits["train"]
        if train is None or None in splits.values():
            raise NoUsableSamples(f"dataset.train={self.train}: a file cannot be read.")
        parts = self.division.divide(np.zeros(len(train), np.int8), "val" in splits, "test" in splits)
        val_pairs = self.division.own_validation(splits.get("val"))
        refuse_empty(f"dataset.train={self.train}", len(parts[0]), len(val_pairs or parts[1]), self.val_fraction)
        is_all = len(parts[0]) == len(train)
        train_pairs = train if is_all else train.take(parts[0])
        train_pairs, val, test = (
            self._checked(pairs, train_pairs, findings)
            for pairs in (train_pairs, val_pairs or train.take(parts[1]), splits.get("test") or train.take(parts[2]))
        )
        return self._splits_of(train_pairs, val, test)

    def _checked(self, pairs: StoredParallel, trained: StoredParallel, findings: Findings) -> StoredParallel:
        """Returns pairs with the tokenizers by which `data check` counts their tokens."""
        return pairs.with_token_counts(lambda: self.tokenizers(trained, findings), self.length_limits)

    @property
    def target_name(self) -> str:
        """See `TranslationDataset.target_name`."""
        return str(self.target)

    def _files_of(self, name: str) -> List[Path]:
        """Returns the path of a table, or of the two files with a prefix.

        Raises:
            DataError: there are no such files.
        """
        if ending_of(name) in TABLES:
            return [Path(name)]
        paths = []
        for side, ending in (("source", self.source), ("target", self.target)):
            names = [f"{name}.{ending}", f"{name}.{ending}{GZIP}"]
            path = next((candidate for candidate in names if exists(candidate)), None)
            if path is None:
                other_endings = _endings_of(name) - {str(self.source), str(self.target)}
                if other_endings:
                    raise DataError(
                        f"dataset.{side}={ending}: there is no {names[0]}, nor with {GZIP}. Type "
                        + " or ".join(f"dataset.{side}={other}" for other in sorted(other_endings)[:5])
                        + f" for {name}.{min(other_endings)}{' and so on' if len(other_endings) > 1 else ''}."
                    )
                raise DataError(
                    f"there is no {names[0]}, nor with {GZIP}: name what both files begin with, and their endings by "
                    f"dataset.source and dataset.target, here dataset.{side}={ending}; or a file that ends in "
                    f"{', '.join(TABLES)}.{_advice_for(name)}"
                )
            paths.append(Path(path))
        return paths

    def _read(self, groups: Sequence[Sequence[Path]], findings: Findings) -> StoredParallel:
        """Reads the pairs of files in order, without pairs with an empty side, into a store that is reused."""

        def records() -> Iterator[TextRecord]:
            for number, files in enumerate(groups):
                for line, texts in self._pairs_of(files, findings):
                    if _are_filled(files, line, texts, findings):
                        yield TextRecord(texts, line, number)

        flat = list(itertools.chain(*groups))
        columns = [[self.source, self.target, self.header] if len(files) == 1 else [] for files in groups]
        shards = prepare_texts("parallel", flat, [[ending_of(file) for file in flat], *columns], 2, records, findings)
        if not len(shards):
            raise DataError(f"{' and '.join(map(str, flat))}: there is no pair of texts.")
        firsts = [str(files[0]) for files in groups]
        are_records = all(ending_of(name) == PARQUET for name in firsts)
        locations = DataLocations(firsts, shards.array("number"), shards.array("group"), are_records)
        return StoredParallel(shards, name_of(flat), None, locations)

    def _pairs_of(self, files: Sequence[Path], findings: Findings) -> Iterator[NumberedPair]:
        if len(files) == 1:
            return stream_rows(files[0], [self.source, self.target], self.header, findings=findings)
        return _aligned(files, findings)


def _recognise_structs(files: FileTree) -> Optional[Recognised]:
    """Returns how tables are read whose column `translation` has a text for each of two languages, as in Hugging Face's
    datasets."""
    languages = {name: _languages_in(files, name) for name in files.find(".jsonl", PARQUET)}
    both = next((found for found in languages.values() if found), [])
    splits = files.typed_splits([name for name, found in languages.items() if found == both], shards=True)
    if not both or not splits:
        return None
    source, target = sorted(both, key=lambda language: (language != "en", language))
    settings = {**splits, "source": f"{_STRUCT}{source}", "target": f"{_STRUCT}{target}"}
    return Recognised("a table of translations, as Hugging Face has them", settings, "translation", is_quick=False)


def _languages_in(files: FileTree, table: str) -> List[str]:
    """Returns the two languages of the column `translation` of a table; empty if it does not have two."""
    if table.lower().endswith(PARQUET):
        names = [name[len(_STRUCT) :] for name in files.columns(table) if name.startswith(_STRUCT)]
    else:
        row = files.json(table)
        cell = row.get(_STRUCT[:-1]) if isinstance(row, dict) else None
        names = list(cell) if isinstance(cell, dict) else []
    return names if len(names) == 2 else []


def _endings_of(name: str) -> Set[str]:
    """Returns the extensions of the files with a prefix."""
    path = Path(name)
    files = [file for file in files_in(path.parent) if file.startswith(f"{path.name}.")]
    return {file[len(path.name) + 1 :].removesuffix(GZIP) for file in files} - {""}


def _advice_for(name: str) -> str:
    """Returns advice for a file prefix that no two files have."""
    path = Path(name)
    if path.is_file():
        beginning = Path(name[: -len(GZIP)] if name.endswith(GZIP) else name).with_suffix("")
        return f" {name} is one of two files, type {beginning}."
    folder = path if path.is_dir() else path.parent
    files = files_in(folder)
    suggestion = did_you_mean(path.name, {file.partition(".")[0] for file in files})
    return f"{suggestion} {folder} holds {list_first(files)}." if files else ""


def _expanded(paths: Union[str, List[str]]) -> List[str]:
    """Returns the paths of a setting with those of tables expanded; see `expand_files`."""
    listed = [paths] if isinstance(paths, str) else paths
    prefixes = [path for path in listed if ending_of(path) not in TABLES]
    if not prefixes:
        return expand_files(listed)
    return [file for path in listed for file in ([path] if path in prefixes else expand_files(path))]


def _aligned(files: Sequence[Path], findings: Findings) -> Iterator[NumberedPair]:
    """Yields the pairs of lines of two files with the same line number."""
    with ExitStack() as stack:
        # A single \r is part of the text, not a line end: the number of them may differ between the files.
        sides = [stack.enter_context(open_text(file, "\n", findings)) for file in files]
        for number, lines in enumerate(itertools.zip_longest(*sides), start=1):
            if None not in lines:
                yield number, [line.strip("\r\n") for line in lines]
                continue
            # A missing line is an error, because all pairs may be shifted.
            shorter = lines.index(None)
            location = DataLocation(str(files[1 - shorter]), number)
            fact = f"{location} has no counterpart: {files[shorter]} has fewer lines."
            remedy = "Lines of the same number belong together: complete the file, or cut the other."
            findings.refuse(Problem(MISSING_COUNTERPART, location, fact, remedy))


def _are_filled(files: Sequence[Path], line: int, texts: Sequence[str], findings: Findings) -> bool:
    """Returns True if both sides of a pair are non-empty; training skips other pairs."""
    for side, (name, text) in enumerate(zip(("source", "target"), texts)):
        if not text.strip():
            file = files[side if len(files) > 1 else 0]
            location = location_of(file, line)
            fact = f"{location}: the {name} is empty, and the pair is left out."
            findings.remark(Problem(EMPTY_TEXT, location, fact, "Complete it, or remove it on both sides."))
            return False
    return True
