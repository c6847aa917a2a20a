"""The folder of an evaluation. It holds the files of one evaluation only: those of an earlier one are removed once all
new ones are written, so a full disk or a kill loses nothing."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, Mapping, Sequence

from mxtrain.archive.written_files import ARTIFACT_ENDINGS
from mxtrain.data.loading.dataset_files import file_error
from mxtrain.files.durable import HashedFile, replace_file, write_json_atomic
from mxtrain.files.json_text import read_json
from mxtrain.files.temporary import temporary_root
from mxtrain.files.unused_folders import locked_folder
from mxtrain.task.sample_results import ResultReader, SampleResults, sample_pages, worst_samples
from mxtrain.types import Artifact, Audio, Figure, Table

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples, Source
    from mxtrain.training.trained import Trained
    from mxtrain.types.annotations import Json

METRICS = "metrics.json"
PREDICTIONS = "predictions.csv"
MAX_SHOWN_SAMPLES = 16
"""Samples that a written figure shows."""
DRAFT = ".results-"
"""Prefix of the name of a folder for new results; each evaluation has a folder of its own, as two may run at once."""


class EvaluationFolder:
    """Writes `metrics.json` and artifacts; `metrics.json` lists the others, so that the next evaluation finds them.

    Attributes:
        path: the folder.
        place: folder to write files to within `new_results`.
    """

    def __init__(self, path: Path) -> None:
        self.path = self.place = path
        self._files: List[str] = []

    @contextmanager
    def new_results(self) -> Iterator[None]:
        """Replaces what an earlier evaluation wrote here, and nothing else, by the files of the `with` block.

        Raises:
            DataError: the files cannot be written. Those of the earlier evaluation are unchanged if the disk is full.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with locked_folder(self.path, DRAFT) as self.place:
                yield
                self._publish()
        except OSError as error:
            raise file_error(self.path, error, "written") from error
        finally:
            self.place = self.path

    def write_values(self, values: Mapping[str, Json]) -> None:
        """Writes what was measured; the last file of an evaluation."""
        write_json_atomic(self.place / METRICS, {**values, "files": list(dict.fromkeys(self._files))})

    def write(self, artifacts: Sequence[Artifact]) -> None:
        """Writes artifacts as files."""
        self._files += write_artifacts(artifacts, self.place)

    def note(self, name: str) -> None:
        """Lists a file that was written to `place` by other means."""
        self._files.append(name)

    def _publish(self) -> None:
        earlier = self._listed()
        with suppress(OSError):
            # metrics.json is removed first and written last: while files are replaced, readers find no evaluation here.
            (self.path / METRICS).unlink()
        for name in {*earlier} - {*self._files}:
            with suppress(OSError):
                (self.path / name).unlink()
        for name in (*dict.fromkeys(self._files), METRICS):
            os.replace(self.place / name, self.path / name)

    def _listed(self) -> List[str]:
        """Returns the files listed in `metrics.json`. The file is untrusted: names that no evaluation writes are
        dropped."""
        try:
            files = read_json(self.path / METRICS)["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        names = [name for name in files if isinstance(name, str)] if isinstance(files, list) else []
        return [name for name in names if name == Path(name).name and name.endswith(ARTIFACT_ENDINGS)]


class SampleFiles:
    """Collects the results of single samples in a temporary file, and writes the files.

    Args:
        trained: trained network.
        source: evaluated split.
        split: name of the split.
    """

    def __init__(self, trained: Trained, source: Samples, split: str) -> None:
        self._trained, self._source = trained, source
        self._stream = tempfile.TemporaryFile(dir=temporary_root())
        reader = ResultReader(trained.description, trained.signature, source, split, trained.evaluator.decode)
        self.results = SampleResults(reader, self._stream, trained.evaluator.losses)

    def write(self, folder: EvaluationFolder, title: str) -> None:
        """Writes all files into the folder of the evaluation.

        Args:
            folder: the folder.
            title: split and step, for captions.
        """
        self.results.finish()
        if not self.results.columns:
            return
        with HashedFile(folder.place / PREDICTIONS) as file:
            self.results.copy_to(file)
        folder.note(PREDICTIONS)
        sample = self._trained.description.dataset.gives.sample
        if self._trained.evaluator.measures_outputs:  # otherwise no loss says which samples are the worst
            folder.write(worst_samples(self.results, self._take, sample, title))
        for name, page in sample_pages(self.results, self._trained.signature, title).items():
            replace_file(folder.place / name, page.encode("utf-8", "backslashreplace"))
            folder.note(name)

    def _take(self, index: int) -> Source:
        from mxtrain.training.loaders import take

        return take(self._source, [index])  # type: ignore[return-value]  # only samples of images are read: no pairs

    def close(self) -> None:
        """Removes the temporary file."""
        self._stream.close()


def write_artifacts(artifacts: Sequence[Artifact], folder: Path) -> List[str]:
    """Writes tables as CSV, images as PNG and sounds as WAV files, and returns their names; replaces earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    names: List[str] = []
    for artifact in artifacts:
        if isinstance(artifact, Table):
            names.append(f"{artifact.name}.csv")
            write_table(folder / names[-1], [artifact.header, *artifact.rows])
        elif isinstance(artifact, Figure):
            figure = io.BytesIO()
            artifact.draw(MAX_SHOWN_SAMPLES).save(figure, "PNG")
            names.append(f"{artifact.name}.png")
            replace_file(folder / names[-1], figure.getvalue())
        elif isinstance(artifact, Audio):
            names.append(f"{artifact.name}.wav")
            replace_file(folder / names[-1], artifact.encode())
    return names


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Replaces a CSV file."""
    text = io.StringIO(newline="")
    # An undefined number is an empty cell, as in the metrics.csv of a run.
    csv.writer(text).writerows([["" if value != value else value for value in row] for row in rows])
    replace_file(path, text.getvalue().encode("utf-8", "surrogateescape"))
