"""`score`: a preset is trained and compared with its YAML file, and says what it needs before anything starts."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from mxtrain.archive.score import Score, read_score, refuse_unmeasured
from mxtrain.cli import main
from mxtrain.cluster.launch.scored import find_score, scores_of
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.errors import ConfigError
from mxtrain.workflows.score import ScoreResult, read_value

ROOT = Path(__file__).resolve().parents[2]
PRESETS = sorted((ROOT / "conf/experiment").glob("*.yaml"))
SCORES = {file.stem: read_score(file) for file in PRESETS}
OFFLINE = [name for name, score in SCORES.items() if score is not None and not score.needs]
CHEAP = "breast_cancer"


def test_page_is_generated_from_the_presets() -> None:
    page = runpy.run_path(str(ROOT / "scripts/scores"))["text"]()
    assert (ROOT / "docs/reference/scores.md").read_text(encoding="utf-8") == page, "scripts/scores writes it anew"
    assert all((f"| `{name}` |" in page) == (score is not None) for name, score in SCORES.items())


def test_a_preset_without_a_score_is_answered_by_those_with_one() -> None:
    scored = [name for name, score in SCORES.items() if score is not None]
    with Composer() as composer:
        assert list(scores_of(composer)) == scored
        with pytest.raises(ConfigError, match="experiment=fine_tune has no score") as error:
            find_score(["fine_tune"], composer)
    assert str(error.value).endswith(f"Presets with a score: {', '.join(scored)}.")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [CHEAP, *(pytest.param(name, marks=pytest.mark.zoo) for name in OFFLINE if name != CHEAP)]
)
def test_offline_presets_reach_their_scores(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["score", name, f"dir={tmp_path}/run"]) == 0
    score = SCORES[name]
    assert score is not None
    measured = json.loads((tmp_path / "run/status.json").read_text())["metrics"][score.metric]
    assert abs(measured - score.value) <= score.tolerance
    out = capfd.readouterr().out
    assert f"{name}: {score.metric} {measured:.6g}, in its YAML file" in out and "the score was reached" in out


@pytest.mark.zoo
@pytest.mark.parametrize("name", [name for name, score in SCORES.items() if score is not None])
def test_presets_measure_their_scores(name: str) -> None:
    score = SCORES[name]
    assert score is not None
    with Composer() as composer:
        words = [f"experiment={name}", *(f"{key}=x" for key in score.needs)]
        refuse_unmeasured(name, score, compose_and_check(composer, words)[1])
        assert "score" not in composer.compose(words).tree


@pytest.mark.slow
def test_needs_are_reported_before_anything_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["score", "cifar10_resnet20"]) == 2
    assert "experiment=cifar10_resnet20 needs dataset.root: the folder of CIFAR-10" in capfd.readouterr().err
    assert main(["score", "cifar10_resnet20", "dataset.root=nowhere"]) == 2
    assert "nowhere" in capfd.readouterr().err
    assert main(["score", "digits_lenett"]) == 2
    assert "Did you mean 'digits_lenet'?" in capfd.readouterr().err
    assert main(["score", "fine_tune"]) == 2
    assert "has no score" in capfd.readouterr().err
    assert main(["score", "digits_lenet", "score.value=0"]) == 2
    assert "score" in capfd.readouterr().err
    assert main(["score", "digits_lenet", "trainer.test=false"]) == 2
    assert "leave out trainer.test=false" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "direction, value, code",
    [("max", 0.89, 0), ("max", 0.88, 1), ("max", 2.0, 0), ("min", 0.91, 0), ("min", 0.92, 1), ("min", 0.1, 0)],
)
def test_only_worse_values_fail(tmp_path: Path, direction: str, value: float, code: int) -> None:
    score = Score(metric="test/x", value=0.9, tolerance=0.011, source="measured")
    (tmp_path / "status.json").write_text(json.dumps({"metrics": {"test/x": value}, "best": None}))
    result = ScoreResult("mine", score, tmp_path, 0, "", direction, read_value(tmp_path, "test/x"))
    assert result.reached == (code == 0)
    assert ("the score was reached" in str(result)) == result.reached


@pytest.mark.slow
def test_own_score_file_is_checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment/mine.yaml"
    score = "score:\n  metric: test/accuracy\n  value: high\n  tolerance: 0.1\n  source: me\n"
    file.write_text(f"# @package _global_\n{score}")
    with pytest.raises(ConfigError, match="score.value=high"):
        read_score(file)
    assert main(["score", "mine", "--config-dir", str(tmp_path)]) == 2
    assert "score.value=high" in capfd.readouterr().err
    with Composer([str(tmp_path)]) as composer:  # for training it does not count
        assert "score" not in composer.compose(["experiment=mine"]).tree
