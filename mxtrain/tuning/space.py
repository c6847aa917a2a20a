"""Search space of a study: settings, their possible values, and the conditions under which they exist.

Choices are kept as the text after `key=` in an override, so that lists and names need no special case.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple, Union

from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.json_form import NUMBER, require_form, unknown_keys

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonForm, JsonObject

Value = Union[str, int, float]
Kind = Literal["choice", "int", "float"]
Values = Dict[str, Value]
MAX_EDGES = 32
"""Maximum number of values of a setting that are validated before the first trial: the first ones and the last."""
MAX_LISTED = 100_000
"""Maximum number of values of a range, or combinations of a grid, that are listed. Of longer ranges, such as those of
seeds, only both ends are validated."""

_FORM: JsonForm = {
    "key": str,
    "kind": str,
    "choices?": [str],
    "low?": NUMBER,
    "high?": NUMBER,
    "step?": (int, float, type(None)),
    "log?": bool,
    "when?": {"*": [str]},
}


@dataclass(frozen=True)
class TunedSetting:
    """A setting of the space.

    Attributes:
        key: setting or group, e.g. `optimizer.lr` or `model`. The second range of a setting has the key
            `optimizer.lr#2`, as Optuna knows ranges by their names; see `setting_of`.
        kind: choice = one of `choices`; int and float = from `low` to `high`, both included.
        choices: values as they are typed.
        low: smallest number.
        high: largest number.
        step: distance between numbers; None = any number (1 for int).
        log: True to sample numbers uniformly on a logarithmic scale.
        when: condition: other setting -> its values for which this setting exists; empty = it always exists.
    """

    key: str
    kind: Kind
    choices: Tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: Optional[float] = None
    log: bool = False
    when: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validates the setting.

        Raises:
            ConfigError: no value is possible.
        """
        if self.kind == "choice":
            if not self.choices:
                raise ConfigError(f"{self.key}: there is nothing to choose from.")
            return
        if self.low > self.high:
            raise ConfigError(f"{self.key}: {self.low:g} is above {self.high:g}. Write the smaller number first.")
        if self.log and self.low <= 0:
            raise ConfigError(f"{self.key}: a logarithmic range begins above 0, and this one at {self.low:g}.")
        if self.step is not None and self.step <= 0:
            raise ConfigError(f"{self.key}: the step of a range is above 0, and this one is {self.step:g}.")
        if self.log and self.step is not None:
            raise ConfigError(f"{self.key}: a logarithmic range has no steps. Leave out one of both.")

    def edges(self) -> Tuple[Value, ...]:
        """Returns the values to validate before the study: all choices and grid points, or both ends of a range."""
        points: Tuple[Value, ...] = self.points() or (self._typed(self.low), self._typed(self.high))
        distinct = tuple(dict.fromkeys(points))
        return distinct if len(distinct) <= MAX_EDGES else (*distinct[: MAX_EDGES - 1], distinct[-1])

    def points(self) -> Tuple[Value, ...]:
        """Returns all values; empty if they cannot be listed, or are more than `MAX_LISTED`."""
        if self.kind == "choice":
            return self.choices
        if self.log or (self.step is None and self.kind == "float"):
            return ()
        step = self.step or 1
        # (0.3 - 0.1) / 0.1 is 1.9999999999999998: the last point must not be lost.
        last = (self.high - self.low) / step + 1e-9
        if last >= MAX_LISTED:
            return ()
        return tuple(self._typed(self.low + number * step) for number in range(int(last) + 1))

    def _typed(self, number: float) -> Value:
        # 0.1 + 2 * 0.1 is 0.30000000000000004, which nobody would type as an override.
        return round(number) if self.kind == "int" else float(f"{number:.12g}")

    def range_text(self) -> str:
        """Returns the range as it is typed, with its condition, e.g. `log(0.0001,0.1)`."""
        condition = "".join(f" when {key}={'|'.join(allowed)}" for key, allowed in self.when.items())
        if self.kind == "choice":
            return f"choice({','.join(self.choices)}){condition}"
        ends = f"{self.low:.12g},{self.high:.12g}"
        if self.step is not None:
            name, ends = "range", f"{self.low:.12g},{self.high + self.step:.12g},{self.step:.12g}"
        elif self.kind == "int":
            name = "log_int" if self.log else "int"
        else:
            name = "log" if self.log else "interval"
        return f"{name}({ends}){condition}"

    def exists_with(self, values: Mapping[str, Value]) -> bool:
        """Returns True if the setting exists for these values of other settings."""
        return all(str(values.get(key)) in allowed for key, allowed in self.when.items())


