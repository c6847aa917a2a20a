"""Downloads a file over HTTP. Resumes after an interruption, downloads once per host, and verifies the content.

Received bytes are kept in `NAME.part`. The lock `NAME.lock` keeps other processes waiting during the download; the
kernel releases it when the process ends. GluonCV locks the files of its model store in the same way.

No state is stored beside the part. If a file that was received in several pieces does not match the published
checksum, it is downloaded once more as a whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Optional

from mxtrain.errors import DownloadError
from mxtrain.files.durable import open_file, write_all
from mxtrain.files.regular_files import MAX_BYTES, open_regular
from mxtrain.terminal.progress import ProgressDisplay

if TYPE_CHECKING:
    import requests

CHUNK_BYTES = 1 << 16
"""Bytes that are read at once; at most this many are lost if the connection breaks."""
HASHES = {32: "md5", 40: "sha1", 64: "sha256"}
"""Hexadecimal digits of a checksum -> its kind."""


class WrongContent(Exception):
    """The received bytes are not the published file. The message completes the sentence "The file ..."."""


class _Interrupted(Exception):
    """A response ended early, or the server asked to try later. The download continues with another request."""


@dataclass(frozen=True)
class DownloadLimits:
    """Limits of a download.

    Attributes:
        attempts: maximum number of successive requests without a new byte, after which the download fails.
        pause_s: seconds before the second of these requests; doubled before each further one.
        timeout_s: seconds without an answer or a byte after which a request fails.
        at_most: largest allowed size of the file in bytes.
    """

    attempts: int = 4
    pause_s: float = 1.0
    timeout_s: float = 30.0
    at_most: int = 2 * MAX_BYTES


def fetch(
    url: str,
    path: Path,
    is_there: Callable[[], bool],
    use: Callable[[Path], None],
    limits: Optional[DownloadLimits] = None,
) -> None:
    """Downloads a file and passes it to `use`, unless another process has done that in the meantime.

    Args:
        url: URL of the file.
        path: path of the file. `.part` and `.lock` files are kept beside it; the folder is created if needed.
        is_there: returns True if nothing is left to do; called while the lock is held.
        use: verifies the complete file and moves or unpacks it. Raises `WrongContent` if it is the wrong file.
        limits: limits of the download.

    Raises:
        DownloadError: the file is not available, is the wrong one, or cannot be written. A part of the right file is
            kept for the next call; a wrong file, and one that fills the disk, is removed.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ProgressDisplay() as display, locked(path.with_name(f"{path.name}.lock"), display, path.name):
            # Asked under the lock: the process that was waited for has usually done the work.
            if is_there():
                return
            is_pieced = _receive(url, part, limits or DownloadLimits(), display)
            try:
                use(part)
            except WrongContent:
                if not is_pieced:
                    raise
                # Parts from several responses may belong to two versions of the file: download all of it again.
                part.unlink()
                _receive(url, part, limits or DownloadLimits(), display)
                use(part)
            part.unlink(missing_ok=True)
    except WrongContent as wrong:
        part.unlink(missing_ok=True)
        raise DownloadError(f"{url}: the file {wrong}. It was removed") from wrong
    except OSError as error:
        with suppress(OSError):  # a part in a read-only folder
            part.unlink()
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> DownloadError:
    """Returns the error for a file that cannot be written."""
    reasons = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "your disk quota is exceeded",
        errno.EACCES: "you have no permission",
        errno.EPERM: "you have no permission",
        errno.EROFS: "the file system is read-only",
        errno.ENAMETOOLONG: "its name is too long",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error))
    return DownloadError(f"'{error.filename or path}' cannot be written: {reason}")


def verify_checksum(path: Path, checksum: str) -> None:
    """Compares a file with a published checksum.

    Args:
        path: path of the file.
        checksum: hexadecimal MD5, SHA-1 or SHA-256; the length says which.

    Raises:
        WrongContent: the checksum of the file differs.
    """
    kind = HASHES[len(checksum)]
    digest = hashlib.new(kind, usedforsecurity=False)
    with open_regular(path, 2 * MAX_BYTES) as (file, _):
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != checksum:
        raise WrongContent(f"has the {kind} {digest.hexdigest()}, the published one {checksum}")


@contextmanager
def locked(path: Path, display: ProgressDisplay, name: str) -> Iterator[None]:
    """Holds the lock of a file for the time of a `with` block."""
    lock = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        display.begin(f"waiting for another process that downloads {name}", 0)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _receive(url: str, part: Path, limits: DownloadLimits, display: ProgressDisplay) -> bool:
    """Completes the file `part`. Returns True if it consists of the content of several responses.

    Raises:
        DownloadError: the file is not available.
        OSError: the file cannot be written.
    """
    received, failures, etag = _size(part), 0, ""
    num_pieces = int(received > 0)
    while True:
        try:
            with _request(url, _size(part), etag, limits) as response:
                num_pieces += 1
                etag = response.headers.get("ETag", "")
                if response.status_code != 416:  # "range not satisfiable": the part is complete already
                    _append(response, part, limits, display)
            return num_pieces > 1
        except _Interrupted as interrupted:
            # A slow link that breaks often still gets there; only requests without a new byte count.
            failures = 0 if _size(part) > received else failures + 1
            received = max(received, _size(part))
            if failures >= limits.attempts:
                raise DownloadError(f"{url}: {interrupted}, {failures} times in a row") from interrupted
            time.sleep(limits.pause_s * 2 ** max(failures - 1, 0))


