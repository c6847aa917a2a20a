"""Dataset of words with tags: files with columns, as in CoNLL's shared tasks, or lines of Python's standard library."""

from __future__ import annotations

import logging
import re
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Optional, Sequence, Tuple, Union

import numpy as np
import pydantic

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import DataLocation, Findings, NoUsableSamples, call_or_report
from mxtrain.data.loading.dataset_files import exists, files_in, list_first, read_text, refuse_shared
from mxtrain.data.loading.described_paths import with_current_folder
from mxtrain.data.loading.file_patterns import files_in_root
from mxtrain.data.loading.input_files import read_each
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.recognition import Certainty, FileTree, Recognised, Setting
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.data.table.columns import require_same_columns
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.bundled import read_bundled
from mxtrain.files.text_lines import split_lines, split_words
from mxtrain.text.base import TextDataset, lines_from
from mxtrain.text.kinds import Texts, TokenTags
from mxtrain.text.signature import TextSignature, TextSplits
from mxtrain.text.text_files import name_of
from mxtrain.text.token_classification.conll_file import (
    ENDLESS_SENTENCE,
    ColumnLayout,
    TaggedWords,
    endless_sentence,
    read_conll,
)
from mxtrain.text.token_classification.tag_scheme import TAG_ORDER, unify_scheme
from mxtrain.text.token_classification.tagged import TaggedSentences
from mxtrain.text.token_classification.tagged_rows import (
    ListColumns,
    choose_columns,
    has_lists,
    has_rows,
    read_tagged_rows,
    tag_columns,
)
from mxtrain.text.token_classification.tags import EQUIVALENTS
from mxtrain.types import FilesInRoot, OpenFraction, PathText
from mxtrain.types.kinds import Gives

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import LoaderOptions

log = logging.getLogger(__name__)

_LIKE_ENTITY = re.compile(r"[bi][-_].+|[BI]_.+|.+[-_][BIbi]")
"""Tags of entities in unsupported notations: b-per, B_PER, PER-B."""
_TAG = re.compile(r"O|[BIESLUM]-[\w:-]+|[A-Z]{1,5}[$]?")
"""Tag of an entity or of a part of speech, by which `data guess` recognises the files."""
MIN_ROWS = 3
"""Smallest number of lines by which a file to predict for is recognised as one with columns."""
COLUMNS = (".conll", ".iob", ".iob2", ".bio", ".bioes", ".conllu", ".conllup")
"""Extensions of files to predict for with one word per line; in other files, each line is a sentence."""


