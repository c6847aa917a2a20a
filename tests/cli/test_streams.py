"""Standard output that is closed, full or not read stops nothing; what had to be printed and was not is an error."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from mxtrain.cli.predict import open_output
from mxtrain.errors import ConfigError
from mxtrain.terminal.patient_stream import PatientStream, output_failure, patient_streams


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.slow
@pytest.mark.parametrize(
    "stdout, arguments, exit_code",
    [
        pytest.param(">&-", "--help", 0, marks=pytest.mark.zoo),
        (">/dev/full", "--help", 2),
        pytest.param(">/dev/full", "explain optimizer.lr", 2, marks=pytest.mark.zoo),
        pytest.param(">&-", "trainer.max_epochs=x", 2, marks=pytest.mark.zoo),
        ("2>&-", "trainer.max_epochs=x", 2),
        ("| true", "--help", 0),
    ],
)
def test_closed_or_full_output_ends_the_command_cleanly(tmp_path, stdout: str, arguments: str, exit_code: int) -> None:
    command = f'set -o pipefail; "{sys.executable}" -m mxtrain {arguments} {stdout}'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert ("standard output cannot be written: No space left" in done.stderr) == ("full" in stdout)


def test_failed_writes_are_remembered_and_a_closed_pipe_is_no_failure() -> None:
    stream = PatientStream(Full())
    assert output_failure(stream) is None
    stream.write("x")
    assert "No space left on device" in (output_failure(stream) or "")
    stream.failure = BrokenPipeError()
    assert output_failure(stream) is None


def test_undecodable_file_name_is_printed_readably() -> None:
    raw = io.BytesIO()
    PatientStream(text := io.TextIOWrapper(raw, encoding="utf-8")).write("a\udcffb")
    text.flush()
    assert raw.getvalue() == rb"a\udcffb"


def test_predictions_are_utf8_for_any_terminal(monkeypatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", terminal := io.TextIOWrapper(raw, encoding="latin-1"))
    with patient_streams(), open_output(None) as stream:
        stream.write("é 猫")
    terminal.flush()
    assert raw.getvalue().decode("utf-8") == "é 猫"


def test_predictions_without_output_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", PatientStream(io.StringIO(), is_closed=True))
    with pytest.raises(ConfigError, match="output=FILE"), open_output(None):
        pass
