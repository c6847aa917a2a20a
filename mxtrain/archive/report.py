"""Renders one self-contained HTML page about several runs, without scripts or external files.

Names and values come from run directories that may be untrusted: all text is escaped, and the page's own policy
forbids scripts and requests.

A page can be opened from an e-mail and printed, and cannot run code of an untrusted run. A curve of more than 1,200
points shows means of neighbouring points. Figures are copied from files of the run without decoding them.
"""

from __future__ import annotations

import base64
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from mxtrain.archive.chart import Line, color_of, dash_of, draw_chart
from mxtrain.archive.curves import MAX_READ_BYTES, Curve, is_cut, read_curves
from mxtrain.archive.fields import best_of
from mxtrain.archive.figures import (
    Evaluation,
    ShownFigure,
    ShownTable,
    read_evaluations,
    read_validation_figures,
)
from mxtrain.archive.meta import Meta, read_meta
from mxtrain.archive.page import STYLE
from mxtrain.archive.registry import ListedRun
from mxtrain.checkpoint.contents import Checkpoint
from mxtrain.checkpoint.folder import CHECKPOINTS, read_named, scan
from mxtrain.config.specs import shown
from mxtrain.errors import CheckpointError
from mxtrain.task.confusion_page import FILE, SHOW_CHOSEN, escape, link_to_file, matrix_with_samples
from mxtrain.terminal.durations import format_seconds

MAX_RUNS = 30
MAX_CONFUSED = 30
"""Maximum number of rows and columns of a confusion matrix."""
MAX_FIGURE_BYTES = 40 << 20
"""Maximum total size of the figures of a page."""
_MAX_DIFFERENT, _MAX_CHARTS, _MAX_NAMES = 60, 12, 30
"""Maximum numbers of differing settings, charts, and class names of a model card."""
_CLASS = "._target_"
_WITHOUT_EFFECT = ("logger.", "runtime.", "callback.", "cluster.")
"""Prefixes of settings that do not affect results and are omitted from comparisons."""


@dataclass(frozen=True)
class RunReport:
    """Everything that a page shows about one run."""

    number: int
    run: ListedRun
    name: str
    meta: Meta
    curves: Mapping[Tuple[str, str], Curve]
    evaluations: Sequence[Evaluation]
    validation: Sequence[Tuple[int, ShownFigure]]
    checkpoint: Optional[Checkpoint]
    """The best checkpoint, or the last one; its arrays are not read."""


def collect(runs: Sequence[ListedRun]) -> List[RunReport]:
    """Reads the data that the page shows, for each run."""
    names = short_names([run.path for run in runs])
    return [
        RunReport(
            number,
            run,
            name,
            read_meta(run.path),
            read_curves(run.path),
            read_evaluations(run.path),
            read_validation_figures(run.path),
            _shown_checkpoint(run),
        )
        for number, (run, name) in enumerate(zip(runs, names))
    ]


def short_names(paths: Sequence[str]) -> List[str]:
    """Returns the paths without their common folders; numbered folders keep the last common one."""
    full_paths = [os.path.normpath(path) for path in paths]
    if len(full_paths) < 2:
        return [os.path.join(*full_paths[0].split(os.sep)[-2:]) or full_paths[0]] if full_paths else []
    try:
        common = os.path.commonpath(full_paths)
    except ValueError:  # absolute and relative paths have no common folder
        return full_paths
    names = [os.path.relpath(path, common) if common else path for path in full_paths]
    study = os.path.basename(common)
    return [os.path.join(study, name) for name in names] if any(map(str.isdecimal, names)) else names


def _shown_checkpoint(run: ListedRun) -> Optional[Checkpoint]:
    folder = os.path.join(run.path, CHECKPOINTS)
    try:
        entries = [] if os.path.islink(folder) else scan(Path(folder))
        candidates = [entry for entry in entries if entry.step == run.status.best_step] or entries
        return read_named(candidates[-1].path, verify_arrays=False) if candidates else None
    except CheckpointError:
        return None