class Conll(TextDataset):
    """Sentences with a tag for each word: from files with columns, or the lines of Python's standard library."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        names = [name for name in files.find(".txt", *COLUMNS) if _has_tags(files.lines(name, 30))]
        form = "words with tags in columns (CoNLL)"
        asks: Tuple[str, ...] = ()
        if not names:
            names = [name for name in files.find(".jsonl", ".parquet") if has_lists(files.columns(name))]
            form = "lists of words with lists of tags"
            if names and len(tag_columns(files.columns(names[0]))) > 1:
                asks = ("dataset.tag=COLUMN",)
        splits = files.by_split(names, shards=True)
        if not splits:
            return None
        settings: Dict[str, Setting] = {"root": files.folder, **splits}
        for split in ("val", "test"):
            settings.setdefault(split, "null")
        return Recognised(form, settings, "token_classification", Certainty.LIKELY, asks)

    @property
    def folds_by(self) -> Literal["", "samples", "columns"]:  # type: ignore[override]  # a class variable in others
        """See `BaseDataset.folds_by`: generated sentences are not divided."""
        return "samples" if self.root is not None else ""

    gives: ClassVar[Gives] = Gives(Texts, TokenTags)
    data_checks: ClassVar[DataChecks] = TextDataset.data_checks.with_kinds(TAG_ORDER, ENDLESS_SENTENCE)

    root: Optional[PathText] = None
    """Folder of the files; null = the current folder if a file is named, otherwise lines of Python's standard library,
    tagged with the kind of each name."""
    train: FilesInRoot = "train.txt"
    """File of training sentences, in root; or a list of files or a pattern (train-*.parquet), which are one split."""
    val: Optional[FilesInRoot] = "valid.txt"
    """File of validation sentences, in root; null = val_fraction of the training sentences."""
    test: Optional[FilesInRoot] = "test.txt"
    """File of test sentences, in root; null = test_fraction of the training sentences."""
    word: Union[int, str] = 0
    """Column of the word, from 0; -1 is the last. In JSON lines and Parquet the name of the column with the list of
    words, by default tokens or words."""
    tag: Union[int, str] = -1
    """Column of the tag, from 0; -1 is the last. In JSON lines and Parquet the name of the column with the list of
    tags, by default the only one called tags or labels, or ending so (ner_tags)."""
    comment: str = ""
    """Prefix of comment lines, which are skipped, e.g. "# "; empty: none, except "#" in files named .conllu."""
    scheme: Literal["auto", "bio", "iob1", "ioe1", "ioe2", "bioes", "brackets", "plain"] = "auto"
    """Scheme of the tags: bio, bioes (also BILOU and BMES), iob1, ioe1, ioe2 or brackets of CoNLL 2012 (converted to
    bio), or plain (each tag is a class, e.g. a part of speech); auto = the scheme of the training tags."""
    repair_tags: bool = False
    """Correct impossible sequences of tags as conlleval does, e.g. an I-X that begins an entity to B-X; false = such
    tags are errors."""
    lowercase: bool = False
    val_fraction: OpenFraction = 0.1
    """Share of the training sentences (of Python's files) held out for validation where there is no file of them."""
    test_fraction: OpenFraction = 0.1
    """Share of the training sentences (of Python's files) held out for testing where there is no file of them."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _take_files_without_root(cls, values: Any) -> Any:
        return with_current_folder(cls.model_fields, values)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.require_libraries()
        name, splits = self._of_python() if self.root is None else self._of_files(self.root, findings)
        has_val = "val" in splits
        if self.division.own_validation(splits.get("val")) is None:
            splits.pop("val", None)
        # Tags are collected before sentences are held out, so that all folds have the same classes.
        train, scheme = unify_scheme(splits["train"], self.scheme, self.repair_tags, findings)
        if self.scheme == "auto" and scheme not in ("bio", "plain"):
            written = "" if scheme == "bioes" else " and converted to bio"
            log.info("%s: the tags are read as dataset.scheme=%s%s.", name, scheme, written)
        names = sorted({tag for tags in train.tags for tag in tags}, key=lambda tag: (tag != "O", tag))
        if not names:
            raise DataError(f"{name}: there is no sentence with tags in it.")
        like_entities = next(filter(_LIKE_ENTITY.fullmatch, names), None)
        if scheme == "plain" and self.scheme == "auto" and "O" in names and like_entities:
            log.warning(
                "%s: tags such as '%s' are read as names of their own. Tags of entities are written as B-PER "
                "and I-PER: write them so to measure entities.",
                name,
                like_entities,
            )
        if len(names) < 2:
            raise DataError(f"{name} has no other tag than '{names[0]}' in its training sentences.")
        others = {
            split: unify_scheme(words, scheme, self.repair_tags, findings, names)[0]
            for split, words in splits.items()
            if split != "train"
        }
        val, test = others.get("val"), others.get("test")
        if self.root is not None:
            parts = self.division.divide(np.zeros(len(train), np.int32), has_val, test is not None)
            held_out = [train.take(part.tolist()) for part in parts]
            train, val, test = held_out[0], val or held_out[1], test or held_out[2]
        refuse_empty(name, len(train), 0 if val is None else len(val), self.val_fraction)
        assert val is not None
        train_sentences = TaggedSentences(train, names)
        return TextSplits(
            train_sentences,
            TaggedSentences(val, names),
            TaggedSentences(test, names) if test is not None and len(test) else None,
            class_names=names,
            build_tokenizer_config=lambda: self.tokenizer_config(train_sentences.training_texts()),
        )

    def remark(self, signature: Signature, splits: Splits) -> str:
        """See `BaseDataset.remark`."""
        sources: List[Any] = [source for source in (splits.train, splits.val, splits.test) if source is not None]
        endless = [problem.sentence for source in sources for problem in endless_sentence(source.words)]
        return "\n".join([super().remark(signature, splits), *endless])

    def _of_python(self) -> Tuple[str, Dict[str, TaggedWords]]:
        """Returns the lines of Python's standard library by split; all lines of a file are in one split."""
        parts = [TaggedWords() for _ in range(3)]
        for file, lines in python_lines():
            share = part_of(file, self.split_seed)
            number = 1 if share < self.val_fraction else 2 if share < self.val_fraction + self.test_fraction else 0
            parts[number].sentences += lines.sentences
            parts[number].tags += lines.tags
        return "Python's standard library", dict(zip(("train", "val", "test"), parts))

    def _of_files(self, root: str, findings: Findings) -> Tuple[str, Dict[str, TaggedWords]]:
        """Returns a name for messages, and the sentences of each file by split."""
        files = files_in_root(root, {"train": self.train, "val": self.val, "test": self.test})
        for name, paths in files.items():
            for path in map(Path, paths):
                if not exists(path):
                    raise DataError(_missing(name, path))
        refuse_shared(files, findings)
        splits = {
            name: call_or_report(findings, DataLocation(paths[0]), partial(self._read_files, paths, findings))
            for name, paths in files.items()
        }
        readable = {name: words for name, words in splits.items() if words is not None}
        if len(readable) < len(splits):
            raise NoUsableSamples(f"{root}: a file cannot be read.")
        return name_of(files["train"]), readable

    def _read_files(self, paths: Sequence[str], findings: Findings) -> TaggedWords:
        words = TaggedWords()
        if not any(map(has_rows, paths)):
            layout = ColumnLayout(self._number("word"), self._number("tag"), self.comment)
            for path in paths:
                words.add(read_conll(path, layout, findings))
            return words
        require_same_columns(paths)
        # Columns with usual names are those of the first file.
        columns = choose_columns(paths[0], ListColumns(self.word, self.tag))
        for path in paths:
            words.add(read_tagged_rows(path, columns, findings))
        return words

    def _number(self, setting: str) -> int:
        column = getattr(self, setting)
        if isinstance(column, str):
            raise DataError(
                f"dataset.{setting}={column}: columns of text files have numbers, from 0, or -1 for the last; names "
                "are for .jsonl and .parquet."
            )
        return int(column)

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: TaggedSentences, signature: Signature, options: LoaderOptions
    ) -> Any:
        from mxtrain.text.token_classification.tagged import TagLoader

        config = TextSignature.cast(signature).tokenizer_config
        return TagLoader(source, config, options, self.batches_per_pool)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens the sentences of files, one per line with white space between words, in columns, or as rows of JSON
        lines and Parquet; a source location is `file:line`."""
        words, locations = TaggedWords(), []
        read = partial(self._read_words, class_names=signature.class_names)
        for name, file_words in read_each(names, read, skip_unreadable, unreadable):
            words.sentences += file_words.sentences
            locations += [f"{name}:{lines[0]}" for lines in file_words.lines]
        return TaggedSentences(words, signature.class_names), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns sentences, in memory: strings of one line with white space between words."""
        sentences = [split_words(line) for line in lines_from(value)]
        return TaggedSentences(TaggedWords(sentences), signature.class_names)

    def _read_words(self, name: str, class_names: Sequence[str]) -> TaggedWords:
        if has_rows(name):
            words = read_tagged_rows(name, ListColumns(self.word, None))
        elif name.endswith(COLUMNS):
            words = read_conll(name, ColumnLayout(max(self._number("word"), 0), None, self.comment))
        else:
            words = TaggedWords()
            for number, line in enumerate(split_lines(read_text(name)), start=1):
                row = split_words(line)
                if row:
                    words.sentences.append(row)
                    words.lines.append([number])
            _refuse_columns(name, words.sentences, class_names)
        if not len(words):
            raise DataError(f"{name}: there are no words.")
        return words


