"""Values as text for a command line: valid ones, and unexpected ones."""

from __future__ import annotations

import os
from random import Random
from typing import Any, Sequence

from fuzz_parts.surface import Setting
from mxtrain.config.override_text import quote
from mxtrain.config.specs import shown

SCALARS = (
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    ".5",
    "1.5",
    "-0.5",
    "abc",
    "''",
    '"3"',
    "'1e3'",
    "auto",
    "off",
    "none",
    "1_000",
    "0x10",
    "3M",
    "10%",
    "1e-3e",
    "5,6",
    "-",
    "=",
    "a b",
    "a:b",
    "???",
)
NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e308",
    "-1e308",
    "1e39",
    "3.5e38",
    "1e38",
    "1e-38",
    "1e-46",
    "1e-320",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "1000000000000000000",
    "1000000000000000000000000000000",
    "1e18",
    "1e9",
    "16777217",
    "100000",
    "-0.0",
)
NODES = (
    "[]",
    "[1]",
    "[0]",
    "[-1]",
    "[null]",
    "[true]",
    "[[1]]",
    "[[]]",
    "['a']",
    "[a,b]",
    "[1,2]",
    "[0,3]",
    "[1,2,3]",
    "[2000000000]",
    "[1e30]",
    "[.nan]",
    "[{a:1}]",
    "{}",
    "{a:1}",
    "{a:{b:c}}",
    "{a:[1]}",
    "{1:2}",
    "{_target_:x}",
    "{_target_:builtins.dict}",
    "{_target_:mine.Net}",
    "[{}]",
    "{a:null}",
    "{'a b':1}",
    "[[1,2],[3,4]]",
)
INTERPOLATIONS = (
    "${x}",
    "'a ${x}'",
    "'${'",
    "'$}'",
    "${model.hidden}",
    "${trainer}",
    "${oc.env:HOME}",
    "${oc.env:NOPE}",
    "${oc.env:NOPE,3}",
    "${optimizer.lr}",
    "${hydra:job.name}",
    "${now:%Y}",
    "${a.b:c}",
    "${.lr}",
    "${..}",
    "${unique_suffix:}",
    "'${oc.decode:${oc.env:PATH}}'",
    "${hydra.run.dir}",
    "'\\${x}'",
)
TEXTS = (
    "ü",
    "深度学习",
    "🙂",
    "'\u202eabc'",
    "'a\nb'",
    "'a\tb'",
    "a" * 300,
    "a/" * 2500,
    "'*'",
    "'('",
    "'[a-'",
    "'a\\'",
    os.fsdecode(b"\xff\xfe"),
    "'%s'",
    "'%(message)s'",
    "'{0}'",
    "'[red]x[/]'",
    "'[/]'",
    "';ls'",
    "'../'",
)
PATHS = (
    "/nowhere/x",
    "/dev/null",
    "/dev/null/x",
    "/proc/self/x",
    "..",
    ".",
    "../outside",
    "../../x",
    "'~'",
    "'~/x'",
    "folder",
    "folder/",
    "file.txt",
    "file.txt/x",
    "${oc.env:HOME}",
    "texts.tsv",
    "pictures",
    "run",
    "a/b/c",
    "noentry/x",
    "'a b'",
    "'.hidden'",
    "status.json",
    "checkpoints",
    ".hydra",
    "dangling",
    "loop",
)
TARGETS = (
    "''",
    "os",
    "5",
    "no.such.Thing",
    "os.getcwd",
    "builtins.dict",
    "builtins.print",
    "collections.OrderedDict",
    "mine.Net",
    "mine.net",
    "mine.no_return",
    "mine.wrong_return",
    "mine.raises",
    "mine.needs",
    "mine.nothing",
    "mine.wrong_shape",
    "broken.Net",
    "mxtrain.optimizer.optimizers.SGD",
    "mxtrain.optimizer.optimizers.Sgd",
    "mxtrain.types.Spec",
    "mxtrain.model.spec.Model",
    "numpy.zeros",
    "mxnet.gluon.loss.L2Loss",
    "mine.Metric",
    "mxnet.optimizer.SGD",
    "mxnet.gluon.nn.Dense",
    "..x",
    "a..b",
    "ü.x",
    "pathlib",
    "null",
    "[a]",
)
FAMILIES = (SCALARS, NUMBERS, NODES, INTERPOLATIONS, TEXTS, PATHS)


def wrong_value(setting: Setting, random: Random) -> str:
    """A value that the setting hardly takes; one that it takes after all does no harm."""
    name = setting.path.rpartition(".")[2]
    if name == "_target_":
        return random.choice(TARGETS)
    is_number = isinstance(setting.default, (int, float)) and not isinstance(setting.default, bool)
    families = [*FAMILIES]
    families += [NUMBERS, NUMBERS] if is_number or setting.default in (None, "auto") else []
    families += [NODES, NUMBERS] if isinstance(setting.default, (list, dict)) else []
    families += [PATHS, TEXTS] if isinstance(setting.default, str) or setting.default is None else []
    value = random.choice(random.choice(families))
    return _in_a_list(value, setting.default, random) if isinstance(setting.default, list) else value


def _in_a_list(value: str, default: Sequence[Any], random: Random) -> str:
    """Half of the time as long a list as the setting takes, so that more than its kind is looked at."""
    if random.random() < 0.5 or value.startswith(("[", "{", "???")) or "," in value:
        return value
    return f"[{','.join([value] * max(1, len(default)))}]"


def right_value(setting: Setting, random: Random) -> str:
    """A value that the setting may well take, and with which a run still takes seconds."""
    default = setting.default
    if setting.choices and random.random() < 0.7:
        return text_of(random.choice(setting.choices))
    if isinstance(default, bool):
        return random.choice(("true", "false"))
    if isinstance(default, int):
        return str(random.choice((0, 1, 2, 3, default)))
    if isinstance(default, float):
        return text_of(random.choice((0.0, 0.1, 0.5, 1.0, default, default / 2, default * 2)))
    return text_of(default)


def text_of(value: Any) -> str:
    """A value from a configuration as it is typed."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(text_of, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{text_of(item)}" for name, item in value.items()) + "}"
    return shown(value)


def misspelt(word: str, random: Random) -> str:
    """A word with one letter too many, missing, exchanged or in the other case."""
    place = random.randrange(len(word)) if word else 0
    left, letter, right = word[:place], word[place : place + 1], word[place + 1 :]
    return random.choice(
        (
            left + right,
            left + letter * 2 + right,
            left + letter.upper() + right,
            left + "x" + right,
            word + "s",
            left + right[:1] + letter + right[1:],
            word.replace("_", "-"),
            word.replace(".", "_"),
        )
    )
