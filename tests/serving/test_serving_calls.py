"""Calls of the server's application in this process: arrays, files and forms, versions, metadata and figures."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, AsyncIterator, Dict, Iterator, List, Tuple

import numpy as np
import pytest
import served_folders
from nifti_files import nifti
from PIL import Image
from served_here import ask

from mxtrain.exporting.standalone import RANKED
from mxtrain.serving import streams
from mxtrain.serving.answers import describe_sample
from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import ServedModel
from mxtrain.serving.uploads import MAX_PARTS, file_of_form
from mxtrain.vision import exported_images

X = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4) * 7
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> List[ServedModel]:
    folder = tmp_path_factory.mktemp("calls")
    paths = [served_folders.write_pixels(folder / "pixels"), served_folders.write_ids(folder / "ids")]
    return [ServedModel(path.name, str(path), 1, False, 8, 4.0) for path in paths]


def post(action: str, content: Any, model: str = "pixels") -> Any:
    return "POST", f"/v2/models/{model}/{action}", JSON, json.dumps(content).encode()


def test_rows_of_arrays_are_predicted_one_by_one(models: List[ServedModel]) -> None:
    calls = [post("predict", {"input": X[:count].tolist()}) for count in (1, 2)]
    (one_status, one, _), (two_status, two, _) = ask(models, *calls)
    assert one_status == two_status == 200
    rows = json.loads(two)["predictions"]
    assert len(rows) == 2 and json.loads(one) == rows[0]
    for row, share_K in zip(rows, served_folders.pixels_of(X)):
        assert row["class"] == served_folders.CLASSES[share_K.argmax()]
        assert row["probability"] == pytest.approx(share_K.max(), abs=2e-6)


def test_images_of_more_pixels_than_rows_of_a_table_are_read(models: List[ServedModel]) -> None:
    content = io.BytesIO()
    Image.fromarray(np.tile(X[0, 0], (32, 32))).save(content, "PNG")
    assert models[0].max_rows < 128 * 128
    sent = "POST", "/v2/models/pixels/predict", {"content-type": "image/png"}, content.getvalue()
    ((status, answer, _),) = ask(models, sent)
    assert status == 200 and json.loads(answer)["class"] in served_folders.CLASSES


def test_outputs_match_the_network(models: List[ServedModel]) -> None:
    tensor = {"name": "input", "shape": [2, 1, 4, 4], "datatype": "UINT8", "data": X.ravel().tolist()}
    ((status, answer, _),) = ask(models, post("infer", {"inputs": [tensor], "outputs": [{"name": "probabilities"}]}))
    (output,) = json.loads(answer)["outputs"]
    np.testing.assert_allclose(np.reshape(output["data"], (2, 3)), served_folders.pixels_of(X), rtol=1e-5)
    assert status == 200


def test_models_have_one_version(models: List[ServedModel]) -> None:
    paths = ("pixels/versions/1/ready", "ids/ready", "pixels/versions/2/ready", "pixel/ready")
    answers = ask(models, *(("GET", f"/v2/models/{path}", {}, b"") for path in paths))
    assert [status for status, _, _ in answers] == [200, 200, 404, 404]
    assert b"has version 1 only, not '2'" in answers[2][1] and b"Did you mean 'pixels'" in answers[3][1]


def test_metadata_describes_inputs_of_a_model(models: List[ServedModel]) -> None:
    ((_, answer, _),) = ask(models, ("GET", "/v2/models", {}, b""))
    pixels, ids = (model["parameters"] for model in json.loads(answer)["models"])
    assert pixels["kind"] == "image" and "image/png" in pixels["accepts"]
    assert (ids["kind"], ids["example"], ids["columns"], ids["accepts"]) == ("json", "", [], ["application/json"])


def test_metadata_of_a_table_has_its_columns_and_a_row(tmp_path: Path) -> None:
    model = ServedModel("rows", str(served_folders.write_rows(tmp_path / "rows")), 1, False, 8, 4.0)
    found = model.metadata()["parameters"]
    assert [column["name"] for column in found["columns"]] == ["town", "age", "visits"]
    assert set(json.loads(found["example"])) == {"town", "age", "visits"}


def test_description_lists_the_calls_and_their_errors_but_not_the_page(models: List[ServedModel]) -> None:
    (_, described, _), (status, page, _) = ask(models, ("GET", "/openapi.json", {}, b""), ("GET", "/", {}, b""))
    paths = json.loads(described)["paths"]
    statuses = {"200", "400", "401", "404", "408", "413", "415", "422", "429", "503", "504"}
    assert statuses <= set(paths["/v2/models/{name}/infer"]["post"]["responses"])
    assert "/" not in paths and status == 200 and page.lstrip().lower().startswith(b"<!doctype html>")


def test_heads_are_answered_as_gets_and_times_are_durations(models: List[ServedModel]) -> None:
    (status, _, _), (_, figures, _) = ask(models, ("HEAD", "/v2", {}, b""), ("GET", "/metrics", {}, b""))
    assert status == 200
    seconds = re.search(rb'mxtrain_request_seconds_sum\{model="",route="/v2"\} (\S+)', figures)
    assert seconds is not None and 0 <= float(seconds[1]) < 20


def test_most_fields_of_a_form(models: List[ServedModel]) -> None:
    header = "multipart/form-data; boundary=b"
    field = b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\nx\r\n'
    for count, said in ((20, "must have one field, a file"), (21, "or there are too many")):
        with pytest.raises(RequestError, match=said):
            file_of_form(field * count + b"--b--\r\n", header, models[0])
    assert MAX_PARTS == 20


def test_detections_are_rounded_and_empty_rows_left_out(models: List[ServedModel]) -> None:
    rows = np.float32([[[1, 0.87654321, 1.234, 2, 3, 4.567], [9, 0.5, 0, 0, 1, 1], [-1, -1, -1, -1, -1, -1]]])
    answer = describe_sample(models[1], {}, {RANKED: rows}, None)
    assert answer == {
        "detections": [
            {"class": 1, "score": 0.876543, "box": [1.23, 2.0, 3.0, 4.57]},
            {"class": 9, "score": 0.5, "box": [0.0, 0.0, 1.0, 1.0]},
        ]
    }


Sent = List[Any]


def streamed(monkeypatch: pytest.MonkeyPatch, limit: Any, *pieces: Any) -> Tuple[Sent, Dict[str, Any], List[str]]:
    """Returns what a stream sends for these pieces, of which an exception is raised; notes for the log, and aborts."""

    async def generate() -> AsyncIterator[Any]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    @contextlib.asynccontextmanager
    async def generation(*given: Any, is_stream: bool) -> AsyncIterator[Any]:
        yield None, SimpleNamespace(pieces=generate, tokens=1)

    async def send(message: Any) -> None:
        sent.append(message)

    sent: Sent = []
    fields: Dict[str, Any] = {}
    aborts: List[str] = []
    monkeypatch.setattr(streams, "TimeLimit", limit)
    monkeypatch.setattr(streams, "text_event", lambda model, call, text, tokens, reason: {"text": text})
    service: Any = SimpleNamespace(settings=SimpleNamespace(timeout_s=3.0), generation=generation)
    batcher: Any = SimpleNamespace(model=SimpleNamespace(name="m"))
    scope = {"mxtrain.fields": fields, "mxtrain.abort": lambda: aborts.append("aborted")}
    asyncio.run(streams.EventStream(service, batcher, None)(scope, None, send))  # type: ignore[arg-type]
    return sent, fields, aborts


def test_an_error_after_the_first_piece_is_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body and the generation have their time limits, and the client 5 s more to read."""
    limits: List[float] = []

    @contextlib.contextmanager
    def limit(seconds: float) -> Iterator[None]:
        limits.append(seconds)
        yield

    piece = SimpleNamespace(text="a", finish_reason="")
    began = time.monotonic()
    (start, first, last), fields, _ = streamed(monkeypatch, limit, piece, RequestError(504, "late"))
    assert start["status"] == 200 and (first["body"], first["more_body"]) == (b'data: {"text": "a"}\n\n', True)
    assert (last["body"], last["more_body"]) == (b'data: {"model_name": "m", "error": "late"}\n\n', False)
    assert fields == {"error": "late"} and limits == [2 * 3.0 + 5.0] and time.monotonic() - began < 0.9


