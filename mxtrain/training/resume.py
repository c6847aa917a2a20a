"""Decides whether a run directory may be continued with a description, and from which checkpoint."""

from __future__ import annotations

import fnmatch
import functools
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Mapping, Optional, Tuple, Union

from mxtrain.archive.run_files import META_FILE, ROWS_FILE, STATUS_FILE
from mxtrain.archive.status import read_status_object
from mxtrain.callback.protocol import Result
from mxtrain.checkpoint import (
    Checkpoint,
    CheckpointSpec,
    CheckpointStore,
    canonical_sha256,
    open_checkpoint,
    require_run_state,
)
from mxtrain.checkpoint.average import refuse_average
from mxtrain.checkpoint.folder import AVERAGED
from mxtrain.checkpoint.memory import newest_in_memory
from mxtrain.checkpoint.run_directory import held_lock
from mxtrain.checkpoint.sharing import receive_checkpoint, send_checkpoint
from mxtrain.checkpoint.store import CHECKPOINTS
from mxtrain.config.groups import Description
from mxtrain.config.specs import complete_settings, flatten, shown
from mxtrain.data.identity import differences as data_differences
from mxtrain.data.identity import identify
from mxtrain.data.spec import open_splits
from mxtrain.errors import EXIT_FINISHED, CheckpointError, run_dir_setting
from mxtrain.files.durable import open_file
from mxtrain.kvstore.store import Store
from mxtrain.logger.tracked_run import position_file
from mxtrain.parallel.spec import Parallel, Staged
from mxtrain.training.saving import NoStore
from mxtrain.types import expand_path

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, JsonObject

# Patterns of the settings that may differ when a run is resumed, because a step computes the same with any value of
# them: length of the run, placement, logging and checkpoints. All other settings change the weights.
CHANGEABLE = (
    "trainer.max_*",
    "trainer.epoch_budget",
    "trainer.log_interval",
    "trainer.val_interval*",
    "trainer.limit_val_batches",
    "trainer.limit_test_batches",
    "trainer.fold_repeats",
    "trainer.test",
    "trainer.profile",
    "trainer.sparse_grad",
    "early_stopping.*",
    "checkpoint.*",
    "runtime.*",
    "parallel.*",
    "kvstore.*",
    "cluster.*",
    "callback",
    "callback.*",
    "logger",
    "logger.*",  # without the dot: the group may have been empty
    "dataset.root",
    "dataset.download",
    "dataset.num_workers",
    "dataset.prefetch",
    "dataset.eval_batch_size",
    "model.weights",
    "model.lora.adapter",
    "model.embeddings",
)

# Settings that match a pattern of `CHANGEABLE` but do change the result of a step, with the value that an absent
# setting stands for. A setting that is added later belongs here if its default does not compute what mxtrain computed
# before.
UNCHANGEABLE: Dict[str, object] = {
    "parallel.batch_norm": "per_device",
    "kvstore.compression": "none",
    "kvstore.threshold": None,
    "kvstore.ratio": 0.01,
    "kvstore.sync_every": None,
    "kvstore.outer_optimizer": "average",
    "kvstore.outer_lr": None,
    "kvstore.outer_momentum": None,
    "kvstore.bucket_mib": None,
    "trainer.fold_stratify": "auto",
    "dataset.class_weights": {},  # given weights are flattened to one setting for each class
}

CHANGE_WHOLE_RUN = (
    "trainer.max_*",
    "trainer.epoch_budget",
    "trainer.val_interval*",
    "trainer.limit_val_batches",
    "trainer.limit_test_batches",
    "trainer.test",
    "early_stopping.*",
    "callback.*",
    "checkpoint.resume",
    "checkpoint.changes*",
    "model.weights",
    "model.lora.adapter",
    "model.embeddings",
    "kvstore._target_",
)
"""Patterns of the settings in `CHANGEABLE` that affect the result of a whole run: its schedule, its end, the
validations from which the best checkpoint is selected, the initial weights, and actions on the weights."""

NOT_COMPARED = ("logger.", "callback.", "runtime.", "checkpoint.", "trainer.fold_repeats")
"""Prefixes of the settings that do not affect whether a finished run has work left."""

