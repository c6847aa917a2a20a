"""Phrases in two languages that are true translations, from data that everybody can install: dates, numbers in words,
measures, amounts of money and times relative to now.

Names of units, currencies, months and days, and how they are written, are Unicode's (CLDR, by Babel); numbers in words
are num2words'. What it holds differs a little between versions of both.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Set, Tuple

import numpy as np

from mxtrain.config.libraries import require_library
from mxtrain.data.loading.randomness import integers
from mxtrain.files.cache import cached_json
from mxtrain.text.draws import TextDraw

LANGUAGES = ("en", "de", "fr", "it", "nl", "sv", "da", "nb", "fi")
"""Languages of both libraries in which only the number one is inflected before a noun."""
WORDS = {"nb": "no"}
"""num2words' codes where they differ."""
UNITS = (
    "length-meter",
    "length-kilometer",
    "length-mile",
    "length-foot",
    "mass-kilogram",
    "mass-ton",
    "area-hectare",
    "area-square-kilometer",
    "volume-liter",
    "duration-hour",
    "duration-minute",
    "temperature-celsius",
    "energy-kilowatt-hour",
    "speed-kilometer-per-hour",
)
CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "SEK", "INR", "AUD", "CAD", "MXN", "ZAR", "RUB")
DATE_FORMATS = ("short", "medium", "long", "full")
PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2592000, "year": 31536000}
"""Seconds of each, as Babel counts them."""
MAX_AGE = 120
FIRST_DAY, NUM_DAYS = datetime.date(1900, 1, 1), 200 * 365
SHARES = {"date": 0.3, "number": 0.25, "unit": 0.25, "money": 0.13, "relative": 0.07}
"""Number of phrases of each kind."""
WHAT = "dataset=number_and_date_phrases"
_VERSION = 1
"""Version of the prepared data; increase it to prepare the data again."""


class Phrase(NamedTuple):
    """A phrase in two languages."""

    source: str
    target: str


def phrases(source: str, target: str, count: int, seed: int) -> List[Phrase]:
    """Returns distinct phrases in random order; no two share a source or a target.

    Args:
        source, target: two of `LANGUAGES`.
        count: maximum number of phrases; there may be fewer distinct ones.
        seed: seed of the choice.

    Raises:
        DataError: a library is not installed.
    """
    _babel("core")
    require_library("num2words", "num2words", WHAT)
    versions = [importlib.metadata.version(name) for name in ("Babel", "num2words")]
    cache_key = json.dumps([_VERSION, versions, SHARES, source, target, count, seed])
    name = f"phrases-{hashlib.sha256(cache_key.encode()).hexdigest()[:32]}.json"
    return [Phrase(*pair) for pair in cached_json("texts", name, lambda: _make(source, target, count, seed))]


def _make(source: str, target: str, count: int, seed: int) -> List[Phrase]:
    makers = {name: (MAKERS[name](source), MAKERS[name](target)) for name in SHARES}
    new_phrases: List[Phrase] = []
    seen: Tuple[Set[str], Set[str]] = (set(), set())
    total, num_planned = 0.0, 0
    for kind, (name, share) in enumerate(SHARES.items()):
        total += share
        num_of_kind, num_phrases = round(count * total) - num_planned, 0
        num_planned += num_of_kind
        for number in _numbers(seed, kind, 4 * num_of_kind + 100):
            if num_phrases == num_of_kind:
                break
            phrase = Phrase(*(make(number) for make in makers[name]))
            if all(text and text not in texts for text, texts in zip(phrase, seen)):
                new_phrases.append(phrase)
                num_phrases += 1
                for text, texts in zip(phrase, seen):
                    texts.add(text)
    random_N = integers(seed, len(SHARES), np.arange(len(new_phrases)), TextDraw.PHRASE, 1 << 52)
    order = np.argsort(random_N, kind="stable")
    return [new_phrases[position] for position in order.tolist()]


def _numbers(seed: int, kind: int, count: int) -> Iterator[List[int]]:
    """Returns four random numbers below 2 ** 40 for each phrase."""
    columns = [integers(seed, kind, np.arange(count), TextDraw.PHRASE + 1 + column, 1 << 40) for column in range(4)]
    return iter(np.stack(columns, axis=1).tolist())


Make = Callable[[List[int]], str]
"""Function of random numbers that returns a phrase; the same numbers give the same meaning in each language. Ambiguous
phrases are empty."""


def _babel(module: str) -> Any:
    return require_library(f"babel.{module}", "babel", WHAT)


def _date(language: str) -> Make:
    format_date = _babel("dates").format_date

    def make(random: List[int]) -> str:
        day = FIRST_DAY + datetime.timedelta(days=random[0] % NUM_DAYS)
        texts = [format_date(day, form, locale=language) for form in DATE_FORMATS]
        text: str = texts[random[1] % len(DATE_FORMATS)]
        # In May, English writes two forms alike, of which other languages make different ones.
        return text if texts.count(text) == 1 else ""

    return make


def _words(language: str) -> Callable[[int], str]:
    library = require_library("num2words", "num2words", WHAT)
    return lambda number: str(library.num2words(number, lang=WORDS.get(language, language)))


def _size(random: List[int], most_digits: int) -> int:
    """Returns a random number whose number of digits is distributed uniformly."""
    return int(random[0] % 10 ** (1 + random[1] % most_digits))


def _number(language: str) -> Make:
    say = _words(language)
    return lambda random: say(_size(random, 6))


def _counted(random: List[int], most_digits: int) -> int:
    """Returns a random number that does not end in one, because one is inflected before a noun."""
    number = _size(random, most_digits)
    return number + 1 if number % 10 == 1 else number


def _unit(language: str) -> Make:
    format_decimal, format_unit = _babel("numbers").format_decimal, _babel("units").format_unit
    say = _words(language)

    def make(random: List[int]) -> str:
        number, unit = _counted(random, 3), UNITS[random[2] % len(UNITS)]
        text: str = format_unit(number, unit, locale=language)
        # In digits, or in words where the pattern has the digits.
        return text if random[3] % 2 else text.replace(format_decimal(number, locale=language), say(number), 1)

    return make


def _money(language: str) -> Make:
    get_currency_name = _babel("numbers").get_currency_name
    say = _words(language)

    def make(random: List[int]) -> str:
        number = _counted(random, 4)
        return f"{say(number)} {get_currency_name(CURRENCIES[random[2] % len(CURRENCIES)], number, locale=language)}"

    return make


def _relative(language: str) -> Make:
    format_timedelta = _babel("dates").format_timedelta

    def make(random: List[int]) -> str:
        period = list(PERIODS)[random[0] % len(PERIODS)]
        seconds = (1 + random[1] % MAX_AGE) * PERIODS[period] * (1 if random[2] % 2 else -1)
        text: str = format_timedelta(
            datetime.timedelta(seconds=seconds), granularity=period, threshold=1e9, add_direction=True, locale=language
        )
        return text

    return make


MAKERS: Dict[str, Callable[[str], Make]] = {
    "date": _date,
    "number": _number,
    "unit": _unit,
    "money": _money,
    "relative": _relative,
}
"""Kind of phrases -> function of a language that returns the function that makes such phrases of random integers."""
