"""Writes the files with which Kubernetes, Kubeflow, Volcano, Slurm, SkyPilot, SageMaker or Docker starts a run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import List, Literal, Mapping, Optional, Sequence

import pydantic
from typing_extensions import Annotated

import mxtrain
from mxtrain.cluster.engines import TARGETS
from mxtrain.cluster.engines.docker import IMAGE_COMMANDS, image_files
from mxtrain.cluster.engines.job import Commands, LaunchJob, LaunchTarget
from mxtrain.config.groups import Description
from mxtrain.config.override_text import key_of
from mxtrain.config.specs import validate
from mxtrain.errors import ConfigError
from mxtrain.files.durable import replace_file
from mxtrain.files.new_folder import new_folder, require_new
from mxtrain.types import NonNegative, Positive, Spec
from mxtrain.workflows.output_file import OutputFolder

README = "README.md"
JobName = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$", max_length=40)]
"""A name that Kubernetes allows, also with the number of a pod behind it."""
ImageName = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
StorageFolder = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z0-9]+://[A-Za-z0-9._/-]*[A-Za-z0-9]$")]
RESERVED = {
    "hydra.run.dir": "the files name the run directory",
    "hydra.sweep.dir": "the files start one run",
    "hydra.mode": "the files start one run",
}
"""Override that `launch` refuses -> why."""


class LaunchSettings(Spec):
    """Settings of `launch` besides overrides."""

    model_config = pydantic.ConfigDict(populate_by_name=True)

    for_: Optional[Literal["kubernetes", "kubeflow", "volcano", "slurm", "skypilot", "sagemaker", "docker"]] = (
        pydantic.Field(None, alias="for")
    )
    """Engine that starts the run: kubernetes = an Indexed Job, kubeflow = Kubeflow Trainer v2, volcano = a Volcano Job,
    slurm = sbatch, skypilot = machines of a cloud, sagemaker = a SageMaker training job, docker = Docker Compose on one
    machine."""
    out: Optional[OutputFolder] = None
    """Folder to make. An existing one is never overwritten."""
    name: JobName = "mxtrain"
    """Name of the job and of its run directory: small letters, digits and hyphens."""
    image: Optional[ImageName] = None
    """Container image, as the engine pulls it, e.g. registry.example.com/mxtrain:1; the README says how to build it."""
    storage: Optional[StorageFolder] = None
    """Place of run directories: pvc://CLAIM for kubernetes, kubeflow and volcano, s3://BUCKET or gs://BUCKET for
    skypilot, s3://BUCKET/FOLDER for sagemaker."""
    nodes: Optional[Positive] = None
    """Machines, pods or instances; default: one for each worker."""
    cpus: Positive = 4
    """Cores of a node; of each process for slurm."""
    memory: Positive = 8
    """GiB of memory of a node."""
    gpus: NonNegative = 0
    """GPUs of a node, besides parallel.devices=gpu:N."""


@dataclass(frozen=True)
class LaunchFiles:
    """Result of `launch`; its text is what the command prints.

    Attributes:
        folder: the folder that was written.
        target: name of the engine.
        files: names of the files.
        commands: the next commands, as pairs of a purpose and a command for the current folder.
    """

    folder: Path
    target: str
    files: Sequence[str]
    commands: Commands

    @property
    def summary(self) -> str:
        """Returns a line with the folder and its files."""
        return f"written to {self.folder}: {', '.join(self.files)}"

    def __str__(self) -> str:
        return "\n".join([self.summary, *lines_of(self.commands)])

    __repr__ = __str__


def read_settings(values: Mapping[str, object]) -> LaunchSettings:
    """Checks settings that Python code gives. Raises: ConfigError."""
    settings = validate(LaunchSettings, dict(values), "launch", lambda group: "see `mxtrain launch --help`")
    check_settings(settings)
    return settings


def check_settings(settings: LaunchSettings) -> None:
    """Rejects settings that the target lacks or that have no effect, and an existing folder.

    Raises:
        ConfigError: there is such a setting.
        DataError: the folder exists.
    """
    if settings.for_ is None or settings.out is None:
        raise ConfigError(
            "launch: for=ENGINE and out=FOLDER are needed. Type e.g. `launch for=slurm out=job model=resnet`; engines: "
            f"{', '.join(TARGETS)}."
        )
    target = TARGETS[settings.for_]
    for name in target.needs:
        if getattr(settings, name) is None:
            example = f"{target.storage[0]}://NAME" if name == "storage" else "registry.example.com/mxtrain:1"
            raise ConfigError(f"launch for={settings.for_}: {name} is missing, e.g. {name}={example}.")
    for name in ("image", "storage", "nodes", "cpus", "memory", "gpus"):
        if name in settings.model_fields_set and name not in (*target.needs, *target.takes):
            raise ConfigError(
                f"launch.{name}={getattr(settings, name)}: for={settings.for_} writes no such setting. Leave it out, "
                "or edit the files."
            )
    scheme, _, path = (settings.storage or "").partition("://")
    is_one_name = "/" not in path or settings.for_ == "sagemaker"
    if target.storage and not (scheme in target.storage and is_one_name):
        raise ConfigError(
            f"launch.storage={settings.storage}: for={settings.for_} takes "
            f"{' or '.join(f'{scheme}://NAME' for scheme in target.storage)}."
        )
    # Refused before the run is composed; `new_folder` looks again.
    require_new(Path(settings.out))


