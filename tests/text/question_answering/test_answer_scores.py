"""Exact match and F1 against a direct computation by the rules of SQuAD's scripts."""

from __future__ import annotations

import random
import re
import string

import pytest

from mxtrain.text.question_answering.answer_scores import normalized, score_answer


def by_the_rules(answer: str, gold: str) -> tuple:
    """Scores an answer by the published rules, letter by letter and word by word."""

    def words(text: str) -> list:
        kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return [word for word in re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", kept)) if word]

    left, right = words(answer), words(gold)
    rest, same = list(right), 0
    for word in left:
        if word in rest:
            rest.remove(word)
            same += 1
    if not same:
        return float(left == right), 0.0
    precision, recall = same / len(left), same / len(right)
    return float(left == right), 2 * precision * recall / (precision + recall)


def test_scores_match_the_rules() -> None:
    draw = random.Random(1)
    parts = ["The", "cat", "cat's", "a", "dog,", "an", "Theme", "--", "sat"]
    for _ in range(500):
        answer, *golds = (" ".join(draw.choices(parts, k=draw.randint(1, 5))) for _ in range(3))
        expected = [by_the_rules(answer, gold) for gold in golds]
        assert score_answer(answer, golds, False) == pytest.approx([max(column) for column in zip(*expected)])


def test_empty_answer_is_right_only_without_true_answers() -> None:
    assert score_answer("", [], True) == (1.0, 1.0) and score_answer("x", [], True) == (0.0, 0.0)
    assert score_answer("", ["x"], True) == (0.0, 0.0)
    # A right answer of which nothing is left: the script of 2.0 leaves it out, that of 1.1 counts no common words.
    assert score_answer("The", ["the", "cat"], True) == (0.0, 0.0)
    assert score_answer("The", ["the"], True) == (1.0, 1.0) and score_answer("The", ["the"], False) == (1.0, 0.0)


def test_normalization() -> None:
    assert normalized(" The  U.S.A.'s an  Army\n") == "usas army"


def test_answers_in_chinese_are_compared_by_characters() -> None:
    assert score_answer("\u5317\u4eac\u5927\u5b66", ["\u5317\u4eac\u5927\u5b66\u3002"], False) == (1.0, 1.0)
    exact, f1 = score_answer("\u5317\u4eac\u5927\u5b66", ["\u5357\u4eac\u5927\u5b66"], False)
    assert exact == 0.0 and f1 == pytest.approx(0.75)
    assert score_answer("the BBC of \u5317", ["BBC of \u5317"], False) == (1.0, 1.0)
