"""BERT: an encoder of text with a head for classes or for masked tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Literal, Optional

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.text.kinds import AnswerSpan, MaskedTokens, Texts, TokenTags
from mxtrain.text.model import TextModel
from mxtrain.types import OpenFraction, Positive, PositiveFloat, Shapes, shapes_of
from mxtrain.types.kinds import ClassIndex, ClassSet, Number, Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.model.networks.bert import BertSizes

SIZES: Dict[str, Dict[str, int]] = {
    "small": {"num_layers": 2, "units": 128, "hidden_size": 512, "num_heads": 2, "max_length": 128},
    "base": {"num_layers": 12, "units": 768, "hidden_size": 3072, "num_heads": 12, "max_length": 512},
    "large": {"num_layers": 24, "units": 1024, "hidden_size": 4096, "num_heads": 16, "max_length": 512},
}
"""`base` and `large` are the published ones (table in section 3 of the paper)."""
PUBLISHED = {
    "base": "gluonnlp:bert_12_768_12_book_corpus_wiki_en_uncased",
    "large": "gluonnlp:bert_24_1024_16_book_corpus_wiki_en_uncased",
}
"""Names of GluonNLP's weights, of English in lower case."""


class Bert(TextModel):
    """An encoder of transformer layers. Its head is chosen by the data: classes of texts, or masked tokens.

    Parameter names are GluonNLP 0.10's, so `weights` may be one of its `.params` files, and it loads ours. Weights are
    drawn from a normal distribution of standard deviation 0.02, whatever `init` says.

    Source: Devlin et al., https://arxiv.org/abs/1810.04805.
    """

    takes: ClassVar[Takes] = Takes(Texts, ClassIndex, ClassSet, MaskedTokens, Number, TokenTags, AnswerSpan)
    embedding_name: ClassVar[str] = "word_embed.0.weight"

    size: Literal["small", "base", "large"] = "small"
    """Preset sizes of the fields below: small (2 layers, 128 units, 2 heads), base (12, 768, 12), large (24, 1024,
    16)."""
    num_layers: Optional[Positive] = None
    """Transformer layers."""
    units: Optional[Positive] = None
    """Width of the residual stream between layers."""
    hidden_size: Optional[Positive] = None
    """Hidden width of the feed-forward sublayers."""
    num_heads: Optional[Positive] = None
    """Number of attention heads; a divisor of units."""
    max_length: Optional[Positive] = None
    """Maximum length in tokens, i.e. rows of the position embedding. None = 512 for the published sizes; for small 128,
    or dataset.max_length if that is more."""
    dropout: OpenFraction = 0.1
    """Dropout probability of embeddings, attention and the output of each sublayer."""
    layer_norm_eps: PositiveFloat = 1e-12
    """Epsilon of layer norms: 1e-12 as in BERT and DistilBERT; RoBERTa's weights need 1e-5."""

    @property
    def published_name(self) -> str:
        """See `Model.published_name`."""
        return next((name for size, name in PUBLISHED.items() if self.sizes() == SIZES[size]), "")

    @pydantic.model_validator(mode="after")
    def _check_heads(self) -> Bert:
        sizes = self.sizes()
        if sizes["units"] % sizes["num_heads"]:
            raise ValueError(
                f"num_heads must divide units, but {sizes['units']} / {sizes['num_heads']} is no whole number"
            )
        return self

    @property
    def embedding_size(self) -> int:
        return self.sizes()["units"]

    def sizes(self) -> Dict[str, int]:
        """Returns the numbers of `size`, overridden by the ones that are given."""
        return {name: getattr(self, name) or number for name, number in SIZES[self.size].items()}

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        """Returns the network, uninitialized; a fourth input are positions of masked tokens.

        Raises:
            ConfigError: texts may be longer than the network can take.
        """
        from mxtrain.model.networks import bert as bert_network

        sizes = self._checked_sizes(input_shape)
        if len(input_shape) == 4:
            return bert_network.BertNetwork(vocab_size, sizes, bert_network.Head.MASKED, prefix="bert_")
        return bert_network.BertClassifier(num_classes, vocab_size, sizes, prefix="")

    def build_tagger(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        """See `TextModel.build_tagger`; raises as `build_text`."""
        from mxtrain.model.networks import bert as bert_network

        return bert_network.BertTagger(num_classes, vocab_size, self._checked_sizes(input_shape), prefix="")

    def _checked_sizes(self, input_shape: Shapes) -> BertSizes:
        from mxtrain.model.networks.bert import BertSizes

        sizes: Any = self.sizes()
        longest = shapes_of(input_shape)[0][0]
        if self.size == "small" and self.max_length is None:  # no published weights set a limit
            sizes["max_length"] = max(sizes["max_length"], longest)
        if longest > sizes["max_length"]:
            raise ConfigError(
                f"dataset.max_length={longest}: the network takes texts of at most {sizes['max_length']} tokens. Type "
                f"dataset.max_length={sizes['max_length']}, or model.max_length={longest}."
            )
        return BertSizes(**sizes, dropout=self.dropout, epsilon=self.layer_norm_eps)
