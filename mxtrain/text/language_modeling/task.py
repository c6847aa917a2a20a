"""Language modeling: predicts each token of a text from those before it.

Legend: B batch, T tokens of a window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.metric.metrics import ExpertBalance
from mxtrain.task.spec import Report, Task
from mxtrain.task.task_export import TaskExport
from mxtrain.text.kinds import NextTokens
from mxtrain.text.language_modeling.continuation import ContinuationDecoder, decoding_network
from mxtrain.text.language_modeling.sampling import Sampling, default_new_tokens
from mxtrain.text.model import TextModel
from mxtrain.text.signature import TextSignature
from mxtrain.types import Artifact, NonNegative, NonNegativeFloat, Positive, Table, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.decoding_network import DecodingNetwork
    from mxtrain.task.exported_part import ExportedPart
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, LossBlock


class LanguageModeling(Task):
    """Language modeling.

    The output is -log p of each next token, (B, T). Targets are the next tokens (B, T), -1 = ignored, and the number of
    bytes of text that they encode, (B,). Predictions are the tokens that continue a text, (B, new_tokens).
    """

    name: ClassVar[str] = "language_modeling"
    takes: ClassVar[Takes] = Takes(NextTokens)

    new_tokens: Union[Literal["auto"], Positive] = "auto"
    """Maximum number of tokens that `predict` adds to a text, which ends at <eos>; auto = 64, or half of the context
    length if that is less."""
    temperature: NonNegativeFloat = 1.0
    """Divisor of the logits before sampling: below 1 probable tokens become more probable; 0 = always the most probable
    token (greedy)."""
    top_k: NonNegative = 0
    """Sample only from this number of most probable tokens; 0 = all."""
    top_p: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0
    """Sample only from the most probable tokens whose probabilities add up to this value (nucleus sampling)."""
    sampling_seed: NonNegative = 0
    """Seed of sampling; random numbers are a function of this seed and of the indices of text and token."""
    ngrams: List[Annotated[int, pydantic.Field(ge=1, le=10)]] = [3, 5]
    """Orders of the n-gram models that `eval` measures on the same split; [] = none."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        if isinstance(description.loss, CustomLoss):
            raise ConfigError(
                "loss: networks of task=language_modeling return -log p of each token, so that their output layer can "
                "be computed in chunks, and a loss of your own cannot look at scores. Type loss=token_cross_entropy."
            )
        description.loss.require_unsmoothed()

    def num_classes(self, signature: Signature) -> int:
        return TextSignature.cast(signature).vocab_size

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        model = description.model
        statistics = model.statistics_shapes() if isinstance(model, TextModel) else []
        return [shapes_of(signature.shape)[0], *statistics]

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        """Adds the balance of experts, if the network has some."""
        if len(self.output_shapes(description, signature)) == 1:
            return description.metric
        return {**description.metric, "expert_balance": ExpertBalance()}

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(self.num_classes(signature), training)

    def metric_signatures(self, description: RunParts, signature: Signature) -> Mapping[str, str]:
        """Adds the tokenization to the signature of every perplexity."""
        tokenizer = TextSignature.cast(signature).tokenizer_config.tokenizer
        vocabulary = f"vocabulary={tokenizer.kind},{tokenizer.size},{tokenizer.digest[:8]}"
        return {**dict.fromkeys(description.metric, vocabulary), **super().metric_signatures(description, signature)}

    def _sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.sampling_seed)

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        assert strategy is not None
        count = None if self.new_tokens == "auto" else self.new_tokens
        network = decoding_network(description.model, self.num_classes(signature), signature, strategy)
        return ContinuationDecoder(network, self._sampling(), count)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        raise AssertionError("texts are continued token by token: `build_decode`")

    def record_of(self, index: int, meta: Any) -> Optional[int]:
        """Returns None: a sample is a window of the text."""
        return None

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the text that follows, up to the end of a document or line."""
        return {"continuation": self._text(signature, prediction)}

    def _text(self, signature: Signature, token_N: np.ndarray) -> str:
        tokenizer, tokens = TextSignature.cast(signature).tokenizer_config.tokenizer, token_N.tolist()
        end = tokens.index(tokenizer.special.eos) if tokenizer.special.eos in tokens else len(tokens)
        return tokenizer.decode(tokens[:end])

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns a table of prompts and their continuations."""
        config = TextSignature.cast(signature).tokenizer_config
        prompts = source.prompts(config)  # type: ignore[attr-defined]  # of running text
        rows = []
        for number, prediction in enumerate(predictions):
            begin, end = prompts.begin[number : number + 2]
            text = config.tokenizer.decode(prompts.value[begin:end])
            rows.append((text, self._text(signature, prediction)))
        return [Table("continuations", ("text", "continuation"), rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.text.language_modeling.report import LanguageReport

        return LanguageReport(description, signature, source, self.ngrams)

    def export_form(self) -> TaskExport:
        return LanguageModelingExport(self)


class LanguageModelingExport(TaskExport):
    """Export of networks of `LanguageModeling`."""

    task: LanguageModeling

    def facts(self, description: RunParts, signature: Signature, strategy: Strategy) -> Dict[str, Json]:
        max_positions = self._network(description, signature, strategy).max_positions
        count = default_new_tokens(max_positions) if self.task.new_tokens == "auto" else self.task.new_tokens
        length = shapes_of(signature.shape)[0][0]
        max_prompt = length if max_positions is None else min(length, max_positions - count)
        return {
            **self.task.model_dump(mode="json"),
            "new_tokens": count,
            "max_prompt": max_prompt,
            "longest": max_positions,
        }

    def parts(
        self, description: RunParts, signature: Signature, strategy: Strategy, inputs: Sequence[np.ndarray]
    ) -> Mapping[str, ExportedPart]:
        """Returns the step with which exported folders generate token by token."""
        from mxtrain.text.exported_steps import language_parts

        return language_parts(self._network(description, signature, strategy).current(), inputs[0])

    def _network(self, description: RunParts, signature: Signature, strategy: Strategy) -> DecodingNetwork:
        return decoding_network(description.model, self.task.num_classes(signature), signature, strategy)
