"""Generated reports of matches and their summaries, which need no download.

A report has sentences on goals, on missed shots and on everything else. Its summary has the teams and the goals in
order, and nothing else, so a network must learn what matters, and copy names and minutes. One word of each summary is
drawn at random, as authors choose words: half of the references differ from the best prediction in it.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.randomness import integers
from mxtrain.data.spec import Splits
from mxtrain.text.draws import TextDraw
from mxtrain.text.summarization.summaries import SummaryDataset
from mxtrain.text.tokenizing.kinds import TokenizerKind
from mxtrain.types import BatchSize, NonNegative, Positive

TEAMS = ("Oslo", "Turku", "Riga", "Bergen", "Malmo", "Tartu", "Lund", "Vaasa", "Aarhus", "Kaunas")
PLAYERS = ("Anna", "Berit", "Cilla", "Dora", "Elin", "Frida", "Greta", "Hanna", "Ida", "Jana", "Kaisa", "Lena", "Maja")
GOALS = (
    "In minute {minute} {player} put the ball into the net .",
    "{player} scored in minute {minute} after a long pass .",
    "A header by {player} in minute {minute} went in .",
)
OTHERS = (
    "In minute {minute} {player} hit the post .",
    "{player} shot over the bar in minute {minute} .",
    "The keeper held a header by {player} in minute {minute} .",
    "The crowd sang in the rain .",
    "Both coaches shouted from the line .",
    "The referee waved play on after a foul by {player} .",
)
LINKS = ("against", "and")
MAX_SENTENCES = 5
_NUMBERS = 4 + 4 * MAX_SENTENCES
"""Random numbers of a report."""


def report(numbers: List[int]) -> Tuple[str, str]:
    """Returns a report and its summary.

    Args:
        numbers: random numbers, of which each choice uses one.
    """
    rest = iter(numbers)
    home = TEAMS[next(rest) % len(TEAMS)]
    others = [team for team in TEAMS if team != home]
    away = others[next(rest) % len(others)]
    link = LINKS[next(rest) % len(LINKS)]
    count = 2 + next(rest) % (MAX_SENTENCES - 1)
    sentences, goals, minute = [f"{home} met {away} ."], [], 0
    for _ in range(count):
        is_goal = next(rest) % 2 == 0
        forms = GOALS if is_goal else OTHERS
        form, player = forms[next(rest) % len(forms)], PLAYERS[next(rest) % len(PLAYERS)]
        minute += 1 + next(rest) % (90 // MAX_SENTENCES)
        sentences.append(form.format(minute=minute, player=player))
        goals += [f"{player} scored in minute {minute} ."] * is_goal
    return " ".join(sentences), " ".join([f"{home} {link} {away} :", *(goals or ["no goals ."])])


class MatchReports(SummaryDataset):
    """Generated reports of matches. No report occurs twice."""

    num_train: Positive = 4500
    """Training pairs."""
    num_val: Positive = 300
    """Validation pairs."""
    num_test: NonNegative = 300
    """Test pairs."""
    tokenizer: TokenizerKind = "words"
    """Kind of a trained vocabulary: words, bpe (byte-level), unigram, sentencepiece_bpe or characters."""
    vocab_size: Annotated[int, pydantic.Field(ge=100)] = 500
    max_length: Annotated[int, pydantic.Field(ge=8)] = 96
    max_summary_length: Annotated[int, pydantic.Field(ge=8)] = 48
    batch_size: BatchSize = 32
    """Pairs per optimizer step, over all devices and workers together."""

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        self.require_libraries()
        total = self.num_train + self.num_val + self.num_test
        # A few reports are equal: the further ones replace them.
        index_N = np.arange(2 * total + 100)
        columns = [
            integers(self.split_seed, column, index_N, TextDraw.REPORT, 1 << 30).tolist() for column in range(_NUMBERS)
        ]
        pairs = list(dict.fromkeys(map(report, map(list, zip(*columns)))))[:total]
        return self._split_generated(pairs, self.num_train, self.num_val, self.num_test)
