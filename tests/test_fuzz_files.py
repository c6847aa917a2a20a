"""scripts/fuzz files: inputs are valid before they are damaged, a seed gives the same cases, and faults are noticed."""

import os
import sys
import time
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from fuzz_parts import files
from fuzz_parts.file_damage import CONTENTS, damage
from fuzz_parts.file_formats import FORMATS

from mxtrain.errors import DataError

NAMES = files.available(list(FORMATS))


@pytest.mark.parametrize("name", NAMES)
def test_undamaged_input_is_read(name, tmp_path, own_cache):
    if name.startswith("sentencepiece"):
        pytest.importorskip("sentencepiece")  # without this, its warnings at import are errors, and it crashes
    FORMATS[name](tmp_path)()


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_same_seed_gives_the_same_damage(tmp_path):
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        FORMATS["squad"](tmp_path / name)
        made.append((damage(tmp_path / name, Random("0 7")), tree(tmp_path / name)))
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", CONTENTS)
def test_every_damage_of_content_changes_a_file(kind):
    content = b'{"a": 1, "b": [2, 3], "c": "x"}\n<e>4</e>\n'
    assert any(CONTENTS[kind](bytearray(content), Random(seed)) != content for seed in range(20))


def hang():
    time.sleep(60)


def raises(error):
    raise error


@pytest.mark.parametrize(
    "read, wrong",
    [
        (lambda: None, ""),
        (lambda: raises(DataError("no")), ""),
        (lambda: raises(KeyError("runtime")), "KeyError"),
        (lambda: raises(OSError(5, "no file named")), "OSError"),
        (lambda: os.abort(), "ends the process"),
        (hang, "still reading"),
        (lambda: b"x" * (300 << 20), "takes"),
    ],
)
def test_fault_is_noticed_and_the_next_case_is_read(monkeypatch, tmp_path, read, wrong):
    """In forks of this process; nothing in them starts threads."""
    monkeypatch.setattr(files, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(files, "MOST_GROWTH", 100 << 20)
    monkeypatch.setattr(files, "MEMORY", 1 << 46)
    monkeypatch.setitem(FORMATS, "one", lambda folder: read)
    monkeypatch.setitem(FORMATS, "other", lambda folder: lambda: None)
    first, second = files.run_cases(0, [0, 1], ["one", "other"], tmp_path)
    assert (wrong in first.wrong and first.wrong) if wrong else not first.wrong
    assert (first.number, second.number, second.wrong) == (0, 1, "")


@pytest.mark.timeout(120)
def test_damaged_files_are_read_or_refused(capfd):
    """In a process of its own, which imports no MXNet before it forks."""
    import subprocess

    folder = Path(files.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz_parts.files", "--cases", "80", "--seed", "1"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{folder}:{folder.parent}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
