"""The signature of texts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.samples import Splits
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.files.json_form import NUMBER
from mxtrain.text.model import TextModel, build_text
from mxtrain.text.tokenizing.base import TOKENIZER_STATE
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.types import Shape, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.data.loading.samples import Samples
    from mxtrain.model.spec import Model
    from mxtrain.text.tokenizing.base import BaseTokenizer
    from mxtrain.types.annotations import Json, JsonForm

TOKENIZER_CONFIG: JsonForm = {**TOKENIZER_STATE, "max_length": int, "mask_fraction?": NUMBER}
"""The form of a `TokenizerConfig` in a checkpoint."""


@dataclass(frozen=True)
class TextSplits(Splits):
    """Texts, as `mxtrain.text.sources.TextSource`s. Without classes, tokens are predicted.

    Attributes:
        build_tokenizer_config: makes the vocabulary, which may take a while.
    """

    build_tokenizer_config: Callable[[], TokenizerConfig] = REQUIRED


@dataclass(frozen=True)
class TextSignature(Signature):
    """Texts as tokens.

    Attributes:
        tokenizer_config: how texts become tokens.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**Signature.form, "tokenizer_config": TOKENIZER_CONFIG}

    exported_reader: ClassVar[str] = "mxtrain.text.exported_texts"
    # Without `tokenizer`: some datasets also derive from it what `<eos>` ends, a line or a document.
    held_settings: ClassVar[Tuple[str, ...]] = (
        "vocab",
        "target_vocab",
        "vocab_size",
        "lowercase",
        "individual_digits",
    )
    known_names: ClassVar[Tuple[str, ...]] = ("input_shape", "vocab_size")

    tokenizer_config: TokenizerConfig = REQUIRED

    @property
    def vocab_size(self) -> int:
        """Returns the number of tokens."""
        return self.tokenizer_config.size

    def build_network(self, model: Model, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.Block:
        # Without masked positions, which would be a fourth input, an output (T, K) has scores of each token, and an
        # output (K,) scores of the text.
        has_positions = len(shapes_of(self.shape)) > 3
        scores_tokens = not has_positions and len(output_shapes) > 0 and len(output_shapes[0]) == 2
        return build_text(model, num_classes, self.shape, self.vocab_size, scores_tokens)

    def set_initial_values(self, model: Model, network: gluon.Block) -> None:
        if isinstance(model, TextModel):
            model.set_embeddings(network, self.tokenizer_config.tokenizer)

    def unseen_values(self, source: Samples) -> Sequence[str]:
        from mxtrain.text.sources import LabelledTexts

        if not isinstance(source, LabelledTexts):
            return ()
        texts = [text for pair in source.pairs[:MAX_TEXTS] for text in pair if text is not None]
        return unknown_sentences(self.tokenizer_config.tokenizer, texts)

    def exported_facts(self) -> Tuple[Dict[str, Json], Dict[str, bytes]]:
        from mxtrain.text.exported_vocabulary import vocabulary_facts

        facts, files = vocabulary_facts(self.tokenizer_config, "tokenizer")
        return {"tokenizer": facts}, files

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "tokenizer_config": self.tokenizer_config.to_json()}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        return {**super()._arguments(values), "tokenizer_config": TokenizerConfig.from_json(values["tokenizer_config"])}


MAX_TEXTS, MAX_EXAMPLES = 10_000, 3
"""Largest number of texts that `unknown_sentences` examines, and of words that it shows."""


def unknown_sentences(tokenizer: BaseTokenizer, texts: Sequence[str]) -> List[str]:
    """Returns a sentence on the share of unknown tokens, with words as examples; none if all tokens are known.

    Args:
        tokenizer: tokenizer of the network.
        texts: texts to predict for; the first `MAX_TEXTS` are examined.
    """
    unknown = tokenizer.special.unknown
    if unknown is None:
        return []
    examined = list(islice(texts, MAX_TEXTS))
    # The tokens of all texts one after the other, (F,), and the number of tokens of each text, (N,).
    token_F, length_N = tokenizer.encode(examined)
    count = int((token_F == unknown).sum())
    if not count:
        return []
    text_F = np.repeat(np.arange(len(examined)), length_N)
    words = (
        word
        for number in np.unique(text_F[token_F == unknown]).tolist()
        for word in examined[number].split()
        if (tokenizer.encode([word])[0] == unknown).any()
    )
    examples = ", ".join(f"{word[:60]!r}" for word in islice(dict.fromkeys(islice(words, 100)), MAX_EXAMPLES))
    return [
        f"{count / len(token_F):.3g} of the tokens ({count:,} of {len(token_F):,}) are unknown from training, such as "
        f"those of {examples}. All unknown tokens enter the network alike."
    ]
