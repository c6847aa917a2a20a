"""Dates, numbers, measures and money in two languages, which need no download."""

from __future__ import annotations

from typing import Literal, Optional

import pydantic
from typing_extensions import Annotated

from mxtrain.data.spec import Splits
from mxtrain.text.translation.phrases import LANGUAGES, phrases
from mxtrain.text.translation.translation import TranslationDataset
from mxtrain.types import BatchSize, NonNegative, Positive

Language = Literal["en", "de", "fr", "it", "nl", "sv", "da", "nb", "fi"]
"""One of the languages in `phrases.LANGUAGES`."""


class NumberAndDatePhrases(TranslationDataset):
    """Phrases that are true translations, from CLDR (Babel) and num2words. No source and no target of validation or
    test occurs in the training pairs."""

    source: Language = "en"
    """Language that is translated."""
    target: Language = "de"
    """Language of the translations."""
    num_train: Positive = 20000
    """Training pairs."""
    num_val: Positive = 500
    """Validation pairs; none of their sources or targets is in the training pairs."""
    num_test: NonNegative = 500
    """Test pairs."""
    vocab_size: Annotated[int, pydantic.Field(ge=100)] = 500
    individual_digits: bool = True
    batch_tokens: Optional[Positive] = 1000
    batch_size: BatchSize = 32
    """With batch_tokens=null: pairs per optimizer step, over all devices and workers together."""

    @pydantic.model_validator(mode="after")
    def _check_languages(self) -> NumberAndDatePhrases:
        if self.source == self.target:
            raise ValueError(f"source={self.source} and target={self.target} must differ")
        return self

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        assert set(LANGUAGES) >= {self.source, self.target}
        self.require_libraries()
        total = self.num_train + self.num_val + self.num_test
        pairs = phrases(self.source, self.target, total, self.split_seed)
        return self._split_generated(pairs, self.num_train, self.num_val, self.num_test)
