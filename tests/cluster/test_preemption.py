"""Notices of preemption: metadata services, addresses and files, and what a run does about them."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Dict, Iterator, List, Tuple

import pytest
from running import SMALL, Process, assert_same, checkpoints, has_steps, status, train_here
from waiting import wait_until

from mxtrain.callback.protocol import Callback
from mxtrain.cluster import preemption
from mxtrain.cluster.preemption import NoticeWatcher, has_notice, unsupported_notice_reason
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.stopping import SignalStop, Stop, was_told_to_end


class Metadata(BaseHTTPRequestHandler):
    """Answers as the metadata services of AWS (IMDSv2) and Google do."""

    answers: ClassVar[Dict[str, str]] = {}
    requests: ClassVar[List[Tuple[str, str]]] = []

    def do_PUT(self) -> None:
        allowed = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self._answer(200 if allowed else 400, "a-token")

    def do_GET(self) -> None:
        Metadata.requests.append((self.command, self.path))
        if self.path.startswith("/latest/") and self.headers.get("X-aws-ec2-metadata-token") != "a-token":
            self._answer(401, "")
        elif self.path.startswith("/computeMetadata/") and self.headers.get("Metadata-Flavor") != "Google":
            self._answer(403, "")
        elif self.path in Metadata.answers:
            self._answer(200, Metadata.answers[self.path])
        else:
            self._answer(404, "not found")

    def _answer(self, code: int, text: str) -> None:
        if text == "broken":
            self.wfile.write(b"no HTTP\r\n\r\n")
            return
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    name = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{name}/")
    monkeypatch.setenv("GCE_METADATA_HOST", name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nothing listens
    Metadata.answers, Metadata.requests = {}, []
    yield name
    server.shutdown()
    server.server_close()


def test_aws_announces_by_the_spot_instance_action(host: str) -> None:
    assert not has_notice("aws")
    Metadata.answers["/latest/meta-data/spot/instance-action"] = '{"action": "terminate"}'
    assert has_notice("aws")


def test_google_announces_by_the_value_preempted(host: str) -> None:
    place = "/computeMetadata/v1/instance/preempted"
    for answer, expected in (("FALSE", False), ("TRUE", True), ("NONE", False)):
        Metadata.answers[place] = answer
        assert has_notice("gcp") is expected
    assert Metadata.requests == [("GET", place)] * 3


def test_an_address_announces_by_an_answer_with_content(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    url = f"http://{host}/ending"
    assert not has_notice(url)
    for answer, expected in (("", False), (" false\n", False), ("soon", True)):
        Metadata.answers["/ending"] = answer
        assert has_notice(url) is expected


def test_an_address_is_read_through_the_proxy_of_the_environment(host: str) -> None:
    with pytest.raises(OSError, match="refused"):
        has_notice(f"http://{host}/ending")


def test_other_errors_than_404_are_no_notices(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(OSError, match="401"):
        has_notice(f"http://{host}/latest/meta-data/spot/instance-action")


def test_an_answer_that_is_not_http_is_no_notice(host: str) -> None:
    Metadata.answers["/computeMetadata/v1/instance/preempted"] = "broken"
    with pytest.raises(OSError, match="no valid answer: BadStatusLine"):
        has_notice("gcp")


def test_a_file_announces_by_its_existence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not has_notice(str(tmp_path / "ending"))
    (tmp_path / "ending").touch()
    assert has_notice(str(tmp_path / "ending")) and has_notice("~/ending")


def test_a_source_that_cannot_be_read_is_reported_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preemption, "NOTICE_PERIOD_S", 0.01)
    looks: List[str] = []

    def look(source: str) -> bool:
        looks.append(source)
        if len(looks) < 4:
            raise OSError("unreachable")
        return True

    monkeypatch.setattr(preemption, "has_notice", look)
    announced: List[int] = []
    with caplog.at_level(logging.WARNING), NoticeWatcher("aws", lambda: announced.append(1)):
        wait_until(lambda: announced)
    assert looks == ["aws"] * 4 and announced == [1]
    (record,) = caplog.records
    assert record.getMessage().startswith("cluster.notice=aws cannot be read (unreachable)")


@pytest.mark.parametrize("source, period_s", [("aws", 5.0), ("http://localhost/a", 5.0), ("/run/ending", 1.0)])
def test_a_file_is_polled_more_often_than_a_service(source: str, period_s: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(preemption, "has_notice", lambda source: False)
    waits: List[float] = []
    watcher = NoticeWatcher(source, lambda: None)
    watcher._ended = SimpleNamespace(wait=lambda seconds: waits.append(seconds) or True)  # type: ignore[assignment]
    watcher._watch()
    assert waits == [period_s]


def test_a_watcher_ends_with_its_run(tmp_path: Path) -> None:
    with NoticeWatcher(str(tmp_path / "ending"), lambda: None) as watcher:
        pass
    assert watcher._thread is not None and not watcher._thread.is_alive()


def test_a_notice_stops_as_a_warning_does(tmp_path: Path) -> None:
    (tmp_path / "ending").touch()
    with SignalStop(notice=str(tmp_path / "ending")) as signals:
        wait_until(lambda: signals.stop)
        assert signals.stop == Stop("interrupted", 75, "notice of preemption received")
        assert was_told_to_end(75, signals.stop.cause)
    with SignalStop(stops_when_warned=False, notice=str(tmp_path / "ending")) as signals:
        wait_until(signals.take_save_request)
        assert signals.stop is None


def test_a_notice_is_seen_outside_of_the_main_thread(tmp_path: Path) -> None:
    (tmp_path / "ending").touch()
    stops: List[object] = []

    def train() -> None:
        with SignalStop(notice=str(tmp_path / "ending")) as signals:
            wait_until(lambda: signals.stop)
            stops.append(signals.stop)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert stops == [Stop("interrupted", 75, "notice of preemption received")]


@pytest.mark.parametrize("source", ["aws", "gcp", "/run/ending", "./ending", "http://127.0.0.1/x"])
def test_allowed_sources(source: str) -> None:
    assert unsupported_notice_reason(source) == "" and Cluster(notice=source).unsupported_reason() == ""


@pytest.mark.parametrize("source, near", [("gpc", "gcp"), ("ending", ""), ("htp://host/ending", "")])
def test_a_misspelt_source_is_refused(source: str, near: str) -> None:
    reason = Cluster(notice=source).unsupported_reason()
    assert reason.startswith(f"cluster.notice={source}: allowed are aws, gcp, ") and f"'{near}'" in f"{reason}''"


class Announcing(Callback):
    """Creates the file of the notice after step 20, and waits until it was seen."""

    path: ClassVar[str] = ""

    def on_steps(self, rows: Any, progress: Any) -> None:
        if progress.step >= 20 and Announcing.path:
            Path(Announcing.path).touch()
            Announcing.path = ""
            wait_until(lambda: not any(thread.name == "mxtrain-notice" for thread in threading.enumerate()))


@pytest.mark.slow
def test_a_run_saves_and_ends_and_the_same_command_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "FILE_PERIOD_S", 0.05)
    words = (*SMALL, "trainer.max_epochs=4", "early_stopping=off", "checkpoint.every_epochs=1000")
    words = (*words, f"cluster.notice={tmp_path}/ending", "+callback.own._target_=test_preemption.Announcing")
    train_here(tmp_path / "unbroken", *words)
    Announcing.path = f"{tmp_path}/ending"
    train_here(tmp_path / "run", *words, exit_code=75)
    ended = status(tmp_path / "run")
    assert (ended["state"], ended["cause"]) == ("interrupted", "notice of preemption received")
    assert 20 <= ended["step"] < 52 and checkpoints(tmp_path / "run")[-1] == f"step-{ended['step']:08d}"
    (tmp_path / "ending").unlink()
    train_here(tmp_path / "run", *words)
    assert_same(tmp_path / "run", tmp_path / "unbroken")


@pytest.mark.slow
def test_both_workers_of_a_run_end_after_the_same_step(tmp_path: Path) -> None:
    workers = ("kvstore=dist_sync", "cluster.workers=2", f"cluster.notice={tmp_path}/ending")
    run = Process(tmp_path / "run", *SMALL, "trainer.max_epochs=5000", "early_stopping=off", *workers)
    run.wait_until(has_steps(tmp_path / "run", 5))
    (tmp_path / "ending").touch()
    run.end(75)
    ended = status(tmp_path / "run")
    assert ended["state"] == "interrupted" and "notice of preemption received" in ended["cause"]
    assert checkpoints(tmp_path / "run")[-1] == f"step-{ended['step']:08d}"
