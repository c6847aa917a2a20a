"""Reads the data files that are part of mxtrain: JSON, compressed by gzip.

They are the same on every machine, so default runs are comparable. LICENSES.txt beside them names their sources.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def read_bundled(name: str) -> Any:
    """Returns the content of a data file.

    Args:
        name: path below the package, e.g. "text/corpora/python_words.json.gz".
    """
    path = Path(__file__).resolve().parents[1] / name
    return json.loads(gzip.decompress(path.read_bytes()))  # lint: a file of mxtrain