def _request(url: str, start: int, etag: str, limits: DownloadLimits) -> requests.Response:
    """Requests a file from a byte offset on.

    Args:
        url: URL of the file.
        start: byte offset; 0: the whole file.
        etag: ETag of the received part. If the file has changed since, the server sends it as a whole.
        limits: limits of the download.

    Raises:
        _Interrupted: the request may succeed later.
        DownloadError: the file does not exist, or there is no network.
    """
    import requests
    from urllib3.exceptions import MaxRetryError

    headers = {"Accept-Encoding": "identity"}  # with compression, Content-Length and ranges would not be of the file
    if start:
        headers["Range"] = f"bytes={start}-"
        if etag and not etag.startswith("W/"):  # a weak ETag does not guarantee equal bytes
            headers["If-Range"] = etag
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=limits.timeout_s)
    except requests.RequestException as error:
        cause = error.args[0] if error.args else error
        if isinstance(error, requests.ReadTimeout):
            raise _Interrupted(f"no answer in {limits.timeout_s:g} s") from error
        if isinstance(error, requests.ConnectionError) and not isinstance(cause, MaxRetryError):
            raise _Interrupted("the server closed the connection without an answer") from error
        raise DownloadError(f"{url}: {no_connection(error)}") from error
    status = response.status_code
    answer = f"the server answered {status} {response.reason}"
    if status == 429 or status >= 500:
        response.close()
        raise _Interrupted(answer)
    if status not in (200, 206) and not (status == 416 and start):
        response.close()
        raise DownloadError(f"{url}: {answer}")
    return response


def no_connection(error: Exception) -> str:
    """Returns a clause that explains why a request did not reach a server."""
    text = str(error)
    reasons = {
        r"Errno -[2-5]\]|NameResolution|getaddrinfo": "the name of the server is not known here: check the address and"
        " the network",
        "timed out": "the server did not answer in time",
        "unreachable": "there is no way to the server",
        "CERTIFICATE|SSL": "its certificate cannot be verified; a proxy may need REQUESTS_CA_BUNDLE=FILE",
        "[Pp]roxy": "the proxy of https_proxy or http_proxy does not answer",
    }
    known = next((reason for pattern, reason in reasons.items() if re.search(pattern, text)), "")
    match = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
    return f"no connection ({known or (match.group(1).strip() if match else text)})"


def _append(response: requests.Response, part: Path, limits: DownloadLimits, display: ProgressDisplay) -> None:
    """Appends a partial response to the file `part`; the response with the whole file replaces it.

    Raises:
        _Interrupted: the response ended early, or is another part than was requested.
        DownloadError: the file is larger than the limit or the free space of the disk.
        OSError: the file cannot be written.
    """
    import requests

    start = 0
    if response.status_code == 206:
        match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        start = int(match.group(1)) if match else -1
        # A server may answer with another range: appending it would damage the part.
        if start != _size(part):
            part.unlink()
            raise _Interrupted("the server sent another part of the file than was requested")
    length = response.headers.get("Content-Length", "")
    total = start + int(length) if length.isdigit() else None
    _refuse_too_large(response.url, total or 0, start, part, limits)
    display.begin(f"downloading {part.stem}: bytes", total or 0)
    display.advance(start)
    received = start
    file = open_file(part, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if start else os.O_TRUNC))
    try:
        for chunk in response.iter_content(CHUNK_BYTES):
            received += len(chunk)
            # Counted while it arrives: Content-Length may be missing or wrong.
            _refuse_too_large(response.url, received, received, part, limits)
            write_all(file, chunk)
            display.advance(received - start)
            start = received
    except requests.RequestException as error:  # a subclass of OSError, which callers take for a full disk
        raise _Interrupted(f"the connection broke after {received:,} bytes") from error
    finally:
        os.close(file)
    if total is not None and received < total:
        raise _Interrupted(f"the connection broke after {received:,} of {total:,} bytes")


def _refuse_too_large(url: str, total: int, received: int, part: Path, limits: DownloadLimits) -> None:
    if total > limits.at_most:
        part.unlink(missing_ok=True)
        raise DownloadError(f"{url}: the file has more than {limits.at_most:,} bytes, which is too large")
    free = shutil.disk_usage(part.parent).free
    if total - received > free:
        raise DownloadError(f"{url}: the file has {total:,} bytes, but '{part.parent}' has room for {free:,}")


def _size(path: Path) -> int:
    """Returns the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
