"""Runs a composed configuration like Hydra: with its run directory, files below `.hydra`, logging and callbacks.

The configuration is composed once and passed to Hydra's `run_job`: mistakes must be reported before anything is
written, and `Hydra.run` would compose a second time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable

from hydra._internal.callbacks import Callbacks
from hydra.core.utils import configure_log, run_job
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode

from mxtrain.callback.protocol import Result
from mxtrain.composing.composer import Composed
from mxtrain.composing.config_files import CONFIG_NAME
from mxtrain.composing.hydra_settings import hydra_settings_at_fault
from mxtrain.config.override_text import quote

if TYPE_CHECKING:
    from omegaconf import DictConfig


class JobStartCallback(Callback):
    """Records that Hydra is set up and the job has begun."""

    def __init__(self) -> None:
        self.has_started = False

    def on_job_start(self, config: DictConfig, **kwargs: object) -> None:
        self.has_started = True


def run_composed(composed: Composed, run_dir: Path, job: Callable[[DictConfig], Result]) -> Result:
    """Runs the job as `Hydra.run` does, without composing once more, which takes a second; returns its result.

    Args:
        composed: the configuration.
        run_dir: Hydra's run directory.
        job: is called in it, with the configuration without Hydra's own node.

    Raises:
        ConfigError: one of Hydra's own settings is wrong.
    """
    config, job_start = composed.tree, JobStartCallback()
    # OmegaConf would resolve "${" in the name of a folder.
    config.hydra.run.dir = str(run_dir).replace("${", "\\${")
    config.hydra.mode = RunMode.RUN
    config.hydra.overrides.hydra.extend([f"hydra.run.dir={quote(str(run_dir))}", "hydra.mode=RUN"])
    with hydra_settings_at_fault(lambda: job_start.has_started):
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        callbacks = Callbacks(config)
        callbacks.callbacks.append(job_start)
        callbacks.on_run_start(config=config, config_name=CONFIG_NAME)
        context = HydraContext(config_loader=composed.composer.loader, callbacks=callbacks)
        job_return = run_job(job, config, job_dir_key="hydra.run.dir", job_subdir_key=None, hydra_context=context)
        callbacks.on_run_end(config=config, config_name=CONFIG_NAME, job_return=job_return)
        return job_return.return_value
