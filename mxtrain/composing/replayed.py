"""Describes the runs whose steps are repeated, with overrides, for one device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Sequence

from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import describe_here, set_environment
from mxtrain.composing.restored import apply_overrides, for_one_device, restore
from mxtrain.config.groups import Description
from mxtrain.config.trust import require_trusted
from mxtrain.training.replay_bundle import BUNDLE, ReplayBundle
from mxtrain.training.restored_run import RestoredRun


@dataclass(frozen=True)
class StepRestorer:
    """Describes the run of a step; then MXNet may be imported, because the environment is set.

    Attributes:
        overrides: overrides of the description of the run.
        config_dirs: folders of the user's own groups and options, whose classes are trusted.
        trust_code: whether classes that only the run names may be imported and called.
        settings: names of the command's own settings, for suggestions.
    """

    overrides: Sequence[str] = ()
    config_dirs: Sequence[str] = ()
    trust_code: bool = False
    settings: Collection[str] = ()

    def restore(self, checkpoint: Path) -> RestoredRun:
        """Opens the run of a checkpoint; raises as `mxtrain.composing.restored.restore`."""
        restored = restore(
            checkpoint,
            which="last",
            overrides=self.overrides,
            config_dirs=self.config_dirs,
            trust_code=self.trust_code,
            command="replay",
            settings=self.settings,
        )
        # MXNet reads its variables once, so they are set before the caller imports it.
        set_environment(restored.description)
        return restored

    def describe(self, bundle: ReplayBundle) -> Description:
        """Returns the description of the run of a bundle.

        Raises:
            ConfigError: an override is wrong, or the bundle names code that was not declared trusted.
        """
        with Composer(self.config_dirs) as composer:
            config = for_one_device(bundle.facts["run"]["description"], composer)
            if not self.trust_code:
                given = [o.key_or_group for o in composer.parse(self.overrides) if not isinstance(o.value(), dict)]
                # Before anything in it is looked up in the environment, imported or set.
                require_trusted(config, str(bundle.path / BUNDLE), "replay", given, self.config_dirs)
            config = apply_overrides(config, self.overrides, composer, self.settings)
        description = describe_here(config, lambda path: f"the bundle's own {path.split('.')[0]}")
        set_environment(description)
        return description
