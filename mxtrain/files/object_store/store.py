"""Requests to object stores: lists of objects and ranges of bytes, repeated until a deadline.

s3fs runs an event loop in a thread, which does not survive a fork. So there is one store for each process, and it is
made at the first request. All requests of a process share it and run at the same time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from mxtrain.errors import ConfigError
from mxtrain.files.durable import write_all
from mxtrain.files.object_store.address import Address, ObjectChanged, StoreError, endpoint_of
from mxtrain.files.regular_files import open_regular

DEADLINE = "MXTRAIN_STORE_DEADLINE_S"
"""Environment variable: seconds for which a request is repeated."""
ANONYMOUS = "MXTRAIN_STORE_ANONYMOUS"
"""Environment variable: 1 = requests are not signed, for public buckets."""
_DEADLINE_S = 60.0
_ATTEMPT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_CONNECTIONS = 32
_PART_BYTES = 8 << 20
"""Bytes of a request for whole files: at 300 kB/s a request takes less than an attempt may."""

_REFUSALS = {
    "NoSuchBucket": "there is no such bucket at {endpoint}",
    "InvalidBucketName": "this is no valid name of a bucket",
    "AccessDenied": "access is denied: the credentials in the environment do not allow to {verb} it",
    "403": "access is denied: the credentials in the environment do not allow to {verb} it",
    "Forbidden": "access is denied: the credentials in the environment do not allow to {verb} it",
    "AllAccessDisabled": "access is denied: the bucket is disabled",
    "ExpiredToken": "the credentials have expired. Log in again (aws sso login, or new AWS_* variables)",
    "TokenRefreshRequired": "the credentials have expired. Log in again",
    "InvalidToken": "the store does not accept AWS_SESSION_TOKEN",
    "InvalidAccessKeyId": "the store does not know the access key in the environment",
    "SignatureDoesNotMatch": "the secret key in the environment does not belong to the access key",
    "RequestTimeTooSkewed": "the clock of this machine is wrong by more than the store allows",
    "AuthorizationHeaderMalformed": "the bucket is in another region. Set AWS_REGION",
    "PermanentRedirect": "the bucket is in another region. Set AWS_REGION",
    "InvalidObjectState": "the object is archived. Restore it first",
    "NotImplemented": "the store does not know this request",
    "MethodNotAllowed": "the store does not allow this request",
}
"""Code of an answer that another attempt does not change -> reason."""
_GONE = ("NoSuchKey", "404", "NotFound")
_CHANGED = ("PreconditionFailed", "412", "InvalidRange", "416")


class Listed(NamedTuple):
    """An object of a list."""

    key: str
    size: int
    etag: str
    modified_s: float
    """Time of its last change, in seconds since 1970."""


class _Temporary(Exception):
    """An answer that another attempt may change; the message is a clause."""


def deadline_s() -> float:
    """Returns the seconds for which a request is repeated.

    Raises:
        ConfigError: the variable is no positive number.
    """
    given = os.environ.get(DEADLINE)
    try:
        seconds = _DEADLINE_S if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"{DEADLINE}={given}: it must be a positive number of seconds.")
    return seconds


class ObjectStore:
    """A store at one endpoint.

    Args:
        scheme: s3, gs or oss.
    """

    def __init__(self, scheme: str) -> None:
        from mxtrain.config.libraries import require_library

        s3fs = require_library("s3fs", "s3", f"{scheme}://", StoreError)
        for name in ("botocore", "aiobotocore"):  # which log where they found credentials, and tracebacks of logins
            logging.getLogger(name).setLevel(logging.ERROR)
        self.endpoint = endpoint_of(scheme)
        self._deadline_s = deadline_s()
        options: Dict[str, Any] = {
            "connect_timeout": min(10.0, self._deadline_s),
            "read_timeout": min(20.0, self._deadline_s),
            "retries": {"max_attempts": 0},
            "max_pool_connections": _CONNECTIONS,
            # The checksums of newer versions are unknown to other implementations of S3.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        if scheme == "oss":
            options["s3"] = {"addressing_style": "virtual"}
        self._files = s3fs.S3FileSystem(
            anon=os.environ.get(ANONYMOUS) == "1",
            endpoint_url=self.endpoint,
            config_kwargs=options,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._files.retries = 1  # repeated here, with one deadline for all attempts
        self._loop = self._files.loop

    def list(self, address: Address) -> Iterator[Listed]:
        """Yields the objects whose keys begin with `KEY/`; if there are none, the object with this key and those whose
        keys begin with `KEY.`, as parallel texts have.

        Raises:
            StoreError: the store refuses, or does not answer before the deadline.
        """
        found = False
        for listed in self._pages(address, address.prefix):
            found = True
            yield listed
        if not found and address.key:
            near = list(self._pages(address, address.key, Delimiter="/"))
            yield from (one for one in near if one.key == address.key or one.key.startswith(f"{address.key}."))

    def _pages(self, address: Address, prefix: str, **options: str) -> Iterator[Listed]:
        while True:
            answer = self._wait(
                address,
                "list",
                lambda: self._files._call_s3("list_objects_v2", Bucket=address.bucket, Prefix=prefix, **options),
            )
            for entry in answer.get("Contents", ()):
                if not entry["Key"].endswith("/"):  # markers of folders, which some programs write
                    yield Listed(entry["Key"], entry["Size"], entry["ETag"], entry["LastModified"].timestamp())
            if not answer.get("IsTruncated"):
                return
            options["ContinuationToken"] = answer["NextContinuationToken"]

    def names(self, address: Address) -> List[str]:
        """Returns the first names of objects and folders directly below an address, for messages.

        Raises:
            StoreError: the store refuses, or does not answer before the deadline.
        """
        request = {"Bucket": address.bucket, "Prefix": address.prefix, "Delimiter": "/"}
        answer = self._wait(address, "list", lambda: self._files._call_s3("list_objects_v2", **request))
        found = [entry["Key"] for entry in answer.get("Contents", ())]
        found += [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]
        return [name[len(address.prefix) :].rstrip("/") for name in found]

    def read(
        self, address: Address, etag: str, begin: int, end: int, keep: Callable[[bytes], None]
    ) -> concurrent.futures.Future:
        """Starts to read the bytes from `begin` to `end` (exclusive) of an object; returns a future of them.

        Args:
            address: the object.
            etag: its ETag when it was listed.
            begin, end: range, not empty.
            keep: receives the bytes, in a thread, before the future is done.

        Raises:
            ObjectChanged: the object has another ETag, or does not exist any more (raised by the future).
            StoreError: the store refuses, or does not answer before the deadline (raised by the future).
        """

        async def attempt() -> bytes:
            answer = await self._files._call_s3(
                "get_object", Bucket=address.bucket, Key=address.key, Range=f"bytes={begin}-{end - 1}", IfMatch=etag
            )
            async with answer["Body"] as body:
                # Some stores ignore If-Match.
                if answer.get("ETag", etag) != etag:
                    raise _changed(address)
                content = await body.read()
            if len(content) != end - begin:
                raise _Temporary(f"sent {len(content):,} bytes instead of {end - begin:,}")
            return content

        async def read_and_keep() -> bytes:
            content = await self._repeated(address, "read", attempt)
            await self._loop.run_in_executor(None, keep, content)  # the loop must not wait for the disk
            return content

        return asyncio.run_coroutine_threadsafe(read_and_keep(), self._loop)

    def copy_to(self, address: Address, etag: str, size: int, descriptor: int) -> None:
        """Writes the content of an object to an empty file.

        Args:
            address: the object.
            etag: its ETag when it was listed.
            size: its size in bytes.
            descriptor: descriptor of the file.

        Raises:
            StoreError: the object was changed, or the store does not answer.
            OSError: the file cannot be written.
        """
        ranges = [(begin, min(begin + _PART_BYTES, size)) for begin in range(0, size, _PART_BYTES)]
        for begin, end in ranges:
            write_all(descriptor, wait_for(self.read(address, etag, begin, end, lambda content: None)))

    def content(self, address: Address, etag: str, size: int) -> bytes:
        """Returns the whole content of a small object; arguments and errors as `copy_to`."""
        return wait_for(self.read(address, etag, 0, size, lambda content: None)) if size else b""

    def write(self, address: Address, content: bytes) -> None:
        """Writes a small object.

        Raises:
            StoreError: the store refuses, or does not answer before the deadline.
        """
        self._call(address, "write", "put_object", Body=content, Bucket=address.bucket, Key=address.key)

    def write_file(self, address: Address, path: Path) -> None:
        """Writes an object from a file, in parts if it is large; it appears when it is complete.

        Raises:
            StoreError: the store refuses, or does not answer before the deadline.
            OSError: the file cannot be read.
        """
        place = {"Bucket": address.bucket, "Key": address.key}
        with open_regular(path, at_most=1 << 62) as (file, size):
            if size <= _PART_BYTES:
                self.write(address, file.read())
                return
            upload = {**place, "UploadId": self._call(address, "write", "create_multipart_upload", **place)["UploadId"]}
            try:
                parts = []
                # S3 takes 10,000 parts.
                part_bytes = max(_PART_BYTES, -(-size // 9_000))
                for number, content in enumerate(iter(lambda: file.read(part_bytes), b""), start=1):
                    answer = self._call(address, "write", "upload_part", Body=content, PartNumber=number, **upload)
                    parts.append({"PartNumber": number, "ETag": answer["ETag"]})
                self._call(address, "write", "complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload)
            except BaseException:
                with contextlib.suppress(StoreError):
                    self._call(address, "write", "abort_multipart_upload", **upload)
                raise

    def remove(self, address: Address) -> None:
        """Removes an object, if it is there.

        Raises:
            StoreError: the store refuses, or does not answer before the deadline.
        """
        with contextlib.suppress(ObjectChanged):  # Google answers 404 for a missing object, Amazon 204
            self._call(address, "remove", "delete_object", Bucket=address.bucket, Key=address.key)

    def _call(self, address: Address, verb: str, method: str, **options: Any) -> Any:
        return self._wait(address, verb, lambda: self._files._call_s3(method, **options))

    def _wait(self, address: Address, verb: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return wait_for(asyncio.run_coroutine_threadsafe(self._repeated(address, verb, attempt), self._loop))

    async def _repeated(self, address: Address, verb: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats an attempt until it succeeds, is refused or the deadline is over."""
        end_s = time.monotonic() + self._deadline_s
        pause_s, count, reason = _FIRST_PAUSE_S, 0, ""
        while True:
            remaining_s = end_s - time.monotonic()
            count += 1
            try:
                return await asyncio.wait_for(attempt(), max(min(_ATTEMPT_S, remaining_s), 0.01))
            except Exception as error:
                # The end of the deadline cuts the last attempt off; the answer before it says more.
                is_cut_off = isinstance(error, asyncio.TimeoutError) and remaining_s < _ATTEMPT_S
                reason = reason if is_cut_off and reason else self._why_temporary(address, verb, error)
            # Random, so that the workers of a cluster do not come back at the same time.
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
            if time.monotonic() + pause_s >= end_s:
                raise StoreError(
                    f"'{address}': {self._name} {reason}, {count} times in {self._deadline_s:g} seconds "
                    f"({DEADLINE}). Repeat the command when it is there again."
                )
            await asyncio.sleep(pause_s)

    @property
    def _name(self) -> str:
        return f"the store {self.endpoint}" if self.endpoint else "the store"

    def _why_temporary(self, address: Address, verb: str, error: Exception) -> str:
        """Returns why an attempt failed, as a clause, if another one may succeed.

        Raises:
            StoreError: another attempt would not succeed. Texts of the library are not repeated: they may hold keys.
        """
        from botocore import exceptions

        if isinstance(error, StoreError):
            raise error
        if isinstance(error, _Temporary):
            return str(error)
        cause: Optional[BaseException] = error
        while cause is not None and not isinstance(cause, exceptions.ClientError):
            cause = cause.__cause__
        if isinstance(cause, exceptions.ClientError):
            return self._why_answered(address, verb, cause.response)
        if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
            raise StoreError(
                f"'{address}': there are no credentials in the environment. Set AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket set {ANONYMOUS}=1."
            ) from None
        if isinstance(error, (exceptions.SSOError, exceptions.TokenRetrievalError)):
            raise StoreError(
                f"'{address}': the login of AWS SSO is missing or has expired. Log in again (aws sso login)."
            ) from None
        if isinstance(error, (exceptions.ProfileNotFound, exceptions.ConfigParseError, exceptions.InvalidConfigError)):
            raise StoreError(
                f"'{address}': the settings of the AWS tools cannot be used ({type(error).__name__}). Check "
                "AWS_PROFILE and the file of AWS_CONFIG_FILE, else ~/.aws/config."
            ) from None
        if isinstance(error, exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise StoreError(
                f"'{address}': the certificate of {self._name} is not trusted. Set AWS_CA_BUNDLE=FILE with the "
                "certificates of its issuer."
            ) from None
        if isinstance(error, exceptions.EndpointConnectionError):
            return "cannot be reached"
        if isinstance(error, (asyncio.TimeoutError, exceptions.HTTPClientError, TimeoutError)):
            return "did not answer in time, or the connection was lost"
        if isinstance(error, (exceptions.ParamValidationError, ValueError)):
            raise StoreError(f"'{address}' cannot be {_PARTICIPLES[verb]}: {type(error).__name__}.") from None
        return f"failed ({type(error).__name__})"

    def _why_answered(self, address: Address, verb: str, response: Dict[str, Any]) -> str:
        code = str(response.get("Error", {}).get("Code", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _CHANGED or (code in _GONE and verb in ("read", "remove")):
            raise _changed(address) from None
        if code in _REFUSALS or status in (400, 401, 403, 404, 405, 409, 501):
            reason = _REFUSALS.get(code, f"the store refuses to {verb} it ({code or status})")
            where = self.endpoint or "Amazon S3"
            subject = f"{address.scheme}://{address.bucket}" if code == "NoSuchBucket" else str(address)
            raise StoreError(f"'{subject}': {reason.format(endpoint=where, verb=verb)}.") from None
        return f"answered {code or status}"


_PARTICIPLES = {"list": "listed", "read": "read", "write": "written", "remove": "removed"}


def _changed(address: Address) -> ObjectChanged:
    return ObjectChanged(
        f"'{address}' was changed or removed while it was in use. Repeat the command to read the new data; a run that "
        "is continued on them needs checkpoint.changes=[data]."
    )


def wait_for(future: concurrent.futures.Future) -> Any:
    """Returns the result of a request. Ctrl-C ends the wait, and the request.

    Raises:
        StoreError: see `ObjectStore.read`.
    """
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


_stores: Dict[Tuple[int, str, Optional[str]], ObjectStore] = {}
_MAKING = threading.Lock()


def store_of(scheme: str) -> ObjectStore:
    """Returns the store of a scheme in this process.

    Raises:
        StoreError: s3fs is not installed, or the endpoint is invalid.
    """
    key = (os.getpid(), scheme, endpoint_of(scheme))
    with _MAKING:
        if key not in _stores:
            _stores[key] = ObjectStore(scheme)
        return _stores[key]


def list_objects(address: Address) -> List[Listed]:
    """Returns the objects at an address; see `ObjectStore.list`."""
    return list(store_of(address.scheme).list(address))
