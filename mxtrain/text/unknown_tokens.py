"""Share of the tokens of texts that the vocabulary does not contain."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, List, Sequence

import numpy as np

if TYPE_CHECKING:
    from mxtrain.text.tokenizing.base import BaseTokenizer

MAX_TEXTS, MAX_EXAMPLES = 10_000, 3
"""Largest number of texts to examine, and of words to show."""


def unknown_sentences(tokenizer: BaseTokenizer, texts: Sequence[str]) -> List[str]:
    """Returns a sentence on the share of unknown tokens, with words as examples; none if all tokens are known.

    Args:
        tokenizer: tokenizer of the network.
        texts: texts to predict for; the first `MAX_TEXTS` are examined.
    """
    unknown = tokenizer.special.unknown
    if unknown is None:
        return []
    some = list(islice(texts, MAX_TEXTS))
    token_F, length_N = tokenizer.encode(some)
    count = int((token_F == unknown).sum())
    if not count:
        return []
    text_F = np.repeat(np.arange(len(some)), length_N)
    words = (
        word
        for number in np.unique(text_F[token_F == unknown]).tolist()
        for word in some[number].split()
        if (tokenizer.encode([word])[0] == unknown).any()
    )
    examples = ", ".join(f"{word[:60]!r}" for word in islice(dict.fromkeys(islice(words, 100)), MAX_EXAMPLES))
    return [
        f"{count / len(token_F):.3g} of the tokens ({count:,} of {len(token_F):,}) are unknown from training, such as "
        f"those of {examples}. All unknown tokens enter the network alike."
    ]
