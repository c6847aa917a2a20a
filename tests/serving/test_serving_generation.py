"""Texts that a server writes: those of the folder's predict.py, in pieces, for as long as somebody waits."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import running
import served_folders
from browser import CHROMIUM, Browser
from operator_files import copy_operators
from served_folders import Served
from waiting import wait_until

import mxtrain
from mxtrain.exporting import standalone
from mxtrain.exporting.standalone import UnusableFolder
from mxtrain.files.cache import own_folder
from mxtrain.serving.models import ServedModel
from mxtrain.text.translation.networks.decoding import Beam, BeamSteps

pytestmark = pytest.mark.slow

SHORT = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "dataset.batch_size=4",
    "dataset.val_fraction=0.4",
    "dataset.vocab_size=300",
    "model.units=16",
)
MANY = 1_000_000
ENDLESS = {"max_tokens": MANY, "temperature": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, compiled_operators: Path) -> Iterator[Path]:
    """An LSTM with tokens of bytes, which ends within characters all the time, and a translation of words."""
    folder = tmp_path_factory.mktemp("written")
    write_texts(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        copy_operators(compiled_operators, own_folder())
        running.train_here(
            folder / "lstm-run",
            "task=language_modeling",
            f"dataset.train={folder}/text.txt",
            *SHORT,
            "dataset.max_length=8",
            "model.num_layers=2",
            "model.hidden_size=24",
            "task.new_tokens=20",
        )
        running.train_here(
            folder / "gnmt-run",
            "task=translation",
            "model=gnmt",
            "dataset=parallel_text",
            *SHORT,
            f"dataset.train={folder}/pairs",
            "dataset.tokenizer=words",
            "dataset.batch_tokens=null",
            "task.beam_size=2",
            "task.max_length_offset=5",
        )
        copy_operators(own_folder(), compiled_operators)
        for name in ("lstm", "gnmt"):
            mxtrain.load(folder / f"{name}-run").export(folder / name, limit_batches=1)
    return folder


def write_texts(folder: Path) -> None:
    (folder / "text.txt").write_text("\n\n".join(["one two three four five six seven eight nine"] * 100))
    words = [f"w{number}" for number in range(20)]
    for language, name in (("en", "one"), ("de", "eins")):
        lines = [f"{name} {' '.join(words[(row * 7) % 20 :][: row % 4 + 1])}" for row in range(80)]
        (folder / f"pairs.{language}").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def served(folders: Path) -> Iterator[Served]:
    with Served(
        folders / "lstm",
        folders / "gnmt",
        served_folders.write_pixels(folders / "pixels"),
        f"max_tokens={MANY}",
        "generations=2",
        "max_body_mb=0.01",
    ) as server:
        yield server
        assert server.end() == 0
        assert not [row for row in server.log if row["event"] == "error"]


def stream(served: Served, model: str, text: str, **parameters: Any) -> List[Dict[str, Any]]:
    """All events of a stream."""
    status, body, headers = served.ask(
        f"/v2/models/{model}/generate_stream", {"text_input": text, "parameters": parameters}
    )
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), body
    *events, rest = body.decode("utf-8").split("\n\n")
    assert rest == "" and all(event.startswith("data: ") for event in events)
    return [json.loads(event[len("data: ") :]) for event in events]


def predicted(folder: Path, texts: List[str], key: str) -> List[str]:
    """Returns the output of the folder's own predict.py, in a process without mxtrain's modules."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(texts) + "\n")
        file.flush()
        done = subprocess.run(
            [sys.executable, "-I", str(folder / "predict.py"), file.name], capture_output=True, text=True, check=True
        )
    return [json.loads(line)[key] for line in done.stdout.splitlines()]


def with_facts(source: Path, target: Path, **facts: Any) -> Path:
    shutil.copytree(source, target)
    path = target / standalone.SIGNATURE
    values = json.loads(path.read_text())
    values["facts"].update(facts)
    path.write_text(json.dumps(values))
    return target


