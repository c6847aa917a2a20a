"""scripts/fuzz: the same seed gives the same lines, every group is reached, and each kind of bad end is noticed."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from fuzz_parts import child
from fuzz_parts.case import Case
from fuzz_parts.judge import judge
from fuzz_parts.lines import KINDS, draw
from fuzz_parts.sandbox import HERE
from fuzz_parts.surface import read_surface


@pytest.fixture(scope="module")
def surface():
    return read_surface()


@pytest.mark.slow
def test_a_number_and_a_seed_give_one_line(surface):
    lines = [draw(1, number, surface) for number in range(300)]
    assert lines == [draw(1, number, surface) for number in range(300)]
    assert len({line.shown() for line in lines}) > 280
    assert lines[0] != draw(2, 0, surface)


def test_a_thousand_lines_reach_every_group_and_kind(surface):
    cases = [draw(1, number, surface) for number in range(1000)]
    assert set(Counter(case.kind for case in cases)) == set(KINDS)
    words = " ".join(" ".join(case.arguments) for case in cases)
    for group, options in surface.options.items():
        assert any(f"{group}={option}" in words or f"{group}=[{option}]" in words for option in options), group
    assert "logger.csv.file_name=" in words and "optimizer.lr=" in words


def test_settings_are_read_with_the_package_of_their_file(surface):
    assert {"logger.csv.file_name", "logger.csv._target_"} == {s.path for s in surface.settings["logger", "csv"]}
    choices = {s.path: s.choices for s in surface.settings["parallel", "pipeline"]}
    assert set(choices["parallel.schedule"]) == {"1f1b", "gpipe"}


SAME = {"a": "1"}


@pytest.mark.parametrize(
    "exit_code, timed_out, output, after, left, wrong",
    [
        (0, False, "", {**SAME, "outputs": ""}, [], ""),
        (2, False, "error: no", SAME, [], ""),
        (75, False, "", SAME, [], ""),
        (1, False, "", SAME, [], "exit code 1"),
        (2, False, "error: no", {**SAME, "outputs": ""}, [], "left after exit code 2: outputs"),
        (2, False, "error: no", {}, [], "removed after exit code 2: a"),
        (2, False, "error: no", {"a": "2"}, [], "changed after exit code 2: a"),
        (2, False, "", SAME, [], "without a sentence"),
        (0, False, "Traceback (most recent call last)", SAME, [], "prints 'Traceback"),
        (-6, False, "", SAME, [], "SIGABRT"),
        (-9, True, "", SAME, [], "still running"),
        (0, False, "", SAME, [17], "1 processes left"),
    ],
)
def test_judgement_of_outputs(exit_code, timed_out, output, after, left, wrong):
    found = judge(Case(0, "x", [], {}), exit_code, timed_out, output, SAME, after, left)
    assert (wrong in found[0] and len(found) == 1) if wrong else found == []


RUN_A_CASE = """
import sys
from pathlib import Path
from fuzz_parts import child
from fuzz_parts.case import Case
from fuzz_parts.loop import run_cases

folder = Path(sys.argv[1])
child.preload()
(found,) = run_cases([Case(3, "x", ["optimizer=sgdd"], {})], folder / "template", folder, folder, 1)
assert found.exit_code == 2 and "Did you mean 'sgd'" in found.output and not found.wrong, found
assert not (folder / "case-3").exists()
"""


@pytest.mark.slow
def test_a_case_runs_in_a_copy_of_its_own(tmp_path):
    """Two seconds. In a process of its own, as scripts/fuzz is: a case is a fork, ends as a program does, and has a
    limit of address space, which a process that ran other tests before has long passed."""
    (tmp_path / "template" / HERE).mkdir(parents=True)
    path = os.pathsep.join([str(child.ROOT / "scripts"), str(child.ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", RUN_A_CASE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
