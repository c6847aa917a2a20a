"""Checks the structure of JSON values that come from files against a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterator, Optional

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonForm

NUMBER = (int, float)


def problems_of(value: object, schema: JsonForm, path: str = "") -> Iterator[str]:
    """Yields a message for each part of a value that does not match a schema, e.g. "'meta.shape' is missing".

    Args:
        value: the parsed JSON value.
        schema: see `annotations.JsonForm`.
        path: dotted path of the value in the file.
    """
    if isinstance(schema, dict):
        yield from _mapping_problems(value, schema, path)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield f"'{path}' is no list"
        else:
            for item in value:
                yield from problems_of(item, schema[0], f"{path}[]")
    elif not isinstance(value, schema) or isinstance(value, bool) and schema in (int, NUMBER):
        yield f"'{path}' is a {type(value).__name__}"


def require_form(value: object, schema: JsonForm, path: str = "") -> None:
    """Checks a value against a schema; arguments as for `problems_of`.

    Raises:
        ValueError: the value does not match; the message is the first problem.
    """
    for problem in problems_of(value, schema, path):
        raise ValueError(problem)


def _mapping_problems(value: object, schema: Dict[str, JsonForm], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"'{path}' is no object"
        return
    fields = {key.rstrip("?"): kind for key, kind in schema.items() if key != "*"}
    for key in schema:
        if not key.endswith("?") and key != "*" and key not in value:
            yield f"'{path}{'.' if path else ''}{key}' is missing"
    for key, item in value.items():
        if key in fields and item is None and f"{key}?" in schema:
            continue
        kind = fields.get(key, schema.get("*", object))
        yield from problems_of(item, kind, f"{path}{'.' if path else ''}{key}")


def unknown_keys(value: object, schema: Optional[JsonForm], path: str = "") -> Iterator[str]:
    """Yields the quoted path of each key that the schema does not name, unless it allows any with "*"."""
    if not isinstance(schema, dict) or not isinstance(value, dict):
        return
    fields = {key.rstrip("?"): kind for key, kind in schema.items()}
    for key, item in value.items():
        name = f"{path}{'.' if path else ''}{key}"
        if key not in fields and "*" not in fields:
            yield f"'{name}'"
        else:
            yield from unknown_keys(item, fields.get(key, fields.get("*")), name)
