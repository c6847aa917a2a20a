from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from mxtrain.files.durable import replace_file, write_json_atomic


def test_json_is_replaced_and_has_no_infinities(tmp_path):
    path = tmp_path / "status.json"
    value = {
        "a": math.nan,
        "b": [math.inf, 1.5, (-math.inf,)],
        "c": np.float32(0.5),
        "d": np.float64("nan"),
        "e": Path("x"),
    }
    write_json_atomic(path, {"old": 1})
    write_json_atomic(path, value, durable=False)
    assert json.loads(path.read_text()) == {"a": None, "b": [None, 1.5, [None]], "c": 0.5, "d": None, "e": "x"}
    with pytest.raises(TypeError):
        write_json_atomic(path, {"x": object()})
    assert json.loads(path.read_text())["c"] == 0.5 and os.listdir(tmp_path) == ["status.json"]


@pytest.mark.slow
def test_json_is_replaced_atomically_for_readers(tmp_path):
    path = tmp_path / "status.json"
    write_json_atomic(path, {"n": 0, "text": ""})

    def write(start: int) -> None:
        for n in range(start, start + 100):
            write_json_atomic(path, {"n": n, "text": "x" * n}, durable=False)

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 1000)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        value = json.loads(path.read_text())
        assert len(value["text"]) == value["n"]
    assert os.listdir(tmp_path) == ["status.json"]


def test_device_file_is_written_and_not_replaced(tmp_path, device):
    replace_file(device, b"text")
    assert device.is_char_device() and os.listdir(tmp_path) == [device.name]
    link = tmp_path / "link"
    link.symlink_to(device)
    replace_file(link, b"text")
    assert link.read_bytes() == b"text" and not link.is_symlink() and device.is_char_device()
