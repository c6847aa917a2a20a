"""Writes what was measured: a JSON file and a plot for each part, and one page with all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence

INTRODUCTION = """# Benchmarks

Written by `scripts/bench`; run it again rather than edit this page. Each side of a comparison runs in a process of its
own, in turn with the others, so that what drifts on the machine meets all of them. The middle is the median; the spread
is the first to the third quartile. The values of every single measurement are in `benchmarks/*.json`.
"""

OTHERS = ("fuzz",)
"""Parts that scripts of their own write: scripts/fuzz."""


def write_result(part: str, result: Mapping[str, Any], out: Path) -> None:
    """Writes benchmarks/PART.json and benchmarks/PART.png below `out`."""
    folder = out / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n")
    if result["series"]:
        draw(result, folder / f"{part}.png")


def write_page(out: Path, parts: Sequence[str]) -> None:
    """Writes benchmarks.md from all JSON files that are there, in the order of `parts`; other scripts' come last."""
    results = []
    for part in [*parts, *OTHERS]:
        path = out / "benchmarks" / f"{part}.json"
        if path.is_file():
            results.append(json.loads(path.read_text()))
    if not results:
        return
    lines = [INTRODUCTION]
    if any(result["quick"] for result in results):
        lines.append("**Some parts were taken with `--quick`: their figures mean nothing.**\n")
    lines += [*_machines(results), *_targets(results), *_series(results)]
    (out / "benchmarks.md").write_text("\n".join(lines).rstrip() + "\n")


def _machines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each machine and state of the code that parts were taken on."""
    parts_of: Dict[str, List[str]] = {}
    for result in results:
        machine = result["machine"]
        packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
        settings = ", ".join(f"{name}={value}" for name, value in machine["environment"].items()
                             if name != "MXTRAIN_RUNTIME_SET")  # fmt: skip
        text = (
            f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['instructions'])}), "
            f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}, {packages}, commit "
            f"{machine['commit']}; {settings}; {result['taken']}"
        )
        parts_of.setdefault(text, []).append(result["part"])
    for text, parts in parts_of.items():
        yield f"- {', '.join(parts)}: {text}"
    yield ""


def _targets(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| part | target | limit | measured | met |"
    yield "| --- | --- | --- | --- | --- |"
    for result in results:
        for target in result["targets"]:
            sign = "≥" if target["at_least"] else "≤"
            met = "yes" if target["met"] else "**no**"
            limit, value = number(target["limit"]), number(target["value"])
            yield f"| {result['part']} | {target['name']} | {sign} {limit} | {value} | {met} |"
    yield ""


def _series(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for result in results:
        yield f"## {result['part']}\n"
        for note in result["notes"]:
            yield note + "\n"
        yield from _table(result.get("table") or [])
        if not result["series"]:
            continue
        yield "| what | unit | median | quartiles | range | times |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for series in result["series"]:
            middle, low, high, least, most = map(
                number, (series["median"], *series["quartiles"], series["min"], series["max"])
            )
            yield (
                f"| {series['name']} | {series['unit']} | {middle} | {low} to {high} | {least} to {most} | "
                f"{len(series['values'])} |"
            )
        yield f"\n![{result['part']}](benchmarks/{result['part']}.png)\n"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number_of_row, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number_of_row == 0:
            yield f"|{' --- |' * len(row)}"
    if rows:
        yield ""


def number(value: float) -> str:
    """Four digits, no exponent."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{float(f'{value:.4g}'):,}"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Every measurement as a dot and every median as a bar; a panel for each unit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    units = list(dict.fromkeys(series["unit"] for series in result["series"]))
    groups = [[series for series in result["series"] if series["unit"] == unit] for unit in units]
    rows = [len(group) for group in groups]
    figure = Figure(figsize=(10, 1.0 + 0.42 * sum(rows) + 0.5 * len(rows)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=rows)[:, 0] if groups else []
    for axes, unit, group in zip(all_axes, units, groups):
        for position, series in enumerate(group):
            axes.barh(position, series["median"], color="#9ecae1", height=0.6)
            axes.plot(
                series["values"], [position] * len(series["values"]), "o", color="#08306b", markersize=4, alpha=0.7
            )
            axes.annotate(number(series["median"]), (series["median"], position), xytext=(6, 7),
                          textcoords="offset points", fontsize=8)  # fmt: skip
        axes.set_yticks(range(len(group)), [series["name"] for series in group], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel(unit)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(f"{result['part']}, {result['taken']}" + (" (quick: means nothing)" if result["quick"] else ""))
    figure.savefig(path)
