"""scripts/fuzz files: inputs are valid before they are damaged, a seed gives the same cases, and faults are noticed."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from fuzz_parts import files
from fuzz_parts.file_damage import CONTENTS, damage
from fuzz_parts.file_formats import FORMATS

NAMES = files.available(list(FORMATS))


@pytest.mark.parametrize("name", NAMES)
def test_undamaged_input_is_read(name, tmp_path, own_cache):
    if name.startswith("sentencepiece"):
        pytest.importorskip("sentencepiece")
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


FIND_A_FAULT = """
import os, sys, time
from pathlib import Path
from fuzz_parts import files
from fuzz_parts.file_formats import FORMATS
from mxtrain.errors import DataError

def raises(error):
    raise error

FAULTS = {
    "none": lambda: None,
    "refused": lambda: raises(DataError("no")),
    "KeyError": lambda: raises(KeyError("runtime")),
    "OSError": lambda: raises(OSError(5, "no file named")),
    "abort": os.abort,
    "hang": lambda: time.sleep(60),
    "memory": lambda: b"x" * (300 << 20),
}
files.TIMEOUT_S, files.MAX_GROWTH = 2.0, 100 << 20
FORMATS["other"] = lambda folder: lambda: None
for name, read in FAULTS.items():
    FORMATS[name] = lambda folder: read
    work = Path(sys.argv[1], name)
    work.mkdir()
    first, second = files.run_cases(0, [0, 1], [name, "other"], work)
    assert (first.number, second.number, second.wrong) == (0, 1, ""), second
    print(name, first.wrong.replace(chr(10), " "), sep=":")
"""


@pytest.mark.slow
def test_fault_is_noticed_and_the_next_case_is_read(tmp_path):
    """In a process of its own, as scripts/fuzz is: the kernel refuses a copy of one that ran a thousand tests."""
    done = run_in_own_process("-c", FIND_A_FAULT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    wrong = dict(line.split(":", 1) for line in done.stdout.splitlines())
    expected = {
        "none": "",
        "refused": "",
        "KeyError": "KeyError",
        "OSError": "OSError",
        "abort": "ends the process",
        "hang": "still reading",
        "memory": "takes",
    }
    assert wrong.keys() == expected.keys()
    for name, part in expected.items():
        assert (part in wrong[name]) if part else not wrong[name], (name, wrong[name])


def run_in_own_process(*arguments):
    folder = Path(files.__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder.parent}"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_damaged_files_are_read_or_refused():
    """In a process of its own, which imports no MXNet before it forks."""
    done = run_in_own_process("-m", "fuzz_parts.files", "--cases", "80", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
