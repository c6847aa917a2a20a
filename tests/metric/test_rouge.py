"""ROUGE and the Porter stemmer against values of rouge_score 0.1.2 and NLTK 3.10."""

from __future__ import annotations

import math
from typing import List, Tuple

import numpy as np
import pytest

from mxtrain.metric.porter import stem_word
from mxtrain.metric.rouge import Rouge
from mxtrain.metric.texts import Bleu, CollectedTexts

# Reference, prediction, F1 of ROUGE-1, 2, L and Lsum of rouge_score without and with use_stemmer.
ROWS: List[Tuple[str, str, List[float], List[float]]] = [
    ("the cat sat on the mat", "the cat sat on the mat", [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]),
    ("The ponies ran happily.", "A pony runs happily, running on", [0.2, 0.0, 0.2, 0.2], [0.4, 0.0, 0.4, 0.4]),
    (
        "the cat\nthe dog sat\na a a",
        "the dog\na cat sat a",
        [0.8571428571428571, 0.3333333333333333, 0.5714285714285715, 0.8571428571428571],
        [0.8571428571428571, 0.3333333333333333, 0.5714285714285715, 0.8571428571428571],
    ),
    (
        "one two three four five",
        "five four three two one",
        [1.0, 0.0, 0.20000000000000004, 0.20000000000000004],
        [1.0, 0.0, 0.20000000000000004, 0.20000000000000004],
    ),
    (
        "a b c d e f\nb d f",
        "f e d c b a\na b",
        [0.823529411764706, 0.13333333333333333, 0.23529411764705882, 0.35294117647058826],
        [0.823529411764706, 0.13333333333333333, 0.23529411764705882, 0.35294117647058826],
    ),
    ("", "", [0.0, 0.0, 0, 0], [0.0, 0.0, 0, 0]),
    ("word", "", [0.0, 0.0, 0, 0], [0.0, 0.0, 0, 0]),
    ("", "word", [0.0, 0.0, 0, 0], [0.0, 0.0, 0, 0]),
    ("Äpfel, Öl", "apfel ol", [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
    (
        "relational e-mails of 3.5% U.S. flies dies tied",
        "relate email 3 5 u s fly die tie",
        [0.39999999999999997, 0.33333333333333326, 0.39999999999999997, 0.39999999999999997],
        [0.7000000000000001, 0.4444444444444445, 0.7000000000000001, 0.7000000000000001],
    ),
    ("x", "x x x x", [0.4, 0.0, 0.4, 0.4], [0.4, 0.0, 0.4, 0.4]),
    (
        "police killed the gunman\nthe gunman fled\npolice ended it",
        "police ended the gunman\nthe gunman police killed fled",
        [0.9473684210526316, 0.5882352941176471, 0.631578947368421, 0.9473684210526316],
        [0.9473684210526316, 0.5882352941176471, 0.631578947368421, 0.9473684210526316],
    ),
]
VARIANTS = ("1", "2", "L", "Lsum")
STEMS = """
seeing>see wooing>woo oed>o eing>e freeing>free
caresses>caress ponies>poni ties>tie caress>caress cats>cat dies>die flies>fli died>die cried>cri feed>feed
agreed>agre plastered>plaster bled>bled motoring>motor sing>sing conflated>conflat troubled>troubl sized>size
hopping>hop tanned>tan falling>fall hissing>hiss fizzed>fizz failing>fail filing>file happy>happi sky>sky
say>say enjoy>enjoy relational>relat conditional>condit rational>ration valenci>valenc digitizer>digit
conformabli>conform radicalli>radic differentli>differ vileli>vile analogousli>analog vietnamization>vietnam
predication>predic operator>oper feudalism>feudal decisiveness>decis hopefulness>hope callousness>callous
formaliti>formal sensitiviti>sensit sensibiliti>sensibl carefulli>care analogi>analog logi>logi
triplicate>triplic formative>form formalize>formal electriciti>electr electrical>electr hopeful>hope
goodness>good revival>reviv allowance>allow inference>infer airliner>airlin gyroscopic>gyroscop
adjustable>adjust defensible>defens irritant>irrit replacement>replac adjustment>adjust dependent>depend
adoption>adopt ion>ion homologou>homolog communism>commun activate>activ angulariti>angular homologous>homolog
effective>effect bowdlerize>bowdler probate>probat rate>rate cease>ceas controll>control roll>roll skies>sky
dying>die news>news innings>inning proceed>proceed as>as is>is yes>ye dysentery>dysenteri ally>alli
generalli>gener by>by syzygy>syzygi ed>ed owed>owe used>use
"""


@pytest.mark.parametrize("stem", [False, True])
def test_scores_are_those_of_rouge_score(stem: bool) -> None:
    metrics = [Rouge(variant=variant, stem=stem) for variant in VARIANTS]
    collected = CollectedTexts.from_metrics(metrics)
    for number, (reference, prediction, *scores) in enumerate(ROWS):
        collected.add_pair(number, prediction, reference)
        found = [metric.of_sums(list(metric.count(prediction, reference)), 1) for metric in metrics]
        np.testing.assert_allclose(found, scores[stem], rtol=0, atol=1e-12)
    wanted = np.mean([row[2 + stem] for row in ROWS], axis=0)
    np.testing.assert_allclose([metric.compute(collected) for metric in metrics], wanted, rtol=0, atol=1e-12)


def test_metric_of_no_texts_is_unknown() -> None:
    metric = Rouge()
    assert math.isnan(metric.compute(CollectedTexts.from_metrics([metric])))


def test_stems_are_those_of_nltk() -> None:
    pairs = [pair.partition(">") for pair in STEMS.split()]
    assert {word: stem_word(word) for word, _, _ in pairs} == {word: stem for word, _, stem in pairs}


def test_language_without_spaces_is_compared_by_characters() -> None:
    metric = Rouge(variant="2")
    assert metric.for_language("zh").tokenize == "characters" and metric.for_language("").tokenize == "latin"
    assert Rouge(tokenize="spaces").for_language("zh").tokenize == "spaces"
    chinese = metric.for_language("zh")
    # Two of the three pairs of the summary are among the four of the reference.
    assert chinese.of_sums(
        list(chinese.count("\u4eca\u5929\u4e0b \u96e8", "\u4eca\u5929\u4e0b\u4e86\u96e8")), 1
    ) == pytest.approx(4 / 7)
    spaces = Rouge(tokenize="spaces", stem=True)
    assert list(spaces.count("\u00c4pfel running", "\u00e4pfel runs")) == [2, 2, 2]
    assert chinese.signature == "rouge2|F1|stem:no|tok:characters"
    assert spaces.signature == "rouge1|F1|stem:porter|tok:spaces"
    assert Bleu().for_language("zh").tokenize == "zh"