BATCH_SIZE = "dataset.batch_size"
DATA = "data"
"""Name by which `checkpoint.changes` allows other data."""

DATA_DEPENDENT = ("batch_size", "image_size")
"""Dataset settings whose value `auto` is resolved from the samples."""

# Patterns of the files of a run that are moved to previous/ when it is started over.
RUN_FILES = (
    "checkpoints",
    AVERAGED,
    ROWS_FILE,
    "metrics.csv",
    STATUS_FILE,
    META_FILE,
    "timeline.json",
    "events.out.tfevents.*",
    "replay",
    position_file("*"),
)
LOG_FILE = "train.log"


def settings_of(config: Config) -> Dict[str, object]:
    """Returns the settings of a description by dotted path, with defaults for absent settings of `UNCHANGEABLE`."""
    settings = {**UNCHANGEABLE, **flatten(config)}
    if settings.get("trainer.reference_batch_size") == settings.get("dataset.batch_size"):
        settings["trainer.reference_batch_size"] = None  # then no learning rate is scaled
    # Without a teacher, the settings of distillation have no effect. Runs of earlier versions do not contain them.
    if settings.get("distillation.teacher") is None:
        settings = {path: value for path, value in settings.items() if not path.startswith("distillation.")}
    return settings


def with_new_settings(before: Config, after: Config, path: str = "") -> Config:
    """Adds settings that later versions of mxtrain have introduced to an earlier description, with their default
    values.

    Args:
        before: description of an earlier run, possibly written by an earlier version of mxtrain.
        after: description of this run. Settings are added only to classes that are part of both descriptions.
        path: dotted path of `before` and `after` in their descriptions, with a dot at its end; empty for the root.

    Returns:
        A copy of `before` with the added settings.
    """
    filled: Dict[str, object] = dict(before)
    for name, new in after.items():
        old = before.get(name)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            continue
        if "_target_" not in old:
            filled[name] = with_new_settings(old, new, f"{path}{name}.")
        elif old["_target_"] == new.get("_target_"):
            settings = complete_settings(old, f"{path}{name}").items()
            filled[name] = {
                key: value for key, value in settings if key in old or f"{path}{name}.{key}" not in UNCHANGEABLE
            }
    return filled


def changes_result(path: str, whole_run: bool = False) -> bool:
    """Returns True if another value of a setting changes what a run computes.

    Args:
        path: dotted path of the setting.
        whole_run: if True, the result of a whole run counts; if False, only the computation of a step.
    """
    if path in UNCHANGEABLE or (whole_run and any(fnmatch.fnmatch(path, pattern) for pattern in CHANGE_WHOLE_RUN)):
        return True
    return not any(fnmatch.fnmatch(path, pattern) for pattern in CHANGEABLE)


def differences(before: Config, after: Config) -> List[str]:
    """Returns one line for each setting that differs and changes the result."""
    return [f"  {path}: was {was}, now {now}" for path, was, now in settings_that_differ(before, after)]


def settings_that_differ(before: Config, after: Config, whole_run: bool = False) -> List[Tuple[str, str, str]]:
    """Returns path, old and new value of each setting that differs and changes the result; see `changes_result`."""
    old, new = settings_of(with_new_settings(before, after)), settings_of(after)
    differing = []
    for path in sorted(set(old) | set(new)):
        if old.get(path) == new.get(path):  # an absent setting counts as null
            continue
        if not changes_result(path, whole_run):
            continue
        old_text = shown(old[path]) if path in old else "(not set)"
        new_text = shown(new[path]) if path in new else "(not set)"
        differing.append((path, old_text, new_text))
    return differing


def changed_settings(checkpoint: Checkpoint, config: Config) -> List[str]:
    """Returns one line for each setting with which a description computes other results than that of a checkpoint."""
    before, after = checkpoint.state["run"]["description"], config
    old, new = before.get("dataset"), after.get("dataset")
    if isinstance(old, dict) and isinstance(new, dict):
        # The value of auto depends on the data, which are not open yet. `require_same_batch` and the dataset's
        # `check_compatible` compare it later.
        same = {name: old.get(name) for name in DATA_DEPENDENT if "auto" in (old.get(name), new.get(name))}
        after = {**after, "dataset": {**new, **same}}
    allowed = tuple(f"  {name}: " for name in (config.get("checkpoint") or {}).get("changes") or ())
    return [line for line in differences(before, after) if not line.startswith(allowed)]


