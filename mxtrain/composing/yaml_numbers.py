"""Rejects numbers in YAML files that YAML 1.1 does not read as decimal.

`010` is 8, `0x10` is 16 and `1:30` is 90 in YAML 1.1 (https://yaml.org/type/int.html). The command line accepts none of
them as numbers.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Callable, Iterator, Type

import omegaconf._utils
import yaml

_OTHER_BASE = re.compile(
    r"[-+]?(0[0-7_]*[0-7][0-7_]*|0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)"
)
# A context variable: other libraries of the process, and other threads, go on reading YAML as they did.
_is_reading: ContextVar[bool] = ContextVar("numbers of other bases are refused", default=False)


class OtherBase(yaml.MarkedYAMLError):
    """A number is written so that YAML reads another one."""


def refuse_other_base(node: yaml.ScalarNode, value: float) -> None:
    """Checks how a number is written.

    Args:
        node: scalar of the file.
        value: number that YAML reads.

    Raises:
        OtherBase: it is in base 2, 8, 16 or 60.
    """
    if _OTHER_BASE.fullmatch(node.value):
        digits = node.value.replace("_", "")
        is_octal = digits.lstrip("+-").isdigit() and int(digits) != value
        meant = f"Write {int(digits)}, or {value:g}" if is_octal else f"Write {value:g}"
        raise OtherBase(
            None,
            None,
            f"{node.value} is {value:g} in YAML. {meant}, or '{node.value}' in quotes for a text",
            node.start_mark,
        )


def strict(loader: Type[Any]) -> Type[Any]:
    """Returns a loader of YAML that refuses such numbers. It raises `OtherBase`."""

    class StrictLoader(loader):
        """Refuses numbers of another base."""

    for kind in ("int", "float"):
        construct = getattr(loader, f"construct_yaml_{kind}")

        def checked(self: Any, node: yaml.ScalarNode, construct: Callable[..., float] = construct) -> float:
            value = construct(self, node)
            refuse_other_base(node, value)
            return value

        StrictLoader.add_constructor(f"tag:yaml.org,2002:{kind}", checked)
    return StrictLoader


@contextmanager
def refused_in_files() -> Iterator[None]:
    """Makes OmegaConf, with which Hydra reads its files, refuse such numbers within the block, in this thread."""
    before = _is_reading.set(True)
    try:
        yield
    finally:
        _is_reading.reset(before)


_loader_of_omegaconf = omegaconf._utils.get_yaml_loader


def _loader() -> Type[Any]:
    loader = _loader_of_omegaconf()
    return strict(loader) if _is_reading.get() else loader


# `OmegaConf.load` imports the function at each call.
omegaconf._utils.get_yaml_loader = _loader