class Space:
    """Settings of a study in topological order: conditions refer to earlier settings only.

    Raises:
        ConfigError: a condition names no other setting of the space, or a value that it never has.
    """

    def __init__(self, parameters: Sequence[TunedSetting]) -> None:
        by_key = {parameter.key: parameter for parameter in parameters}
        if len(by_key) < len(parameters):
            keys = [parameter.key for parameter in parameters]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigError(
                f"{twice}: the space names it twice. Give it once; a file may list ranges with different conditions: "
                f"`{twice}: [{{values: RANGE, when: {{model: mlp}}}}, {{values: RANGE, when: {{model: lenet}}}}]`."
            )
        for parameter in parameters:
            for key, allowed in parameter.when.items():
                _check_condition(parameter.key, key, allowed, by_key)
        for first, second in itertools.combinations(parameters, 2):
            if setting_of(first.key) == setting_of(second.key) and not _exclude_each_other(first, second):
                raise ConfigError(
                    f"{setting_of(first.key)}: {first.range_text()} and {second.range_text()} can exist at once. Give "
                    "each range a `when` with other values of the same setting."
                )
        self.parameters = tuple(_in_order(by_key))

    @property
    def settings(self) -> List[str]:
        """Returns the names of the settings that differ between trials, each once."""
        return list(dict.fromkeys(setting_of(parameter.key) for parameter in self.parameters))

    def active(self, values: Mapping[str, Value]) -> Values:
        """Returns the values whose settings exist, in the order of the space."""
        existing: Values = {}
        for parameter in self.parameters:
            if parameter.key in values and parameter.exists_with(existing):
                existing[parameter.key] = values[parameter.key]
        return existing

    def edges(self) -> List[Values]:
        """Returns assignments that cover all edges of all settings, one setting at a time."""
        first: Values = {parameter.key: parameter.edges()[0] for parameter in self.parameters}
        assignments: List[Values] = []
        for parameter in self.parameters:
            for value in parameter.edges():
                values = self.active({**first, **self._required(parameter), parameter.key: value})
                if values not in assignments:
                    assignments.append(values)
        return assignments or [{}]

    def _required(self, parameter: TunedSetting) -> Values:
        """Returns values of other settings for which this one exists."""
        by_key = {setting.key: setting for setting in self.parameters}
        required: Values = {}
        for key, allowed in parameter.when.items():
            required.update(self._required(by_key[key]))
            required[key] = allowed[0]
        return required

    def grid(self) -> List[Values]:
        """Returns all combinations, each once.

        Raises:
            ConfigError: a setting has no list of values.
        """
        listed = [(parameter.key, parameter.points()) for parameter in self.parameters]
        for key, points in listed:
            if not points:
                raise ConfigError(
                    f"{key}: sampler=grid takes values that can be listed, choice(...) or range(first,end,step), and "
                    f"this one has a range of numbers, or of more than {MAX_LISTED:,}."
                )
        count = math.prod(len(points) for _, points in listed)
        if count > MAX_LISTED:
            raise ConfigError(
                f"sampler=grid: the ranges have {count:,} combinations, and a grid has at most {MAX_LISTED:,}. Give "
                "fewer values, or type sampler=tpe."
            )
        combinations: Dict[Tuple[Tuple[str, Value], ...], None] = {}
        keys = [key for key, _ in listed]
        for combination in itertools.product(*(points for _, points in listed)):
            # Combinations that differ only in settings which do not exist there are the same trial.
            combinations[tuple(self.active(dict(zip(keys, combination))).items())] = None
        return [dict(items) for items in combinations]

    def to_json(self) -> List[JsonObject]:
        """Returns the space in the format of `study.json`."""
        return [asdict(parameter) for parameter in self.parameters]

    @classmethod
    def from_json(cls, content: Any) -> Space:
        """Reads a space from the content of `study.json`.

        Raises:
            ValueError, ConfigError: the content is not a valid space.
        """
        parameters = []
        for item in content:
            require_form(item, _FORM)
            for name in unknown_keys(item, _FORM):
                raise ValueError(f"has a parameter with the unknown field {name}")
            given = {name: value for name, value in item.items() if value is not None}  # null is the default
            condition = {key: tuple(allowed) for key, allowed in given.get("when", {}).items()}
            if item["kind"] not in ("choice", "int", "float"):
                raise ValueError(f"has a parameter of the kind {item['kind']!r}")
            parameters.append(TunedSetting(**{**given, "choices": tuple(given.get("choices", ())), "when": condition}))
        return cls(parameters)


def overrides_of_trial(values: Mapping[str, Value]) -> List[str]:
    """Returns the overrides that set the values of a trial."""
    return [f"{setting_of(key)}={value}" for key, value in values.items()]


def setting_of(key: str) -> str:
    """Returns the setting or group of a key: `optimizer.lr` of `optimizer.lr#2`."""
    return re.sub(r"#\d+\Z", "", key)


def _exclude_each_other(first: TunedSetting, second: TunedSetting) -> bool:
    """Returns True if no values of other settings make both exist."""
    return any(not set(allowed) & set(second.when[key]) for key, allowed in first.when.items() if key in second.when)


def _check_condition(key: str, other: str, allowed: Sequence[str], by_key: Mapping[str, TunedSetting]) -> None:
    """Checks that `other`, on whose values the setting `key` depends, is in the space and can have these values."""
    if other not in by_key:
        raise ConfigError(
            f"{key}: its condition is about {other}, which is not in the space.{did_you_mean(other, by_key)} "
            f"The space has: {', '.join(by_key)}."
        )
    points = list(map(str, by_key[other].points()))
    for value in allowed:
        if value not in points:
            raise ConfigError(
                f"{key}: its condition is {other}={value}, which is never tried.{did_you_mean(value, points)} "
                f"{other} can be: {', '.join(points) or 'a range of numbers, on which nothing can depend'}."
            )


def _in_order(by_key: Mapping[str, TunedSetting]) -> Iterator[TunedSetting]:
    """Yields the settings in topological order: each one follows the settings in its condition."""
    yielded: List[str] = []
    remaining = list(by_key)
    while remaining:
        ready = [key for key in remaining if set(by_key[key].when) <= set(yielded)]
        if not ready:
            raise ConfigError(f"{', '.join(remaining)}: their conditions depend on each other in a circle.")
        yielded.append(ready[0])
        remaining.remove(ready[0])
        yield by_key[ready[0]]
