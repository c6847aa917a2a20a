"""Addresses of objects: SCHEME://BUCKET/KEY."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, Optional

from mxtrain.errors import DataError, did_you_mean


@dataclass(frozen=True)
class StoreService:
    """A service with the interface of S3.

    Attributes:
        variables: environment variables that name its endpoint; the first one that is set is used.
        endpoint: default endpoint; None = the default of the library, Amazon's.
    """

    variables: tuple
    endpoint: Optional[str] = None


SERVICES: Dict[str, StoreService] = {
    "s3": StoreService(("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    "gs": StoreService(("GS_ENDPOINT",), "https://storage.googleapis.com"),
    "oss": StoreService(("OSS_ENDPOINT",)),
}
"""Schemes that are read. Google's and Alibaba's stores have interfaces of S3 beside their own."""

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
_MAX_NAME_BYTES = 255
"""Longest name of a file on Linux; objects have local names."""


class StoreError(DataError):
    """A request to an object store failed. The message names the address, and never a credential."""


class ObjectChanged(StoreError):
    """An object has changed since the data were opened."""


@dataclass(frozen=True)
class Address:
    """Address of an object, or of all objects whose keys begin with `key/`; an empty key means the whole bucket."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    @property
    def prefix(self) -> str:
        """Beginning of the keys of all objects below the address."""
        return f"{self.key}/" if self.key else ""

    def below(self, name: str) -> Address:
        """Returns the address of a name below this one."""
        return self.with_key(self.prefix + name)

    def with_key(self, key: str) -> Address:
        """Returns the address of another key in the same bucket."""
        return Address(self.scheme, self.bucket, key)


def is_address(path: str) -> bool:
    """Returns True if a path has a scheme, as s3://bucket/photos, known or not."""
    return _ADDRESS.fullmatch(path) is not None


def parse_address(text: str) -> Address:
    """Parses an address.

    Raises:
        StoreError: the scheme is unknown, the bucket is missing or its name is invalid, or a part of the key is not a
            valid file name.
    """
    found = _ADDRESS.fullmatch(text)
    scheme, rest = found.groups() if found else ("", text)
    if scheme not in SERVICES:
        raise StoreError(
            f"'{text}': {scheme}:// is not read.{did_you_mean(scheme, SERVICES)} Data are read from s3://, gs:// and "
            "oss://, and from local folders."
        )
    bucket, _, key = rest.partition("/")
    key = key.rstrip("/")
    if not bucket:
        raise StoreError(f"'{text}' names no bucket: type {scheme}://BUCKET/FOLDER.")
    if not _BUCKET.fullmatch(bucket):  # not repeated: with an @, it may hold a password
        raise StoreError(
            f"The name of the bucket in an address {scheme}://... must have letters, digits, dots, hyphens and "
            "underscores only. Credentials come from the environment."
        )
    address = Address(scheme, bucket, key)
    if key:
        require_local_name(address)
    return address


def require_local_name(address: Address) -> None:
    """Rejects a key that cannot be a path below a folder.

    Raises:
        StoreError: a part of the key is empty, `.` or `..`, too long, or holds a zero byte.
    """
    for part in address.key.split("/"):
        if part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > _MAX_NAME_BYTES:
            shown = part if len(part) < 50 else f"{part[:50]}..."
            raise StoreError(
                f"'{address}': the part '{shown}' of the key is no name of a file. Copy the object to another key."
            )


def endpoint_of(scheme: str) -> Optional[str]:
    """Returns the endpoint of a scheme from the environment; None = that of the library.

    Raises:
        StoreError: the service has no general endpoint, and the variable that names one is not set.
    """
    service = SERVICES[scheme]
    given = next(filter(None, map(os.environ.get, service.variables)), service.endpoint)
    if given is None and scheme == "oss":
        raise StoreError(
            "oss:// needs the endpoint of the region: set OSS_ENDPOINT=https://s3.oss-REGION.aliyuncs.com, e.g. "
            "https://s3.oss-cn-hangzhou.aliyuncs.com."
        )
    if given is not None and not re.match(r"https?://[^/@\s]+/?$", given):
        raise StoreError(
            f"{' or '.join(service.variables)} must be an address such as https://HOST:PORT, without a path and a user."
        )
    return given
