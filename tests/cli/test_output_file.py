"""The file that a command writes its results to."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mxtrain.cli.output_file import open_output_file


def write(path):
    with open_output_file(str(path)) as stream:
        stream.write("\u00fc\n")


def test_it_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "out.jsonl"
    with pytest.raises(KeyError), open_output_file(str(path)) as stream:
        stream.write("half")
        raise KeyError
    assert os.listdir(path.parent) == []
    write(path)
    assert path.read_text("utf-8") == "\u00fc\n" and os.listdir(path.parent) == ["out.jsonl"]


def test_a_full_disk_is_named(tmp_path):
    with pytest.raises(OSError) as caught, open_output_file(str(tmp_path / "out.csv")) as stream:
        os.dup2(os.open("/dev/full", os.O_WRONLY), stream.fileno())
        stream.write("half")
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "out.csv")
    assert os.listdir(tmp_path) == []


def test_a_device_and_a_pipe_stay_what_they_are(tmp_path, device):
    write(device)
    assert device.is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text("utf-8")))
    reader.start()
    write(pipe)
    reader.join()
    assert found == ["\u00fc\n"] and pipe.is_fifo() and sorted(os.listdir(tmp_path)) == ["null", "pipe"]


def test_standard_output_may_be_named_though_it_is_a_file(tmp_path):
    code = "from mxtrain.cli.output_file import open_output_file as o\nwith o('/dev/stdout') as s: s.write('text')"
    before = os.readlink("/dev/stdout")
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, cwd=Path(__file__).parents[2])
    assert (tmp_path / "out").read_text() == "text" and os.readlink("/dev/stdout") == before
