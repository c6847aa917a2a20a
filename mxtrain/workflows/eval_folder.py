"""The folder of an evaluation. It holds the files of one evaluation only: those of an earlier one are removed once all
new ones are written, so a full disk or a kill loses nothing."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, Mapping, Sequence

from mxtrain.archive.written_files import ARTIFACT_ENDINGS
from mxtrain.cli.artifacts import write_artifacts
from mxtrain.data.loading.dataset_files import explain
from mxtrain.files.durable import write_json_atomic
from mxtrain.files.json_text import read_json
from mxtrain.files.unused_folders import locked_folder

if TYPE_CHECKING:
    from mxtrain.types import Artifact
    from mxtrain.types.annotations import Json

METRICS = "metrics.json"
DRAFT = ".results-"
"""Beginning of the name of a folder for new results; each evaluation has its own, as two may run at once."""


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
            raise explain(self.path, error, "written") from error
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
