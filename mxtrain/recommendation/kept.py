"""Interactions of a file, read once and kept: a second start reads no text.

Legend: P interactions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict

from mxtrain.data.checking.problems import DataPlaces, Findings
from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import Advance, prepare
from mxtrain.data.corpus.shards import ArrayForm, ShardWriter
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.table.columns import PARQUET, require_file
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.rows import Columns
from mxtrain.recommendation.source import InteractionRows

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject


def kept_pairs(
    path: Path, read_as: Json, columns: Columns, read: Callable[[], InteractionRows], findings: Findings
) -> InteractionRows:
    """Returns the interactions of a file, as they were read before or are read now.

    Args:
        path: of the file.
        read_as: plain values that, with the file's content, determine the result of reading.
        columns: what a row has.
        read: reads the file.
        findings: collects the problems. If reading continues after problems, the file is always read and the result is
            not cached.

    Raises:
        DataError: the file cannot be read, or what `read` says.
    """
    require_file(path)
    if findings.keeps_going:
        return read()

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        pairs = read()
        arrays = {"user": pairs.user_P, "item": pairs.item_P, "rating": pairs.rating_P,
                  "place": pairs.places.number_N}  # fmt: skip
        if pairs.time_P is not None:
            arrays["time"] = pairs.time_P
        writer.append(len(pairs.user_P), arrays)
        return {"users": list(pairs.catalog.users), "items": list(pairs.catalog.items)}

    (content,) = contents_of([path], f"content of {path}")
    made_of: Json = [content.sha256, ending_of(path), read_as, [*columns[:-1], list(columns.missing)]]
    shards = prepare("interactions", made_of, _forms(columns), write, what=f"interactions of {path}")
    content.require_unchanged()
    facts = shards.facts
    return InteractionRows(
        Catalog(tuple(facts["users"]), tuple(facts["items"])), shards.array("user"), shards.array("item"),
        shards.array("rating"), shards.array("time") if columns.has_time else None,
        DataPlaces([str(path)], shards.array("place"), None, ending_of(path) == PARQUET),
    )  # fmt: skip


def _forms(columns: Columns) -> Dict[str, ArrayForm]:
    """Shapes of the cached arrays."""
    found = {"user": "int32", "item": "int32", "rating": "float32", "place": "int64"}
    found.update({"time": "float64"} if columns.has_time else {})
    return {name: ArrayForm(dtype) for name, dtype in found.items()}
