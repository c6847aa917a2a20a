"""Notices with which clouds announce that a preemptible (spot) machine is about to end."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Callable, Dict, Optional

from mxtrain.errors import did_you_mean

NOTICE_PERIOD_S = 5.0
"""Polling interval in seconds; AWS recommends 5 seconds, and gives 120 seconds from its notice."""
FILE_PERIOD_S = 1.0
"""Polling interval of a file in seconds: a look at it costs nothing, and Kubernetes ends a pod after 30 seconds."""
TIMEOUT_S = 2.0
"""Seconds after which a metadata service counts as unreachable."""
CLOUDS = ("aws", "gcp")
_AWS = "http://169.254.169.254"
_GCP = "metadata.google.internal"

_log = logging.getLogger(__name__)


def unsupported_notice_reason(source: str) -> str:
    """Returns the reason why `source` is not a valid source of notices, or ""."""
    if source in CLOUDS or source.startswith(("http://", "https://")) or _is_file(source):
        return ""
    return (
        f"cluster.notice={source}: allowed are aws, gcp, an address that begins with http:// or https://, and the "
        f"path of a file with at least one /.{did_you_mean(source, CLOUDS)}"
    )


def _is_file(source: str) -> bool:
    return "/" in source and "://" not in source


def has_notice(source: str) -> bool:
    """Returns True if the end of this machine has been announced.

    Args:
        source: aws: the spot instance action of the instance metadata service (IMDSv2; another address in
            AWS_EC2_METADATA_SERVICE_ENDPOINT), which is missing (404) until the notice; gcp: the value `preempted` of
            the metadata server (another host in GCE_METADATA_HOST), FALSE until the notice; an address: missing (404),
            without content, or FALSE until the notice; otherwise a file, which does not exist until the notice.

    Raises:
        OSError: the address cannot be reached, or gives no valid answer, or another error than 404.
    """
    if source == "aws":
        root = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _AWS).rstrip("/")
        token = _answer(f"{root}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT", direct=True)
        headers = {"X-aws-ec2-metadata-token": token}
        return bool(_answer(f"{root}/latest/meta-data/spot/instance-action", headers, direct=True))
    if source == "gcp":
        host = os.environ.get("GCE_METADATA_HOST", _GCP)
        url = f"http://{host}/computeMetadata/v1/instance/preempted"
        return _answer(url, {"Metadata-Flavor": "Google"}, direct=True).upper() == "TRUE"
    if source.startswith(("http://", "https://")):
        return _answer(source, {}).upper() not in ("", "FALSE")
    return Path(source).expanduser().exists()


def _answer(url: str, headers: Dict[str, str], method: str = "GET", direct: bool = False) -> str:
    """Returns the content of an answer, "" if there is none (404). `direct`: not through a proxy of the environment,
    because a metadata service answers the machine that asks."""
    import http.client  # imported here, because it takes 15 ms and few runs poll for notices
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, headers=headers, method=method)
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if direct else []))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return answer.read(65536).decode("utf-8", "replace").strip()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return ""
        raise
    except http.client.HTTPException as error:  # no OSError: an answer that is not HTTP, or one that was cut off
        raise OSError(f"no valid answer: {type(error).__name__}") from error


class NoticeWatcher:
    """Polls for a notice of preemption in a thread: services every `NOTICE_PERIOD_S`, files every `FILE_PERIOD_S`. Used
    as a context manager.

    A source that cannot be read is reported once, as a warning, and polled again.

    Args:
        source: see `has_notice`.
        announce: called once, in that thread, when there is a notice.
    """

    def __init__(self, source: str, announce: Callable[[], None]):
        self._source, self._announce = source, announce
        self._ended = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> NoticeWatcher:
        self._thread = threading.Thread(target=self._watch, name="mxtrain-notice", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join(2 * TIMEOUT_S)

    def _watch(self) -> None:
        was_unreadable = False
        period_s = FILE_PERIOD_S if _is_file(self._source) else NOTICE_PERIOD_S
        while True:
            try:
                if has_notice(self._source):
                    self._announce()
                    return
            except (OSError, ValueError) as error:  # ValueError: an address without a host
                if not was_unreadable:
                    _log.warning(
                        "cluster.notice=%s cannot be read (%s); it is tried again every %g seconds",
                        self._source,
                        error,
                        period_s,
                    )
                was_unreadable = True
            if self._ended.wait(period_s):
                return
