"""Chooses the placement of a run with `parallel=auto`, before the run begins.

A resumed run keeps the placement in its last checkpoint, because another one changes the last bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from mxtrain.checkpoint.store import CHECKPOINTS, CheckpointStore
from mxtrain.cluster.member import find_member
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.untrusted_overrides import require_trusted_overrides
from mxtrain.config.options import option_classes
from mxtrain.config.override_text import key_of, written
from mxtrain.errors import ConfigError
from mxtrain.parallel.forecast import Forecast, best_of
from mxtrain.terminal.program import program
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.training.resume import find_checkpoint
from mxtrain.workflows.plan import PlanResult, PlanSettings, plan_placements

if TYPE_CHECKING:
    from mxtrain.config.groups import Description
    from mxtrain.types.annotations import JsonObject

SETTING = "parallel=auto"
REMEDY = "Name the placement of the run instead, e.g. parallel=data"


def with_placement(
    composer: Composer,
    composed: Composed,
    description: Description,
    overrides: Sequence[str],
    config_dirs: Sequence[str],
) -> Tuple[Composed, Description]:
    """Returns the configuration and description of a run with the placement of its last checkpoint, or with the fastest
    one.

    Args:
        composer: composes configurations.
        composed, description: a run with `parallel=auto`.
        overrides: overrides of which the run was composed.
        config_dirs: the user's own folders of configuration.

    Raises:
        ConfigError: there are several runs (folds) or processes, or no placement fits; or the recorded placement would
            run code of its author.
        DataError: the data cannot be read.
    """
    description.trainer.require_one_run(SETTING)
    if description.kvstore.distributed or find_member() is not None:
        raise ConfigError(
            f"{SETTING} chooses among the devices of one process, and this run has several processes. Type one of the "
            "placements of `python -m mxtrain plan`."
        )
    if composed.objects:
        raise ConfigError(
            f"{SETTING} with objects ({', '.join(composed.objects)}): they cannot be sent to the processes that "
            "measure. Type one of the placements of parallel, e.g. parallel=data."
        )
    keep = description.checkpoint
    store = CheckpointStore(composed.run_dir / CHECKPOINTS, keep_last=keep.keep_last, keep_top=keep.keep_top)
    checkpoint = find_checkpoint(keep.resume, store, description.config)
    if checkpoint is not None:
        words = words_of(checkpoint.state["run"]["description"]["parallel"])
        require_trusted_overrides(composer, words, [], str(checkpoint.path), "train", config_dirs, REMEDY)
        print(f"{SETTING}: {' '.join(words)}, as chosen when the run began", flush=True)
    else:
        words = _choose(description, overrides, config_dirs)
    replaced = {"parallel", "parallel.devices", *map(key_of, words)}
    return compose_and_check(composer, [*(word for word in overrides if key_of(word) not in replaced), *words])


def _choose(description: Description, overrides: Sequence[str], config_dirs: Sequence[str]) -> List[str]:
    """Returns the overrides of the fastest placement that fits, and prints them."""
    devices = description.parallel.devices
    settings = PlanSettings() if devices == "auto" else PlanSettings(devices=int(devices.partition(":")[2]))
    planned, best = _find_best(description, overrides, config_dirs, settings)
    parallel = description.parallel
    if best is None and parallel.recompute == "off" and parallel.batch_norm == "per_device":
        print(f"{SETTING}: no placement fits, so placements with parallel.recompute=auto are measured", flush=True)
        recomputed = replace(description, parallel=parallel.model_copy(update={"recompute": "auto"}))
        try:
            planned, best = _find_best(recomputed, overrides, config_dirs, settings)
        except ConfigError as error:  # e.g. no division of the network into segments would save memory
            raise ConfigError(f"{_none_fits(planned)}. {error}") from error
    if best is None:
        raise ConfigError(_none_fits(planned))
    words = [word for word in best.placement.overrides(planned.kind) if word.startswith("parallel")]
    print(
        f"{SETTING}: {' '.join(words)} is predicted to be the fastest, {1000 * best.step_s:,.1f} ms a step; "
        f"`{program()} plan` compares all placements",
        flush=True,
    )
    return words


def _none_fits(planned: PlanResult) -> str:
    reasons = sorted({one.reason for one in planned.forecasts if one.reason})
    return f"{SETTING}: no placement fits. {' '.join(reasons)}"


def _find_best(
    description: Description, overrides: Sequence[str], config_dirs: Sequence[str], settings: PlanSettings
) -> Tuple[PlanResult, Optional[Forecast]]:
    """Returns all placements, and the fastest that fits; None if there is none."""
    planned = plan_placements(description, overrides, config_dirs, settings, ProgressDisplay())
    parts = description.trainer.grad_accumulation  # changes what batch norms compute, so it is not chosen
    return planned, best_of([one for one in planned.forecasts if one.placement.accumulation == parts])


def words_of(recorded: JsonObject) -> List[str]:
    """Returns the overrides that compose recorded settings of `parallel`.

    Raises:
        ConfigError: no option has their class.
    """
    target = str(recorded.get("_target_"))
    classes = option_classes("parallel")
    options = [name for name, kind in classes.items() if f"{kind.__module__}.{kind.__qualname__}" == target]
    if not options:
        raise ConfigError(
            f"{SETTING}: the run was placed by {target}, which is no option of parallel. Name its placement instead."
        )
    settings = {name: value for name, value in recorded.items() if name != "_target_"}
    return [f"parallel={options[0]}", *(f"parallel.{name}={written(value)}" for name, value in settings.items())]
