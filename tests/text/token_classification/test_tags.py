"""Tags and the entities that they mean, against a slow way to find them and figures of seqeval."""

from __future__ import annotations

import random
from typing import List, Tuple

import numpy as np
import pytest

from mxtrain.text.token_classification.metrics import CollectedTags, EntityF1, Scores
from mxtrain.text.token_classification.tags import (
    Entities,
    TagCodes,
    detect_scheme,
    find_entities,
    find_impossible,
    is_plain,
    parse_tag,
    write_entities,
)

NAMES = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))]
CODES = TagCodes(NAMES)


def codes(tags: str) -> np.ndarray:
    return CODES.code_K[[NAMES.index(tag) for tag in tags.split()]]


def entities_of(tags: str) -> List[tuple]:
    entities = find_entities(codes(tags), np.zeros(len(tags.split()), int))
    kinds = [CODES.types[kind] for kind in entities.type_E]
    return list(zip(kinds, entities.begin_E.tolist(), entities.end_E.tolist()))


@pytest.mark.parametrize(
    "tags, entities",
    [
        ("O B-PER I-PER O", [("PER", 1, 3)]),
        ("I-PER I-PER B-PER", [("PER", 0, 2), ("PER", 2, 3)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("B-PER E-PER E-PER S-LOC", [("PER", 0, 2), ("PER", 2, 3), ("LOC", 3, 4)]),
        ("O O", []),
    ],
)
def test_entities_of_tags(tags: str, entities: List[tuple]) -> None:
    assert entities_of(tags) == entities


def found_slowly(tags: List[str]) -> List[tuple]:
    """Word by word: an entity goes on with I or E of its type, where B or I stands before."""
    entities: List[tuple] = []
    before = ("O", "")
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix in ("I", "E") and before[0] in ("B", "I") and before[1] == kind:
            entities[-1] = (kind, entities[-1][1], place + 1)
        elif prefix != "O":
            entities.append((kind, place, place + 1))
        before = (prefix, kind)
    return entities


def test_random_tags_equal_a_plain_parser() -> None:
    draw = random.Random(1)
    for _ in range(300):
        tags = draw.choices(NAMES, k=draw.randint(1, 12))
        assert entities_of(" ".join(tags)) == found_slowly(tags)


def test_entities_end_with_their_sentence() -> None:
    entities = find_entities(codes("B-PER I-PER I-PER"), np.array([0, 0, 1]))
    assert entities.begin_E.tolist() == [0, 2] and entities.end_E.tolist() == [2, 3]


OF_SEQEVAL = [
    (
        "B-LOC E-PER | B-LOC B-PER O B-LOC B-LOC I-LOC",
        "B-LOC E-PER | B-LOC O O B-LOC B-LOC I-LOC",
        1.0,
        0.833333,
        0.909091,
        0.833333,
        0.888889,
    ),
    (
        "B-LOC E-PER S-PER | B-PER S-PER I-PER I-LOC O",
        "S-PER E-PER S-PER | B-PER S-PER I-PER I-LOC O",
        0.857143,
        0.857143,
        0.857143,
        0.787879,
        0.839827,
    ),
    (
        "B-PER S-PER B-LOC E-LOC B-LOC E-LOC S-LOC | O",
        "B-PER S-PER B-LOC S-PER B-LOC E-LOC I-PER | O",
        0.5,
        0.6,
        0.545455,
        0.533333,
        0.506667,
    ),
    (
        "E-PER | S-LOC O E-PER I-PER E-LOC B-LOC E-PER",
        "E-PER | S-LOC O E-PER I-LOC E-LOC B-LOC E-PER",
        0.833333,
        0.714286,
        0.769231,
        0.761905,
        0.77551,
    ),
    (
        "O E-LOC I-LOC B-LOC I-PER B-PER | S-LOC E-PER",
        "O B-PER I-LOC B-LOC I-PER B-PER | I-PER E-PER",
        0.666667,
        0.571429,
        0.615385,
        0.619048,
        0.62585,
    ),
    (
        "B-PER I-PER I-PER E-PER S-PER E-PER E-PER | S-LOC",
        "B-PER I-PER I-PER E-PER O O E-PER | S-LOC",
        1.0,
        0.6,
        0.75,
        0.833333,
        0.733333,
    ),
    (
        "O B-LOC E-LOC I-LOC E-LOC | E-PER B-LOC E-LOC",
        "O B-LOC B-LOC I-LOC E-LOC | E-PER B-LOC S-LOC",
        0.2,
        0.25,
        0.222222,
        0.5,
        0.25,
    ),
    (
        "I-LOC S-PER | B-LOC E-LOC I-PER I-LOC E-LOC S-LOC",
        "I-LOC O | S-PER E-LOC I-PER B-PER S-LOC S-LOC",
        0.428571,
        0.5,
        0.461538,
        0.45,
        0.466667,
    ),
]
"""True tags, predicted ones, and what seqeval 1.2.2 (with scikit-learn 1.9.1) says of them: precision, recall, and F1
as micro, macro and weighted mean."""
OF_SEQEVAL_ON_RANDOM = (0.846322, 0.846554, 0.846438, 0.846412, 0.846397)
"""The same of `random_sentences`."""


def random_sentences() -> Tuple[List[List[str]], List[List[str]]]:
    """Mostly equal, so that some entities are hit, with all that cannot follow each other."""
    draw = random.Random(0)
    true = [[draw.choice(NAMES) for _ in range(draw.randint(1, 8))] for _ in range(1000)]
    return true, [[tag if draw.random() < 0.8 else draw.choice(NAMES) for tag in tags] for tags in true]


def test_scores_match_seqeval() -> None:
    cases = [
        ([some.split() for some in true.split(" | ")], [some.split() for some in guess.split(" | ")], expected)
        for true, guess, *expected in OF_SEQEVAL
    ]
    for true, guess, expected in [*cases, (*random_sentences(), OF_SEQEVAL_ON_RANDOM)]:
        of_both = [CODES.code_K[[NAMES.index(tag) for tags in some for tag in tags]] for some in (true, guess)]
        collected = CollectedTags()
        sentence_W = np.repeat(np.arange(len(true)), list(map(len, true)))
        collected.add(0, np.stack([sentence_W, *of_both], axis=1))
        micro = Scores.from_counts(*(sum(column) for column in zip(*collected.counts().values())))
        found = [*micro[:2], *(EntityF1(average=one).compute(collected) for one in ("micro", "macro", "weighted"))]
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    "scheme, tags, wrong",
    [
        ("bio", "B-PER I-PER O I-PER", [3]),
        ("bio", "I-PER B-LOC I-PER", [0, 2]),
        ("bio", "B-PER B-PER I-PER", []),
        ("bioes", "B-PER E-PER S-LOC O", []),
        ("bioes", "B-PER O", [1]),
        ("bioes", "S-PER I-PER", [1]),
        ("bioes", "O B-PER", [1]),
        ("bioes", "B-PER I-LOC E-LOC", [1]),
        ("ioe2", "I-PER E-PER E-LOC O", []),
        ("ioe2", "I-PER I-PER O I-LOC E-PER I-PER", [1, 3, 5]),
        ("ioe2", "B-PER E-PER S-LOC", [0, 2]),
    ],
)
def test_impossible_tags_are_found(scheme: str, tags: str, wrong: List[int]) -> None:
    assert find_impossible(codes(tags), np.zeros(len(tags.split()), int), scheme).tolist() == wrong


def test_the_scheme_of_tags() -> None:
    def of(tags: str) -> str:
        return detect_scheme(tags.split(), codes(tags), np.zeros(len(tags.split()), int))

    assert of("O B-PER I-PER O") == "bio" and of("B-PER E-PER") == of("S-LOC") == "bioes"
    assert of("I-PER I-PER B-PER O I-LOC") == "iob1" and of("B-PER O I-PER") == "bio"  # a mistake in BIO
    assert of("O I-PER E-PER E-PER") == "ioe2" and of("I-PER E-PER I-LOC O E-LOC") == "ioe2"
    assert of("I-PER E-PER I-PER O I-LOC") == "ioe1" and of("I-PER E-PER I-LOC") == "ioe2"
    assert is_plain(["NN", "O", "VB"]) and not is_plain(["O", "B-X"])
    assert is_plain(["B", "NN"]) and is_plain(["B"]) and is_plain(["S", "E"])
    assert not is_plain(["B", "M", "E", "S"]) and not is_plain(["O", "I"]) and not is_plain(["U", "B", "L"])


def test_writing_entities_is_the_inverse_of_finding_them() -> None:
    for scheme, tags in (("bio", "O B-PER I-PER B-PER O B-LOC"), ("bioes", "O B-PER E-PER S-PER O S-LOC")):
        entities = find_entities(codes(tags), np.zeros(6, int))
        assert write_entities(entities, 6, CODES.types, scheme) == tags.split()
    none = np.zeros(0, np.int64)
    assert write_entities(Entities(none, none, none), 2, [], "bio") == ["O", "O"]


def test_letters_of_bilou_and_invalid_tags() -> None:
    assert parse_tag("U-PER") == parse_tag("S-PER") and parse_tag("L-PER").prefix == parse_tag("E-PER").prefix
    assert parse_tag("B-a-b") == (1, "a-b")
    assert parse_tag("M-PER") == parse_tag("I-PER") and parse_tag("M") == parse_tag("I") == (2, "")
    for wrong in ("PER", "B-", "X-PER", "", "-PER"):
        with pytest.raises(ValueError):
            parse_tag(wrong)
