"""`mxtrain export RUN` writes a trained network as ONNX, with a proof that onnxruntime computes the same;
`mxtrain export check FOLDER` repeats the proof, without MXNet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.restored import restore_run
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.exporting.compression_report import remarks_of, table_of
from mxtrain.exporting.pytorch.weights import WrittenWeights
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.tables import print_rows
from mxtrain.workflows.export import ExportSettings, check_settings, export

if TYPE_CHECKING:
    from mxtrain.exporting.run import ExportReport

CHECK = "check"

COMMAND = Command(
    "export",
    position=40,
    listed="export RUN",
    help="the network as ONNX, compared with MXNet on real samples; export check FOLDER",
    usage="RUN|CHECKPOINT [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...] | check FOLDER",
    settings="ExportSettings",
    examples=(
        "export RUN",
        "export RUN quantize=int8 max_loss=0.005",
        "export RUN for=triton name=digits",
        "export RUN for=pytorch",
        "export check FOLDER",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Exports or checks; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    if parsed.positionals[:1] == [CHECK]:
        return check(parsed.positionals[1:], parsed.overrides)
    settings, overrides = split_settings(parsed, ExportSettings, "export")
    check_settings(settings)
    refuse_misspelled_groups(overrides, "export", parsed.config_dirs)
    if len(parsed.positionals) > 1:
        raise ConfigError(f"export takes one run or checkpoint, not also '{parsed.positionals[1]}'.")
    restored = restore_run(parsed, settings, overrides, "export")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    report = export(restored, settings, ProgressDisplay())
    if isinstance(report, WrittenWeights):
        print_remarks(report)
    else:
        print_report(report)
    return EXIT_FINISHED


def check(positionals: Sequence[str], overrides: Sequence[str]) -> int:
    """Repeats the proof of a folder; returns the exit code."""
    from mxtrain.exporting.folder import check_folder

    if len(positionals) != 1 or overrides:
        raise ConfigError("export check takes one exported folder, e.g. `mxtrain export check FOLDER`.")
    for name, error in check_folder(positionals[0]).items():
        print(f"{name}: relative error {error:.1e}")
    print(f"{positionals[0]}: proven")
    return EXIT_FINISHED


def print_report(report: ExportReport) -> None:
    """Prints errors and metrics of an export."""
    for name, error in report.errors.items():
        print(f"{name}: relative error {error:.1e}")
    for name, both in report.metrics.items():
        print(f"{name}: {both['mxnet']:.6g} by MXNet, {both['onnxruntime']:.6g} by onnxruntime")
    if report.fixed:
        print(report.fixed)
    if report.compressed is not None:
        for remark in remarks_of(report.compressed):
            print(remark)
        titles, *rows = table_of(report.compressed)
        print_rows(titles, rows, unbroken=titles)
    print(f"written to {report.folder}")


def print_remarks(report: WrittenWeights) -> None:
    """Prints the result of an export for PyTorch."""
    for remark in report.remarks:
        print(remark)
    print(f"written to {report.folder}")
