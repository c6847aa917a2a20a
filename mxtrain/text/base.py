"""Base class of text datasets: vocabulary, sequence lengths, batches, and splits of labelled texts."""

from __future__ import annotations

import logging
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Collection,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
)

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import STRICT, UNKNOWN_CLASS, DataLocation, Findings, Problem, call_or_report
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.dataset_files import read_text
from mxtrain.data.loading.input_files import read_each
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.predict_inputs import as_list, rows_from, undecodable_input
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.data.table.cells import MISSING_CELLS, spelled_alike
from mxtrain.data.table.columns import TABLES, given_rows, stream_rows
from mxtrain.data.table.copied_cells import copied_cells
from mxtrain.data.table.text_rows import Column
from mxtrain.errors import CheckpointError, ConfigError, DataError, did_you_mean, run_dir_setting
from mxtrain.text.kinds import Texts
from mxtrain.text.number_texts import fold_groups
from mxtrain.text.signature import TextSignature, TextSplits
from mxtrain.text.sources import LabelledTexts, Pair, TextSource
from mxtrain.text.text_checks import LostTextChecks
from mxtrain.text.text_files import AnyTexts, TextTable
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.kinds import (
    WITH_DIGITS,
    TokenizerKind,
    TokenizerSettings,
    TrainingTexts,
    build_tokenizer,
    read_tokenizer,
    require_kind,
)
from mxtrain.text.tokenizing.library import MIN_BPE
from mxtrain.types import BatchSize, OpenFraction, PathText, Positive
from mxtrain.types.kinds import ClassIndex, Gives

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.model.spec import Model

SHOWN_CLASSES = 12
ONE_LINE_TEXTS = "strings of one line, and paths (pathlib.Path)"
ROWS_OF_TEXTS = "strings of one line, dicts from column to value, and paths (pathlib.Path)"
log = logging.getLogger(__name__)


def _check_vocabularies(dataset: TextDataset, checks: Mapping[str, Checks], findings: Findings) -> Mapping[str, Checks]:
    """Adds checks that given vocabularies can represent all characters."""
    tokenizers = []
    for settings in dataset.vocabularies:
        if settings.vocab is None:
            return checks
        location, read = DataLocation(settings.vocab), partial(read_tokenizer, settings, settings.vocab)
        tokenizer = call_or_report(findings, location, read)
        if tokenizer is None:
            return checks
        tokenizers.append((tokenizer, settings.vocab))
    if not any(tokenizer.lost_bytes for tokenizer, _ in tokenizers):
        return checks
    return {split: LostTextChecks(split_checks, tokenizers) for split, split_checks in checks.items()}


