"""Sentences with tags as samples: labels at first tokens, long sentences in parts, words of which nothing is left."""

from __future__ import annotations

import numpy as np

from mxtrain.text.token_classification.conll_file import TaggedWords
from mxtrain.text.token_classification.tagged import EncodedTags, TaggedSentences
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.wordpiece import SPECIAL, WordPiece

VOCAB = (*SPECIAL, "a", "b", "c", "##x", "##y")
CONFIG = TokenizerConfig(WordPiece(VOCAB, True), 8)
A, B, C, X, Y = range(5, 10)
CLS, SEP, PAD, UNKNOWN = 2, 3, 0, 1


def test_tags_are_at_first_tokens_of_words() -> None:
    found = EncodedTags([["ax", "b"], ["cxy"]], np.array([1, 0, 2]), CONFIG)
    token_BT, type_BT, length_B = found.padded(np.array([1, 0]), 6)
    np.testing.assert_array_equal(token_BT, [[CLS, C, X, Y, SEP, PAD], [CLS, A, X, B, SEP, PAD]])
    np.testing.assert_array_equal(length_B, [5, 5])
    assert not type_BT.any()
    np.testing.assert_array_equal(found.labels(np.array([1, 0]), 6), [[-1, 2, -1, -1, -1, -1], [-1, 1, -1, 0, -1, -1]])


def test_long_sentences_are_divided_between_words() -> None:
    words = ["ax", "b", "cxy", "a", "ax", "cxyxyxyxy"]  # six tokens fit; the last word alone has nine
    found = EncodedTags([["b"], words], np.arange(7), CONFIG)
    assert found.sentence_N.tolist() == [0, 1, 1, 1] and found.length_N.tolist() == [3, 8, 5, 8]
    labels = found.labels(np.arange(4), 8)
    assert labels[labels >= 0].tolist() == list(range(7))


def test_words_that_leave_no_token_are_unknown() -> None:
    found = EncodedTags([["\u200b", "a"]], np.array([1, 0]), CONFIG)
    token_BT, _, _ = found.padded(np.array([0]), 4)
    np.testing.assert_array_equal(token_BT, [[CLS, UNKNOWN, A, SEP]])


def test_sentences_of_a_source() -> None:
    source = TaggedSentences(
        TaggedWords([["a"], ["b", "c"]], [["O"], ["B-X", "O"]], [[3], [5, 6]], ["f", "f"]), ["O", "B-X"]
    )
    assert source.tag_W.tolist() == [0, 1, 0] and len(source.take([1, 7])) == 1
    checks = source.checks()
    assert str(checks.location(1)) == "f, line 5" and checks.check(1).classes == [0, 1]