def _refuse_columns(name: str, lines: Sequence[Sequence[str]], class_names: Sequence[str]) -> None:
    """Raises a `DataError` if lines with a sentence each seem to be words with tags in columns."""
    if len(lines) < MIN_ROWS or len({len(row) for row in lines}) > 1 or len(lines[0]) < 2:
        return
    tags = (row[-1] for row in lines)
    # The file may have the letters of BMES or BILOU, and the classes those of BIOES.
    if all(tag in class_names or EQUIVALENTS.get(tag[:1], tag[:1]) + tag[1:] in class_names for tag in tags):
        raise DataError(
            f"{name}: each line ends with a tag, such as '{lines[0][-1]:.40}', so it seems to hold a word per line in "
            f"columns. Call it {Path(name).with_suffix('.conll').name} to tag its words. In files with other "
            "extensions, each line is a sentence."
        )


def _missing(name: str, path: Path) -> str:
    """Returns the message for a missing file, which names the setting to type."""
    files = files_in(path.parent)
    if not files:
        return f"'{path.parent}' is no folder with files. Name the folder of {path.name} by dataset.root=FOLDER."
    hint = did_you_mean(path.name, files)
    or_none = "" if name == "train" else f", or dataset.{name}=null for a share of the training sentences"
    return (
        f"{path.parent} has no {path.name}. {hint} Name the file by dataset.{name}=NAME{or_none}. There: "
        f"{list_first(files)}."
    ).replace("  ", " ")


def _has_tags(lines: Sequence[str]) -> bool:
    """Returns True if the first lines of a file are words with tags, such as `London NNP B-LOC`."""
    rows = [split_words(line) for line in lines[:-1] if not line.startswith(("#", "-DOCSTART-"))]
    widths = {len(row) for row in rows}
    return len(widths) == 1 and min(widths) > 1 and all(_TAG.fullmatch(row[-1]) for row in rows)


def python_lines() -> List[Tuple[str, TaggedWords]]:
    """Returns the words and tags of lines of Python's standard library, the default data, by file.

    Tags are in BIO: FUNC and CLASS where one is defined, PARAM of parameters and of arguments by name, CALL of callees,
    ATTR, MODULE (with its dots), VAR; the syntax tree of the file says which. Lines are logical ones of 3 to 60 words,
    from `*.py` in the top folder of CPython 3.11.7, without lines that differ from an earlier one in numbers only.
    Strings are replaced by `""`.
    """
    content = read_bundled("text/corpora/python_words.json.gz")
    tag_of = content["tags"]
    files = []
    for file, lines in content["files"].items():
        words = [words.split(" ") for words, _ in lines]
        files.append((file, TaggedWords(words, [[tag_of[tag] for tag in tags] for _, tags in lines])))
    return files


def part_of(name: str, seed: int) -> float:
    """Returns a number from 0 to 1 for a file, by which it goes to a split."""
    return zlib.crc32(f"{seed}:{name}".encode()) / 2**32