def require_same_description(checkpoint: Checkpoint, config: Config) -> None:
    """Checks that a description computes the same results as the description of the checkpoint.

    Raises:
        CheckpointError: settings that change the result differ; the message lists them.
    """
    lines = changed_settings(checkpoint, config)
    if lines:
        raise CheckpointError(
            f"{checkpoint.path} was made by a description that computes something else:\n" + "\n".join(lines) + "\n"
            f"Give the same settings, choose another {run_dir_setting()}, or start over with checkpoint.resume=never "
            "(which keeps the earlier files under previous/)."
        )


def require_same_data(checkpoint: Checkpoint, config: Config, identity: JsonObject) -> None:
    """Checks that the data are those of the checkpoint. Checkpoints of earlier versions do not hold their identity.

    Args:
        checkpoint: checkpoint to continue from.
        config: description as plain nested dicts.
        identity: of the data, see `mxtrain.data.identity`.

    Raises:
        CheckpointError: the data differ, and `checkpoint.changes` does not contain `data`; the message lists the parts.
    """
    before = checkpoint.state["run"].get("data")
    changes = (config.get("checkpoint") or {}).get("changes") or ()
    if before is None or DATA in changes:
        return
    other_samples = any(name.startswith("dataset.") and name != BATCH_SIZE for name in changes)
    lines = data_differences(before, identity, files_only=other_samples)
    if lines and checkpoint.step == 0:
        # A broken file often ends a run in its first epoch. The message then asks the user to remove that file and to
        # repeat the command, so the changed data must not be refused.
        logging.getLogger("mxtrain").info(
            "%s holds no trained step, and is continued on other data:\n%s", checkpoint.path, "\n".join(lines)
        )
    elif lines:
        raise CheckpointError(
            f"{checkpoint.path} was trained on other data:\n" + "\n".join(lines) + "\n"
            "Start over with checkpoint.resume=never (which keeps the earlier files under previous/), choose another "
            f"{run_dir_setting()}, or continue on these data with checkpoint.changes=[{DATA}]."
        )


def require_finished_on_same_data(checkpoint: Optional[Checkpoint], description: Description) -> None:
    """Checks that a run that has nothing left to do was trained on the present data. Does not import MXNet.

    Args:
        checkpoint: last checkpoint of the run; None if it has none, so that there is nothing to compare.
        description: description of the run.

    Raises:
        CheckpointError, DataError: the data differ, or cannot be read.
    """
    if checkpoint is not None and checkpoint.state["run"].get("data") is not None:
        splits = open_splits(description.dataset)
        require_same_data(checkpoint, description.config, identify(description.dataset, splits, {}))


def require_same_batch(checkpoint: Checkpoint, setting: str, batch_size: int, config: Config) -> None:
    """Checks that the batch size is that of the checkpoint, unless `checkpoint.changes` allows another one.

    Comparing the settings is not enough, because the batch size may be `auto` in one of the two descriptions.

    Args:
        checkpoint: checkpoint to continue from.
        setting: name of the setting that determines the batch size; only "batch_size" is checked.
        batch_size: present samples of a step, global.
        config: description as plain nested dicts.

    Raises:
        CheckpointError: the number of training samples has changed, or the user sets another batch size.
    """
    before = checkpoint.state["run"]["batch_size"]
    changes = (config.get("checkpoint") or {}).get("changes") or ()
    if setting == "batch_size" and before != batch_size and BATCH_SIZE not in changes:
        raise CheckpointError(
            f"{checkpoint.path} was trained with dataset.batch_size={before}, and the training samples that are there "
            f"now, or the settings, make it {batch_size}. Type dataset.batch_size={before}."
        )


