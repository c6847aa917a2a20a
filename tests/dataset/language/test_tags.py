"""Tags and the entities that they mean, against a slow way to find them, and seqeval where it is installed."""

from __future__ import annotations

import random
from typing import List

import numpy as np
import pytest

from mxtrain.dataset.language.tags import (
    Entities,
    TagCodes,
    count_entities,
    detect_scheme,
    find_entities,
    impossible_W,
    is_plain,
    parse_tag,
    write_entities,
)

NAMES = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))]
CODES = TagCodes(NAMES)


def codes(tags: str) -> np.ndarray:
    return CODES.code_K[[NAMES.index(tag) for tag in tags.split()]]


def found(tags: str) -> List[tuple]:
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
    assert found(tags) == entities


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


def test_random_tags_mean_what_they_mean_word_by_word() -> None:
    draw = random.Random(1)
    for _ in range(300):
        tags = draw.choices(NAMES, k=draw.randint(1, 12))
        assert found(" ".join(tags)) == found_slowly(tags)


def test_entities_end_with_their_sentence() -> None:
    entities = find_entities(codes("B-PER I-PER I-PER"), np.array([0, 0, 1]))
    assert entities.begin_E.tolist() == [0, 2] and entities.end_E.tolist() == [2, 3]


def test_counts_are_those_of_seqeval_on_random_tags() -> None:
    metrics = pytest.importorskip("seqeval.metrics")
    draw = random.Random(0)
    for _ in range(300):
        sizes = [draw.randint(1, 8) for _ in range(draw.randint(1, 5))]
        # Mostly equal, so that some entities are hit, with all that cannot follow each other.
        true = [[draw.choice(NAMES) for _ in range(size)] for size in sizes]
        guess = [[tag if draw.random() < 0.8 else draw.choice(NAMES) for tag in tags] for tags in true]
        flat = [CODES.code_K[[NAMES.index(tag) for tags in some for tag in tags]] for some in (true, guess)]
        counts = count_entities(*flat, np.repeat(np.arange(len(sizes)), sizes))
        hits, found_count, true_count = (sum(column) for column in zip(*counts.values())) if counts else (0, 0, 0)
        if not found_count or not true_count:
            continue
        assert hits / found_count == pytest.approx(metrics.precision_score(true, guess, zero_division=0))
        assert hits / true_count == pytest.approx(metrics.recall_score(true, guess, zero_division=0))


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
    ],
)
def test_tags_that_cannot_stand_where_they_do(scheme: str, tags: str, wrong: List[int]) -> None:
    assert impossible_W(codes(tags), np.zeros(len(tags.split()), int), scheme).tolist() == wrong


def test_the_scheme_of_tags() -> None:
    def of(tags: str) -> str:
        return detect_scheme(tags.split(), codes(tags), np.zeros(len(tags.split()), int))

    assert of("O B-PER I-PER O") == "bio" and of("B-PER E-PER") == of("S-LOC") == "bioes"
    assert of("I-PER I-PER B-PER O I-LOC") == "iob1" and of("B-PER O I-PER") == "bio"  # a mistake in BIO
    assert is_plain(["NN", "O", "VB"]) and not is_plain(["O", "B-X"])


def test_writing_entities_is_the_inverse_of_finding_them() -> None:
    for scheme, tags in (("bio", "O B-PER I-PER B-PER O B-LOC"), ("bioes", "O B-PER E-PER S-PER O S-LOC")):
        entities = find_entities(codes(tags), np.zeros(6, int))
        assert write_entities(entities, 6, CODES.types, scheme) == tags.split()
    none = np.zeros(0, np.int64)
    assert write_entities(Entities(none, none, none), 2, [], "bio") == ["O", "O"]


def test_letters_of_bilou_and_what_is_no_tag() -> None:
    assert parse_tag("U-PER") == parse_tag("S-PER") and parse_tag("L-PER").prefix == parse_tag("E-PER").prefix
    assert parse_tag("B-a-b") == (1, "a-b")
    for wrong in ("PER", "B-", "X-PER", "", "B"):
        with pytest.raises(ValueError):
            parse_tag(wrong)
