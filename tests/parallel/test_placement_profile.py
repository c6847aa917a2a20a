"""Profiles are read as they were written; other files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from mxtrain.errors import DataError
from mxtrain.parallel.placement import Placement
from mxtrain.parallel.placement_profile import PlacementProfile, Probe, parse_profile, read_profile

MEASURED = Probe(Placement(), 2, "", 1e8, 8, ((4, 0.1), (8, 0.2)), 0.3, 0.2, 2e8, (0.2,), 1e6)
REFUSED = Probe(Placement(stages=2, microbatches=4), 1, "it cannot be cut")
PROFILE = PlacementProfile("hash", ["model=mlp"], 8, 100, "cpu", 2, 1e9, "a processor", [MEASURED, REFUSED])


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_json()))
    assert read_profile(path) == PROFILE


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda one: one.update(format=1), "its format is 1, and this version reads 3"),
        (lambda one: one.update(cores=0), "'cores' is 0, and must be above 0"),
        (lambda one: one.pop("words"), "'words' is missing"),
        (lambda one: one["probes"][0].update(step_s=0.0), r"'probes\[0\]' has a step of 0 seconds"),
        (lambda one: one["probes"][1]["placement"].update(stages=0), r"'probes\[1\].placement' has a number below 1"),
        (lambda one: one["probes"][0]["passes"].clear(), r"'probes\[0\].passes' must not be empty"),
        (lambda one: one["probes"][0]["passes"].reverse(), r"'probes\[0\].passes' must have rising"),
        (lambda one: one["probes"][0]["passes"][0].update(seconds=-1.0), "values above 0"),
    ],
    ids=["format", "cores", "missing", "step", "axis", "empty", "order", "negative"],
)
def test_other_content_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    content: Dict[str, Any] = json.loads(json.dumps(PROFILE.to_json()))
    change(content)
    with pytest.raises(ValueError, match=message):
        parse_profile(content)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="is no profile of `mxtrain plan`"):
        read_profile(path)


def test_files_that_are_no_json_and_missing_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.json: the profile cannot be read"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(DataError, match="text.json is not JSON"):
        read_profile(tmp_path / "text.json")


def test_probes_are_found_by_axes() -> None:
    assert PROFILE.find(Placement(replicas=4)) is MEASURED
    assert PROFILE.find(Placement(), stages=2, microbatches=4) is REFUSED
    assert PROFILE.find(Placement(precision="bfloat16")) is PROFILE.find(Placement(recompute="auto")) is None
    assert PROFILE.find(Placement(), stages=2) is PROFILE.find(Placement(), accumulation=2) is None
    assert PROFILE.num_devices == 2
    assert PROFILE.threads_of(4) == 1
