"""Weights of the Hugging Face Hub by name: found in its cache or in a folder, or downloaded into the cache.

The cache is that of huggingface_hub, which is not needed: `HF_HUB_CACHE`, by default `~/.cache/huggingface/hub`, with
`models--ORG--NAME/refs/REVISION` and `models--ORG--NAME/snapshots/COMMIT/FILE`. `HF_ENDPOINT` names a mirror, or a
folder with `ORG/NAME/FILE`.

Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, List, Mapping, Optional
from urllib.parse import quote

from mxtrain.errors import DownloadError, WeightsError
from mxtrain.files.cache import caches_of_user
from mxtrain.files.download.transfer import (
    DownloadLimits,
    WrongContent,
    cannot_write,
    fetch,
    locked,
    no_connection,
    verify_checksum,
)
from mxtrain.files.durable import replace_file
from mxtrain.files.regular_files import read_regular_text
from mxtrain.model.foreign.importing import CONFIG, read_config
from mxtrain.model.foreign.safetensors_file import SAFETENSORS, DamagedTensors, check_safetensors, read_index
from mxtrain.model.published import HUB, LATEST, HubName, parse_hub_name
from mxtrain.terminal.progress import ProgressDisplay

if TYPE_CHECKING:
    import requests

log = logging.getLogger("mxtrain")

ENDPOINT = "HF_ENDPOINT"
OFFICIAL = "https://huggingface.co"
WEIGHTS = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
"""File of adapters of PEFT, see `peft`."""
INDEX = f"{WEIGHTS}.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
MAX_REDIRECTS = 5


def cache_folder() -> Path:
    """Returns the folder in which huggingface_hub keeps files."""
    home = os.environ.get("HF_HOME") or str(caches_of_user() / "huggingface")
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expanduser(os.path.expandvars(folder)))


def _folder(name: HubName) -> Path:
    return cache_folder() / f"models--{name.repository.replace('/', '--')}"


def weights_in(folder: Path) -> Optional[Path]:
    """Returns the weights file in a folder, as transformers and timm save it; None if there is none."""
    index = folder / INDEX
    if (folder / WEIGHTS).exists():
        return folder / WEIGHTS
    # A folder with an index is whole only with all of its files: a download may have been interrupted.
    return index if index.exists() and all((folder / name).exists() for name in _shards(index)) else None


def weights_of_folder(folder: Path, weights: str) -> Path:
    """Returns the weights file in a folder.

    Args:
        folder: an existing folder.
        weights: `model.weights`, for the message.

    Raises:
        WeightsError: there is none.
    """
    found = weights_in(folder)
    if found is not None:
        return found
    pickles = [name for name in PICKLES if (folder / name).exists()]
    missing = [name for name in _shards(folder / INDEX) if not (folder / name).exists()]
    reason = f"has no {WEIGHTS}"
    if missing:
        reason = f"has no {missing[0]}, which its {INDEX} lists. Download all files"
    elif pickles:
        reason = (
            f"has {pickles[0]}, a pickle, which is never loaded because loading can run code. Save it as {WEIGHTS}: "
            "with transformers, Model.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    elif (folder / ADAPTER_CONFIG).exists():
        reason = (
            f"holds an adapter of PEFT. Type model.lora.adapter={folder}, and name the network that it adds to by "
            "model.weights="
        )
    raise WeightsError(f"model.weights={weights}: the folder '{folder}' {reason}.")


def find_on_hub(weights: str) -> Path:
    """Returns the weights file of `model.weights=hf:ORG/NAME`; downloads it if it is not in the cache.

    Raises:
        ValueError: see `parse_hub_name`.
        WeightsError: the file cannot be downloaded; the message says where to put it.
    """
    name = parse_hub_name(weights)
    endpoint = (os.environ.get(ENDPOINT) or OFFICIAL).rstrip("/")
    if "://" not in endpoint:
        return _in_mirror_folder(name, endpoint, weights)
    found = _in_cache(name)
    if found is not None:
        return found
    try:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise DownloadError("HF_HUB_OFFLINE forbids downloads")
        return _download(name, f"{endpoint}/{name.repository}/resolve/{quote(name.revision, safe='')}")
    except DownloadError as error:
        raise WeightsError(
            f"model.weights={weights}: {WEIGHTS} is not in '{_folder(name)}', and cannot be downloaded: {error}. "
            f"Download {CONFIG} and {WEIGHTS} of {name.repository} elsewhere, put both into a folder, and type "
            f"model.weights=FOLDER; or name a mirror by {ENDPOINT}=URL, or another cache by HF_HUB_CACHE=FOLDER."
        ) from error


def _in_mirror_folder(name: HubName, endpoint: str, weights: str) -> Path:
    mirror = Path(os.path.expanduser(endpoint))
    folder = mirror / name.repository
    if not mirror.is_dir():
        reason = f"is no folder, and no URL, which begins with https://. Type e.g. {ENDPOINT}=https://hf-mirror.com"
    elif not folder.is_dir():
        reason = f"is a folder, and '{folder}' does not exist in it"
    elif name.revision != LATEST:
        reason = f"is a folder, which has no revisions. Leave out @{name.revision}, or name a server"
    else:
        return weights_of_folder(folder, weights)
    raise WeightsError(f"model.weights={weights}: {ENDPOINT}={endpoint} {reason}.")


def _in_cache(name: HubName) -> Optional[Path]:
    try:
        commit = read_regular_text(_folder(name) / "refs" / name.revision).strip()
    except (OSError, UnicodeDecodeError):
        commit = name.revision  # a commit is named by itself
    if not re.fullmatch(r"[\w.-]+", commit) or commit in (".", ".."):
        return None
    return weights_in(_folder(name) / "snapshots" / commit)


def _shards(index: Path) -> List[str]:
    """Returns the names of the files of an index; empty if it is missing or damaged, which its reader reports."""
    try:
        return sorted(set(read_index(index).values()))
    except WeightsError:
        return []


def _download(name: HubName, url: str) -> Path:
    weights = _headers(f"{url}/{WEIGHTS}")
    headers = weights if weights is not None else _headers(f"{url}/{INDEX}")
    if headers is None:
        pickle = next((one for one in PICKLES if _headers(f"{url}/{one}") is not None), "")
        raise DownloadError(
            f"{url}: it has no {WEIGHTS}" + (f", only {pickle}, a pickle, which is never loaded" if pickle else "")
        )
    # A mirror that serves plain files names no commit: the snapshot then has the name of the revision.
    commit = _commit(headers) or name.revision.replace("/", "--")
    snapshot = _folder(name) / "snapshots" / commit

    def get(file: str, headers: Mapping[str, str]) -> None:
        if _commit(headers) not in ("", commit):
            raise DownloadError(f"{url}/{file}: the repository has changed during the download. Type the command again")
        _fetch(f"{url}/{file}", snapshot / file, headers)

    config = _headers(f"{url}/{CONFIG}")
    if config is not None:
        get(CONFIG, config)
    if weights is not None:
        get(WEIGHTS, weights)
    else:
        get(INDEX, headers)
        for shard in _shards(snapshot / INDEX):
            get(shard, _headers(f"{url}/{shard}") or {})
    # Last: a snapshot counts as the revision only when it is whole.
    reference = _folder(name) / "refs" / name.revision
    try:
        reference.parent.mkdir(parents=True, exist_ok=True)
        with ProgressDisplay() as display, locked(_folder(name) / "refs.lock", display, name.repository):
            replace_file(reference, commit.encode())
    except OSError as error:
        raise cannot_write(reference, error) from error
    return weights_of_folder(snapshot, f"{HUB}{name.repository}")


def _commit(headers: Mapping[str, str]) -> str:
    commit = headers.get("X-Repo-Commit", "")
    return commit if re.fullmatch(r"[0-9a-f]{40}", commit) else ""


def _fetch(url: str, path: Path, headers: Mapping[str, str]) -> None:
    # The Hub gives the SHA-256 of large files; mirrors need not.
    sha256 = headers.get("X-Linked-ETag", "").strip('"')

    def install(part: Path) -> None:
        if re.fullmatch(r"[0-9a-f]{64}", sha256):
            verify_checksum(part, sha256)
        _verify_form(part, path.name)
        os.replace(part, path)

    fetch(url, path, path.exists, install)


def _verify_form(part: Path, name: str) -> None:
    # A page of an error or a login with the status 200 would stay in the cache.
    try:
        if name.endswith(SAFETENSORS):
            check_safetensors(part)
        elif name == INDEX:
            read_index(part)
        else:
            read_config(part, part.name)
    except DamagedTensors as damage:
        raise WrongContent(f"is damaged or no safetensors file: {damage}") from damage
    except WeightsError as error:
        raise WrongContent(f"is not {name}") from error


def _headers(url: str) -> Optional[Mapping[str, str]]:
    """Returns the headers of a file of the Hub, which are those of its first answer; None if there is no such file.

    Raises:
        DownloadError: the server does not answer, or refuses.
    """
    import requests

    for _ in range(MAX_REDIRECTS):
        try:
            response: requests.Response = requests.head(
                url, allow_redirects=False, timeout=DownloadLimits.timeout_s, headers={"Accept-Encoding": "identity"}
            )
        except requests.RequestException as error:
            raise DownloadError(f"{url}: {no_connection(error)}") from error
        location = response.headers.get("Location", "")
        if response.status_code in (301, 302, 303, 307, 308) and re.match(r"/(?!/)", location):
            url = "/".join(url.split("/")[:3]) + location  # a repository that was renamed
            continue
        if response.status_code == 404:
            return None
        if response.status_code >= 400:
            gated = ": it does not exist, or only with a token" if response.status_code in (401, 403) else ""
            raise DownloadError(f"{url}: the server answered {response.status_code} {response.reason}{gated}")
        return response.headers
    raise DownloadError(f"{url}: {MAX_REDIRECTS} redirections in a row")
