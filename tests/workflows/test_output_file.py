"""The file that a command writes its results to."""

import errno
import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from mxtrain.cli.dispatch import run
from mxtrain.errors import CheckpointError, ConfigError, DataError, describe_unexpected
from mxtrain.workflows import average
from mxtrain.workflows.output_file import check_output_file, check_output_folder, open_output_file, require_writable

NO_SPACE = "No space left on device. Free some space, then repeat the same command."
FULL = f"cannot be written: {NO_SPACE}"


def write(path):
    with open_output_file(str(path)) as stream:
        stream.write("\u00fc\n")


def test_output_file_is_created_when_complete(tmp_path):
    path = tmp_path / "new" / "folder" / "out.jsonl"
    with pytest.raises(KeyError), open_output_file(str(path)) as stream:
        stream.write("half")
        raise KeyError
    assert os.listdir(path.parent) == []
    write(path)
    assert path.read_text("utf-8") == "\u00fc\n" and os.listdir(path.parent) == ["out.jsonl"]


def test_a_full_disk_is_named(tmp_path):
    with (
        pytest.raises(DataError, match=f"^'{tmp_path}/out.csv' {FULL}$"),
        open_output_file(f"{tmp_path}/out.csv") as file,
    ):
        os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        file.write("half")
    assert os.listdir(tmp_path) == []
    with pytest.raises(DataError, match=f"^'/dev/full' {FULL}$"):
        write("/dev/full")


def test_errors_of_files_that_are_read_keep_their_class(tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device", "/elsewhere")
    for other in (error, OSError(errno.EIO, "Input/output error")):
        with pytest.raises(OSError) as caught, open_output_file(str(tmp_path / "out.csv")):
            raise other
        assert caught.value is other


def test_a_file_that_cannot_take_its_name_is_named(tmp_path):
    path = tmp_path / "out.csv"
    with pytest.raises(DataError, match=f"^'{path}' cannot be written: Is a directory.$"), open_output_file(str(path)):
        path.mkdir()
    assert os.listdir(tmp_path) == ["out.csv"]


def test_the_limit_of_the_size_of_files_is_named(tmp_path, capsys):
    """The kernel also sends SIGXFSZ, which Python ignores."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with pytest.raises(DataError) as caught, open_output_file(str(tmp_path / "out.csv")) as stream:
            stream.write("x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    remedy = "Raise the limit (`ulimit -f`), or write to another file system."
    assert str(caught.value) == f"'{tmp_path / 'out.csv'}' cannot be written: File too large. {remedy}"
    assert os.listdir(tmp_path) == []
    error = OSError(errno.EFBIG, "File too large", "log.txt")  # of another file
    assert describe_unexpected(error) == f"File too large (log.txt). {remedy}" and not capsys.readouterr().err


def test_a_full_disk_is_named_for_a_checkpoint(tmp_path, monkeypatch):
    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(average, "last_checkpoints", lambda run_dir, count: [SimpleNamespace(state={})])
    monkeypatch.setattr(average, "write_average", fill)
    with pytest.raises(CheckpointError, match=f"^The average cannot be written to {tmp_path}/averaged: {NO_SPACE}$"):
        average.average_last(tmp_path, 2, None, None)


def test_devices_and_pipes_are_written_in_place(tmp_path, device):
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
    code = (
        "from mxtrain.workflows.output_file import open_output_file as o\nwith o('/dev/stdout') as s: s.write('text')"
    )
    before = os.readlink("/dev/stdout")
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, cwd=Path(__file__).parents[2])
    assert (tmp_path / "out").read_text() == "text" and os.readlink("/dev/stdout") == before


@pytest.mark.parametrize(
    "command, name, said",
    [
        ("data check", "file/x.jsonl", "data.output=.*file/x.jsonl: should be in a folder, and '.*file' is none"),
        ("data check", "folder", "data.output=.*folder: should be a file, and this is a folder: name a file in it"),
        ("verify", "file/x.json", "verify.output=.*file/x.json: should be in a folder, and '.*file' is none"),
        ("verify", "folder", "verify.output=.*folder: should be a file, and this is a folder"),
        ("predict run sample=1", "file/x.jsonl", "predict.output=.*: should be in a folder"),
        ("predict run sample=1", "folder", "predict.output=.*: should be a file"),
        ("eval run", "file/x", "eval.output=.*file/x: should be in a folder"),
        ("eval run", "file", "eval.output=.*file: should be a folder, and this is a file"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(command, name, said, tmp_path, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert run([*command.split(), f"output={tmp_path / name}"]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and not os.listdir(tmp_path / "folder")


def test_places_that_can_be_written():
    for name in ("/dev/stdout", "new/folder/x.csv", "x.csv"):
        assert check_output_file(name) == name
    assert check_output_folder("new/folder") == "new/folder"


def test_a_folder_that_no_setting_names(tmp_path):
    """The folder may belong to a run that the user may only read."""
    assert require_writable(tmp_path / "eval", "output") == tmp_path / "eval"
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match=r"the results go to .*/run/eval: .*Name another place with output=FOLDER"):
        require_writable(tmp_path / "run" / "eval", "output")