def test_a_client_that_does_not_read_is_cut_off_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def limit(seconds: float) -> Iterator[None]:
        raise asyncio.TimeoutError
        yield

    began = time.monotonic()
    sent, fields, aborts = streamed(monkeypatch, limit)
    assert time.monotonic() - began < 0.9 and not sent
    assert aborts == ["aborted"] and "did not read" in fields["error"]


def test_slices_of_a_volume_have_answers_of_their_own(models: List[ServedModel]) -> None:
    """Three NIfTI slices, packed, each of which is answered as the image of its values."""
    values = np.random.default_rng(5).integers(0, 256, (4, 4, 3), dtype=np.uint8)

    def sent(content: bytes) -> Any:
        return "POST", "/v2/models/pixels/predict", {"content-type": "application/octet-stream"}, content

    images = []
    for number in range(3):
        content = io.BytesIO()
        # RAS: the right of the patient is at the left of the slice, anterior at the top.
        Image.fromarray(values[::-1, ::-1, number].T).save(content, "PNG")
        images.append(sent(content.getvalue()))
    packed = gzip.compress(nifti(values))
    (status, answer, _), *expected = ask(models, sent(packed), *images)
    assert status == 200
    assert json.loads(answer)["predictions"] == [json.loads(each) for _, each, _ in expected]
    assert len({each for _, each, _ in expected}) == 3
    single, *refused = ask(
        models, sent(nifti(values[:, :, :1])), sent(packed[:-20]), sent(nifti(values, affine_44=None)), max_pixels=48
    )
    assert json.loads(single[1]) == json.loads(expected[0][1])
    said = (
        "slice 0 of the body cannot be read as an image (it is cut off",
        "the body cannot be read as a volume (it does not say its orientation",
    )
    for (status, answer, _), reason in zip(refused, said):
        assert status == 400 and reason in json.loads(answer)["error"]
    ((status, answer, _),) = ask(models, sent(packed), max_pixels=47)
    assert (status, json.loads(answer)["error"]) == (413, "the volume has 48 pixels, and at most 47 are read.")


def test_a_slice_that_cannot_be_read_is_named(models: List[ServedModel]) -> None:
    values = np.zeros((4, 4, 3), np.float32)
    values[2, 2, 1] = np.nan
    sent = "POST", "/v2/models/pixels/predict", {"content-type": "image/png"}, nifti(values, bounds=(0, 1))
    ((status, answer, _),) = ask(models, sent)
    assert status == 400 and "slice 1 of the body cannot be read as an image" in json.loads(answer)["error"]


def test_slices_that_take_too_long_are_given_up(models: List[ServedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    read = exported_images.read_image
    monkeypatch.setattr(exported_images, "read_image", lambda *arguments: (time.sleep(0.1), read(*arguments))[1])
    content = nifti(np.zeros((4, 4, 9), np.uint8))
    sent = "POST", "/v2/models/pixels/predict", {"content-type": "image/png"}, content
    ((status, answer, _),) = ask(models, sent, timeout_s=0.25)
    for thread in threading.enumerate():  # the next test must not begin while a slice is read
        if thread.name.startswith("decode"):
            thread.join()
    assert (status, json.loads(answer)["error"]) == (504, "there was no answer within 0.25 s.")
