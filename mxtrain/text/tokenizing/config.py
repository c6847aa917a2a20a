"""Settings that turn texts into samples: tokenizer, length and, for masked language modeling, the share of masked
tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterable, Mapping

from mxtrain.text.tokenizing.base import BaseTokenizer
from mxtrain.text.tokenizing.kinds import tokenizer_from_json

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject


@dataclass(frozen=True)
class TokenizerConfig:
    """Settings of samples made of tokens, which a checkpoint carries.

    Attributes:
        tokenizer: texts to ids and back.
        max_length: tokens of the longest sample, special ones included.
        mask_fraction: share of tokens that masked language modeling predicts; 0 for other tasks.
    """

    tokenizer: BaseTokenizer
    max_length: int
    mask_fraction: float = 0.0

    @property
    def size(self) -> int:
        """Returns the number of tokens of the vocabulary."""
        return self.tokenizer.size

    @property
    def num_masked(self) -> int:
        """Returns the number of masked positions in a sample of `max_length` tokens."""
        return num_masked(self.max_length, self.mask_fraction)

    def to_json(self) -> Mapping[str, Json]:
        """Returns the plain values that a checkpoint holds."""
        return {**self.tokenizer.to_json(), "max_length": self.max_length, "mask_fraction": self.mask_fraction}

    @classmethod
    def from_json(cls, values: JsonObject) -> TokenizerConfig:
        """Restores settings from `to_json`; raises the errors of `tokenizer_from_json`."""
        return cls(tokenizer_from_json(values), values["max_length"], values.get("mask_fraction", 0.0))

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of some tokens, for people; padding is left out."""
        return self.tokenizer.decode(tokens, with_special=True)


def num_masked(length: int, fraction: float) -> int:
    """Returns the number of tokens to predict, of `length`: at least one."""
    return max(1, int(length * fraction + 0.5)) if fraction else 0
