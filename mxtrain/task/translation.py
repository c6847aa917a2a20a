"""Translation: a source text becomes a target text, token by token.

Legend: B batch, T tokens of a target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Iterable, Iterator, List, Mapping, Sequence, Tuple

from mxtrain.dataset.language.parallel import text_of
from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.task.base import Report, Task
from mxtrain.types import Artifact, NonNegative, NonNegativeFloat, Table, shapes_of

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Json, JsonObject, LossBlock
    from mxtrain.dataset.base import Samples
    from mxtrain.dataset.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.meter import Meter
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch, Shape


class Translation(Task):
    """-log p of the tokens (B, T) of the target and the mean of -log p over the vocabulary (B, T), against these
    tokens, -1 where none counts, and the bytes of text that they stand for, (B,). Predictions are tokens of the
    translation, filled up with <eos>."""

    name: ClassVar[str] = "translation"
    formats: ClassVar[Tuple[str, ...]] = ("text",)
    loss_option: ClassVar[str] = "label_smoothed_cross_entropy"
    metric_option: ClassVar[str] = "token_perplexity"

    length_ratio: NonNegativeFloat = 2.0
    """A translation has at most so many tokens for each of the source, and ..."""
    extra_length: NonNegative = 20
    """... so many more."""

    def check(self, description: Description) -> None:
        super().check(description)
        if isinstance(description.loss, CustomLoss):
            raise ConfigError(
                "loss: networks of task=translation return -log p of each token, so that their output layer can be "
                "computed in chunks, and a loss of your own cannot look at scores. Type "
                "loss=label_smoothed_cross_entropy."
            )
        tie = getattr(description.model, "tie", None)
        if tie is not None:
            tie(getattr(description.dataset, "joint_vocabulary", True))

    def num_classes(self, signature: Signature) -> int:
        assert signature.target_tokenizer_config is not None
        return signature.target_tokenizer_config.size

    def output_shapes(self, description: Description, signature: Signature) -> List[Shape]:
        return [shapes_of(signature.shape)[2]] * 2

    def build_loss(self, description: Description, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(self.num_classes(signature), training)

    def build_meter(self, description: Description, signature: Signature, weighted: bool, training: bool) -> Meter:
        from mxtrain.metric.meter import Meter

        return Meter(
            description.metric, self.num_classes(signature), num_outputs=2, weighted=weighted, training=training,
            num_read=1,
        )  # fmt: skip

    def metric_signatures(self, description: Description, signature: Signature) -> Mapping[str, str]:
        """What a token is belongs to every perplexity."""
        assert signature.target_tokenizer_config is not None
        tokenizer = signature.target_tokenizer_config.tokenizer
        said = f"vocabulary={tokenizer.kind},{tokenizer.size},{tokenizer.digest[:8]}"
        of_tokens = {name: said for name in description.metric if name in ("perplexity", "bits_per_byte")}
        return {**of_tokens, **super().metric_signatures(description, signature)}

    def build_decode_with(self, description: Description, signature: Signature, strategy: Strategy) -> Decode:
        from mxtrain.task.translating import Translating

        return Translating(description, signature, strategy, self.length_ratio, self.extra_length)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        raise AssertionError("texts are translated token by token: `build_decode_with`")

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """The translation, up to its end."""
        assert signature.target_tokenizer_config is not None
        return {"translation": text_of(signature.target_tokenizer_config.tokenizer, prediction)}

    def rows(
        self, signature: Signature, source: Samples, found: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:  # fmt: skip
        """Sources and translations; empty lines stay empty, and what was too long to be read whole is marked."""
        pairs = source.pairs  # type: ignore[attr-defined]  # of pairs
        config = signature.tokenizer_config
        assert config is not None
        for number, prediction in found:
            text = pairs[number][0]
            row = {"source": text, **self.row(signature, prediction, top_k)} if text.strip() else {
                "source": text, "translation": ""}  # fmt: skip
            if len(text) >= config.max_length and len(config.tokenizer.tokens(text)) >= config.max_length:
                row["is_cut"] = True
            yield number, row

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Translations alone, a line each, as other programs read them."""
        for row in rows:
            yield " ".join(str(row["translation"]).splitlines()) + "\n"

    def can_show(self, description: Description) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:  # fmt: skip
        """Sources, their references, and what the network makes of them."""
        pairs = source.pairs  # type: ignore[attr-defined]  # of pairs
        rows = [(text, reference, str(self.row(signature, prediction, 1)["translation"]))
                for (text, reference), prediction in zip(pairs, predictions)]  # fmt: skip
        return [Table("translations", ("source", "reference", "translation"), rows)]

    def build_report(self, description: Description, signature: Signature, source: Samples) -> Report:
        from mxtrain.task.translation_report import TranslationReport

        return TranslationReport(source)  # type: ignore[arg-type]  # of pairs
