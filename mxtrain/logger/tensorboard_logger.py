"""Writes the scalars and artifacts of a run for TensorBoard."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Optional

import numpy as np
from PIL import Image

from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation
from mxtrain.engine.late_modules import imported_late
from mxtrain.logger.event_file import EventFile
from mxtrain.logger.rows import mean_of_rows
from mxtrain.logger.tensorboard_views import (
    as_code,
    build_graph_def,
    command_text,
    end_summary,
    experiment_summary,
    layout_summary,
    model_text,
    result_text,
    select_hparams,
    start_summary,
)
from mxtrain.types import Artifact, Audio, Figure, Table

with imported_late(("boto3",)):
    from tensorboardX import summary as messages
    from tensorboardX.proto.summary_pb2 import Summary

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, MetricRow

_LOG = logging.getLogger(__name__)

_MARKDOWN_SIGNS = {**{ord(sign): f"&#{ord(sign)};" for sign in "&|`\\*_[]<"}, ord("\n"): " "}
"""Signs that Markdown would take for its own: in bold, `__future__` would lose them."""
_FLUSH_TIMEOUT_S = 5.0


class TensorBoardLogger(Callback):
    """Writes one TensorBoard event file per process into the run directory.

    A resumed run starts a new file that tells TensorBoard to hide points of older files after the checkpoint, so that
    repeated steps are not shown twice. Event data are built in the writer's thread where they are costly.
    """

    def __init__(
        self, histograms: int = 0, images: int = 1, max_images: int = 16, graph: bool = True, hparams: bool = True
    ) -> None:
        """Arguments are the fields of `mxtrain.logger.tensorboard.TensorBoard`."""
        self._histograms = histograms
        self._images = images
        self._max_images = max_images
        self._graph = graph
        self._hparams = hparams
        self._validations = 0
        self._newest_step: Dict[str, int] = {}
        """Step of the newest point of each tag. Rows and other scalars may have the same point, e.g. the learning
        rate."""
        self._events: Optional[EventFile] = None

    def on_start(self, run: RunInfo) -> None:
        """Creates the event file and writes command, configuration, hyperparameters and graph.

        Raises:
            RunDirectoryError: the event file cannot be created.
        """
        first_step = run.resumed_step + 1 if run.resumed_step else 0
        self._events = events = EventFile(run.run_dir, first_step)
        # TensorBoard sorts text pages by tag and expands the first two folders, so these come first.
        pages = {"about/1_command": command_text(run), "config": config_as_markdown(run.config)}
        if run.model_table is not None:
            pages["about/2_model"] = model_text(run)
        events.add(lambda: [messages.text(tag, text) for tag, text in pages.items()], first_step)
        events.add(lambda: [layout_summary(run)], first_step)
        if self._hparams:
            hparams = select_hparams(run.config, run.command.swept, run.command.choices)
            if run.command.swept:
                metrics = metric_tags(run)
                events.add(lambda: [experiment_summary(hparams, run.command.swept, metrics)], first_step)
            events.add(lambda: [start_summary(hparams)], first_step)
        if self._graph:
            self._add_graph(run, events)

    def on_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        self._add_scalars(scalars, step)

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        if not self._events:
            return
        step = validation.row["step"]
        self._add_validation_row(validation.row)
        if self._images and self._validations % self._images == 0:
            for artifact in validation.read_samples():
                self._add_artifact(artifact, step)
        if self._histograms and self._validations % self._histograms == 0:
            parameters = validation.read_parameters()
            self._events.add(lambda: histograms_of(parameters), step)
        self._validations += 1

    def on_checkpoint(self, step: int) -> None:
        if self._events:
            self._events.flush(_FLUSH_TIMEOUT_S)

    def on_end(self, result: Result) -> None:
        if not self._events:
            return
        # Values of training and validation have curves already; others are new, e.g. the accuracy on the test split.
        final = {tag: value for tag, value in result.metrics.items() if not tag.startswith(("train/", "val/"))}
        if result.best:
            split, _, name = str(result.best["metric"]).rpartition("/")
            final[f"{split or 'val'}/best_{name}"] = result.best["value"]
        self._add_scalars(final, result.step)
        events, result_markdown = self._events, result_text(result)
        events.add(lambda: [messages.text("about/3_result", result_markdown)], result.step)
        if self._hparams and result.state in ("finished", "stopped_early"):
            # TensorBoard keeps the first end record that it reads, so a run that may be resumed gets none yet.
            self._events.add(lambda: [end_summary()], result.step)
        self._events.close(_FLUSH_TIMEOUT_S)
        self._events = None

    def _add_graph(self, run: RunInfo, events: EventFile) -> None:
        try:
            nodes = run.graph_nodes()
        except Exception as error:  # tracing runs the user's code; a network that cannot be traced still trains
            _LOG.warning("The network's graph is not shown in TensorBoard: it cannot be traced (%s).", error)
            return
        if nodes:
            events.add_graph(lambda: build_graph_def(nodes).SerializeToString())

    def _add_validation_row(self, row: MetricRow) -> None:
        scalars = {f"{row.get('split', 'val')}/{name}": value for name, value in mean_of_rows([row]).items()}
        self._add_scalars(scalars, row["step"])

    def _add_artifact(self, artifact: Artifact, step: int) -> None:
        assert self._events is not None
        tag = f"val/{artifact.name}"
        if isinstance(artifact, Audio):
            self._events.add(lambda: [sound_of(artifact, tag)], step)
            return
        if not isinstance(artifact, Figure):
            markdown = (
                table_as_markdown(artifact, self._max_images)
                if isinstance(artifact, Table)
                else "\n".join(f"    {line}" for line in artifact.lines)
            )
            self._events.add(lambda: [messages.text(tag, markdown)], step)
            return

        def draw() -> Iterator[Summary]:
            figure = artifact.draw(self._max_images)
            image = Summary.Image(height=figure.height, width=figure.width, colorspace=3)
            encoded = io.BytesIO()
            # A palette of 256 colours suffices for thumbnails and reduces the file to a third.
            figure.quantize(256, Image.Quantize.FASTOCTREE).save(encoded, "png")
            image.encoded_image_string = encoded.getvalue()
            yield Summary(value=[Summary.Value(tag=tag, image=image)])

        self._events.add(draw, step)

    def _add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        step = int(step)
        values = {
            tag: float(value)
            for tag, value in scalars.items()
            if value is not None and step > self._newest_step.get(tag, -1)
        }
        if self._events and values:
            self._newest_step.update(dict.fromkeys(values, step))
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
            self._events.add(lambda: [summary], step)


def sound_of(audio: Audio, tag: str) -> Summary:
    """Builds the summary of an audio clip, as WAV."""
    sound = Summary.Audio(
        sample_rate=audio.sample_rate, num_channels=1, encoded_audio_string=audio.encode(), content_type="audio/wav"
    )
    return Summary(value=[Summary.Value(tag=tag, audio=sound)])


def metric_tags(run: RunInfo) -> List[str]:
    """Returns the tags that compare the jobs of a sweep: the monitored one, then those of val, test and train."""
    split, _, name = run.monitor.partition("/")
    names = list(dict.fromkeys(["loss", *run.metric_names]))
    tags = [f"{split_name}/{metric}" for split_name in ("val", "test", "train") for metric in names]
    return list(dict.fromkeys([f"{split}/best_{name}", run.monitor, *tags]))


def histograms_of(parameters: Mapping[str, np.ndarray]) -> Iterator[Summary]:
    """Yields one histogram per parameter over its finite values, since NaN and infinity have no bin."""
    for name, array in parameters.items():
        # Sums of squares of float16 would overflow.
        values = np.asarray(array, dtype=np.float64).ravel()
        values = values[np.isfinite(values)]
        if values.size:
            yield Summary(value=[Summary.Value(tag=f"parameters/{name}", histo=messages.make_histogram(values, 64))])


def table_as_markdown(table: Table, max_rows: int) -> str:
    """Formats a table as Markdown for TensorBoard's text tab."""
    rows = [table.header, ["---"] * len(table.header), *table.rows[:max_rows]]
    return "\n".join("| " + " | ".join(str(cell).translate(_MARKDOWN_SIGNS) for cell in row) + " |" for row in rows)


def config_as_markdown(config: Config) -> str:
    """Formats the configuration as YAML in a Markdown code block for TensorBoard's text tab."""
    import yaml

    text = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True, width=100)
    return as_code(text)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
