"""`mxtrain export RUN` writes a trained network as ONNX, with a proof that onnxruntime computes the same;
`mxtrain export check FOLDER` repeats the proof, without MXNet."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Literal, Mapping, Optional, Sequence

import pydantic
from typing_extensions import Annotated

from mxtrain.amp.spec import FULL
from mxtrain.checkpoint import Checkpoint
from mxtrain.checkpoint.folder import run_dir_of
from mxtrain.checkpoint.ndarray_file import canonical_sha256
from mxtrain.cli.commands import Command
from mxtrain.composing import arguments as command_line
from mxtrain.composing.restored import one_run, restore
from mxtrain.composing.settings import refuse_misspelled_groups, split_settings
from mxtrain.config.libraries import require_library
from mxtrain.config.specs import validate
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import EXIT_FINISHED, ConfigError, DataError, LoaderError
from mxtrain.exporting.comparison import remarks_of, table_of
from mxtrain.exporting.folder import require_new
from mxtrain.parallel.spec import Single
from mxtrain.task.fit import require_same_names
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.tables import print_rows
from mxtrain.types import NonNegativeFloat, Positive, Spec
from mxtrain.workflows.output_file import OutputFolder

if TYPE_CHECKING:
    from mxtrain.config.groups import Description
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset
    from mxtrain.exporting.run import ExportReport

ServedName = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$", max_length=63)]
"""A name that Kubernetes and folders allow."""
StorageUri = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")]
CHECK = "check"
EXPORTED = "export"


class ExportSettings(Spec):
    """Settings of `export` besides overrides."""

    model_config = pydantic.ConfigDict(populate_by_name=True)

    format: Literal["onnx"] = "onnx"
    """Format of the network."""
    out: Optional[OutputFolder] = None
    """Folder to make; default: export in the run directory. An existing one is never overwritten."""
    split: Literal["auto", "train", "val", "test"] = "auto"
    """Split whose samples the proof is made of; auto: test if there is one, otherwise val."""
    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one."""
    dynamic: Literal["auto", "batch", "none"] = "auto"
    """Sizes that are open: auto = the batch, and lengths, heights and widths where the network allows; batch = only the
    batch; none = nothing, batches of one sample."""
    limit_batches: Positive = 4
    """Batches of the evaluation that is repeated with onnxruntime."""
    quantize: Literal["none", "int8", "float16", "bfloat16"] = "none"
    """int8 = weights and arithmetic of convolutions and matrix products in int8; float16 and bfloat16 = weights are
    stored so, and computed with in float32."""
    max_loss: NonNegativeFloat = 0.01
    """Refuse a quantized network whose monitored metric is worse by more; of metrics above 1, this part of their
    value."""
    calibration_samples: Positive = 200
    """Training samples of which int8 takes the ranges of activations, in convolutional networks."""
    for_: Literal["folder", "triton", "kserve", "ray"] = pydantic.Field("folder", alias="for")
    """Server that reads the folder: triton = a model repository, kserve = a manifest beside one, ray = a Ray Serve
    application; folder = none of them."""
    name: Optional[ServedName] = None
    """Name of the network for a server, of small letters, digits and hyphens; default: that of the task."""
    storage: Optional[StorageUri] = None
    """URI from which a cluster reads the model repository, with for=kserve, e.g. s3://bucket/digits."""


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
    restored = restore(
        one_run(parsed, "export"),
        which=settings.which,
        overrides=overrides,
        config_dirs=parsed.config_dirs,
        trust_code=parsed.trusts_code,
        command="export",
        settings=ExportSettings.model_fields,
    )
    checkpoint, description = restored.checkpoint, restored.description
    require_new(folder_of(checkpoint, settings))  # before data are opened
    dataset, signature = restored.dataset, restored.signature
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    print_report(export_checkpoint(checkpoint, description, dataset, signature, settings))
    return EXIT_FINISHED


def read_settings(values: Mapping[str, object]) -> ExportSettings:
    """Checks settings that Python code gives. Raises: ConfigError."""
    settings = validate(ExportSettings, dict(values), "export", lambda group: "see `mxtrain export --help`")
    check_settings(settings)
    return settings


