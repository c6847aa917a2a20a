"""Publishes results: a JSON file and a plot for each part, an overview page, and a page for each topic."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from bench_parts.harness import ROOT, tuned_environment, tuning_of

INTRODUCTION = """# Benchmarks

`scripts/bench` writes this page and the pages of the topics; do not edit them by hand. All sides of a comparison run
alternately, each in its own process, so that drift of the machine affects all of them alike. Tables show the median,
the first and third quartiles and the range. All single measurements are in the JSON files of this folder.
A commit that is not in the history is a working state before its changes were merged.
"""

TOPICS: Mapping[str, Tuple[str, Tuple[str, ...]]] = {
    "training-speed": (
        "Training speed",
        (
            "runner",
            "gluoncv",
            "gluoncv_workers",
            "detection_race",
            "segmentation",
            "race",
            "language_race",
            "forecasting_race",
            "sequential_race",
            "multi_label_race",
            "video_race",
            "volume_race",
            "regression_race",
            "summarization_race",
            "sparse",
            "reinforcement",
            "dqn_race",
            "sac_race",
            "checkpoint",
        ),
    ),
    "inference": ("Inference", ("inference", "memory", "beam_search", "serve", "serving_peers", "export")),
    "default-runs": ("Default runs", ("default", "segmentation_default", "detection_default", "distill", "prune")),
    "command-line": ("Command line", ("cli", "start", "short_runs", "tune", "fuzz")),
    "data": ("Data loading", ("loader", "corpora", "object_stores")),
    "precision": ("Mixed precision", ("precision", "detection_precision")),
    "placements": (
        "Data and model parallelism",
        ("placements", "placement_accuracy", "verify", "bits", "plan", "recompute"),
    ),
    "distributed": (
        "Several processes",
        ("workers", "tables", "compression", "links", "slow_links", "plan_workers", "uneven", "sharded_optimizer"),
    ),
    "reliability": ("Reliability", ("soak", "faults", "ray_faults", "kill_sweep", "restarts")),
}
"""File name -> title and parts of each topic's page. Parts without a topic get the page `other`."""

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
    """Writes the overview benchmarks/README.md and the topics' pages from all JSON files of the folder."""
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
    lines += [*_targets(results), "## Machines\n", *_machines(results)]
    _write(out / "benchmarks" / "README.md", lines)
    for topic in dict.fromkeys(topic_of(result["part"]) for result in results):
        title = TOPICS[topic][0] if topic in TOPICS else "Other"
        chosen = [result for result in results if topic_of(result["part"]) == topic]
        head = [f"# Benchmarks: {title}\n", "Targets and machines are in the [overview](README.md).\n"]
        _write(out / "benchmarks" / f"{topic}.md", [*head, *_series(chosen)])


def topic_of(part: str) -> str:
    """The file name, without its ending, of the page that shows a part."""
    return next((topic for topic, (_, parts) in TOPICS.items() if part in parts), "other")


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines).rstrip() + "\n")


def _machines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each machine and state of the code that parts were taken on."""
    parts_of: Dict[str, List[str]] = {}
    for result in results:
        machine = result["machine"]
        packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
        settings = ", ".join(
            f"{name}={value}" for name, value in machine["environment"].items() if name != "MXTRAIN_RUNTIME_SET"
        )
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
        link = f"[{result['part']}]({topic_of(result['part'])}.md#{result['part']})"
        for target in result["targets"]:
            sign = "≥" if target["at_least"] else "≤"
            met = "yes" if target["met"] else "**no**"
            limit, value = number(target["limit"]), number(target["value"])
            yield f"| {link} | {target['name']} | {sign} {limit} | {value} | {met} |"
    yield ""


def _series(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for result in results:
        yield f"## {result['part']}\n"
        for note in result["notes"]:
            yield note + "\n"
        for target in result["targets"]:
            if not target["met"]:
                sign = "at least" if target["at_least"] else "at most"
                value, limit = number(target["value"]), number(target["limit"])
                yield f"**Target missed**: {target['name']} is {value}, and should be {sign} {limit}.\n"
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
        yield f"\n![{result['part']}]({result['part']}.png)\n"


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
            axes.annotate(
                number(series["median"]),
                (series["median"], position),
                xytext=(6, 7),
                textcoords="offset points",
                fontsize=8,
            )
        axes.set_yticks(range(len(group)), [series["name"] for series in group], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel(unit)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(f"{result['part']}, {result['taken']}" + (" (quick: means nothing)" if result["quick"] else ""))
    figure.savefig(path)


PACKAGES = ("mxnet", "gluoncv", "numpy", "hydra-core", "tensorboardX")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def describe_machine() -> Dict[str, Any]:
    """CPU, cores, memory, versions, commit and load; no name of the machine, no path."""
    from mxtrain import __version__
    from mxtrain.runtime.cores import usable_cores

    cpu = _cpu()
    packages = {package: _version(package) for package in PACKAGES}
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cores": usable_cores(),
        "instructions": [flag for flag in FLAGS if flag in cpu.get("flags", "").split()],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {"mxtrain": __version__, **packages},
        "commit": _commit(),
        "environment": tuning_of(tuned_environment()),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _cpu() -> Dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "mxtrain", "conf", "scripts")
        return git("rev-parse", "--short=10", "HEAD") + (" with changes" if changed else "")
    except OSError:
        return ""
