"""The form of JSON values that come from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterator, Optional

if TYPE_CHECKING:
    from mxtrain.annotations import Wanted

NUMBER = (int, float)


def problems_of(value: object, wanted: Wanted, path: str = "") -> Iterator[str]:
    """Says what in JSON values has not the form that is wanted; each sentence goes on after "in the file".

    Args:
        value: as it was parsed.
        wanted: its form.
        path: of the value in the whole, dotted.
    """
    if isinstance(wanted, dict):
        yield from _of_mapping(value, wanted, path)
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            yield f"'{path}' is no list"
        else:
            for item in value:
                yield from problems_of(item, wanted[0], f"{path}[]")
    elif not isinstance(value, wanted) or isinstance(value, bool) and wanted in (int, NUMBER):
        yield f"'{path}' is a {type(value).__name__}"


def _of_mapping(value: object, wanted: Dict[str, Wanted], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"'{path}' is no object"
        return
    named = {key.rstrip("?"): kind for key, kind in wanted.items() if key != "*"}
    for key in wanted:
        if not key.endswith("?") and key != "*" and key not in value:
            yield f"'{path}{'.' if path else ''}{key}' is missing"
    for key, item in value.items():
        if key in named and item is None and f"{key}?" in wanted:
            continue
        kind = named.get(key, wanted.get("*", object))
        yield from problems_of(item, kind, f"{path}{'.' if path else ''}{key}")


def unknown_keys(value: object, wanted: Optional[Wanted], path: str = "") -> Iterator[str]:
    """Keys where the set of keys is fixed and these are not among them."""
    if not isinstance(wanted, dict) or not isinstance(value, dict):
        return
    named = {key.rstrip("?"): kind for key, kind in wanted.items()}
    for key, item in value.items():
        name = f"{path}{'.' if path else ''}{key}"
        if key not in named and "*" not in named:
            yield f"'{name}'"
        else:
            yield from unknown_keys(item, named.get(key, named.get("*")), name)