class TextDataset(BaseDataset):
    """Base class of text datasets."""

    signature_class: ClassVar[Type[Signature]] = TextSignature
    gives: ClassVar[Gives] = Gives(Texts, ClassIndex)
    data_checks: ClassVar[DataChecks] = DataChecks(extend=_check_vocabularies)

    has_text_columns: ClassVar[bool] = False
    """True if `predict` reads texts from the columns of a table that `text_columns` names."""
    table_form: ClassVar[Optional[str]] = None
    """Extension by which tables are read instead of their own; see `stream_rows`."""

    largest_batch: ClassVar[int] = 32
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 32, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 64
    val_fraction: OpenFraction = 0.15
    tokenizer: TokenizerKind = "auto"
    """Kind of a trained vocabulary: wordpiece, bpe (byte-level), unigram or sentencepiece_bpe (sentencepiece's), words
    (between white space) or characters; auto = wordpiece, or the kind of the file in vocab."""
    vocab: Optional[PathText] = None
    """File of the vocabulary: BERT's vocab.txt, GluonNLP's JSON, a tokenizer.json, or a .model of sentencepiece; null =
    one trained from the training texts."""
    vocab_size: Annotated[int, pydantic.Field(ge=100)] = 4000
    """Maximum size of a trained vocabulary."""
    lowercase: bool = True
    """Lowercase texts and remove accents; for a given vocab.txt, as when it was made. A tokenizer.json and a .model of
    sentencepiece contain this setting."""
    individual_digits: bool = False
    """Make each digit a token, in a trained vocabulary of tokenizer=bpe, unigram or sentencepiece_bpe."""
    max_length: Annotated[int, pydantic.Field(ge=8)] = 64
    """Maximum number of tokens of a sample, including special tokens; longer texts are cut."""
    batches_per_pool: Positive = 16
    """Number of batches whose samples are sorted by length together in training, to reduce padding; 1 = no sorting."""

    @pydantic.model_validator(mode="after")
    def _check_tokenizer(self) -> TextDataset:
        if self.individual_digits and (self.vocab or self.tokenizer not in WITH_DIGITS):
            raise ValueError(
                "individual_digits=true is for a vocabulary that is trained with tokenizer=bpe, unigram or "
                "sentencepiece_bpe; leave it out, or choose one of these with vocab=null"
            )
        if self.vocab and self.tokenizer == "characters":
            raise ValueError("tokenizer=characters takes its characters from the training texts: type vocab=null")
        if self.tokenizer == "bpe" and not self.vocab and self.vocab_size < MIN_BPE:
            raise ValueError(
                f"vocab_size={self.vocab_size} with tokenizer=bpe: 256 bytes and the special tokens need {MIN_BPE}"
            )
        return self

    @property
    def tokenizer_settings(self) -> TokenizerSettings:
        """Returns the tokenizer settings of the description."""
        return TokenizerSettings(self.tokenizer, self.vocab, self.vocab_size, self.lowercase, self.individual_digits)

    def require_libraries(self) -> None:
        """Raises a `DataError` if the library of the tokenizer is not installed."""
        require_kind(self.tokenizer_settings)

    def tokenizer_config(self, texts: TrainingTexts, mask_fraction: float = 0.0) -> TokenizerConfig:
        """Builds the tokenizer with the vocabulary of the given file, or with one that is trained on `texts`.

        Args:
            texts: training texts.
            mask_fraction: fraction of tokens that masked language modeling masks; 0 for other tasks.

        Raises:
            DataError: the file is no vocabulary, or has no mask token although one is needed.
        """
        tokenizer = build_tokenizer(self.tokenizer_settings, texts)
        if mask_fraction:
            tokenizer.require("mask", "masked language modeling")
        return TokenizerConfig(tokenizer, self.max_length, mask_fraction)

    @property
    def vocabularies(self) -> List[TokenizerSettings]:
        """Returns the tokenizer settings of each text of a sample; the last also apply to all further texts."""
        return [self.tokenizer_settings]

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Returns a signature with the inputs tokens, token types, valid length, and masked positions if there are
        any."""
        tokenizer_config = TextSplits.cast(splits).build_tokenizer_config()
        tokens = (tokenizer_config.max_length,)
        shape = (tokens, tokens, (), *([(tokenizer_config.num_masked,)] if tokenizer_config.mask_fraction else []))
        return TextSignature(shape, class_names=list(splits.class_names), tokenizer_config=tokenizer_config)

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """See `BaseDataset.restored`: tokenizer settings are those of the checkpoint and cannot be overridden."""
        for name in TextSignature.held_settings:
            if f"dataset.{name}" in overrides:
                raise ConfigError(
                    f"dataset.{name}: how texts become tokens is part of what was trained, and {source} holds it. "
                    "Leave it out."
                )
        return super().restored(signature, overrides, source)

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        """See `BaseDataset.check_compatible`: the vocabulary must be the same, since embeddings belong to tokens."""
        if TextSignature.cast(before).tokenizer_config != TextSignature.cast(signature).tokenizer_config:
            raise CheckpointError(
                f"{source} was made with another vocabulary: the training texts or the tokenizer's settings or version "
                "have changed. Give the same texts, or a file by dataset.vocab=PATH, or choose another "
                f"{run_dir_setting()}."
            )

    def remark(self, signature: Signature, splits: Splits) -> str:
        signature = TextSignature.cast(signature)
        return (
            f"texts of up to {signature.tokenizer_config.max_length} tokens, of a vocabulary of {signature.vocab_size}"
        )

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: TextSource, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        from mxtrain.text.loader import TextLoader

        config = TextSignature.cast(signature).tokenizer_config
        return TextLoader(source, config, options, self.batches_per_pool)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens all texts of the files; a source location is `file:line`."""
        self.text_columns()  # raises for a run without classes, even if a file is missing
        pairs, locations = [], []
        for name, rows in read_each(names, self.read_unlabelled, skip_unreadable, unreadable):
            for line, pair in rows:
                pairs.append(pair)
                locations.append(f"{name}:{line}")
        return LabelledTexts(pairs), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns texts in memory to predict for: strings of one line, dicts from column to value, or a data frame of
        pandas. A pair of texts is one string with a tab between them."""
        return LabelledTexts(self.pairs_from(value))

    def pairs_from(self, value: Any) -> List[Pair]:
        """Returns the texts of `samples_from`."""
        columns, header = self.text_columns()
        is_row = hasattr(value, "to_dict") or isinstance(as_list(value)[0], Mapping)
        if header and is_row:
            return [_pair(row) for _, row in given_rows(rows_from(value, ROWS_OF_TEXTS), columns)]
        rows = [tuple(line.split("\t")) if len(columns) > 1 else (line,) for line in lines_from(value)]
        for number, row in enumerate(rows):
            if len(row) < len(columns):
                raise DataError(f"predict: input {number}: there must be {len(columns)} texts, a tab between two.")
        return [_pair(row[: len(columns)]) for row in rows]

    def copied_cells(
        self, names: Sequence[str], columns: Optional[Sequence[str]], signature: Signature
    ) -> Mapping[str, Mapping[str, str]]:
        if not self.has_text_columns:
            return super().copied_cells(names, columns, signature)
        read, header = self.text_columns()
        return copied_cells(names, columns, [str(name) for name in read]) if header or columns else {}

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: the columns of tables, whose names are empty if there is no header."""
        named: List[str] = []
        if self.has_text_columns:
            columns, header = self.text_columns()
            named = [str(column) if header else "" for column in columns]
        return super().exported(signature).with_facts({"columns": named})

    def text_columns(self) -> Tuple[List[Column], bool]:
        """Returns the columns of the texts in a table, and True if the table has a header.

        Raises:
            DataError: the texts of this dataset have no classes.
        """
        raise DataError("predict names the classes of texts, and this run was trained to find hidden tokens.")

    def read_unlabelled(self, path: str) -> List[Tuple[int, Pair]]:
        """Reads the texts of a file, each with the number of its last line.

        A table is read by the dataset's columns. Another file has one text per line, or two that a tab separates.

        Raises:
            DataError: the file cannot be read, or has no pairs although the network classifies pairs.
        """
        columns, header = self.text_columns()
        if ending_of(path) in TABLES:
            rows = list(stream_rows(path, columns, header))
        else:
            # Not splitlines, which also cuts at U+2028, form feeds and other characters inside of texts.
            lines = [line.rstrip("\r") for line in read_text(path).split("\n")]
            rows = [
                (number, tuple(line.split("\t")) if len(columns) > 1 else (line,))
                for number, line in enumerate(lines, start=1)
                if line.strip()
            ]
        if not rows:
            raise DataError(f"{path}: there is no text.")
        for number, row in rows:
            if len(row) < len(columns):
                raise DataError(f"{path}, line {number}: there must be {len(columns)} texts, a tab between two.")
        return [(number, _pair(row[: len(columns)])) for number, row in rows]

    def _labelled_splits(
        self,
        name: str,
        train: TextTable,
        val: Optional[TextTable],
        test: Optional[TextTable],
        classes: Sequence[str] = (),
        findings: Findings = STRICT,
    ) -> Splits:
        """Builds the splits of texts and their classes.

        Args:
            name: name of the data, for messages.
            train: training texts, from which missing splits are held out.
            val, test: texts of the other splits; None if there is no such file.
            classes: class names in order; by default those of the training rows, sorted.
            findings: collects rows of unknown classes.
        """
        self.require_libraries()
        names = list(classes) or sorted(train.names)
        if len(names) < 2:
            available = f"only the class '{names[0]}'" if names else "no class"
            raise DataError(f"{name} has {available} in its training rows, and at least 2 classes are needed to learn.")
        if not classes:
            _warn_about_classes(name, train)
        row_N, label_N = _labels(train, names, name, findings)
        groups = fold_groups(self, train.locations and train.locations.take(row_N))
        parts = self.division.divide(label_N, val is not None, test is not None, groups)
        val = self.division.own_validation(val)
        refuse_empty(name, len(parts[0]), len(val) if val is not None else len(parts[1]), self.val_fraction)

        def build_split(table: Optional[TextTable], index: np.ndarray) -> Optional[AnyTexts]:
            """Returns the rows of a split's own table or, if it has none, the training rows with these indices."""
            if table is not None:
                table_row_N, table_label_N = _labels(table, names, name, findings)
                return table.build(table_label_N, table_row_N)
            return train.build(label_N[index], row_N[index]) if len(index) else None

        train_texts, val_texts = build_split(None, parts[0]), build_split(val, parts[1])
        assert train_texts is not None and val_texts is not None
        return TextSplits(
            train_texts,
            val_texts,
            build_split(test, parts[2]),
            names,
            build_tokenizer_config=lambda: self.tokenizer_config(train_texts.training_texts()),
        )