def check_settings(settings: ExportSettings) -> None:
    """Rejects settings that contradict each other or have no effect, and an existing folder.

    Raises:
        ConfigError: there is such a setting.
        DataError: the folder exists.
    """
    given = settings.model_fields_set
    if (settings.for_ == "kserve") != (settings.storage is not None):
        raise ConfigError(
            "export: for=kserve and storage=URI belong together: the manifest names where the cluster reads the "
            "repository, e.g. storage=s3://bucket/digits or storage=pvc://claim/digits."
        )
    if "max_loss" in given and settings.quantize == "none":
        raise ConfigError(
            f"export.max_loss={settings.max_loss:g}: it limits what quantize= may cost, and nothing is quantized. "
            "Leave it out, or type quantize=int8."
        )
    if "calibration_samples" in given and settings.quantize != "int8":
        raise ConfigError(
            f"export.calibration_samples={settings.calibration_samples}: only quantize=int8 takes ranges from samples. "
            "Leave it out."
        )
    if settings.name is not None and settings.for_ == "folder":
        raise ConfigError(
            f"export.name={settings.name}: it names the network for a server. Leave it out, or type for=triton, "
            "for=kserve or for=ray."
        )
    if settings.out is not None:
        require_new(Path(settings.out))


def folder_of(checkpoint: Checkpoint, settings: ExportSettings) -> Path:
    """Returns the folder to make."""
    return Path(settings.out) if settings.out else run_dir_of(checkpoint.path) / EXPORTED


def check(words: Sequence[str], overrides: Sequence[str]) -> int:
    """Repeats the proof of a folder; returns the exit code."""
    from mxtrain.exporting.folder import check_folder

    if len(words) != 1 or overrides:
        raise ConfigError("export check takes one exported folder, e.g. `mxtrain export check FOLDER`.")
    for name, error in check_folder(words[0]).items():
        print(f"{name}: relative error {error:.1e}")
    print(f"{words[0]}: proven")
    return EXIT_FINISHED


def export_checkpoint(
    checkpoint: Checkpoint,
    description: Description,
    dataset: BaseDataset,
    signature: Signature,
    settings: ExportSettings,
) -> ExportReport:
    """Exports the network of a checkpoint.

    Raises:
        ConfigError: a library is missing, or an operator has no conversion.
        NotProven: onnxruntime computes something else.
        DataError: the folder exists, or samples cannot be read.
    """
    folder = folder_of(checkpoint, settings)
    require_new(folder)
    for module in ("onnx", "onnxruntime"):
        require_library(module, "export", "export", ConfigError)
    with ProgressDisplay() as display:

        def stage(what: str) -> None:
            display.begin(what, 0)

        return _export(checkpoint, description, dataset, signature, settings, stage)


def _export(
    checkpoint: Checkpoint,
    description: Description,
    dataset: BaseDataset,
    signature: Signature,
    settings: ExportSettings,
    stage: Callable[[str], None],
) -> ExportReport:
    stage("reading the data")
    splits = open_splits(dataset)
    split, source = choose_split(splits, settings.split)
    from mxtrain.checkpoint.average import weights_to_use
    from mxtrain.exporting.compression import Compression
    from mxtrain.exporting.deploy import Deployment
    from mxtrain.exporting.run import EvaluationData, export_network
    from mxtrain.training.trained import load_trained

    require_same_names(signature, splits)
    alone = replace(description, parallel=Single(devices="cpu:1"), amp=FULL)
    facts = {
        "model": type(description.model).__name__,
        "dataset": type(dataset).__name__,
        "step": checkpoint.step,
        "weights_sha256": canonical_sha256(weights_to_use(checkpoint)),
    }
    smaller = None
    if settings.quantize != "none":
        smaller = Compression(settings.quantize, settings.max_loss, splits.train, settings.calibration_samples)
    name = settings.name or (description.task.name or "model").replace("_", "-")
    deployment = Deployment(settings.for_, name, settings.storage)
    try:
        stage("loading the weights")
        trained = load_trained(checkpoint, alone, signature)
        data = EvaluationData(source, split, settings.limit_batches)
        folder = folder_of(checkpoint, settings)
        return export_network(trained, data, folder, facts, settings.dynamic, smaller, deployment, stage)
    except LoaderError as error:
        raise DataError(str(error)) from error


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
