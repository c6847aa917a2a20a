"""The console: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import ClassVar, Literal, Mapping, Union

from mxtrain.callback.protocol import Callback
from mxtrain.logger.spec import Logger
from mxtrain.types import NonNegativeFloat


class Console(Logger):
    """Shows a run to whoever started it: configuration, model, progress, result and what to do next."""

    shows_end: ClassVar[bool] = True
    shown_once: ClassVar[Mapping[str, bool]] = {"show_config": False, "show_model": False}

    show_config: Union[bool, Literal["full"]] = True
    """Prints the configuration when the run starts: the typed overrides, and what differs from its default; full:
    all settings."""
    show_model: bool = True
    """Prints the model summary when the run starts."""
    refresh_s: NonNegativeFloat = 0.5
    """Seconds between two updates of the bar, at least."""
    plain_interval_s: NonNegativeFloat = 10.0
    """Seconds between two plain lines within an epoch, at least."""

    def build(self) -> Callback:
        from mxtrain.logger.console_logger import ConsoleLogger

        return ConsoleLogger(self.show_config, self.show_model, self.refresh_s, self.plain_interval_s)
