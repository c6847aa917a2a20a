"""A page with the confusion matrix of an evaluation, each cell of which leads to the list of its samples.

The page has no scripts and loads nothing: a cell is a link to a section, and only the chosen section is shown.
"""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

FILE = "file"
"""Column with the file of a sample."""
Key = Tuple[str, str]
Rows = Sequence[Mapping[str, Any]]
MAX_CLASSES = 200
"""Classes of a page; of more, the classes with the most wrong samples are shown."""
STYLE = """
body{font:15px system-ui,sans-serif;margin:24px;color:#222;background:#fff}
table{border-collapse:collapse;font-size:14px}
td,th{padding:4px 9px;border:1px solid #ddd;text-align:right}
th{background:#f4f4f4;font-weight:600}td.right{background:#e2f2e6}td.wrong{background:#fbe3e3}
td a{display:block;color:inherit}.cell td{text-align:left}
"""
SHOW_CHOSEN = ".cell{display:none}.cell:target{display:block}"
"""Style by which only the samples of the chosen cell are shown."""


def render_confusion(
    count_of: Mapping[Key, int], listed: Mapping[Key, Rows], class_names: Sequence[str], title: str
) -> str:
    """Returns the page as HTML.

    Args:
        count_of: (true, predicted) -> number of samples.
        listed: (true, predicted) -> rows of the listed samples.
        class_names: names of the classes, in order.
        title: split and step.
    """
    head = [
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}{SHOW_CHOSEN}</style></head><body><h1>Confusion matrix: {escape(title)}</h1>",
    ]
    return "\n".join([*head, matrix_with_samples(count_of, listed, class_names), "</body></html>", ""])


def matrix_with_samples(
    count_of: Mapping[Key, int],
    listed: Mapping[Key, Rows],
    class_names: Sequence[str] = (),
    anchor: str = "cell",
    max_classes: int = MAX_CLASSES,
) -> str:
    """Returns the matrix as a part of a page with the style `SHOW_CHOSEN`.

    Args:
        count_of, listed, class_names: see `render_confusion`; classes that have samples need not be named.
        anchor: beginning of the ids of its elements, unique on the page.
        max_classes: maximum number of classes.
    """
    names = _shown_names(count_of, class_names, max_classes)
    anchor_of = {
        (true, predicted): f"{anchor}-{row}-{column}"
        for row, true in enumerate(names)
        for column, predicted in enumerate(names)
    }
    left_out = len({name for key in count_of for name in key} - set(names))
    parts = [
        "<p>Rows are true classes, columns are predicted ones. A number leads to its samples.</p>",
        f"<p>{left_out} classes with fewer wrong samples are left out.</p>" if left_out > 0 else "",
        "<table><tr><th>true \\ predicted</th>",
        *(f"<th>{escape(name)}</th>" for name in names),
        "</tr>",
    ]
    for true in names:
        cells = [_cell((true, predicted), count_of, anchor_of) for predicted in names]
        parts.append(f"<tr><th>{escape(true)}</th>{''.join(cells)}</tr>")
    parts.append("</table>")
    for key in sorted(count_of, key=lambda key: -count_of[key]):
        if key in anchor_of:
            parts.append(_section(key, count_of[key], listed.get(key, ()), anchor_of[key]))
    return "\n".join(parts)


def _shown_names(count_of: Mapping[Key, int], class_names: Sequence[str], max_classes: int) -> List[str]:
    """Returns the names of the classes to show, in order."""
    names = list(dict.fromkeys([*class_names, *(name for key in sorted(count_of) for name in key)]))
    if len(names) <= max_classes:
        return names
    wrong: Dict[str, int] = dict.fromkeys(names, 0)
    for (true, predicted), count in count_of.items():
        if true != predicted:
            wrong[true] += count
            wrong[predicted] += count
    kept = set(sorted(names, key=lambda name: -wrong[name])[:max_classes])
    return [name for name in names if name in kept]


def _cell(key: Key, count_of: Mapping[Key, int], anchor_of: Mapping[Key, str]) -> str:
    count = count_of.get(key, 0)
    if not count:
        return "<td></td>"
    kind = "right" if key[0] == key[1] else "wrong"
    return f'<td class="{kind}"><a href="#{anchor_of[key]}">{count}</a></td>'


def _section(key: Key, count: int, rows: Rows, anchor: str) -> str:
    true, predicted = key
    columns = [name for name in (rows[0] if rows else {}) if name not in ("true", "predicted")]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = ["".join(f"<td>{_shown(name, cells[name])}</td>" for name in columns) for cells in rows]
    note = "" if len(rows) == count else f"<p>The first {len(rows)} of {count} samples; predictions.csv has all.</p>"
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="cell" id="{anchor}"><h4>true {escape(true)}, predicted {escape(predicted)}: {count}</h4>{note}'
        f"<table><tr>{head}</tr>{body}</table></div>"
    )


def _shown(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return link_to_file(str(value)) if name == FILE else escape(str(value))


def link_to_file(name: str) -> str:
    """Returns the escaped name of a file as a link, or as text if the file is not on this machine."""
    try:
        uri = Path(name).absolute().as_uri() if os.path.isfile(name) else ""
    except (OSError, ValueError):  # a name of damaged results
        uri = ""
    return f'<a href="{escape(uri)}">{escape(name)}</a>' if uri else escape(name)


def escape(text: object) -> str:
    """Escapes a text for HTML; unprintable characters, such as direction marks, become escape sequences."""
    plain = "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in str(text))
    return html.escape(plain, quote=True)
