"""`mxtrain.serve`: a server in a thread, asked over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, List
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import served_folders
from waiting import read_pids, wait_for_ends, wait_until

import mxtrain
from mxtrain.cluster.reported_cause import CAUSE_FILE
from mxtrain.errors import ConfigError, DataError

X = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4) * 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return served_folders.write_pixels(tmp_path / "pixels")


def ask(url: str, content: Any = None, token: str = "") -> Any:
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    request = Request(url, None if content is None else json.dumps(content).encode(), headers)
    with urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
def test_a_server_answers_until_it_is_stopped(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    threads = set(threading.enumerate())
    with mxtrain.serve(folder, port=0) as server:
        assert server.models == ["pixels"] and server.is_running and server.url.startswith("http://127.0.0.1:")
        found = ask(f"{server.url}/v2/models/pixels/predict", {"input": X.tolist()})["predictions"]
        expected = served_folders.pixels_of(X)
        assert [row["probability"] for row in found] == pytest.approx(expected.max(axis=1), abs=2e-6)
        assert repr(server) == f"RunningServer('{server.url}', models=['pixels'])"
    assert not server.is_running and repr(server).endswith("stopped)")
    with pytest.raises(URLError):
        ask(f"{server.url}/v2/health/live")
    server.stop()
    wait_until(lambda: set(threading.enumerate()) <= threads, 5)  # the thread that computes ends by itself
    assert capfd.readouterr() == ("", "")
    # The address is free again.
    with mxtrain.serve(folder, port=int(server.url.rpartition(":")[2])) as other:
        assert other.url == server.url


@pytest.mark.slow
def test_names_and_tokens(folder: Path) -> None:
    token = "0123456789abcdef"
    with mxtrain.serve({"digits": folder, "letters": folder}, port=0, token=token, check=False) as server:
        assert server.models == ["digits", "letters"]
        with pytest.raises(HTTPError) as error:
            ask(f"{server.url}/v2/models/digits")
        assert error.value.code == 401
        error.value.close()
        assert ask(f"{server.url}/v2/models/letters", token=token)["name"] == "letters"


@pytest.mark.parametrize(
    "words, said",
    [
        ({"port": 70000}, "serve.port=70000: should be less than or equal to 65535"),
        ({"prot": 1}, "there is no 'serve.prot'. Did you mean 'serve.port'?"),
        ({"token": "short"}, "token must have at least 16 characters"),
    ],
)
def test_wrong_arguments(words: Any, said: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as error:
        mxtrain.serve(folder, **words)
    assert said in str(error.value)


def test_folders_that_cannot_be_served(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        mxtrain.serve(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="serve takes exported folders or runs"):
        mxtrain.serve()
    with pytest.raises(ConfigError, match="two models are called 'pixels'"):
        mxtrain.serve(folder, {"pixels": folder})
    with pytest.raises(DataError, match="neither an exported folder nor a run"):
        mxtrain.serve(tmp_path, port=0)


def test_the_address_is_free_after_an_error(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        mxtrain.serve(tmp_path / "empty", port=port)
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_reason_of_a_failed_export_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from what the process has printed."""

    def run_child(command: Any, env: Any, **options: Any) -> int:
        Path(env[CAUSE_FILE]).write_text(json.dumps({"cause": "an operator\n has no conversion", "step": 0}))
        return 2

    monkeypatch.setattr("mxtrain.workflows.serve.run_child", run_child)
    monkeypatch.setattr("mxtrain.workflows.serve.holds_checkpoint", lambda folder: True)
    with pytest.raises(DataError, match="cannot be exported: an operator has no conversion$"):
        mxtrain.serve(tmp_path, port=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, ending",
    [
        (["-m", "mxtrain", "serve", "run", "port=0"], signal.SIGKILL),
        (["-c", "import mxtrain; mxtrain.serve('run', port=0)"], signal.SIGTERM),
    ],
)
def test_the_export_of_a_run_ends_with_the_server(arguments: List[str], ending: int, tmp_path: Path) -> None:
    """The export is a stand-in that never ends; Python runs it before `mxtrain export`."""
    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if b'export' in open('/proc/self/cmdline', 'rb').read().split(b'\\0'):\n"
        "    open('pid', 'w').write(str(os.getpid()) + '\\n')\n"
        "    time.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(mxtrain.__file__).parents[1])])
    with subprocess.Popen([sys.executable, *arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}) as server:
        try:
            export = read_pids(tmp_path / "pid")
        finally:
            server.send_signal(ending)
    wait_for_ends(export)


def test_a_server_for_every_network_without_a_token_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="whoever reaches this port"), pytest.raises(ConfigError):
        mxtrain.serve(host="0.0.0.0")
