"""Reads a study's search space: ranges among the overrides, in Hydra's syntax for sweeps, and from a YAML file."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import yaml
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from mxtrain.composing.composer import Composer
from mxtrain.composing.yaml_numbers import strict
from mxtrain.config.specs import shown
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.regular_files import read_regular_text
from mxtrain.tuning.space import MAX_LISTED, Space, TunedSetting, setting_of

FORMS = "choice(a,b), range(first,end,step), interval(low,high), log(low,high), int(low,high) or log_int(low,high)"
_SHORT = re.compile(r"(log|int|log_int)\(([^(),]+),([^(),]+)\)")
_LONG = {"log": "tag(log,interval({}))", "int": "int(interval({}))", "log_int": "tag(log,int(interval({})))"}
_BOOLEANS = {"True": "true", "False": "false"}
FIELDS = ("values", "when")
_CALL = re.compile(r"(\w+)\(([^()]*)\)")
_TWO_NUMBERS = ("interval", *_LONG)
_RANGES = ("choice", "range", *_TWO_NUMBERS)
_FUNCTIONS = (*_RANGES, "tag", "glob", "sort", "shuffle", "float", "str", "bool", "json_str", "extend_list")
"""Names before brackets: ranges, and functions of Hydra."""


def long_form(text: str) -> str:
    """Returns an override with Hydra's form of `log(1e-4,1e-1)`, `int(1,8)` and `log_int(8,512)`."""
    key, sign, value = text.partition("=")
    match = _SHORT.fullmatch(value.strip())
    if not match:
        return text
    return key + sign + _LONG[match[1]].format(f"{match[2].strip()},{match[3].strip()}")


def refuse_malformed_range(text: str) -> None:
    """Rejects a range with a misspelt name, or with other arguments than two numbers.

    Raises:
        ConfigError: names the range that was probably meant, or its arguments.
    """
    match = _CALL.fullmatch(text.partition("=")[2].strip())
    if not match:
        return
    name, arguments = match[1], match[2]
    if name not in _FUNCTIONS:
        near = did_you_mean(name, _RANGES)
        if near:
            raise ConfigError(f"{text}: there is no range '{name}'.{near} Use {FORMS}.")
        return
    if name not in _TWO_NUMBERS or (name == "int" and not re.search("[,;]", arguments)):  # int(3) is a number
        return
    numbers = arguments.split(",")
    if len(numbers) != 2 or not all(map(_is_number, numbers)):
        raise ConfigError(
            f"{text}: {name} takes two numbers with a comma between them, the smallest and the largest: "
            f"{name}({'1,8' if 'int' in name.split('_') else '1e-4,1e-1'})."
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def split_space(composer: Composer, overrides: Sequence[str], file: str = "") -> Tuple[List[str], Space]:
    """Separates the settings that differ between trials from the settings that all trials share.

    Args:
        composer: parses.
        overrides: of the command line.
        file: a YAML file with further settings, or "".

    Raises:
        ConfigError: a range is none, or a setting has two.
    """
    fixed: List[str] = []
    parameters: List[TunedSetting] = []
    for text in overrides:
        refuse_malformed_range(text)
    for override in composer.parse([long_form(text) for text in overrides]):
        if override.is_sweep_override():
            parameters.append(parameter_of(override))
        else:
            fixed.append(override.input_line)
    if file:
        parameters += read_space_file(composer, file)
    parsed = {override.key_or_group for override in composer.parse(fixed)}
    for parameter in parameters:
        if setting_of(parameter.key).lstrip("+") in parsed:
            raise ConfigError(f"{setting_of(parameter.key)}: it has both a value and a range. Leave out one of them.")
    return fixed, Space(parameters)


def parameter_of(override: Override) -> TunedSetting:
    """Returns the setting that an override gives several values.

    Raises:
        ConfigError: they cannot be tried, such as a glob of Hydra's.
    """
    value, key = override.value(), override.get_key_element()
    if isinstance(value, ChoiceSweep):
        texts = map(str, override.sweep_string_iterator())
        return TunedSetting(key, "choice", tuple(_BOOLEANS.get(text, text) for text in texts))
    if isinstance(value, IntervalSweep):
        if set(value.tags) - {"log"}:
            tags = ", ".join(sorted(value.tags))
            raise ConfigError(f"{override.input_line}: the tag {tags} is not known. Use {FORMS}.")
        is_int = isinstance(value.start, int) and isinstance(value.end, int)
        kind: Any = "int" if is_int else "float"
        return TunedSetting(key, kind, low=value.start, high=value.end, log="log" in value.tags)
    if isinstance(value, RangeSweep):
        is_int = all(isinstance(one, int) for one in (value.start, value.stop, value.step))
        points: Sequence[float]
        if not value.step:
            raise ConfigError(f"{override.input_line}: the third number is the step, and must not be 0.")
        if is_int:
            points = range(value.start, value.stop, value.step)
        elif abs((value.stop - value.start) / value.step) > MAX_LISTED:
            raise ConfigError(
                f"{override.input_line}: it has more than {MAX_LISTED:,} numbers. Give a larger step, or "
                "type interval(first,last)."
            )
        else:
            points = [float(text) for text in override.sweep_string_iterator()]
        if not points:
            raise ConfigError(f"{override.input_line}: there is no number in this range.")
        low, high = min(points[0], points[-1]), max(points[0], points[-1])
        step = abs(float(value.step))
        if is_int:
            return TunedSetting(key, "int", low=int(low), high=int(high), step=int(step))
        # Steps of 0.1 add up to 0.30000000000000004; twelve digits bring back the number that was meant.
        return TunedSetting(key, "float", low=low, high=float(f"{high:.12g}"), step=step)
    raise ConfigError(f"{override.input_line}: a study takes {FORMS}.")


def read_space_file(composer: Composer, file: str) -> List[TunedSetting]:
    """Returns the settings of a YAML file: `key: RANGE`, `key: {values: RANGE, when: {other: value}}`, or a list of
    the latter for a setting whose range depends on another one.

    Raises:
        ConfigError: it cannot be read, or something in it is no range.
    """
    try:
        content = yaml.load(read_regular_text(file), strict(yaml.SafeLoader))  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"space={file}: it cannot be read: {line}{error.problem or error.context}.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"space={file}: it cannot be read: {str(error).splitlines()[0]}.") from None
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"space={file}: it should hold lines such as `optimizer.lr: log(1e-4,1e-1)`.")
    settings: List[TunedSetting] = []
    for name, value in content.items():
        # A list of plain values is a choice.
        has_ranges = isinstance(value, list) and any(isinstance(one, Mapping) and FIELDS[0] in one for one in value)
        for number, one in enumerate(value if has_ranges else [value], start=1):
            if has_ranges and not (isinstance(one, Mapping) and one.get("when")):
                raise ConfigError(
                    f"space={file}: {name} has several ranges, and {shown(one)} does not say when it exists. "
                    "Write each as {values: RANGE, when: {model: mlp}}."
                )
            setting = _from_file(composer, file, str(name), one)
            settings.append(replace(setting, key=f"{name}#{number}") if number > 1 else setting)
    return settings


