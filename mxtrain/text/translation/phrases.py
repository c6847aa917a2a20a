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

from mxtrain.data.loading.libraries import require_library
from mxtrain.data.loading.randomness import integers
from mxtrain.files.cache import read_cached, write_cached
from mxtrain.text.draws import TextDraw

LANGUAGES = ("en", "de", "fr", "it", "nl", "sv", "da", "nb", "fi")
"""Languages of both libraries in which only the number one is inflected before a noun."""
WORDS = {"nb": "no"}
"""num2words' codes where they differ."""
UNITS = (
    "length-meter", "length-kilometer", "length-mile", "length-foot", "mass-kilogram", "mass-ton", "area-hectare",
    "area-square-kilometer", "volume-liter", "duration-hour", "duration-minute", "temperature-celsius",
    "energy-kilowatt-hour", "speed-kilometer-per-hour",
)  # fmt: skip
CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "SEK", "INR", "AUD", "CAD", "MXN", "ZAR", "RUB")
DATE_FORMATS = ("short", "medium", "long", "full")
PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2592000, "year": 31536000}
"""Seconds of each, as Babel counts them."""
MOST_AGO = 120
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
    """So many different phrases in random order; no two have a source or a target in common.

    Args:
        source, target: of `LANGUAGES`.
        count: how many; fewer are found where there are no more.
        seed: which ones.

    Raises:
        DataError: a library is not installed.
    """
    _babel("core")
    require_library("num2words", "num2words", WHAT)
    versions = [importlib.metadata.version(name) for name in ("Babel", "num2words")]
    made_of = json.dumps([_VERSION, versions, SHARES, source, target, count, seed])
    name = f"phrases-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.json"
    kept = read_cached("texts", name)
    if kept is not None:
        return [Phrase(*pair) for pair in json.loads(kept)]
    made = _make(source, target, count, seed)
    write_cached("texts", name, json.dumps(made).encode())
    return made


def _make(source: str, target: str, count: int, seed: int) -> List[Phrase]:
    makers = {name: (_MAKERS[name](source), _MAKERS[name](target)) for name in SHARES}
    found: List[Phrase] = []
    seen: Tuple[Set[str], Set[str]] = (set(), set())
    total, before = 0.0, 0
    for kind, (name, share) in enumerate(SHARES.items()):
        total += share
        wanted, own = round(count * total) - before, 0
        before += wanted
        for number in _numbers(seed, kind, 4 * wanted + 100):
            if own == wanted:
                break
            phrase = Phrase(*(make(number) for make in makers[name]))
            if all(text and text not in texts for text, texts in zip(phrase, seen)):
                found.append(phrase)
                own += 1
                for text, texts in zip(phrase, seen):
                    texts.add(text)
    order = np.argsort(integers(seed, len(SHARES), np.arange(len(found)), TextDraw.PHRASE, 1 << 52), kind="stable")
    return [found[place] for place in order.tolist()]


def _numbers(seed: int, kind: int, count: int) -> Iterator[List[int]]:
    """Random numbers for phrases, below 2 ** 40, four for each."""
    columns = [integers(seed, kind, np.arange(count), TextDraw.PHRASE + 1 + one, 1 << 40) for one in range(4)]
    return iter(np.stack(columns, axis=1).tolist())


Make = Callable[[List[int]], str]
"""Random numbers to a phrase, the same numbers to the same in each language; empty if it has two meanings."""


def _babel(module: str) -> Any:
    return require_library(f"babel.{module}", "Babel", WHAT)


def _date(language: str) -> Make:
    format_date = _babel("dates").format_date

    def make(drawn: List[int]) -> str:
        day = FIRST_DAY + datetime.timedelta(days=drawn[0] % NUM_DAYS)
        texts = [format_date(day, form, locale=language) for form in DATE_FORMATS]
        text: str = texts[drawn[1] % len(DATE_FORMATS)]
        # In May, English writes two forms alike, of which other languages make different ones.
        return text if texts.count(text) == 1 else ""

    return make


def _words(language: str) -> Callable[[int], str]:
    library = require_library("num2words", "num2words", WHAT)
    return lambda number: str(library.num2words(number, lang=WORDS.get(language, language)))


def _size(drawn: List[int], most_digits: int) -> int:
    """Returns a number of any number of digits, as likely each."""
    return int(drawn[0] % 10 ** (1 + drawn[1] % most_digits))


def _number(language: str) -> Make:
    say = _words(language)
    return lambda drawn: say(_size(drawn, 6))


def _counted(drawn: List[int], most_digits: int) -> int:
    """Returns a number that is said before a noun as it is alone: without a one at its end."""
    number = _size(drawn, most_digits)
    return number + 1 if number % 10 == 1 else number


def _unit(language: str) -> Make:
    format_decimal, format_unit = _babel("numbers").format_decimal, _babel("units").format_unit
    say = _words(language)

    def make(drawn: List[int]) -> str:
        number, unit = _counted(drawn, 3), UNITS[drawn[2] % len(UNITS)]
        text: str = format_unit(number, unit, locale=language)
        # In digits, or in words where the pattern has the digits.
        return text if drawn[3] % 2 else text.replace(format_decimal(number, locale=language), say(number), 1)

    return make


def _money(language: str) -> Make:
    get_currency_name = _babel("numbers").get_currency_name
    say = _words(language)

    def make(drawn: List[int]) -> str:
        number = _counted(drawn, 4)
        return f"{say(number)} {get_currency_name(CURRENCIES[drawn[2] % len(CURRENCIES)], number, locale=language)}"

    return make


def _relative(language: str) -> Make:
    format_timedelta = _babel("dates").format_timedelta

    def make(drawn: List[int]) -> str:
        period = list(PERIODS)[drawn[0] % len(PERIODS)]
        seconds = (1 + drawn[1] % MOST_AGO) * PERIODS[period] * (1 if drawn[2] % 2 else -1)
        text: str = format_timedelta(
            datetime.timedelta(seconds=seconds), granularity=period, threshold=1e9, add_direction=True, locale=language
        )
        return text

    return make


_MAKERS: Dict[str, Callable[[str], Make]] = {
    "date": _date, "number": _number, "unit": _unit, "money": _money, "relative": _relative,
}  # fmt: skip
