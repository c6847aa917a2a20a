"""The signature of texts and their translations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Tuple

from mxtrain.data.signature import REQUIRED
from mxtrain.errors import DamagedCheckpoint
from mxtrain.text.signature import TOKENIZER_CONFIG, TextSignature
from mxtrain.text.tokenizing.config import TokenizerConfig

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm


@dataclass(frozen=True)
class TranslationSignature(TextSignature):
    """Source and target as tokens.

    Attributes:
        target_tokenizer_config: how targets become tokens.
        target_language: language of the training targets, where words have no spaces between them; see
            `writing.language_without_spaces`.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        **TextSignature.form,
        "joint_vocabulary?": bool,
        "target_max_length?": int,
        "target_tokenizer_config?": TOKENIZER_CONFIG,
        "target_language?": str,
    }

    target_tokenizer_config: TokenizerConfig = REQUIRED
    target_language: str = ""

    @property
    def is_joint(self) -> bool:
        """Returns True if source and target share a vocabulary."""
        return self.target_tokenizer_config.tokenizer == self.tokenizer_config.tokenizer

    def exported_facts(self) -> Tuple[Dict[str, Json], Dict[str, bytes]]:
        from mxtrain.text.exported_vocabulary import vocabulary_facts

        facts, files = super().exported_facts()
        if self.is_joint:
            return facts, files
        target, more = vocabulary_facts(self.target_tokenizer_config, "target_tokenizer")
        return {**facts, "target_tokenizer": target}, {**files, **more}

    def to_json(self) -> Dict[str, Json]:
        values = super().to_json()
        if self.target_language:
            values["target_language"] = self.target_language
        if self.is_joint:
            values["joint_vocabulary"] = True
            if self.target_tokenizer_config != self.tokenizer_config:
                values["target_max_length"] = self.target_tokenizer_config.max_length
        else:
            values["target_tokenizer_config"] = self.target_tokenizer_config.to_json()
        return values

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        arguments = super()._arguments(values)
        source: TokenizerConfig = arguments["tokenizer_config"]
        max_length = arguments.pop("target_max_length", source.max_length)
        if arguments.pop("joint_vocabulary", False):
            return {**arguments, "target_tokenizer_config": replace(source, max_length=max_length)}
        if "target_tokenizer_config" not in arguments:
            raise DamagedCheckpoint("The checkpoint cannot be used: it does not say how targets become tokens.")
        return {**arguments, "target_tokenizer_config": TokenizerConfig.from_json(arguments["target_tokenizer_config"])}
