"""Files of published weights: found in the local cache of GluonCV and GluonNLP or of the Hub, or downloaded into it.

The cache is that of the libraries: `$MXNET_HOME/models`, by default `~/.mxnet/models`.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import List, Mapping

from mxtrain.errors import DownloadError, WeightsError
from mxtrain.files.download.archives import unpacked
from mxtrain.files.download.transfer import WrongContent, fetch, verify_checksum
from mxtrain.model.foreign.hub import find_on_hub, weights_of_folder
from mxtrain.model.published import HUB, REPOSITORY, published_sha1, repository, require_published, split_name

log = logging.getLogger("mxtrain")

MAX_UNPACKED_BYTES = 4 << 30


IN_TIMM: Mapping[str, str] = {
    r"resnet(18|34|50|101|152)_v1b": r"resnet\1",
    r"resnet(50|101|152)_v1([cds])": r"resnet\1\2",
    r"(?:(se)_)?(resnext(?:50_32|101_32|101_64)x4d)": r"\1\2",
}
"""Name in GluonCV -> beginning of the name in timm of networks with the same weights. Source: `pretrained_cfg` in
timm 1.0.31, models/resnet.py, whose files are called after GluonCV's networks."""


def find_weights(weights: str, network_weights: str) -> Path:
    """Returns the file of `model.weights`; downloads published weights that are not in the cache. A folder stands for
    the file that transformers and timm save in it.

    Args:
        weights, network_weights: see `require_published`.

    Raises:
        WeightsError: the weights cannot be downloaded; the message says where to put them.
    """
    library, name = split_name(require_published(weights, network_weights))
    if weights.startswith(HUB):
        return find_on_hub(weights)
    if not library:
        path = Path(weights)
        return weights_of_folder(path, weights) if path.is_dir() else path
    sha1 = published_sha1(library)[name]
    path = models_folder() / f"{name}-{sha1[:8]}.params"
    if _is_right(path, sha1):
        return path
    if path.exists():
        log.warning("'%s' has another SHA-1 than %s published: it is downloaded again", path, library)
    url = f"{repository()}gluon/models/{path.stem}.zip"

    def install(archive: Path) -> None:
        # The archives have no published checksum, so the check is that of the unpacked file.
        with unpacked(archive, path.name, MAX_UNPACKED_BYTES) as unpacked_path:
            verify_checksum(unpacked_path, sha1)
            os.replace(unpacked_path, path)

    try:
        fetch(url, path.with_suffix(""), lambda: _is_right(path, sha1), install)
    except DownloadError as error:
        raise WeightsError(
            f"model.weights={weights}: {path.name} is not in '{path.parent}', and cannot be downloaded: {error}. "
            f"Download gluon/models/{path.stem}.zip elsewhere, unpack it, and put {path.name} (SHA-1 {sha1}) into "
            f"that folder; or name another server by {REPOSITORY}=URL, or another file by model.weights=PATH."
            f"{name_in_timm(library, name)}"
        ) from error
    return path


def name_in_timm(library: str, name: str) -> str:
    """Returns a sentence, after a space, with the command for the same weights of timm; empty if it has none."""
    same = ""
    for ours, theirs in IN_TIMM.items():
        match = re.fullmatch(ours, name) if library == "gluoncv" else None
        same = match.expand(theirs) if match else same
    if not same:
        return ""
    return (
        f" timm has the same weights, converted for PyTorch: type model.name={name} "
        f"model.weights={HUB}timm/{same}.gluon_in1k."
    )


def models_folder() -> Path:
    """Returns the folder in which GluonCV and GluonNLP keep weights."""
    return Path(os.path.expanduser(os.environ.get("MXNET_HOME", "~/.mxnet"))) / "models"


def cached_weights() -> List[str]:
    """Lists the names of the weights files in the cache, sorted."""
    return sorted(path.name for path in models_folder().glob("*.params"))


def _is_right(path: Path, sha1: str) -> bool:
    if not path.exists():
        return False
    try:
        verify_checksum(path, sha1)
    except (WrongContent, OSError):
        return False
    return True
