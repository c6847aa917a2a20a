"""Reads files from bodies of `predict`: files with various content types, forms, and Base64 in JSON."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from email.message import Message
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import ServedModel
from mxtrain.serving.readers import JSON_TYPE

FORM_TYPE, CURL_TYPE = "multipart/form-data", "application/x-www-form-urlencoded"
UNKNOWN_TYPES = ("", "application/octet-stream", CURL_TYPE)
"""Content types that do not describe the content; the last one is that of `curl --data`."""
OTHER_NAMES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/x-ms-bmp": "image/bmp",
    "audio/mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "application/csv": "text/csv",
    "application/x-gzip": "application/gzip",
    "text/json": JSON_TYPE,
}
SELF_DESCRIBING = ("image", "sound", "video")
"""Kinds of samples whose format is detected from the content of the file."""
MAX_PARTS, MAX_PART_HEAD = 20, 1 << 13
"""Largest number of fields of a form, and largest number of bytes in the header of a field."""


class Upload(NamedTuple):
    """A sample as a file.

    Attributes:
        content: content of the file.
        media_type: one of `ServedModel.accepts`.
    """

    content: bytes
    media_type: str


def media_type_of(header: str, model: ServedModel) -> str:
    """Returns the media type of a body: one of `ServedModel.accepts`, or `FORM_TYPE`.

    Args:
        header: value of Content-Type; empty if there is none.
        model: model that the request is for.

    Raises:
        RequestError: the model does not read it.
    """
    given = header.partition(";")[0].strip().lower()
    media_type = OTHER_NAMES.get(given, given)
    if media_type in model.accepts or media_type == FORM_TYPE:
        return media_type
    reader = model.reader
    if media_type in UNKNOWN_TYPES and reader is not None and reader.kind in SELF_DESCRIBING:
        return reader.media_types[0]
    shown = next(iter(model.read_types), JSON_TYPE)
    raise RequestError(
        415,
        f"the content type is {given[:100] or 'not given'!r}; '{model.name}' takes "
        f"{', '.join(model.accepts)}. Send the file itself, e.g. by curl --data-binary @FILE -H "
        f"'Content-Type: {shown}', or as a form by curl -F file=@FILE.",
        closes=True,
    )


def file_of_form(body: bytes, header: str, model: ServedModel) -> Upload:
    """Returns the only file of a form.

    Source: RFC 7578.

    Args:
        body: content of the form.
        header: value of Content-Type, with the boundary.
        model: model that the request is for.

    Raises:
        RequestError: it is no form with one file, or the model does not read the file.
    """
    fields = _fields_of(body, header)
    files = [(about, content) for about, content in fields if about.get_filename() is not None]
    if len(files) != 1 or len(fields) > 1:
        named = ", ".join(repr(str(about.get_param("name", "", "content-disposition"))[:50]) for about, _ in fields)
        raise RequestError(
            400,
            f"the form has the fields {named or 'none'}, {len(files)} of them files; it must have "
            "one field, a file, as curl -F file=@FILE sends it.",
        )
    about, content = files[0]
    given = about.get("content-type", "").strip()
    if given.partition(";")[0].lower() in UNKNOWN_TYPES:
        given = mimetypes.guess_type(str(about.get_filename()))[0] or ""
    media_type = media_type_of(given, model)
    if media_type == FORM_TYPE:
        raise RequestError(400, "the file of the form is a form itself.")
    return Upload(content, media_type)


def _fields_of(body: bytes, header: str) -> List[Tuple[Message, bytes]]:
    """Returns the head and the content of each field of a form."""
    outer = Message()
    outer["content-type"] = header
    boundary = outer.get_param("boundary")
    if not isinstance(boundary, str) or not boundary or not boundary.isascii():
        raise RequestError(400, "the form has no boundary in its Content-Type.")
    delimiter = b"\r\n--" + boundary.encode()
    fields: List[Tuple[Message, bytes]] = []
    # The first delimiter may be at the beginning of the body, without a line break before it.
    position = (b"\r\n" + body).find(delimiter)
    while position >= 0:
        begin = position + len(delimiter) - 2  # in `body`, which has no line break before it
        if body[begin : begin + 2] == b"--":
            return fields
        end = body.find(delimiter, begin)
        head, separator, content = body[begin : end if end >= 0 else begin].partition(b"\r\n\r\n")
        if not separator or len(head) > MAX_PART_HEAD or len(fields) == MAX_PARTS:
            break
        about = Message()
        for line in head.decode("utf-8", "replace").split("\r\n"):
            name, _, value = line.partition(":")
            if name.strip():
                about[name.strip()] = value.strip()
        fields.append((about, content))
        position = end + 2
    raise RequestError(400, "the form is damaged: a field has no head or no end, or there are too many.")


def file_of_json(values: Mapping[str, Any], model: ServedModel) -> Optional[Upload]:
    """Returns the file in a JSON object such as {"image": "BASE64"} or {"text": "a text"}; None for another object.

    Args:
        values: the object.
        model: model that the request is for.

    Raises:
        RequestError: it is no base64.
    """
    reader = model.reader
    if reader is None or reader.kind not in (*SELF_DESCRIBING, "text") or list(values) != [reader.kind]:
        return None
    if not isinstance(values[reader.kind], str):
        return None
    value: str = values[reader.kind]
    if reader.kind not in SELF_DESCRIBING:
        return Upload(value.encode(), reader.media_types[0])
    if value.startswith("data:"):  # as browsers write files into JSON
        value = value.partition(",")[2]
    try:
        # `base64 FILE` and `base64.encodebytes` break lines.
        return Upload(base64.b64decode("".join(value.split()), validate=True), reader.media_types[0])
    except (binascii.Error, ValueError) as error:
        raise RequestError(400, f"{reader.kind} must be the base64 of a file: {error}.") from error


def hint_for(header: str) -> str:
    """Returns a hint for a file of this content type that cannot be read; empty if there is none."""
    is_curl = header.partition(";")[0].strip().lower() == CURL_TYPE
    return " curl's --data changes files: use --data-binary @FILE." if is_curl else ""