def epoch_step_of(checkpoint: Checkpoint, batch_size: int) -> int:
    """Returns the finished steps of the current epoch, in batches of the present size.

    Args:
        checkpoint: checkpoint to continue from.
        batch_size: present samples of a step, global.

    Raises:
        CheckpointError: with the present size, no step of an epoch ends after the samples that the epoch has trained.
    """
    before, epoch_step = checkpoint.state["run"]["batch_size"], checkpoint.state["train"]["epoch_step"]
    # The order of samples depends on seed and epoch only, so whole batches of the new size skip and repeat no sample.
    if epoch_step * before % batch_size:
        raise CheckpointError(
            f"{checkpoint.path} has trained {epoch_step * before:,} samples of an epoch, which are no whole number of "
            f"batches of {batch_size}. First end the epoch with dataset.batch_size={before} "
            f"trainer.epoch_budget={checkpoint.epoch + 1}, then change the batch size."
        )
    return epoch_step * before // batch_size


def epoch_origin_of(checkpoint: Optional[Checkpoint], batch_size: int, steps_per_epoch: int) -> int:
    """Returns the step at which epoch 0 would have begun if all epochs had the present number of steps; else 0.

    Raises:
        CheckpointError: see `epoch_step_of`.
    """
    if checkpoint is None:
        return 0
    # Derived from step, epoch and batch size of the checkpoint, so that no further state has to be saved.
    return checkpoint.step - checkpoint.epoch * steps_per_epoch - epoch_step_of(checkpoint, batch_size)


def same_cut(parallel: Parallel, checkpoint: Optional[Checkpoint], num_stages: int) -> Parallel:
    """Returns the placement with the pipeline cut of the checkpoint, unless the user sets one or stages have changed.

    Another type of device, or version of mxtrain, might choose another cut, which may change the last bits of results.
    """
    cut_before = checkpoint.state["run"]["cut_before"] if checkpoint is not None else []
    if isinstance(parallel, Staged) and not parallel.cut_before and 0 < len(cut_before) == num_stages - 1:
        return parallel.model_copy(update={"cut_before": cut_before})
    return parallel