def test_pieces_of_a_continuation_are_the_text_of_predict(served: Served, folders: Path, tmp_path: Path) -> None:
    # Seeds are chosen by the file, since predict.py draws by the number of the line, and a request has but one.
    broken = 0
    for seed in (0, 7):
        folder = with_facts(folders / "lstm", tmp_path / str(seed), sampling_seed=seed)
        (expected,) = predicted(folder, ["one two"], "continuation")
        events = stream(served, "lstm", "one two", seed=seed)
        assert "".join(event["text_output"] for event in events) == expected
        assert all("finish_reason" not in event for event in events[:-1]) and len(events) > 3
        assert events[-1]["finish_reason"] == "length" and events[-1]["tokens"] == 20
        body = {"text_input": "one two", "parameters": {"seed": seed, "stream": False}, "id": "x"}
        assert served.ask("/v2/models/lstm/generate", body)[1] == {
            "model_name": "lstm",
            "model_version": "1",
            "id": "x",
            "text_output": expected,
            "finish_reason": "length",
            "tokens": 20,
        }
        versioned = served.ask("/v2/models/lstm/versions/1/generate_stream", body | {"parameters": {"seed": seed}})
        assert versioned[0] == 200 and versioned[1].count(b"data: ") == len(events)
        broken += len(events) < 20
    assert broken, "tokens end within characters, and their pieces are held back"
    greedy = stream(served, "lstm", "one two", temperature=0, max_tokens=5)
    (expected,) = predicted(
        with_facts(folders / "lstm", tmp_path / "greedy", temperature=0, new_tokens=5), ["one two"], "continuation"
    )
    assert "".join(event["text_output"] for event in greedy) == expected and greedy[-1]["tokens"] == 5


def test_translations_stream_only_with_one_beam(served: Served, folders: Path, tmp_path: Path) -> None:
    texts = ["one w1 w2", "one w7 w8 w9 w10", "one", "w3 w3 w3 w3 w3 w3 w3"]
    greedy = with_facts(folders / "gnmt", tmp_path / "greedy", beam_size=1)
    streamed = 0
    for folder, beams in ((greedy, 1), (folders / "gnmt", 2)):
        for text, expected in zip(texts, predicted(folder, texts, "translation")):
            events = stream(served, "gnmt", text, beam_size=beams)
            assert "".join(event["text_output"] for event in events) == expected
            texts_sent = [event for event in events if event["text_output"]]
            assert beams == 1 or len(texts_sent) <= 1
            streamed += len(texts_sent) > 2
    assert streamed
    # A translation has at most five tokens more than its source with <eos>.
    last = [stream(served, "gnmt", text, beam_size=1)[-1] for text in texts]
    reasons = ["length" if event["tokens"] == len(text.split()) + 6 else "stop" for text, event in zip(texts, last)]
    assert [event["finish_reason"] for event in last] == reasons and "length" in reasons
    assert stream(served, "gnmt", " ")[-1]["finish_reason"] == "stop"


