"""Keeps computed texts in the user's cache."""

from __future__ import annotations

import json
from typing import Any, Callable

from mxtrain.files.cache import read_cached, write_cached


def cached_json(kind: str, name: str, compute: Callable[[], Any]) -> Any:
    """Returns a value from the cache, or computes and stores it. Tuples come back from the cache as lists.

    Args:
        kind: folder of the cache.
        name: name of the file, which must change with everything that the value depends on.
        compute: function that returns a value that JSON can hold.
    """
    content = read_cached(kind, name)
    if content is not None:
        return json.loads(content)
    value = compute()
    write_cached(kind, name, json.dumps(value).encode())
    return value
