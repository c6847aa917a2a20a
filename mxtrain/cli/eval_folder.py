"""The folder of an evaluation. It holds the files of one evaluation only: those of an earlier one are removed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence

from mxtrain.cli.artifacts import write_artifacts
from mxtrain.files.durable import write_json_atomic
from mxtrain.files.json_text import read_json
from mxtrain.runs.written_files import ARTIFACT_ENDINGS

if TYPE_CHECKING:
    from mxtrain.annotations import Json
    from mxtrain.types import Artifact

METRICS = "metrics.json"


class EvaluationFolder:
    """Writes `metrics.json` and artifacts; `metrics.json` lists the others, so that the next evaluation finds them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: Dict[str, Json] = {}
        self._files: List[str] = []

    def begin(self) -> None:
        """Removes what an earlier evaluation wrote here, and nothing else."""
        earlier = self._listed()
        with suppress(OSError):
            (self.path / METRICS).unlink()
        for name in earlier:
            with suppress(OSError):
                (self.path / name).unlink()

    def write_values(self, values: Mapping[str, Json]) -> None:
        """Writes what was measured."""
        self._values = dict(values)
        self._write_metrics()

    def write(self, artifacts: Sequence[Artifact]) -> None:
        """Writes artifacts as files."""
        self._files += write_artifacts(artifacts, self.path)
        if self._values:
            self._write_metrics()

    def note(self, name: str) -> None:
        """Lists a file that was written here by other means."""
        self._files.append(name)

    def _write_metrics(self) -> None:
        write_json_atomic(self.path / METRICS, {**self._values, "files": list(dict.fromkeys(self._files))})

    def _listed(self) -> List[str]:
        """Returns the files listed in `metrics.json`. The file is untrusted: names that no evaluation writes are
        dropped."""
        try:
            files = read_json(self.path / METRICS)["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        names = [name for name in files if isinstance(name, str)] if isinstance(files, list) else []
        return [name for name in names if name == Path(name).name and name.endswith(ARTIFACT_ENDINGS)]