def _from_file(composer: Composer, file: str, key: str, value: Any) -> TunedSetting:
    when: Dict[str, Tuple[str, ...]] = {}
    if isinstance(value, Mapping):
        for name in value:
            if str(name).endswith(")"):
                raise ConfigError(
                    f"space={file}: {key}: YAML splits a range between braces at its comma. Put it in quotes: "
                    "{values: 'interval(0,1)'}."
                )
            if not set(FIELDS) & set(value) and not did_you_mean(str(name), FIELDS):
                raise ConfigError(
                    f"space={file}: {name} below {key}: write the whole name of a setting in one line, "
                    f"`{key}.{name}: ...`."
                )
            if name not in FIELDS:
                raise ConfigError(
                    f"space={file}: {key}.{name} is not known.{did_you_mean(str(name), FIELDS)} A setting has "
                    "`values`, and `when` with the values of others that it needs."
                )
        needed = value.get("when") or {}
        if not isinstance(needed, Mapping):
            raise ConfigError(f"space={file}: {key}.when={shown(needed)} should be such as {{model: mlp}}.")
        when = {str(name): _value_texts(allowed) for name, allowed in needed.items()}
        value = value.get("values")
    if isinstance(value, list):
        return TunedSetting(key, "choice", _value_texts(value), when=when)
    if not isinstance(value, str):
        raise ConfigError(f"space={file}: {key}={shown(value)} is no range. Use {FORMS}.")
    try:
        refuse_malformed_range(f"{key}={value}")
        (override,) = composer.parse([long_form(f"{key}={value}")])
    except ConfigError as error:
        raise ConfigError(f"space={file}: {error}") from None
    if not override.is_sweep_override():
        raise ConfigError(f"space={file}: {key}={value} is no range. Use {FORMS}.")
    return replace(parameter_of(override), when=when)


def _value_texts(value: Any) -> Tuple[str, ...]:
    """Returns values of YAML as they are typed in an override."""
    if isinstance(value, list):
        return tuple(
            _value_texts(one)[0] if not isinstance(one, list) else f"[{','.join(_value_texts(one))}]" for one in value
        )
    if value is None or isinstance(value, bool):
        return ({True: "true", False: "false", None: "null"}[value],)
    return (str(value),)