def find_checkpoint(resume: str, store: CheckpointStore, config: Config) -> Optional[Checkpoint]:
    """Returns the checkpoint to continue from, or None for a new run.

    Args:
        resume: `checkpoint.resume`: auto, never or a path. A path is only used if the run directory has no checkpoint.
        store: checkpoints of the run directory.
        config: the description as plain nested dicts.

    Raises:
        CheckpointError: the checkpoints here or at the path are unusable, or the description differs.
    """
    if resume == "never":
        return None
    checkpoint = store.latest()
    if checkpoint is None:
        # Starting at step 0 would overwrite checkpoints that exist but cannot be used.
        store.require_usable()
    if checkpoint is None and resume != "auto":
        if not os.path.exists(path := expand_path(resume)):
            raise CheckpointError(
                f"checkpoint.resume={resume}: there is nothing at that path. It is auto (continue this run directory), "
                "never (begin anew), or the path of a run or a checkpoint."
            )
        checkpoint = open_checkpoint(path, which="last")
    if checkpoint is not None:
        require_run_state(checkpoint)
        refuse_average(checkpoint)
        require_same_description(checkpoint, config)
    return checkpoint


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run continues from. It is looked up once, when the process takes the run directory.

    Attributes:
        store: checkpoints of the run directory.
        checkpoint: checkpoint to continue from, possibly of another run; None for a new run.
    """

    store: CheckpointStore
    checkpoint: Optional[Checkpoint]

    @property
    def own_checkpoint(self) -> Optional[Checkpoint]:
        """Returns the checkpoint to continue from, if it belongs to this run; otherwise None."""
        is_own = self.checkpoint is not None and self.checkpoint.path.parent == self.store.directory
        return self.checkpoint if is_own else None


def find_resume_point(run_dir: Path, keep: CheckpointSpec, config: Config) -> ResumePoint:
    """Finds the checkpoint that a run continues from. Writes nothing, unless `checkpoint.upload` names an address, from
    which missing checkpoints are downloaded. Raises like `find_checkpoint` and `fetch_checkpoints`."""
    upload = None
    if keep.upload is not None:
        from mxtrain.checkpoint.upload import CheckpointUpload, fetch_checkpoints

        upload = CheckpointUpload(keep.upload)
        differences = functools.partial(changed_settings, config=config)
        fetch_checkpoints(keep.upload, run_dir / CHECKPOINTS, keep.resume == "never", differences)
    store = CheckpointStore(run_dir / CHECKPOINTS, keep_last=keep.keep_last, keep_top=keep.keep_top, upload=upload)
    checkpoint, in_memory = find_checkpoint(keep.resume, store, config), newest_in_memory()
    if in_memory is not None and (checkpoint is None or in_memory.step > checkpoint.step):
        checkpoint = in_memory  # of an earlier attempt of the same supervisor, so of the same description
    return ResumePoint(store, checkpoint)


def monitor_changed(before: JsonObject, now: JsonObject) -> bool:
    """Returns True if early stopping monitored another value before, so that its saved state does not apply.

    Args:
        before: "run" part of a checkpoint's state.
        now: the same of the present run.
    """
    monitors = [run["description"].get("early_stopping", {}).get("monitor") for run in (before, now)]
    return monitors[0] != monitors[1]


def remarks(checkpoint: Checkpoint, workers: int, updates: bool, threads: str, operators: str) -> List[str]:
    """Returns a sentence for each difference between the environments of checkpoint and run that changes the results.

    Args:
        checkpoint: checkpoint to continue from.
        workers: current number of workers.
        updates: True if servers update the parameters now.
        threads: current OMP_NUM_THREADS; empty if it is not set.
        operators: operators in use now, see `engine.backend.operators_in_use`.
    """
    before, name, sentences = checkpoint.state["run"], checkpoint.path.name, []
    if updates:
        sentences.append(
            f"the servers go on from step {checkpoint.step}: what they had applied after it, if anything, is lost"
        )
    if "residual" in checkpoint.stems and before["workers"] != workers:
        sentences.append(
            f"the compression residual of the gradients of {before['workers']} workers is split evenly over "
            f"{workers}: nothing of it is lost, but results differ from an uninterrupted run"
        )
    if "local_sgd" in checkpoint.state.get("states", {}) and before["workers"] != workers:
        sentences.append(
            f"{workers} workers go on from the synchronised weights of {before['workers']}, each with the optimizer "
            "state of worker 0: results differ from an uninterrupted run"
        )
    if before["updates"] != updates and max(workers, before["workers"]) > 1:
        sentences.append(
            "servers updated by each worker's gradient alone "
            + ("until this step: from now on" if before["updates"] else "only from this step on: until now")
            + " a step is one update by all workers' gradient"
        )
    if before["threads"] != threads:
        sentences.append(
            f"{name} was computed with OMP_NUM_THREADS={before['threads'] or '(not set)'}, now it is "
            f"{threads or '(not set)'}: the last bits may differ from an uninterrupted run"
        )
    if before["own_operators"] != operators:
        sentences.append(
            f"{name} was computed with {before['own_operators'] or 'MXNet'}'s operators, now with "
            f"{operators or 'MXNet'}'s: the last bits and the draws of dropout differ from an uninterrupted run"
        )
    return sentences


def read_end(run_dir: Path, state: str, step: int, weights_sha256: str) -> Optional[JsonObject]:
    """Returns status.json if it describes this end of this run; otherwise None."""
    status = read_status_object(run_dir)
    found = tuple(status.get(name) for name in ("state", "step", "weights_sha256"))
    return status if found == (state, step, weights_sha256) else None


def find_finished(run_dir: Path, config: Config) -> Optional[JsonObject]:
    """Returns status.json of a finished run of this description with a last checkpoint; otherwise None.

    Does not import MXNet.
    """
    status = _read_finished(run_dir, config)
    if status is None:
        return None
    try:
        checkpoint = CheckpointStore(run_dir / CHECKPOINTS, keep_last=1, keep_top=1).latest()
        is_same = checkpoint is not None and _belongs_to(checkpoint, config)
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        return None
    return status if is_same else None


def _read_finished(run_dir: Path, config: Config) -> Optional[JsonObject]:
    status = read_status_object(run_dir)
    is_finished = status.get("exit_code") == EXIT_FINISHED and config["checkpoint"]["resume"] != "never"
    return status if is_finished else None


def _belongs_to(checkpoint: Checkpoint, config: Config) -> bool:
    before = with_new_settings(checkpoint.state["run"]["description"], config)
    return _result_settings(before) == _result_settings(config)


def _result_settings(config: Config) -> Dict[str, object]:
    return {path: value for path, value in settings_of(config).items() if not path.startswith(NOT_COMPARED)}


def find_end(run_dir: Path, config: Config, checkpoint: Optional[Checkpoint]) -> Optional[Result]:
    """Returns the result of a finished run of this description; None if work may be left. Does not import MXNet.

    A run is finished if its last weights exist and match status.json.

    Args:
        run_dir: run directory.
        config: description as plain nested dicts.
        checkpoint: last checkpoint of the run; None if it has none.

    Raises:
        CheckpointError: the weights were removed or damaged in the meantime.
    """
    finished = _read_finished(run_dir, config)
    if finished is None or checkpoint is None or not _belongs_to(checkpoint, config):
        return None
    train = checkpoint.state["train"]
    sha256 = canonical_sha256(checkpoint.arrays("model"))
    status = read_end(run_dir, finished.get("state", ""), checkpoint.step, sha256)
    if status is None or train["validation_due"]:
        return None
    return ended_result(
        status,
        state=status["state"],
        exit_code=EXIT_FINISHED,
        cause=status.get("cause") or "",
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        best=train["best"],
        weights_sha256=sha256,
    )


def ended_result(status: JsonObject, **fields: Any) -> Result:
    """Returns the result of a run that ended earlier, from `fields` and status.json."""
    return Result(
        metrics=status.get("metrics") or {},
        checkpoint=status.get("checkpoint"),
        best_checkpoint=status.get("best_checkpoint"),
        measured=status.get("measured") or {},
        samples_per_s=status.get("samples_per_s") or 0.0,
        **fields,
    )


def already_finished_message(run_dir: Path, cause: str, step: int) -> str:
    """Returns the message for a run that has nothing left to do."""
    return f"nothing is left to do in {run_dir}: {cause or f'all {step} steps are trained'}"


def move_to_previous(run_dir: Path, hydra: bool = False) -> Optional[Path]:
    """Moves the files of an earlier run to previous/<n>, so that starting over loses nothing.

    Args:
        run_dir: run directory.
        hydra: True to keep a copy of `.hydra`, too; for callers that run before Hydra overwrites it.

    Returns:
        The new folder; None if there were no files.
    """
    files = [path for pattern in RUN_FILES for path in sorted(run_dir.glob(pattern))]
    if not files:
        return None
    number = 1
    while (run_dir / "previous" / str(number)).exists():
        number += 1
    target = run_dir / "previous" / str(number)
    target.mkdir(parents=True)
    if hydra and (run_dir / ".hydra").is_dir():
        shutil.copytree(run_dir / ".hydra", target / ".hydra", symlinks=True)
    if (run_dir / LOG_FILE).exists():
        # Copy and truncate instead of moving: this process may already have opened the file for its log.
        shutil.copy2(run_dir / LOG_FILE, target / LOG_FILE)
        os.close(open_file(run_dir / LOG_FILE, os.O_WRONLY | os.O_TRUNC))
    for path in files:
        shutil.move(str(path), str(target / path.name))
    return target


def open_checkpoints(
    description: Description,
    run_dir: Path,
    workers: Store,
    resume_point: Optional[ResumePoint] = None,
    without: Collection[str] = (),
) -> Tuple[Union[CheckpointStore, NoStore], Optional[Checkpoint]]:
    """Returns the store of checkpoints, and the checkpoint to continue from. Collective.

    Only rank 0 reads the run directory; it sends the checkpoint to the other workers, except the parameters `without`.

    Raises:
        CheckpointError: a requested checkpoint does not exist, or belongs to another description.
    """
    if workers.world.rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        resume_point = resume_point or find_resume_point(run_dir, description.checkpoint, description.config)
        store, checkpoint = resume_point.store, resume_point.checkpoint
        store.take_ownership(held_lock(run_dir), logging.getLogger("mxtrain").warning)
        if workers.world.size > 1:
            send_checkpoint(workers.broadcast, checkpoint, without)
            workers.broadcast(b"own" if checkpoint is not None and checkpoint.path.parent == store.directory else b"")
        return store, checkpoint
    checkpoint = receive_checkpoint(workers.broadcast)
    is_own = bool(workers.broadcast(None))
    return NoStore(checkpoint.path.parent if checkpoint is not None and is_own else None), checkpoint
