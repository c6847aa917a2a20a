"""Content types and forms of uploads, without a network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from test_serving_uploads import FORM, field, form

from mxtrain.serving.errors import RequestError
from mxtrain.serving.uploads import MAX_PART_HEAD, MAX_PARTS, file_of_form, file_of_json, media_type_of


def model_of(kind: str, *types: str) -> Any:
    reader = SimpleNamespace(kind=kind, media_types=types)
    return SimpleNamespace(name="m", reader=reader, accepts=[*types, "application/json"], read_types=types)


@pytest.mark.parametrize(
    "kind, given, expected",
    [
        ("image", "image/jpg", "image/jpeg"),
        ("image", " Image/PJPEG ; q=1", "image/jpeg"),
        ("image", "image/x-png", "image/png"),
        ("image", "image/x-ms-bmp", "image/bmp"),
        ("sound", "audio/mp3", "audio/mpeg"),
        ("sound", "audio/x-flac", "audio/flac"),
        ("table", "application/csv", "text/csv"),
        ("table", "text/json", "application/json"),
        ("image", "", "image/jpeg"),
        ("sound", "application/octet-stream", "audio/mpeg"),
        ("table", "", None),
        ("text", "", None),
        ("text", "application/octet-stream", None),
        ("image", "image/webp", None),
    ],
)
def test_names_of_content_types(kind: str, given: str, expected: Any) -> None:
    types = {
        "image": ("image/jpeg", "image/png", "image/bmp"),
        "sound": ("audio/mpeg", "audio/flac"),
        "table": ("text/csv",),
        "text": ("text/plain",),
    }[kind]
    if expected is not None:
        assert media_type_of(given, model_of(kind, *types)) == expected
    else:
        with pytest.raises(RequestError, match="the content type is") as caught:
            media_type_of(given, model_of(kind, *types))
        assert caught.value.status == 415 and caught.value.closes  # the body is not read


def test_largest_head_and_most_fields_of_a_form() -> None:
    model = model_of("image", "image/png")
    head = len(b"\r\n" + field(b"", "x.png", "")) - len(b"\r\n\r\n")  # with the end of the boundary's line
    name = "x" * (MAX_PART_HEAD - head) + "x.png"
    assert file_of_form(form(field(b"content", name, "")), FORM, model) == (b"content", "image/png")
    with pytest.raises(RequestError, match="the form is damaged"):
        file_of_form(form(field(b"content", "x" + name, "")), FORM, model)
    with pytest.raises(RequestError, match=f"{MAX_PARTS} of them files"):
        file_of_form(form(*[field(b"x")] * MAX_PARTS), FORM, model)
    with pytest.raises(RequestError, match="there are too many"):
        file_of_form(form(*[field(b"x")] * (MAX_PARTS + 1)), FORM, model)
    assert (MAX_PARTS, MAX_PART_HEAD) == (20, 8192)


def test_fields_of_a_form() -> None:
    model = model_of("image", "image/jpeg", "image/png")
    odd = b": no name\r\n" + field(b"content\r\n\r\nmore")
    assert file_of_form(form(odd), FORM, model) == (b"content\r\n\r\nmore", "image/png")
    unknown = field(b"", "x.gif", "application/octet-stream; x=1")
    with pytest.raises(RequestError, match="'image/gif'; 'm' takes image/jpeg"):
        file_of_form(form(unknown), FORM, model)
    with pytest.raises(RequestError, match="no boundary"):
        file_of_form(form(field(b"")), 'multipart/form-data; boundary=""', model)


def test_json_of_tables_and_texts_is_distinguished() -> None:
    model = model_of
    assert file_of_json({"json": "x"}, model("json", "application/json")) is None, "a column of this name"
    assert file_of_json({"text": "é"}, model("text", "text/plain")) == ("é".encode(), "text/plain")
    assert file_of_json({"image": ""}, model("text", "text/plain")) is None
    assert file_of_json({"text": "a", "x": 1}, model("text", "text/plain")) is None
    assert file_of_json({"text": 1}, model("text", "text/plain")) is None
    assert file_of_json({"sound": "QQ=="}, model("sound", "audio/wav")) == (b"A", "audio/wav")
    assert file_of_json({"text": "a"}, SimpleNamespace(reader=None)) is None  # type: ignore[arg-type]