def launch(
    description: Description, overrides: Sequence[str], settings: LaunchSettings, flags: Sequence[str] = ()
) -> LaunchFiles:
    """Writes the files of a run into a new folder.

    Args:
        description: description of the run.
        overrides: overrides that it was composed from.
        settings: settings, checked by `check_settings`.
        flags: flags by which a command finds the user's own configuration.

    Raises:
        ConfigError: the target cannot start this run.
        DataError: the folder exists, or cannot be written.
    """
    assert settings.out is not None and settings.for_ is not None
    job = job_of(description, overrides, settings, flags)
    target, folder = TARGETS[settings.for_], Path(settings.out)
    files = {**(image_files() if "image" in target.needs else {}), **target.files(job)}
    files[README] = readme(job, target, list(files), description)
    with new_folder(folder) as draft:
        for name, text in files.items():
            replace_file(draft / name, text.encode())
    return LaunchFiles(folder, settings.for_, sorted(files), _commands(job, target, shlex.quote(str(folder))))


def job_of(
    description: Description, overrides: Sequence[str], settings: LaunchSettings, flags: Sequence[str]
) -> LaunchJob:
    """Returns the job. Raises: ConfigError: the target cannot start this run."""
    assert settings.for_ is not None
    target, cluster, store = TARGETS[settings.for_], description.cluster, description.kvstore
    for word in overrides:
        if key_of(word) in RESERVED:
            raise ConfigError(f"launch: {word}: {RESERVED[key_of(word)]}. Leave it out, and name the job by name=.")
    if flags and settings.for_ != "slurm":
        raise ConfigError(
            f"launch for={settings.for_}: --config-dir {flags[-1]} is a folder of this machine, and the image has "
            "another file system. Name classes by _target_, and copy their module in the Dockerfile."
        )
    takes_nodes = "nodes" in target.takes
    nodes = settings.nodes or (cluster.workers if takes_nodes else 1)
    own_launcher = "slurm" if settings.for_ == "slurm" else "nodes"
    # Some settings, such as cluster.interface, are refused without a launcher for several machines.
    if cluster.launcher != "local" and (cluster.launcher != own_launcher or nodes == 1):
        raise ConfigError(
            f"launch: cluster.launcher={cluster.launcher}: the files choose how processes are started"
            f"{'' if nodes == 1 else f', by cluster.launcher={own_launcher}'}. Leave it out."
        )
    if nodes > cluster.workers:
        raise ConfigError(
            f"launch.nodes={nodes} with cluster.workers={cluster.workers}: each node needs a worker. Type "
            f"kvstore=dist_sync cluster.workers={nodes}, or nodes={cluster.workers}."
        )
    if nodes > 1 and store.ring and not target.rings:
        raise ConfigError(
            f"launch for={settings.for_}: kvstore=horovod on {nodes} nodes needs mpirun or srun. Type nodes=1, "
            "kvstore=dist_sync, for=kubeflow or for=slurm."
        )
    if nodes > 1 and store.ring and settings.for_ == "kubeflow" and cluster.workers % nodes:
        raise ConfigError(
            f"launch.nodes={nodes} with cluster.workers={cluster.workers}: mpirun starts the same number of workers on "
            "each node. Type a number of workers that is a multiple of that of nodes."
        )
    if nodes > 1 and description.trainer.is_fold_group:
        raise ConfigError(f"launch.nodes={nodes}: folds are several runs. Type nodes=1.")
    return LaunchJob(
        settings.name,
        list(overrides),
        list(flags),
        cluster.workers,
        cluster.num_servers if store.van is not None else 0,
        store.ring,
        nodes,
        settings.image or "",
        settings.storage or "",
        settings.cpus,
        settings.memory,
        settings.gpus,
    )


def readme(job: LaunchJob, target: LaunchTarget, files: Sequence[str], description: Description) -> str:
    """Returns the text of the README of a folder."""
    processes = f"{job.workers} worker{'s' * (job.workers > 1)}"
    if job.servers:
        processes += f", {job.servers} parameter server{'s' * (job.servers > 1)} and a scheduler"
    where = f"{job.nodes} nodes" if job.nodes > 1 else "one node"
    overrides = shlex.join(["mxtrain", *job.flags, *job.overrides])
    return "\n".join(
        [
            f"# {job.name} on {target.title}",
            "",
            f"Written by mxtrain {mxtrain.__version__}. {processes} on {where} train the run of",
            "",
            f"```\n{overrides}\n```",
            "",
            f"Files: {', '.join(files)}.",
            "",
            "In this folder:",
            "",
            "```",
            *lines_of(_commands(job, target, ".")),
            "```",
            *(line for remark in target.remarks for line in ("", remark)),
            "",
        ]
    )


def _commands(job: LaunchJob, target: LaunchTarget, folder: str) -> Commands:
    image = IMAGE_COMMANDS if "image" in target.needs else ()
    return job.commands([*image, *target.commands], folder)


def lines_of(commands: Commands) -> List[str]:
    """Returns commands with their purposes as lines of a shell."""
    return [line for purpose, command in commands for line in (f"# {purpose}", command)]
