"""Error rates of whole splits, whoever measured which part."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.metric.texts import CollectedTexts
from mxtrain.speech.alphabet import Alphabet, Transcript
from mxtrain.speech.transcripts import CER, WER

PAIRS = [("one two three", "one too three"), ("four", "four five"), ("six seven", "six"), ("a", "a")]


def edits(said: str, found: str) -> int:
    """The least number of edits between two rows."""
    table = list(range(len(found) + 1))
    for row, one in enumerate(said, start=1):
        before, table = table, [row]
        for column, other in enumerate(found, start=1):
            table.append(min(before[column] + 1, table[-1] + 1, before[column - 1] + (one != other)))
    return table[-1]


def collected(metrics, order) -> CollectedTexts:
    alphabet = Alphabet(sorted(set("".join(said + found for said, found in PAIRS))))
    parts = [CollectedTexts.from_metrics(metrics), CollectedTexts.from_metrics(metrics)]
    for place in order:
        said, found = PAIRS[place]
        meta = np.empty(1, object)
        meta[0] = Transcript(said, alphabet)
        numbers = np.concatenate([[-1], alphabet.encode(found), [-1, -1]]).astype(np.float32)
        parts[place % 2].update(np.array([place]), numbers[None], np.zeros(1), meta)
    parts[0].merge(parts[1].rows())
    return parts[0]


def test_rates_are_edits_divided_by_reference_length() -> None:
    metrics = [WER(), CER()]
    for order in ([0, 1, 2, 3], [3, 1, 2, 0]):
        found = collected(metrics, order)
        assert WER().compute(found) == pytest.approx(3 / 7)
        characters = sum(edits(*pair) for pair in PAIRS)
        assert CER().compute(found) == pytest.approx(characters / sum(len(said) for said, _ in PAIRS))


def test_rates_of_empty_references() -> None:
    assert np.isnan(WER().compute(CollectedTexts.from_metrics([WER()])))
    assert np.isnan([WER().of_sums([0, 0, 0, 0], 1), WER().of_sums([0, 0, 2, 0], 1)]).all()
    assert WER().count("a b", "") == [0, 0, 2, 0] and CER().count("", "ab") == [0, 2, 0, 0]
    assert WER().of_sums([0, 0, 3, 1], 1) == 3.0, "a rate can be above 1"


def test_signatures_name_the_counted_unit() -> None:
    assert WER().signature.startswith("jiwer") and WER().signature.endswith(",unit=word,over=corpus")
    assert CER().signature.endswith(",unit=character,over=corpus") and WER().direction == "min"