def _pair(row: Sequence[str]) -> Pair:
    return row[0], row[1] if len(row) > 1 else None


def lines_from(value: Any) -> List[str]:
    """Returns the texts that Python code gives to predict for, one string or several.

    Raises:
        ConfigError: another object was given, or a text is empty, has several lines, or is no valid Unicode.
    """
    lines = []
    for number, text in enumerate(as_list(value)):
        if not isinstance(text, str):
            raise undecodable_input(number, text, ONE_LINE_TEXTS)
        text = text.lstrip("\ufeff")  # a reader of files removes it as a byte order mark
        if not text.strip() or "\n" in text or "\r" in text:
            fault = "a text of several lines" if text.strip() else "empty"
            raise ConfigError(f"predict: input {number} is {fault}. Give one line of text for each input.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(f"predict: input {number} is no valid Unicode: {error.reason}.") from None
        lines.append(text)
    return lines


def open_lines(
    names: Sequence[str], skip_unreadable: bool, unreadable: Dict[int, str], keep_empty: bool = False
) -> Tuple[List[str], List[str]]:
    """Returns the lines of text files, and their source locations, `file:line`; see `BaseDataset.open_inputs`."""
    texts, locations = [], []
    for name, content in read_each(names, read_text, skip_unreadable, unreadable):
        lines = content.split("\n")
        lines = lines[:-1] if not lines[-1] else lines
        numbered = [(line, number) for number, line in enumerate(lines, start=1) if keep_empty or line.strip()]
        texts += [line.rstrip("\r") for line, _ in numbered]
        locations += [f"{name}:{number}" for _, number in numbered]
    return texts, locations


def _warn_about_classes(name: str, table: TextTable) -> None:
    """Warns about suspicious class names.

    These are names that differ only in case, spaces or Unicode normalisation, and names that usually mean a missing
    value.
    """
    for names in spelled_alike(table.names):
        log.warning(
            "%s: the labels %s differ in case, spaces, the encoding of accents or the digits of a number alone, and "
            "are read as %d classes. If they are one, write them alike.",
            name,
            " and ".join(map(repr, names[:4])),
            len(names),
        )
    count_K = np.bincount(table.name_N, minlength=len(table.names))
    for label, count in zip(table.names, count_K.tolist()):
        if label in MISSING_CELLS:
            log.warning(
                "%s: the label '%s' of %d rows is read as a class of its own. If it means that the label is "
                "missing, remove these rows.",
                name,
                label,
                count,
            )


def _labels(table: TextTable, names: Sequence[str], name: str, findings: Findings) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the indices of the rows of known classes, and their class numbers."""
    number = {class_name: index for index, class_name in enumerate(names)}
    label_K = np.array([number.get(class_name, -1) for class_name in table.names], np.int32)
    label_N = label_K[table.name_N]
    class_list = ", ".join(names[:SHOWN_CLASSES]) + (", ..." if len(names) > SHOWN_CLASSES else "")
    for index in np.flatnonzero(label_N < 0).tolist():
        label = table.names[table.name_N[index]]
        location = DataLocation(name, record=index) if table.locations is None else table.locations[index]
        remedy = f"{did_you_mean(label, names)} Classes: {class_list}.".lstrip()
        sentence = f"{name}: a row has the label '{label}'. {remedy}"
        findings.refuse(
            Problem(UNKNOWN_CLASS, location, f"{location} has the label '{label}'.", remedy), sentence=sentence
        )
    known_rows = np.flatnonzero(label_N >= 0)
    return known_rows, label_N[known_rows]
