"""A page with the confusion matrix of an evaluation, each cell of which leads to the list of its samples.

The page has no scripts and loads nothing: a cell is a link to a section, and only the chosen section is shown.
"""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from mxtrain.task.sample_results import FILE, Cells

Key = Tuple[str, str]
MAX_CLASSES = 200
"""Classes of a page; of more, the classes with the most wrong samples are shown."""
STYLE = """
body{font:15px system-ui,sans-serif;margin:24px;color:#222;background:#fff}
table{border-collapse:collapse;font-size:14px}
td,th{padding:4px 9px;border:1px solid #ddd;text-align:right}
th{background:#f4f4f4;font-weight:600}td.right{background:#e2f2e6}td.wrong{background:#fbe3e3}
td a{display:block;color:inherit}section{display:none}section:target{display:block}
section td{text-align:left}
"""


def render_confusion(
    count_of: Mapping[Key, int], listed: Mapping[Key, Sequence[Cells]], class_names: Sequence[str], title: str
) -> str:
    """Returns the page as HTML.

    Args:
        count_of: (true, predicted) -> number of samples.
        listed: (true, predicted) -> rows of the listed samples.
        class_names: names of the classes, in order.
        title: split and step.
    """
    names = _shown_names(count_of, class_names)
    number_of = {name: number for number, name in enumerate(names)}
    left_out = len({name for key in count_of for name in key} - set(names))
    parts = [
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_e(title)}</title>',
        f"<style>{STYLE}</style></head><body><h1>Confusion matrix: {_e(title)}</h1>",
        "<p>Rows are true classes, columns are predicted ones. A number leads to its samples.</p>",
        f"<p>{left_out} classes with fewer wrong samples are left out.</p>" if left_out > 0 else "",
        '<table><tr><th>true \\ predicted</th>', *(f"<th>{_e(name)}</th>" for name in names), "</tr>",
    ]  # fmt: skip
    for true in names:
        cells = [_cell((true, predicted), count_of, number_of) for predicted in names]
        parts.append(f"<tr><th>{_e(true)}</th>{''.join(cells)}</tr>")
    parts.append("</table>")
    for key in sorted(count_of, key=lambda key: -count_of[key]):
        if key[0] in number_of and key[1] in number_of:
            parts.append(_section(key, count_of[key], listed.get(key, ()), number_of))
    return "\n".join([*parts, "</body></html>", ""])


def _shown_names(count_of: Mapping[Key, int], class_names: Sequence[str]) -> List[str]:
    """Returns the names of the classes to show, in order."""
    names = list(dict.fromkeys([*class_names, *(name for key in sorted(count_of) for name in key)]))
    if len(names) <= MAX_CLASSES:
        return names
    wrong: Dict[str, int] = dict.fromkeys(names, 0)
    for (true, predicted), count in count_of.items():
        if true != predicted:
            wrong[true] += count
            wrong[predicted] += count
    kept = set(sorted(names, key=lambda name: -wrong[name])[:MAX_CLASSES])
    return [name for name in names if name in kept]


def _cell(key: Key, count_of: Mapping[Key, int], number_of: Mapping[str, int]) -> str:
    count = count_of.get(key, 0)
    if not count:
        return "<td></td>"
    kind = "right" if key[0] == key[1] else "wrong"
    return f'<td class="{kind}"><a href="#{_anchor(key, number_of)}">{count}</a></td>'


def _anchor(key: Key, number_of: Mapping[str, int]) -> str:
    return f"cell-{number_of[key[0]]}-{number_of[key[1]]}"


def _section(key: Key, count: int, rows: Sequence[Cells], number_of: Mapping[str, int]) -> str:
    true, predicted = key
    columns = [name for name in (rows[0] if rows else {}) if name not in ("true", "predicted")]
    head = "".join(f"<th>{_e(name)}</th>" for name in columns)
    lines = ["".join(f"<td>{_shown(name, cells[name])}</td>" for name in columns) for cells in rows]
    note = "" if len(rows) == count else f"<p>The first {len(rows)} of {count} samples; predictions.csv has all.</p>"
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<section id="{_anchor(key, number_of)}"><h2>true {_e(true)}, predicted {_e(predicted)}: {count}</h2>{note}'
        f"<table><tr>{head}</tr>{body}</table></section>"
    )


def _shown(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = _e(str(value))
    if name != FILE or not os.path.isfile(str(value)):
        return text
    return f'<a href="{_e(Path(str(value)).absolute().as_uri())}">{text}</a>'


def _e(text: str) -> str:
    return html.escape(str(text))
