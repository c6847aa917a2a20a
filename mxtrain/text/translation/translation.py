"""Base of datasets of translations: vocabularies, batches of as many tokens, and texts to translate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.data.writing import language_without_spaces
from mxtrain.errors import CheckpointError, run_dir_setting
from mxtrain.text.base import TextDataset, lines_from, open_lines
from mxtrain.text.kinds import Texts
from mxtrain.text.signature import TextSplits
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.kinds import (
    TokenizerKind,
    TokenizerSettings,
    build_tokenizer,
    train_tokenizer,
)
from mxtrain.text.translation.parallel import (
    SOURCE,
    TARGET,
    AnyPairs,
    InMemoryPairs,
    LengthLimit,
    Tokenizers,
    both_sides,
)
from mxtrain.text.translation.signature import TranslationSignature
from mxtrain.types import PathText, Positive
from mxtrain.types.kinds import Gives, Translations

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.model.spec import Model
    from mxtrain.text.translation.parallel_loader import PairLoader


class TranslationDataset(TextDataset):
    """Base of the descriptions of pairs of a text and its translation."""

    signature_class: ClassVar[Type[Signature]] = TranslationSignature
    gives: ClassVar[Gives] = Gives(Texts, Translations)

    cuts_long: ClassVar[bool] = False
    """If true, training cuts longer texts; otherwise it leaves such pairs out, as a cut source has another
    translation."""

    joint_vocabulary: bool = True
    """If true, source and target share one vocabulary built from both; otherwise each has its own."""
    target_vocab: Optional[PathText] = None
    """File of the target's vocabulary, with joint_vocabulary=false; null = one trained from the targets."""
    batch_tokens: Optional[Positive] = None
    """Maximum number of tokens of a training batch, including padding: pairs times tokens of the longest source or
    target; null = batches of batch_size pairs."""
    tokenizer: TokenizerKind = "bpe"
    """Kind of a trained vocabulary: bpe (byte-level), unigram, sentencepiece_bpe, words or characters."""
    lowercase: bool = False

    @pydantic.model_validator(mode="after")
    def _check_tokens(self) -> TranslationDataset:
        if self.target_vocab is not None and self.joint_vocabulary:
            raise ValueError("target_vocab is for joint_vocabulary=false, where source and target have their own")
        if self.vocab is not None and self.target_vocab is None and not self.joint_vocabulary:
            raise ValueError("vocab with joint_vocabulary=false is the source's alone: give target_vocab, too")
        if self.batch_tokens is not None and self.batch_tokens < self.max_length:
            raise ValueError(
                f"batch_tokens={self.batch_tokens} has no room for a pair of max_length={self.max_length} tokens; type "
                f"batch_tokens={self.max_length} or more"
            )
        return self

    @property
    def batch_unit(self) -> Tuple[str, int]:
        """See `BaseDataset.batch_unit`."""
        return super().batch_unit if self.batch_tokens is None else ("batch_tokens", self.batch_tokens)

    @property
    def vocabularies(self) -> List[TokenizerSettings]:
        """Returns the tokenizer settings of sources and targets, or of their joint vocabulary."""
        settings = self.tokenizer_settings
        return [settings] if self.joint_vocabulary else [settings, settings._replace(vocab=self.target_vocab)]

    def tokenizers(self, train: AnyPairs, findings: Optional[Findings] = None) -> Tokenizers:
        """Returns the tokenizers of sources and targets, read from files or trained on the pairs.

        Args:
            train: training pairs.
            findings: findings of `data check`, if the tokenizers are built for it.

        Raises:
            DataError: a file is no vocabulary, or lacks special tokens.
        """
        texts = [both_sides(train)] if self.joint_vocabulary else [train.side(SOURCE), train.side(TARGET)]
        keeps = findings is None or not findings.keeps_going  # else no other object holds the texts
        tokenizers_of_sides = [
            build_tokenizer(settings, side_texts) if keeps or settings.vocab else train_tokenizer(settings, side_texts)
            for settings, side_texts in zip(self.vocabularies, texts)
        ]
        for tokenizer in tokenizers_of_sides:
            for role in ("bos", "eos"):
                tokenizer.require(role, "translation")
        return tokenizers_of_sides[0], tokenizers_of_sides[-1]

    @property
    def length_limits(self) -> Sequence[LengthLimit]:
        """Returns the limits of sources and targets."""
        remedy = "Training leaves the pair out; evaluations cut it."
        return [LengthLimit(self.max_length, "max_length", remedy)] * 2

    def configs(self, train: AnyPairs) -> List[TokenizerConfig]:
        """Returns the tokenizer settings of source and target."""
        return [
            TokenizerConfig(tokenizer, limit.max_length)
            for tokenizer, limit in zip(self.tokenizers(train), self.length_limits)
        ]

    def _splits_of(self, train: AnyPairs, val: AnyPairs, test: AnyPairs) -> TextSplits:
        """Returns splits whose vocabularies are those of the training pairs. An empty test split is left out."""
        return TextSplits(
            train,
            val,
            test if len(test) else None,
            class_names=[],
            build_tokenizer_config=lambda: self.configs(train)[0],
        )

    def _split_generated(self, pairs: Sequence[Tuple[str, str]], num_train: int, num_val: int, num_test: int) -> Splits:
        """Divides generated pairs: the first ones validate, the next ones test, all others are trained on.

        Raises:
            DataError: none are left to train on.
        """
        refuse_empty(
            f"dataset.num_train={num_train}", max(len(pairs) - num_val - num_test, 0), num_val, self.val_fraction
        )
        ends = (0, num_val, num_val + num_test, len(pairs))
        val, test, train = (InMemoryPairs([(*pair,) for pair in pairs[a:b]]) for a, b in zip(ends, ends[1:]))
        return self._splits_of(train, val, test)

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Returns a signature with the inputs source tokens, source length, target tokens and next target tokens."""
        source, target = self.configs(splits.train)  # type: ignore[arg-type]  # of pairs
        source_tokens, target_tokens = (source.max_length,), (target.max_length,)
        targets = splits.train.side(TARGET).texts()  # type: ignore[attr-defined]  # of pairs
        return TranslationSignature(
            (source_tokens, (), target_tokens, target_tokens),
            tokenizer_config=source,
            target_tokenizer_config=target,
            target_language=language_without_spaces(targets, self.target_name),
        )

    @property
    def target_name(self) -> str:
        """Returns the name that the data gives the language of targets; empty if it gives none."""
        return ""

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        """See `BaseDataset.check_compatible`."""
        before = TranslationSignature.cast(before)
        super().check_compatible(signature, before, source)
        if before.target_tokenizer_config != TranslationSignature.cast(signature).target_tokenizer_config:
            raise CheckpointError(
                f"{source} was made with another vocabulary of the target. Give the same texts, or a file by "
                f"dataset.target_vocab=PATH, or choose another {run_dir_setting()}."
            )

    def remark(self, signature: Signature, splits: Splits) -> str:
        signature = TranslationSignature.cast(signature)
        configs = configs_of(signature)
        sizes = [f"{config.size:,}" for config in configs]
        vocabulary = f"a vocabulary of {sizes[0]}" if signature.is_joint else f"vocabularies of {' and '.join(sizes)}"
        lengths = " and ".join(dict.fromkeys(str(config.max_length) for config in configs))
        text = f"pairs of up to {lengths} tokens, of {vocabulary}"
        in_training = "are cut" if self.cuts_long else "are left out"
        for name, treatment in (("train", in_training), ("val", "are cut"), ("test", "are cut")):
            split: Optional[AnyPairs] = getattr(splits, name)
            count = 0 if split is None else int(np.count_nonzero(~split.tokens(configs).fits_N))
            text += f"; {count:,} longer ones of {name} {treatment}" if count else ""
        return text

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: AnyPairs, signature: Signature, options: LoaderOptions
    ) -> PairLoader:
        from mxtrain.text.translation.parallel_loader import PairLoader

        return PairLoader(
            source,
            configs_of(signature),
            options,
            batch_tokens=self.batch_tokens,
            batches_per_pool=self.batches_per_pool,
            cuts_long=self.cuts_long,
        )

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens the lines of the files as sources, including empty ones; a source location is `file:line`."""
        texts, locations = open_lines(names, skip_unreadable, unreadable, keep_empty=True)
        return InMemoryPairs([(text, None) for text in texts]), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns texts to translate, in memory: strings of one line."""
        return InMemoryPairs([(text, None) for text in lines_from(value)])


def configs_of(signature: Signature) -> Tuple[TokenizerConfig, TokenizerConfig]:
    """Returns the tokenizer settings of source and target."""
    signature = TranslationSignature.cast(signature)
    return signature.tokenizer_config, signature.target_tokenizer_config
