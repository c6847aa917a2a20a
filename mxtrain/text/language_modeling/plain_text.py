"""Running text for language modeling: text files, the files of WikiText and PTB, or Python's own documentation, which
needs no files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Literal, Optional, Sequence, Tuple, Type, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import refuse_shared
from mxtrain.data.loading.randomness import Draw, bits
from mxtrain.data.loading.splitting import count_held_out, refuse_empty
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.text import python_documentation
from mxtrain.text.base import TextDataset, lines_from, open_lines
from mxtrain.text.kinds import NextTokens, Texts
from mxtrain.text.language_modeling.running_text import (
    InMemoryTexts,
    StoredText,
    TextLayout,
    read_running_text,
    texts_by_split,
)
from mxtrain.text.signature import TextSignature, TextSplits
from mxtrain.text.text_files import list_text_files
from mxtrain.text.tokenizing.kinds import TokenizerKind
from mxtrain.types import BatchSize, Files, OpenFraction, Positive
from mxtrain.types.kinds import Gives, TargetKind

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

TEXT_ENDINGS = (".txt", ".txt.gz", ".tokens", ".tokens.gz")
"""Extensions of the files that are read from a folder; WikiText's end in .tokens."""
AnyText = Union[InMemoryTexts, StoredText]


class PlainText(TextDataset):
    """Running text, cut into windows of `max_length` tokens."""

    gives: ClassVar[Gives] = Gives(Texts, NextTokens)

    train: Files = None
    """Text files, JSON lines or Parquet with a document per row, or folders of .txt and .tokens files, one or a list,
    or a pattern (train-*.parquet); null = the docstrings and help topics of Python itself, divided by source file."""
    val: Files = None
    """The same for validation; null = the last val_fraction of the training text."""
    test: Files = None
    """The same for testing; null = the last test_fraction of the training text."""
    column: str = "text"
    """Column of the text in JSON lines and Parquet."""
    rows: Literal["auto", "go_on", "shuffled"] = "auto"
    """Layout of batches: go_on = one stream of text per row, continued from batch to batch; shuffled = windows in
    random order; auto = go_on for networks with a recurrent state, otherwise shuffled."""
    keep_empty_lines: bool = False
    """With tokenizer=words, where each line ends in <eos>: true = empty lines are tokens <eos>, too; false = they are
    skipped."""
    tokenizer: TokenizerKind = "bpe"
    """Kind of a trained vocabulary: bpe (byte-level), wordpiece, unigram, sentencepiece_bpe, words (each line ends in
    <eos>) or characters; auto = wordpiece, or what `vocab` is."""
    vocab_size: Annotated[int, pydantic.Field(ge=100)] = 1000
    lowercase: bool = False
    largest_batch: ClassVar[int] = 16
    batch_size: BatchSize = "auto"
    """Rows per optimizer step, over all devices and workers together; auto = 16, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 16
    """Rows per batch of an evaluation."""
    val_fraction: OpenFraction = 0.08
    """Share of the training text held out for validation where there are no files of it."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        texts = files.find(".txt", ".tokens", ".md")
        settings = files.typed_splits(texts)
        if not settings or len(texts) < len(files.names) or len(files.text(texts[0])) < 1000:
            return None
        return Recognised("running text", settings, "language_modeling", Certainty.MAY_BE, is_quick=False)

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> PlainText:
        if self.train is None and (self.val or self.test):
            raise ValueError("val and test need train: the files of the training text")
        if self.keep_empty_lines and self.tokenizer != "words":
            raise ValueError(
                "keep_empty_lines=true is for tokenizer=words, where each line ends in <eos>; with other tokenizers "
                "the text is kept as it is"
            )
        return self

    @property
    def layout(self) -> TextLayout:
        """Returns the unit that `<eos>` ends: with words each line, as in WikiText and PTB, otherwise each document."""
        return TextLayout(self.tokenizer == "words", self.keep_empty_lines)

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> PlainText:
        """See `BaseDataset.for_run`. Resolves rows=auto."""
        if model is None:
            return self
        carries = bool(model.state_shapes)
        if self.rows == "shuffled" and carries:
            raise ConfigError(
                "dataset.rows=shuffled: this model carries its state from batch to batch, so each row must go on. "
                "Leave dataset.rows out."
            )
        continues_previous = carries if self.rows == "auto" else self.rows == "go_on"
        return self.model_copy(update={"rows": "go_on" if continues_previous else "shuffled"})

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.require_libraries()
        parts = self._documentation() if self.train is None else self._files(findings)
        name = "Python's documentation" if self.train is None else f"dataset.train={self.train}"
        refuse_empty(name, len(parts[0]), len(parts[1]), self.val_fraction)
        return TextSplits(
            parts[0],
            parts[1],
            parts[2] if len(parts[2]) else None,
            class_names=[],
            build_tokenizer_config=lambda: self.tokenizer_config(parts[0].training_texts()),
        )

    def _documentation(self) -> Sequence[AnyText]:
        documents = python_documentation.documents()
        order = np.argsort(bits(self.split_seed, 0, np.arange(len(documents)), Draw.SPLIT), kind="stable")
        num_val, num_test = count_held_out(len(documents), self.val_fraction, self.test_fraction, len(documents) - 1)
        part_D = np.zeros(len(documents), np.int8)
        part_D[order[:num_val]] = 1
        part_D[order[num_val : num_val + num_test]] = 2
        return texts_by_split(documents, part_D.tolist())

    def _files(self, findings: Findings) -> Sequence[AnyText]:
        """Returns the training, validation and test text; splits without files are taken from the end of the training
        text."""
        settings = {"train": self.train, "val": self.val, "test": self.test}
        files = {
            name: list_text_files(paths, TEXT_ENDINGS, findings)
            for name, paths in settings.items()
            if paths is not None
        }
        for name in [name for name, paths in files.items() if not paths]:
            raise DataError(f"dataset.{name}={settings[name]}: there is no file of {' or '.join(TEXT_ENDINGS)} in it.")
        refuse_shared(files, findings)
        read = partial(read_running_text, layout=self.layout, findings=findings, column=self.column)
        texts = {name: read(paths) for name, paths in files.items()}
        train = texts["train"]
        shares = (0.0 if "val" in texts else self.val_fraction, 0.0 if "test" in texts else self.test_fraction)
        num_val, num_test = count_held_out(len(train), *shares, len(train) - 1)
        if "val" not in texts and not num_val:
            instead = " or type dataset.val_fraction=0.1," if not self.val_fraction and len(train) > 1 else ""
            raise DataError(
                f"dataset.train={self.train} is too short to hold out dataset.val_fraction={self.val_fraction:g}: it "
                f"is only divided at the ends of lines. Give it more lines,{instead} or give a text for validation by "
                "dataset.val=FILE."
            )
        end = len(train) - num_test
        val, test = texts.get("val", train.part(end - num_val, end)), texts.get("test", train.part(end, len(train)))
        return [train.part(0, end - num_val), val, test]

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Returns a signature with the inputs tokens, next tokens, and the recurrent state of the network."""
        config = TextSplits.cast(splits).build_tokenizer_config()
        config.tokenizer.require("eos", "language modeling")
        tokens = (config.max_length,)
        return TextSignature((tokens, tokens, *model.state_shapes), tokenizer_config=config)

    def remark(self, signature: Signature, splits: Splits) -> str:
        return f"windows of {self.max_length} tokens, of a vocabulary of {TextSignature.cast(signature).vocab_size}"

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: AnyText, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        from mxtrain.text.language_modeling.running_loader import PromptLoader, RunningLoader

        config = TextSignature.cast(signature).tokenizer_config
        if options.in_order:  # each sample by itself
            return PromptLoader(source.prompts(config), options, length=config.max_length)
        text = source.encode(config)
        return RunningLoader(text, options, length=config.max_length, continues_previous=self.rows == "go_on")

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens the lines of the files as prompts; a source location is `file:line`."""
        texts, locations = open_lines(names, skip_unreadable, unreadable)
        return InMemoryTexts(texts), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns prompts, in memory: strings of one line."""
        return InMemoryTexts(lines_from(value))