ATTENTION = ("model.num_heads=2", "model.num_layers=1")


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_networks_with_caches_stream_the_text_of_predict(
    name: str, tmp_path: Path, compiled_operators: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caches of attention grow with each token, and experts count the tokens that they have taken."""
    write_texts(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy_operators(compiled_operators, own_folder())
    given = {
        "gpt": (
            "task=language_modeling",
            f"dataset.train={tmp_path}/text.txt",
            "dataset.max_length=32",
            "task.new_tokens=12",
            "task.temperature=0",
            "model.experts=4",
            "model.capacity_factor=0.3",
        ),
        "transformer": (
            "task=translation",
            "dataset=parallel_text",
            f"dataset.train={tmp_path}/pairs",
            "dataset.tokenizer=words",
            "dataset.batch_tokens=null",
            "task.beam_size=1",
            "task.max_length_offset=5",
        ),
    }[name]
    running.train_here(tmp_path / "run", *given, f"model={name}", *SHORT, *ATTENTION)
    folder = tmp_path / name
    mxtrain.load(tmp_path / "run").export(folder, limit_batches=1)
    texts = ["one w1 w2", "one w7 w8 w9 w10"] if name == "transformer" else ["one two three"]
    pieces = 0
    with Served(folder) as server:
        for text, expected in zip(texts, predicted(folder, texts, KEYS[name])):
            events = stream(server, name, text)
            assert "".join(event["text_output"] for event in events) == expected
            assert events[-1]["finish_reason"] in ("length", "stop") and events[-1]["tokens"] > 1
            pieces += len([event for event in events if event["text_output"]])
        assert server.end() == 0
    assert pieces > 2


KEYS = {"gpt": "continuation", "transformer": "translation"}


def test_certain_tokens_of_one_beam_begin_the_best_translation() -> None:
    """Also where the search goes on after a first sequence has ended, and finds a better one."""
    import numpy as np

    later = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        search = BeamSteps(np.array([8]), Beam(0, 1, 1, 2.0), 1)
        certain: List[int] = []
        held = None
        for _ in itertools.count():
            log_p = np.log(rng.dirichlet(np.full(4, 0.5)))[None].astype(np.float32)
            if not len(search.advance(log_p)):
                break
            found = search.certain_tokens()
            assert found[: len(certain)] == certain
            if held is None and len(found) == len(certain):
                held = len(found)
            certain = found
        best = search.found()
        assert best.token_SNT[0, 0, : best.length_SN[0, 0]].tolist()[: len(certain)] == certain
        later += held is not None and best.length_SN[0, 0] > held
    assert later, "none was found after a first one had ended"


WRONG: Dict[str, Tuple[str, Any, int, str]] = {
    "misspelt": ("lstm", {"text_input": "a", "parameters": {"max_token": 3}}, 400, "Did you mean 'max_tokens'?"),
    "of another": ("gnmt", {"text_input": "a", "parameters": {"temperature": 1}}, 400, "no parameter 'temperature'"),
    "field": ("lstm", {"text_inputs": "a"}, 400, "Did you mean 'text_input'?"),
    "no text": ("lstm", {}, 400, "text_input must be a string"),
    "surrogate": ("lstm", {"text_input": "\ud800"}, 400, "surrogate"),
    "type": ("lstm", {"text_input": "a", "parameters": {"top_k": 1.5}}, 400, "parameters.top_k is 1.5"),
    "range": ("lstm", {"text_input": "a", "parameters": {"top_p": 2}}, 400, "parameters.top_p is 2"),
    "beams": ("gnmt", {"text_input": "a", "parameters": {"beam_size": 65}}, 400, "beam_size is 65"),
    "many": ("lstm", {"text_input": "a", "parameters": {"max_tokens": MANY + 1}}, 400, f"at most {MANY} are written"),
    "longer than the network": ("gnmt", {"text_input": "a", "parameters": {"max_tokens": 300}}, 400, "at most 256"),
    "other route": ("lstm", {"text_input": "a", "parameters": {"stream": 1}}, 400, "parameters.stream must be"),
    "large": ("lstm", {"text_input": "a" * 11_000}, 413, "more than 10,000 bytes"),
    "no step": ("pixels", {"text_input": "a"}, 400, "writes no text"),
    "no model": ("lstn", {"text_input": "a"}, 404, "Did you mean 'lstm'?"),
    "no JSON": ("lstm", b"{", 400, "no JSON"),
}


def test_wrong_requests_for_text_are_refused(served: Served) -> None:
    for name, (model, body, status, said) in WRONG.items():
        for action in ("generate", "generate_stream"):
            if name == "large" and action == "generate":
                continue  # the answer takes two seconds
            found = served.ask(f"/v2/models/{model}/{action}", body)
            assert found[0] == status and said in found[1]["error"], (name, found)


def test_the_body_of_generate_is_refused_by_predict_with_its_path(served: Served) -> None:
    status, found, _ = served.ask("/v2/models/lstm/predict", {"text_input": "one two"})
    assert status == 400
    said = "text_input is for generate: send it to /v2/models/lstm/generate or /v2/models/lstm/generate_stream."
    assert found["error"].startswith(said) and "Did you mean" not in found["error"]


def open_stream(served: Served, stack: contextlib.ExitStack) -> Tuple[http.client.HTTPConnection, Any]:
    """A stream whose first event has come."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    stack.callback(connection.close)
    body = {"text_input": "one two", "parameters": ENDLESS}
    connection.request("POST", "/v2/models/lstm/generate_stream", json.dumps(body))
    response = connection.getresponse()
    stack.callback(response.close)
    assert response.status == 200 and response.readline().startswith(b"data: ")
    return connection, response


def figure(served: Served, name: str) -> float:
    line = f'{name}{{model="lstm"}} '
    (found,) = [row for row in served.ask("/metrics")[1].decode().splitlines() if row.startswith(line)]
    return float(found[len(line) :])


def test_texts_at_the_same_time_are_limited_and_end_when_their_client_leaves(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        connections = [open_stream(served, stack)[0] for _ in range(2)]
        assert figure(served, "mxtrain_generations") == 2
        status, found, headers = served.ask("/v2/models/lstm/generate", {"text_input": "a"})
        assert (status, headers["retry-after"]) == (429, "1") and "2 texts are being written" in found["error"]
        # The event loop and the other models are not blocked.
        assert served.infer("pixels", "input", served_folders.RNG.integers(0, 9, (1, 1, 4, 4)), "UINT8")[0] == 200
        for connection in connections:
            assert connection.sock is not None
            connection.sock.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: figure(served, "mxtrain_generations") == 0)
    tokens = figure(served, "mxtrain_generated_tokens_total")
    assert served.ask("/v2/models/lstm/generate", {"text_input": "a", "parameters": {"max_tokens": 3}})[0] == 200
    assert figure(served, "mxtrain_generated_tokens_total") == tokens + 3, "nothing else writes any more"
    assert figure(served, "mxtrain_first_token_seconds_count") >= 3
    left = [row for row in served.log if "disconnected" in row.get("error", "")]
    assert len(left) == 2 and all(0 < row["tokens"] < MANY and row["first_token_ms"] > 0 for row in left)


def test_unstreamed_texts_end_when_their_client_leaves(served: Served) -> None:
    client = http.client.HTTPConnection("127.0.0.1", served.port)
    body = {"text_input": "one", "parameters": ENDLESS}
    client.request("POST", "/v2/models/lstm/generate", json.dumps(body))
    wait_until(lambda: figure(served, "mxtrain_generations") == 1)
    client.close()
    wait_until(lambda: figure(served, "mxtrain_generations") == 0)


def test_openapi_and_metadata_describe_texts(served: Served) -> None:
    described = served.ask("/openapi.json")[1]["paths"]
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        answers = {name: described[f"{prefix}/{name}"]["post"]["responses"] for name in ("generate", "generate_stream")}
        assert list(answers["generate_stream"]["200"]["content"]) == ["text/event-stream"]
        assert {"400", "401", "429", "504"} <= set(answers["generate"])
    assert "generate" in served.ask("/v2")[1]["extensions"]
    given = served.ask("/v2/models/gnmt")[1]["parameters"]["generate"]
    assert given == {"max_tokens": 256, "beam_size": 2}


@pytest.fixture
def impatient(folders: Path) -> Iterator[Served]:
    with Served(
        folders / "lstm",
        f"max_tokens={MANY}",
        "timeout_s=1",
        "drain_s=0.1",
        "generations=3",
        environment={"MXTRAIN_SERVE_TOKEN": "0123456789abcdef"},
    ) as server:
        yield server


def test_late_texts_and_the_end_of_the_server(impatient: Served) -> None:
    token = {"Authorization": "Bearer 0123456789abcdef"}
    body = {"text_input": "one", "parameters": ENDLESS}
    for action in ("generate", "generate_stream"):
        assert impatient.ask(f"/v2/models/lstm/{action}", body)[0] == 401
    status, found, _ = impatient.ask("/v2/models/lstm/generate", body, headers=token)
    assert status == 504 and found["error"] == "the text took longer than 1 s."
    status, events, _ = impatient.ask("/v2/models/lstm/generate_stream", body, headers=token)
    last = json.loads(events.decode().split("\n\n")[-2][len("data: ") :])
    assert status == 200 and last == {"model_name": "lstm", "error": "the text took longer than 1 s."}
    ended: List[bytes] = []

    def read() -> None:
        ended.append(impatient.ask("/v2/models/lstm/generate_stream", body, headers=token)[1])

    reader = threading.Thread(target=read)
    reader.start()
    page = "/metrics"
    wait_until(lambda: 'mxtrain_generations{model="lstm"} 1.0' in impatient.ask(page, headers=token)[1].decode())
    impatient.process.send_signal(signal.SIGTERM)
    reader.join(30)
    assert b"longer than 1 s" in ended[0], "a stream that has begun is sent to its end"
    assert impatient.process.wait(30) == 0
    assert not [row for row in impatient.log if row["event"] == "error"]


DAMAGED: Dict[str, Dict[str, Any]] = {
    "no number": {"new_tokens": "9"},
    "zero": {"new_tokens": 0},
    "prompt": {"max_prompt": 0},
    "sampling": {"top_p": 7},
    "tokenizer": {"tokenizer": {}},
    "nan": {"temperature": float("nan")},
}


def load(folder: Path) -> ServedModel:
    return ServedModel("m", str(folder), 1, False, 8, 4.0)


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_facts_of_texts_are_refused(folders: Path, tmp_path: Path, name: str) -> None:
    said = "holds no JSON: NaN is no finite number" if name == "nan" else "is damaged"
    with pytest.raises(UnusableFolder, match=rf"signature\.json {said}"):
        load(with_facts(folders / "lstm", tmp_path / "a", **DAMAGED[name]))


def test_damaged_parts_are_refused(folders: Path, tmp_path: Path) -> None:
    folder = with_facts(folders / "lstm", tmp_path / "a")
    path = folder / standalone.SIGNATURE
    values = json.loads(path.read_text())
    for shape in ([1 << 40, 24], ["batch", -1], "x", [[1]]):
        values["parts"]["step"]["inputs"][1]["shape"] = shape
        path.write_text(json.dumps(values))
        with pytest.raises(UnusableFolder, match=r"the inputs of step have the shape|signature\.json: parts is "):
            load(folder)
    values["parts"]["step"]["inputs"][1]["shape"] = ["batch", 24]
    values["parts"]["step"]["inputs"].pop()
    path.write_text(json.dumps(values))
    with pytest.raises(UnusableFolder, match=r"not those of step\.onnx"):
        load(folder)
    (folder / "step.onnx").unlink()
    with pytest.raises(UnusableFolder, match="cannot be read"):
        load(folder)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_page_shows_a_text_while_it_is_written(served: Served, tmp_path: Path) -> None:
    answer = "document.getElementById('answer').textContent"
    with Browser(tmp_path / "profile", 400) as page:
        page.open(served.url + "/")
        page.wait("document.querySelectorAll('option').length == 3")
        page.run("model.value = 'gnmt', model.dispatchEvent(new Event('change'))")
        assert page.run("send.textContent") == "Write" and not page.run("document.getElementById('by-text').hidden")
        page.run("text.value = 'one w1 w2', send.click()")
        page.wait(f"!send.disabled && {answer}")
        body = {"text_input": "one w1 w2"}
        assert page.run(answer) == served.ask("/v2/models/gnmt/generate", body)[1]["text_output"]
        page.run("model.value = 'pixels', model.dispatchEvent(new Event('change'))")
        assert page.run("send.textContent") == "Predict" and page.run("document.getElementById('by-text').hidden")
        assert page.errors == []
