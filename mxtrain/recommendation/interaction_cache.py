"""Caches the interactions of files, so that a second start does not parse them again.

Legend: P interactions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict

from mxtrain.data.checking.problems import DataLocations, Findings
from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import Advance, prepare
from mxtrain.data.corpus.shards import ArrayForm, ShardWriter
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.table.columns import PARQUET, require_file
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.rows import Columns
from mxtrain.recommendation.source import InteractionRows

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject


def cached_interactions(
    path: Path, read_as: Json, columns: Columns, read: Callable[[], InteractionRows], findings: Findings
) -> InteractionRows:
    """Returns the interactions of a file, from the cache if possible.

    Args:
        path: path of the file.
        read_as: settings that, together with the content of the file, determine the result.
        columns: columns of the rows.
        read: function that reads the file.
        findings: collects the problems. If reading continues after problems, the file is always read and the result is
            not cached.

    Raises:
        DataError: the file cannot be read; also the errors of `read`.
    """
    require_file(path)
    if findings.keeps_going:
        return read()

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        pairs = read()
        arrays = {
            "user": pairs.user_P,
            "item": pairs.item_P,
            "rating": pairs.rating_P,
            "place": pairs.locations.number_N,
        }
        if pairs.time_P is not None:
            arrays["time"] = pairs.time_P
        writer.append(len(pairs.user_P), arrays)
        facts: JsonObject = {"users": list(pairs.catalog.users), "items": list(pairs.catalog.items)}
        return {**facts, **({"are_dates": True} if pairs.are_dates else {})}

    (content,) = contents_of([path], f"content of {path}")
    cache_key: Json = [content.sha256, ending_of(path), read_as, [*columns[:-1], list(columns.missing)]]
    shards = prepare("interactions", cache_key, _forms(columns), write, what=f"interactions of {path}")
    # The key is the hash of the content before it was parsed.
    content.require_unchanged()
    facts = shards.facts
    return InteractionRows(
        Catalog(tuple(facts["users"]), tuple(facts["items"])),
        shards.array("user"),
        shards.array("item"),
        shards.array("rating"),
        shards.array("time") if columns.has_time else None,
        DataLocations([str(path)], shards.array("place"), None, ending_of(path) == PARQUET),
        bool(facts.get("are_dates")),
    )


def _forms(columns: Columns) -> Dict[str, ArrayForm]:
    """Returns the types of the cached arrays."""
    dtypes = {"user": "int32", "item": "int32", "rating": "float32", "place": "int64"}
    dtypes.update({"time": "float64"} if columns.has_time else {})
    return {name: ArrayForm(dtype) for name, dtype in dtypes.items()}
