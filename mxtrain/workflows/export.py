"""Writes a trained network as ONNX, with a proof that onnxruntime computes the same; or for PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Literal, Mapping, Optional, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.amp.spec import FULL
from mxtrain.checkpoint.average import weights_to_use
from mxtrain.checkpoint.ndarray_file import canonical_sha256
from mxtrain.config.libraries import require_library
from mxtrain.config.specs import validate
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.files.new_folder import require_new
from mxtrain.model.lora import merge
from mxtrain.parallel.spec import Single
from mxtrain.task.fit import require_same_names
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.types import NonNegativeFloat, Positive, Spec
from mxtrain.workflows.output_file import OutputFolder

if TYPE_CHECKING:
    from mxtrain.exporting.pytorch.weights import WrittenWeights
    from mxtrain.exporting.run import ExportReport
    from mxtrain.training.restored_run import RestoredRun

ServedName = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$", max_length=63)]
"""A name that Kubernetes and folders allow."""
StorageUri = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")]
EXPORTED = "export"
SERVERS = ("triton", "kserve", "ray")
IGNORED = {
    "safetensors": ("format", "quantize", "dynamic", "split", "limit_batches"),
    "peft": ("format", "quantize", "dynamic", "split", "limit_batches"),
    "pytorch": ("format", "quantize", "limit_batches"),
}
"""Value of `for` that does not write ONNX -> settings that have no effect with it."""


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
    for_: Literal["folder", "triton", "kserve", "ray", "pytorch", "safetensors", "peft"] = pydantic.Field(
        "folder", alias="for"
    )
    """Reader of the folder: triton = a model repository, kserve = a manifest beside one, ray = a Ray Serve application;
    pytorch = code of torch.nn and weights, proven in PyTorch; safetensors = only the weights, under PyTorch's names;
    peft = the additions of model.lora as an adapter of Hugging Face PEFT; folder = none of them."""
    finetune_steps: Union[Literal["epoch"], Positive] = 20
    """Steps of fine-tuning in MXNet and PyTorch whose losses are compared, at most those of an epoch; epoch = all."""
    name: Optional[ServedName] = None
    """Name of the network for a server, of small letters, digits and hyphens; default: that of the task."""
    storage: Optional[StorageUri] = None
    """URI from which a cluster reads the model repository, with for=kserve, e.g. s3://bucket/digits."""


def export(
    run: RestoredRun, settings: ExportSettings, progress: WorkProgress = SILENT
) -> Union[ExportReport, WrittenWeights]:
    """Exports the network of a checkpoint into a new folder.

    Args:
        run: the run.
        settings: settings, checked by `check_settings`; `which` has chosen the checkpoint of the run already.
        progress: shows the stages.

    Raises:
        ConfigError: a library is missing, or an operator has no conversion.
        NotProven: onnxruntime computes something else.
        WorseThanAllowed: the metric of a quantized network is worse by more than `max_loss`.
        DataError: the folder exists, or samples cannot be read.
    """
    # Refused before the data are opened; `new_folder` looks again.
    require_new(folder_of(run, settings))
    if settings.for_ == "safetensors":
        from mxtrain.exporting.pytorch.weights import export_weights

        weights = merge(weights_to_use(run.checkpoint), run.description.model.lora)
        arrays = run.description.task.export_form().exported_weights(weights)
        return export_weights(arrays, folder_of(run, settings), facts_of(run))
    if settings.for_ == "peft":
        from mxtrain.exporting.pytorch.peft import export_adapter

        description, arrays, classes = run.description, weights_to_use(run.checkpoint), run.signature.class_names
        folder, facts = folder_of(run, settings), facts_of(run)
        return export_adapter(arrays, description.model, description.task.name or "", classes, folder, facts)
    for module in ("onnx", "onnxruntime"):
        require_library(module, "export", "export", ConfigError)
    with progress:

        def stage(what: str) -> None:
            progress.begin(what, 0)

        return _export(run, settings, stage)


def read_settings(values: Mapping[str, object]) -> ExportSettings:
    """Checks settings that Python code gives. Raises: ConfigError."""
    settings = validate(ExportSettings, dict(values), "export", lambda group: "see `mxtrain export --help`")
    check_settings(settings)
    return settings


def check_settings(settings: ExportSettings) -> None:
    """Rejects settings that contradict each other or have no effect, and an existing folder.

    Raises:
        ConfigError: there is such a setting, or PyTorch is missing for for=pytorch.
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
    for name in IGNORED.get(settings.for_, ()):
        if name in given:
            raise ConfigError(
                f"export.{name}={getattr(settings, name)}: for={settings.for_} writes no ONNX, and it has no effect. "
                "Leave it out."
            )
    if "finetune_steps" in given and settings.for_ != "pytorch":
        raise ConfigError(
            f"export.finetune_steps={settings.finetune_steps}: only for=pytorch trains in both frameworks. Leave it "
            "out, or type for=pytorch."
        )
    if settings.for_ == "pytorch":  # the proof is computed in it
        require_library("torch", "torch", "export for=pytorch", ConfigError)
    if settings.name is not None and settings.for_ not in SERVERS:
        raise ConfigError(
            f"export.name={settings.name}: it names the network for a server. Leave it out, or type for=triton, "
            "for=kserve or for=ray."
        )
    if settings.out is not None:
        require_new(Path(settings.out))


def folder_of(run: RestoredRun, settings: ExportSettings) -> Path:
    """Returns the folder to make."""
    return Path(settings.out) if settings.out else run.run_dir / EXPORTED


def facts_of(run: RestoredRun) -> Dict[str, Any]:
    """Returns what an exported folder says about the checkpoint."""
    return {
        "model": type(run.description.model).__name__,
        "dataset": type(run.dataset).__name__,
        "step": run.checkpoint.step,
        "weights_sha256": canonical_sha256(weights_to_use(run.checkpoint)),
    }


def _export(
    run: RestoredRun, settings: ExportSettings, stage: Callable[[str], None]
) -> Union[ExportReport, WrittenWeights]:
    stage("reading the data")
    splits = open_splits(run.dataset)
    split, source = choose_split(splits, settings.split)
    from mxtrain.exporting.compression import Compression
    from mxtrain.exporting.deploy import Deployment
    from mxtrain.exporting.run import EvaluationData, export_network
    from mxtrain.training.trained import load_trained

    require_same_names(run.signature, splits)
    # The proof compares with onnxruntime on a CPU in float32, whatever the run was trained on.
    alone = replace(run.description, parallel=Single(devices="cpu:1"), amp=FULL)
    facts = facts_of(run)
    smaller = None
    if settings.quantize != "none":
        smaller = Compression(settings.quantize, settings.max_loss, splits.train, settings.calibration_samples)
    try:
        stage("loading the weights")
        trained = load_trained(run.checkpoint, alone, run.signature, exported=True)
        data = EvaluationData(source, split, settings.limit_batches)
        folder = folder_of(run, settings)
        if settings.for_ == "pytorch":
            from mxtrain.exporting.pytorch.run import export_pytorch

            steps = None if settings.finetune_steps == "epoch" else settings.finetune_steps
            return export_pytorch(trained, source, splits.train, folder, facts, settings.dynamic, steps, stage)
        assert settings.for_ != "safetensors" and settings.for_ != "peft", "`export` has written it"
        name = settings.name or (run.description.task.name or "model").replace("_", "-")
        deployment = Deployment(settings.for_, name, settings.storage)
        return export_network(trained, data, folder, facts, settings.dynamic, smaller, deployment, stage)
    except LoaderError as error:
        raise DataError(str(error)) from error