def render_report(reported: Sequence[RunReport], title: str, subtitle: str) -> str:
    """Returns the page.

    Args:
        reported: the runs, in the order of the page.
        title: heading.
        subtitle: time and program that created the page.
    """
    budget = _FigureBudget()
    sections = [
        _section("results", "Results", _results(reported)),
        _section("curves", "Curves", _charts(reported)),
        _section("settings", "Settings that differ", _different_settings(reported)) if len(reported) > 1 else "",
        *(
            _section(
                f"run{report.number}", f"{_swatch(report.number)} {escape(report.name)}", _run_section(report, budget)
            )
            for report in reported
        ),
    ]
    links = "".join(
        f'<a href="#run{report.number}">{_swatch(report.number)} {escape(report.name)}</a>' for report in reported
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{SHOW_CHOSEN}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p><nav>{links}</nav></header>"
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


# Parts of the page.


def _results(reported: Sequence[RunReport]) -> str:
    monitors = {report.run.status.monitor for report in reported if report.run.status.monitor}
    tags = list(
        dict.fromkeys(
            tag
            for report in reported
            for tag in sorted(report.run.status.metrics, key=_tag_order)
            if tag.startswith(("test/", "val/")) and monitors != {tag}
        )
    )[:10]
    best_title = f"best {next(iter(monitors))}" if len(monitors) == 1 else "best"
    header = ["run", "state", "task", "model", best_title, "at step", "steps", *tags, "samples/s", "time", "size"]
    rows = []
    first = best_of([report.run for report in reported]) if len(monitors) == 1 else None
    for report in reported:
        status = report.run.status
        best = f"{_value(status.best)} {status.monitor if len(monitors) > 1 else ''}" if status.best is not None else ""
        cells = [
            report.run.state,
            report.run.choices.get("task", ""),
            report.run.choices.get("model", ""),
            best,
            _value(status.best_step),
            _value(status.step),
            *(_value(status.metrics.get(tag)) for tag in tags),
            _value(status.samples_per_s and round(status.samples_per_s)),
            _duration(status.wall_s),
            f"{report.run.size / 1e6:,.1f} MB",
        ]
        mark = " <b>(best)</b>" if report.run is first else ""
        rows.append(_row([f"{_swatch(report.number)} {escape(report.name)}{mark}", *map(escape, cells)]))
    failed = [report for report in reported if report.run.status.cause]
    causes = [f"<li>{escape(report.name)}: {escape(report.run.status.cause)}</li>" for report in failed]
    return _html_table(header, rows) + (f'<ul class="notes">{"".join(causes)}</ul>' if causes else "")


def _tag_order(tag: str) -> Tuple[int, str]:
    return ("test", "val").index(tag.split("/")[0]) if tag.startswith(("test/", "val/")) else 2, tag


def _charts(reported: Sequence[RunReport]) -> str:
    names = list(dict.fromkeys(name for report in reported for split, name in sorted(report.curves, key=_curve_order)))
    figures = []
    for name in names[:_MAX_CHARTS]:
        lines = [
            Line(
                f"{report.name} {split}/{name}",
                curve.points,
                report.number,
                is_faint=split == "train" and _is_validated(report, name),
                has_dots=split != "train",
            )
            for report in reported
            for (split, curve_name), curve in report.curves.items()
            if curve_name == name
        ]
        chart = draw_chart(lines, name)
        if chart:
            figures.append(f"<figure><figcaption>{escape(name)}</figcaption>{chart}</figure>")
    legend = "".join(f"<span>{_swatch(report.number)} {escape(report.name)}</span>" for report in reported)
    notes = ["Lines with dots are validation, those without training."]
    if any(curve.is_averaged for report in reported for curve in report.curves.values()):
        notes.append("Of long curves, means of neighbouring steps are shown.")
    for report in reported:
        count = sum(curve.num_non_finite for curve in report.curves.values())
        if count:
            notes.append(f"{report.name}: {count:,} values were not finite and are left out.")
        if is_cut(report.run.path):
            notes.append(f"{report.name}: only the first {MAX_READ_BYTES / 1e6:,.0f} MB of metrics.jsonl are shown.")
    if not figures:
        return "<p>None of the runs has rows in metrics.jsonl.</p>"
    return (
        f'<div class="legend">{legend}</div><div class="charts">{"".join(figures)}</div>'
        f'<p class="notes">{escape(" ".join(notes))}</p>'
    )


def _curve_order(key: Tuple[str, str]) -> Tuple[bool, bool, str]:
    return key[1] != "loss", key[1] == "lr", key[1]


def _is_validated(report: RunReport, name: str) -> bool:
    return any(split != "train" and curve_name == name for split, curve_name in report.curves)


def differing_settings(runs: Sequence[ListedRun]) -> Dict[str, List[Optional[str]]]:
    """Returns setting -> its value in each run, for settings that differ between runs; None for absent settings.

    Classes are named by the option of their group. A setting that only some of them have is left out, unless it differs
    between the runs that have it.
    """
    paths = sorted({path for run in runs for path in run.settings if not path.startswith(_WITHOUT_EFFECT)})
    values_of = {path: [shown(run.settings[path]) if path in run.settings else None for run in runs] for path in paths}
    other_classes = [path[: -len(_CLASS)] for path in paths if path.endswith(_CLASS) and len(set(values_of[path])) > 1]
    differing: Dict[str, List[Optional[str]]] = {}
    for path in paths:
        values = values_of[path]
        group = path[: -len(_CLASS)]
        if path.endswith(_CLASS) and len(set(values)) > 1:
            options = [
                run.choices.get(group) or (value and value.rpartition(".")[2]) for run, value in zip(runs, values)
            ]
            differing.update({group: options} if len(set(options)) > 1 else {path: values})
            continue
        if any(path.startswith(f"{other}.") for other in other_classes):
            is_same = len({value for value in values if value is not None}) < 2
        else:
            is_same = len(set(values)) < 2
        if not is_same:
            differing[path] = values
    return differing


def _different_settings(reported: Sequence[RunReport]) -> str:
    differing = differing_settings([report.run for report in reported])
    if not differing:
        return "<p>All settings that can change a result are the same.</p>"
    header = ["setting", *(report.name for report in reported)]
    rows = [
        _row([escape(path), *(escape("-" if value is None else value) for value in values)])
        for path, values in list(differing.items())[:_MAX_DIFFERENT]
    ]
    more = len(differing) - _MAX_DIFFERENT
    return _html_table(header, rows) + (f'<p class="notes">and {more} more</p>' if more > 0 else "")


def _run_section(report: RunReport, budget: _FigureBudget) -> str:
    parts = [_model_card(report), f"<h3>Reproduce</h3>{_commands(report)}"]
    for position, evaluation in enumerate(report.evaluations):
        values = ", ".join(
            f"{name} {_value(value)}"
            for name, value in evaluation.values.items()
            if name not in ("split", "part") and value not in (None, "")
        )
        parts.append(f"<h3>Evaluation on {escape(evaluation.split)}</h3><p>{escape(values)}</p>")
        parts.append(_figures([(figure.title, figure) for figure in evaluation.figures], budget))
        parts += [_shown_table(table) for table in evaluation.tables]
        if evaluation.confusion is not None:
            anchor = f"run{report.number}-{position}"
            listed = {
                key: [{name: cell if name == FILE else _rounded(cell) for name, cell in row.items()} for row in rows]
                for key, rows in evaluation.confusion.listed.items()
            }
            matrix = matrix_with_samples(evaluation.confusion.count_of, listed, (), anchor, MAX_CONFUSED)
            parts.append(f'<h4>confusion, with samples</h4><div class="scroll">{matrix}</div>')
    if report.validation:
        parts.append("<h3>Samples of the last validation</h3>")
        parts.append(_figures([(f"{figure.title}, step {step}", figure) for step, figure in report.validation], budget))
    if not report.evaluations:
        parts.append(
            f'<p class="notes">No evaluation is shown: <code>mxtrain eval {escape(shlex.quote(report.run.path))}'
            "</code> adds its tables and figures to the next report.</p>"
        )
    return "".join(parts)


class _FigureBudget:
    """Counts the bytes of figures on a page."""

    def __init__(self) -> None:
        self._remaining = MAX_FIGURE_BYTES

    def allows(self, figure: ShownFigure) -> bool:
        """Returns True if a figure fits into the budget, and counts its bytes."""
        self._remaining -= len(figure.content)
        return self._remaining >= 0


def _figures(titled: Iterable[Tuple[str, ShownFigure]], budget: _FigureBudget) -> str:
    parts = []
    for title, figure in titled:
        if not budget.allows(figure):
            parts.append(f'<p class="notes">{escape(title)} is left out: the page is large already.</p>')
            continue
        data = base64.b64encode(figure.content).decode("ascii")
        parts.append(
            f'<figure><figcaption>{escape(title)}</figcaption><img alt="{escape(title)}" width="{figure.width}" '
            f'src="data:image/png;base64,{data}"></figure>'
        )
    return f'<div class="figures">{"".join(parts)}</div>' if parts else ""


def _shown_table(table: ShownTable) -> str:
    rows = [
        _row(link_to_file(cell) if name == FILE else escape(_rounded(cell)) for name, cell in zip(table.header, row))
        for row in table.rows
    ]
    more = table.num_rows - len(table.rows)
    heading = f"{table.title}{f', the first {len(table.rows)} of {table.num_rows:,} rows' if more > 0 else ''}"
    return f"<h4>{escape(heading)}</h4>{_html_table(table.header, rows)}"


def _commands(report: RunReport) -> str:
    meta, lines = report.meta, []
    commit = meta.git.get("commit", "")
    if meta.working_folder:
        lines.append(f"cd {shlex.quote(meta.working_folder)}")
    if commit:
        changed = "   # and uncommitted changes, which were not kept" if meta.git.get("dirty") == "true" else ""
        lines.append(f"git checkout {shlex.quote(commit)}{changed}")
    versions = [f"{name}=={version}" for name, version in meta.packages.items() if name == "mxnet" and version]
    lines += [f"pip install {shlex.quote(version)}" for version in versions]
    lines.append(meta.command() or "# meta.json is missing, so the command is not known")
    path = shlex.quote(report.run.path)
    lines += [
        "# or with this run directory, which also compares versions, data and the result",
        f"python -m mxtrain reproduce {path}",
    ]
    if report.checkpoint is not None:
        lines += ["# evaluate this run, not the new one", f"python -m mxtrain eval {path}"]
    sha256 = report.run.status.weights_sha256
    note = f'<p class="notes">The same machine and versions give weights with SHA-256 {escape(sha256)}.</p>'
    note = note if sha256 else ""
    return f"<pre>{escape(chr(10).join(lines))}</pre>{note}"


def _model_card(report: RunReport) -> str:
    """Returns the model card: a table of facts about the network, and of facts that its author must add."""
    status = report.run.status
    results = _listed(
        *(
            f"{tag} {_value(status.metrics[tag])}"
            for tag in sorted(status.metrics, key=_tag_order)
            if status.metrics[tag] is not None and tag.startswith(("test/", "val/"))
        )
    )
    speed = _value(status.samples_per_s and round(status.samples_per_s))
    facts = {
        **_description_facts(report),
        "Results": f"{results} (the last values measured)" if results else "not measured",
        "Best": f"{status.monitor} {_value(status.best)} at step {_value(status.best_step)}" if status.monitor else "",
        "Weights": _weights(report.checkpoint, status.step, status.weights_sha256),
        "Environment": _environment_fact(report.meta),
        "Started": report.meta.started,
        "Time": f"{_duration(status.wall_s)} at {speed} samples/s" if status.wall_s else "",
        "To be added by the author": "intended use and users; uses it is not fit for; who is affected by its errors; "
        "licence and origin of the data; contact",
    }
    rows = [_row([f"<b>{escape(name)}</b>", escape(value)]) for name, value in facts.items() if value]
    return f'<h3>Model card</h3><div class="scroll"><table class="card">{"".join(rows)}</table></div>'


def _description_facts(report: RunReport) -> Dict[str, str]:
    """Returns the rows of the model card about task, network, data and training."""
    choices, settings, status = report.run.choices, report.run.settings, report.run.status

    def setting(*names: str) -> str:
        return _listed(*(f"{name.split('.')[-1]} {shown(settings[name])}" for name in names if name in settings))

    input_text, output_text = _inputs_and_outputs(report.checkpoint)
    optimizer = choices.get("optimizer", "") or str(settings.get("optimizer._target_", "")).rpartition(".")[2]
    return {
        "Task": choices.get("task", ""),
        "Network": f"{choices.get('model', '')} ({shown(settings.get('model._target_', ''))})",
        "Input": input_text,
        "Output": output_text,
        "Training data": _listed(
            choices.get("dataset", ""),
            setting("dataset.root", "dataset.train"),
            *(f"{split}: {data_text}" for split, data_text in report.meta.data.items()),
        ),
        "Training": _listed(
            f"{status.step:,} steps, {status.epoch:,} epochs",
            setting("dataset.batch_size"),
            optimizer,
            setting("optimizer.lr", "optimizer.wd", "trainer.seed", "trainer.ema_decay", "model.weights"),
        ),
    }


def _environment_fact(meta: Meta) -> str:
    return _listed(
        *(f"{name} {version}" for name, version in meta.packages.items() if version),
        meta.host.get("system", ""),
        meta.host.get("processor", ""),
        " ".join(meta.devices),
        meta.runtime.get("dtype", ""),
    )


def _listed(*texts: str) -> str:
    """Joins texts by commas, without empty ones."""
    return ", ".join(filter(None, texts))


def _inputs_and_outputs(checkpoint: Optional[Checkpoint]) -> Tuple[str, str]:
    run = checkpoint.state.get("run") if checkpoint is not None else None
    fields = run.get("input") if isinstance(run, dict) else None
    if not isinstance(fields, dict):
        return "", ""
    shape, names = fields.get("shape"), next((value for key, value in fields.items() if key.endswith("_names")), None)
    output_text = ""
    if isinstance(names, list) and names:
        listed = ", ".join(str(name) for name in names[:_MAX_NAMES])
        output_text = f"{len(names):,}: {listed}{', ...' if len(names) > _MAX_NAMES else ''}"
    return (f"shape {shown(shape)}" if shape else ""), output_text


def _weights(checkpoint: Optional[Checkpoint], last_step: int, sha256: str) -> str:
    if checkpoint is None:
        return "no checkpoint"
    size = checkpoint.files["model.params"].size if "model.params" in checkpoint.files else 0
    text = f"{checkpoint.path.name}, {size / 1e6:,.2f} MB"
    return f"{text}; the weights at the end (step {last_step:,}) have SHA-256 {sha256}" if sha256 else text


# HTML.


def _section(identifier: str, title: str, content: str) -> str:
    return f'<section id="{identifier}"><h2>{title}</h2>{content}</section>'


def _html_table(header: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in header)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _row(cells: Iterable[str]) -> str:
    """Returns a table row of cells that are already HTML."""
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _swatch(number: int) -> str:
    dashes = f' stroke-dasharray="{dash_of(number)}"' if dash_of(number) else ""
    return (
        f'<svg class="swatch" viewBox="0 0 24 8"><line x1="1" x2="23" y1="4" y2="4" stroke="{color_of(number)}" '
        f'stroke-width="4"{dashes}/></svg>'
    )


def _rounded(text: str) -> str:
    """Rounds a number from a file; returns other strings unchanged, but at most 200 characters."""
    if "." in text:
        try:
            return f"{float(text):.5g}"
        except ValueError:
            pass
    return text if len(text) <= 200 else f"{text[:197]}..."


def _value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return str(value)[:200]


def _duration(seconds: Optional[float]) -> str:
    return "" if seconds is None or not 0 <= seconds < 1e9 else format_seconds(seconds)
