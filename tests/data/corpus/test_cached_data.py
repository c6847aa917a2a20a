"""Cached data are listed with their sizes and removed by key, by age or all together."""

from __future__ import annotations

import fcntl
import os
import time

import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.data.corpus.cached_data import UNFINISHED, data_cache_folder, list_cached_data, remove_cached_data
from mxtrain.data.corpus.preparing import prepare
from mxtrain.data.corpus.shards import ArrayForm
from mxtrain.errors import ConfigError

pytestmark = pytest.mark.usefixtures("own_cache")


def prepare_numbers(count):
    def write(writer, advance):
        writer.append(count, {"x": np.zeros(count)})
        return {}

    return prepare("test", count, {"x": ArrayForm("int8")}, write, what=f"{count} numbers").folder


def test_cached_data_are_listed_and_removed(capsys):
    small, large = prepare_numbers(10), prepare_numbers(3_000_000)
    os.utime(small, (time.time() - 86400 * 40,) * 2)
    (data_cache_folder() / "dead.part").mkdir()
    kept = list_cached_data()
    assert [one.what for one in kept] == ["3000000 numbers", "10 numbers", UNFINISHED]
    assert kept[0].num_bytes > 3e6 and round(kept[1].unused_days) == 40
    assert run(["data", "cache"]) == 0
    shown = capsys.readouterr().out
    assert f"3 MB of prepared data in {data_cache_folder()}" in shown and large.name in shown
    with pytest.raises(ConfigError, match=f"remove={large.name[:-1]}x: .*Did you mean '{large.name}'"):
        remove_cached_data(large.name[:-1] + "x")
    assert [one.key for one in remove_cached_data("30d")] == [small.name] and not small.exists() and large.exists()
    assert run(["data", "cache", "remove=all"]) == 0
    assert "3 MB of prepared data removed from" in capsys.readouterr().out
    assert not [path for path in data_cache_folder().iterdir() if path.is_dir()]
    assert run(["data", "cache", "remove=all"]) == 0


def test_entries_in_preparation_are_not_removed():
    folder = prepare_numbers(10)
    with open(data_cache_folder() / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_cached_data("all") == [] and folder.exists()


@pytest.mark.parametrize("words", [["cache", "dataset=text"], ["cache", "ignore=x"], ["check", "remove=all"]])
def test_settings_of_the_other(words, capsys):
    assert run(["data", *words]) == 2
    assert "data cache" in capsys.readouterr().err
