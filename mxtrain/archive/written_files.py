"""Distinguishes files that mxtrain wrote into a run directory from other files, by their paths."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import Collection, List, Set

from mxtrain.archive.run_files import META_FILE, ROWS_FILE, STATUS_FILE
from mxtrain.files.json_text import read_json

_EVALUATED = r"eval(/averaged/[^/]+)?/(train|val|test)"
EVALUATION = re.compile(rf"{_EVALUATED}(/[a-z_0-9-]+)*/metrics\.json")
ARTIFACT_ENDINGS = (".csv", ".png", ".wav", ".html")
"""Endings of the files that an evaluation writes besides metrics.json."""
_TOP = "|".join(map(re.escape, (STATUS_FILE, META_FILE, ROWS_FILE, "metrics.csv", "train.log", "timeline.json")))
_CHECKPOINT = r"[a-z][a-z0-9_]*\.(params|json)"
_SHAPES = (
    rf"(\.tmp-)?({_TOP})",
    r"\.lock",
    r"events\.out\.tfevents\.[^/]+",
    r"(\.tmp-)?tracker-[a-z_]+\.json",
    r"\.hydra/(config|hydra|overrides)\.yaml",
    rf"checkpoints/(step-\d{{8,}}(-\d+)?|\.tmp-[\w.-]+)/(\.tmp-)?{_CHECKPOINT}",
    rf"averaged/[^/]+/(\.tmp-)?{_CHECKPOINT}",
    r"averaged/\.tmp-[\w.-]+",
    rf"{_EVALUATED}(/[a-z_0-9-]+)*/\.results-\w+/[^/]+\.(csv|png|wav|html|json)",
    r"workers/(\.lock|[\w.-]+\.(log|txt|json))",
    r"replay/step-\d+[\w.-]*/(\.tmp-)?(bundle\.json|arrays\.npz)",
    r"export/([\w.-]+\.onnx(\.data)?|(export|signature)\.json|proof\.npz|predict\.py|README\.md|labels\.txt)",
    r"export/reading/[\w/]+\.(py|npz|json)",
    r"export/(serve|inference-service)\.yaml",
    r"export/ray_application\.py",
)
_FOLDERS = (
    r"\.hydra/",
    r"checkpoints/((step-\d{8,}(-\d+)?|\.tmp-[\w.-]+)/)?",
    r"averaged/([^/]+/)?",
    r"workers/",
    r"replay/(step-\d+[\w.-]*/)?",
    r"eval/((averaged/[^/]+/)?(train|val|test)/)?",
    r"export/(reading/)?",
    r"previous/",
    rf"{_EVALUATED}/([a-z_0-9-]+/)*\.results-\w+/",
)
"""Shapes of folders, which may be empty."""
_WRITTEN = re.compile(rf"(previous/\d+/|slim/)*({'|'.join((*_SHAPES, *_FOLDERS))})?")


def foreign_files(run_dir: str, files: Collection[str], others: Collection[str]) -> List[str]:
    """Returns the paths in a run directory that mxtrain did not write: other names, links, and mounted folders.

    With `hydra.run.dir=.` a run directory may be a folder of user files.

    Args:
        run_dir: path of the run directory.
        files: relative paths of its regular files and empty folders.
        others: relative paths of all other entries except folders.
    """
    results = {file for path in files if EVALUATION.fullmatch(path) for file in (path, *_results(run_dir, path))}
    return [*others, *(path for path in files if not _WRITTEN.fullmatch(path) and path not in results)]


def _results(run_dir: str, metrics_file: str) -> Set[str]:
    """Returns the files that the metrics.json of an evaluation lists as its own."""
    try:
        names = read_json(os.path.join(run_dir, metrics_file))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    folder = PurePosixPath(metrics_file).parent
    listed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    # The list may be untrusted: a path in it would make other files of the folder count as written by mxtrain.
    return {str(folder / name) for name in listed if name.endswith(ARTIFACT_ENDINGS) and name == os.path.basename(name)}
