"""Pages in headless Chromium, through its DevTools protocol over a pipe: no package and no port is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Iterator, List, Optional, Type

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A Chromium with one page.

    Args:
        folder: for its profile. Processes of Chromium write to it for a moment after the last page is closed.
        width, height: of the page, in pixels.

    Attributes:
        requests: addresses that pages asked for.
        errors: messages of exceptions in scripts of pages.
    """

    def __init__(self, folder: Path, width: int = 1280, height: int = 900):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', str(CHROMIUM), *options],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._stream = os.fdopen(self._answers, "rb")
        self._number, self._rest, self._session = 0, b"", ""
        self.requests: List[str] = []
        self.errors: List[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stream.close()
        os.close(self._commands)

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the page."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, address: str) -> None:
        """Shows an address, and waits until it is loaded."""
        self._call("Page.navigate", url="about:blank")  # else a page's old state would count
        self._call("Page.navigate", url=address)
        self.wait("location.href != 'about:blank' && document.readyState == 'complete'")

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    def wait(self, script: str, timeout_s: float = 60) -> Any:
        """Evaluates an expression until it is true, and returns its value."""
        end = time.monotonic() + timeout_s
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {timeout_s} s: {script}")
            time.sleep(0.1)
        return value

    def screenshot(self, file: Path, whole: bool = False) -> None:
        """Writes a PNG of what is visible, or of the whole page."""
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> Dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            elif message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"]))

    def _receive(self) -> Dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._stream.read1(1 << 16)  # type: ignore[attr-defined]
            if not part:
                raise RuntimeError(f"Chromium ended with exit code {self._process.wait()}")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt install chromium")
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
