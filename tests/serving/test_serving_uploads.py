"""Files as clients send them: forms, other names of content types, base64 in JSON; and paths with versions."""

from __future__ import annotations

import base64
import io
import json
from typing import Any, List

import numpy as np
import pytest
import served_folders
from PIL import Image
from served_here import ask

from mxtrain.serving.models import ServedModel

pytestmark = pytest.mark.slow
PIXELS = np.arange(16, dtype=np.uint8).reshape(4, 4) * 15


def image(kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, kind)
    return content.getvalue()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> List[ServedModel]:
    folder = tmp_path_factory.mktemp("uploads")
    makers = {"pixels": served_folders.write_pixels, "ids": served_folders.write_ids}
    paths = [make(folder / name) for name, make in makers.items()]
    return [ServedModel(path.name, str(path), 1, False, 8, 4.0) for path in paths]


def predict(models: List[ServedModel], content: bytes, content_type: str, model: str = "pixels") -> Any:
    request = "POST", f"/v2/models/{model}/predict", {"content-type": content_type}, content
    ((status, answer, _),) = ask(models, request)
    return status, json.loads(answer)


def form(*parts: bytes, boundary: str = "a b'", end: bytes = b"--\r\n", preamble: bytes = b"") -> bytes:
    joined = b"".join(b"--" + boundary.encode() + b"\r\n" + part + b"\r\n" for part in parts)
    return preamble + joined + b"--" + boundary.encode() + end


def field(content: bytes, filename: str = "x.png", media_type: str = "image/png", name: str = "file") -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    typed = f"\r\ncontent-type: {media_type}" if media_type else ""
    return f'Content-Disposition: form-data; name="{name}"{named}{typed}\r\n\r\n'.encode() + content


FORM = 'multipart/form-data; boundary="a b\'"'


def test_each_way_to_send_a_file_gives_the_same_prediction(models: List[ServedModel]) -> None:
    status, expected = predict(models, image(), "image/png")
    assert status == 200 and expected["class"] in served_folders.CLASSES
    text = base64.b64encode(image()).decode()
    ways = {
        "form": (form(field(image())), FORM),
        "preamble": (form(field(image()), preamble=b"ignored\r\n"), FORM),
        "no type, but a name": (form(field(image(), media_type="")), FORM),
        "octets": (form(field(image(), media_type="application/octet-stream")), FORM),
        "octets without a known name": (form(field(image(), "x", "application/octet-stream")), FORM),
        "other name": (form(field(image(), "x", "image/x-png")), FORM),
        "json": (json.dumps({"image": text}).encode(), "application/json"),
        "broken lines": (json.dumps({"image": base64.encodebytes(image()).decode()}).encode(), "application/json"),
        "data url": (json.dumps({"image": f"data:image/png;base64,{text}"}).encode(), "text/json; charset=utf-8"),
        "curl --data-binary": (image(), "application/x-www-form-urlencoded"),
        "no type": (image(), ""),
        "octet-stream": (image(), "Application/Octet-Stream"),
        "x-png": (image(), "image/x-png"),
    }
    for name, (content, content_type) in ways.items():
        assert predict(models, content, content_type) == (200, expected), name
    assert predict(models, image("JPEG"), "image/jpg") == predict(models, image("JPEG"), "image/jpeg")
    trailing = image() + b"\r\n--a b"  # a boundary is whole
    assert predict(models, form(field(trailing)), FORM) == predict(models, trailing, "image/png")


WRONG = {
    "two files": (form(field(image()), field(image())), FORM, 400, "has the fields 'file', 'file', 2 of them files"),
    "another field": (form(field(image()), field(b"1", "", "", "n")), FORM, 400, "the fields 'file', 'n', 1 of them"),
    "no file": (form(field(image(), "")), FORM, 400, "the fields 'file', 0 of them files; it must have one field"),
    "empty": (form(), FORM, 400, "has the fields none"),
    "nothing": (b"", FORM, 400, "the form is damaged"),
    "cut off": (form(field(image()), end=b""), FORM, 400, "the form is damaged"),
    "no head": (form(b"x"), FORM, 400, "the form is damaged"),
    "long head": (form(field(b"x", "y" * 9000)), FORM, 400, "the form is damaged"),
    "many": (form(*[field(b"x")] * 21), FORM, 400, "there are too many"),
    "no boundary": (form(field(image())), "multipart/form-data", 400, "no boundary"),
    "odd boundary": (form(field(image())), "multipart/form-data; boundary=\xe9", 400, "no boundary"),
    "form in a form": (form(field(b"", "x", FORM)), FORM, 400, "is a form itself"),
    "text": (form(field(b"x", "x.txt", "text/plain")), FORM, 415, "'text/plain'; 'pixels' takes image/jpeg"),
    "no base64": (b'{"image": "%%"}', "application/json", 400, "image must be the base64 of a file"),
    "list": (b'{"image": [1]}', "application/json", 400, "there is no input 'image'"),
    "two keys": (b'{"image": "", "x": 1}', "application/json", 400, "there is no input"),
    "curl --data": (b"x", "application/x-www-form-urlencoded", 400, "curl's --data changes files: use --data-binary"),
    "text/plain": (
        b"x",
        "text/plain",
        415,
        "curl --data-binary @FILE -H 'Content-Type: image/jpeg', or as a form by curl -F file=@FILE.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_uploads_are_refused(models: List[ServedModel], name: str) -> None:
    content, content_type, expected, said = WRONG[name]
    status, answer = predict(models, content, content_type)
    assert status == expected and said in answer["error"], answer


def test_models_without_files_advise_json(models: List[ServedModel]) -> None:
    for content_type in ("", "application/x-www-form-urlencoded", "application/octet-stream"):
        status, answer = predict(models, b"{}", content_type, "ids")
        assert status == 415 and "'Content-Type: application/json'" in answer["error"]


def test_versions_and_heads(models: List[ServedModel]) -> None:
    path, typed = "/v2/models/pixels", {"content-type": "image/png"}
    found = ask(
        models,
        ("POST", f"{path}/versions/2/predict", typed, image()),
        ("POST", f"{path}/versions/1/predict", typed, image()),
        ("GET", f"{path}/versions/3", {}, b""),
        ("POST", f"{path}/versions/2/infer", {}, b"{}"),
    )
    assert [status for status, _, _ in found] == [404, 200, 404, 404]
    assert json.loads(found[0][1])["error"] == "'pixels' has version 1 only, not '2'."
    for got in ("/v2/health/live", "/v2/health/ready", "/v2", "/v2/models", path, "/metrics", "/"):
        whole, head = ask(models, ("GET", got, {}, b""), ("HEAD", got, {}, b""))
        assert (whole[0], head[0]) == (200, 200) and whole[2][b"content-type"] == head[2][b"content-type"], got
    ((status, _, _),) = ask(models, ("HEAD", f"{path}/infer", {}, b""))
    assert status == 405
