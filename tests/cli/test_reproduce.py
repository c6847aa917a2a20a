"""`reproduce`: the same bits when everything is equal, and what is said before the start when something is not."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import pytest
from running import assert_same, image, rows, status, train_here
from tiers import rest_in_zoo

from mxtrain.archive import provenance
from mxtrain.archive.compare import compare_results
from mxtrain.archive.meta import RecordedRun
from mxtrain.archive.provenance import git_state
from mxtrain.cli import main
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.recorded import overrides_of
from mxtrain.workflows.reproduce import Conditions, ReproduceResult

SMALL = ("model=mlp", "model.hidden=[8]", "model.dropout=0.2", "trainer.max_epochs=2")
TABLE = "".join(f"{n % 7},{(n * n) % 11},{n % 3}\n" for n in range(60))


def reproduce(*arguments: object) -> int:
    return main(["reproduce", *map(str, arguments)])


def train_table(folder: Path, run_dir: Path, *overrides: str) -> None:
    (folder / "table.csv").write_text("a,b,target\n" + TABLE)
    train_here(
        run_dir,
        "dataset=number_table",
        f"dataset.train={folder}/table.csv",
        "trainer.max_epochs=1",
        "dataset.target=target",
        *overrides,
    )


def change_meta(run_dir: Path, change: Any) -> None:
    meta = json.loads((run_dir / "meta.json").read_text())
    change(meta)
    (run_dir / "meta.json").write_text(json.dumps(meta))


@pytest.mark.slow
def test_same_bits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train_here(tmp_path / "run", *SMALL)
    assert reproduce(tmp_path / "run", f"dir={tmp_path}/again", "strict=true") == 0
    out = capfd.readouterr().out
    assert_same(tmp_path / "again", tmp_path / "run")
    assert "settings, versions, code, data and machine are those of" in out
    assert f"all {len(rows(tmp_path / 'run'))} rows of metrics.jsonl are equal to the bit" in out


@pytest.mark.slow
def test_a_pruned_trial_is_compared_with_an_interrupted_run(finished: Path, tmp_path: Path) -> None:
    for name in ("pruned", "interrupted", "finished"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metrics.jsonl").write_bytes((finished / "metrics.jsonl").read_bytes())
        (folder / "status.json").write_text(json.dumps({**status(finished), "state": name}))
    assert compare_results(tmp_path / "pruned", tmp_path / "interrupted").same
    assert not compare_results(tmp_path / "pruned", tmp_path / "finished").same


@pytest.mark.parametrize("change", [{"step": 1}, {"weights_sha256": None}])
def test_equal_rows_need_equal_final_values_and_weights(
    finished: Path, tmp_path: Path, change: Dict[str, object]
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes((finished / "metrics.jsonl").read_bytes())
    (tmp_path / "status.json").write_text(json.dumps({**status(finished), **change}))
    compared = compare_results(finished, tmp_path)
    assert not compared.same and [one.name for one in compared.differences] == list(change)
    # Without weights, nothing proves that the two runs have the same result.
    assert compare_results(tmp_path, tmp_path).same == ("step" in change)


def test_other_bits_are_another_result(finished: Path, tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "status.json"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    assert compare_results(finished, tmp_path).same
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[3])
    lines[3] = json.dumps({**row, "loss": math.nextafter(row["loss"], 9.0), "samples_per_s": 1.0})
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    compared = compare_results(finished, tmp_path)
    assert not compared.same
    where = f"the rows differ from the train row of step {row['step']} on"
    assert compared.lines == [f"{where}; 3 before it are equal to the bit"]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n")
    assert compare_results(finished, tmp_path).lines[0].startswith(f"{where}, which only {finished}/metrics.jsonl has")
    final = status(finished)
    final["metrics"]["train/loss"] *= 1.01
    final["weights_sha256"] = "0" * 64
    (tmp_path / "status.json").write_text(json.dumps(final))
    compared = compare_results(finished, tmp_path)
    assert {one.name for one in compared.differences} == {"weights_sha256", "train/loss"}
    assert compared.largest == pytest.approx(0.01 / 1.01)
    conditions = Conditions(RecordedRun(finished, {}), [])
    results = [ReproduceResult(finished, tmp_path, 0, "", conditions, compared, limit) for limit in (0.001, 0.0, 0.02)]
    assert [result.passed for result in results] == [False, False, True]
    assert "NOT the same result" in str(results[0]) and "within the tolerance" in str(results[2])
    (tmp_path / "status.json").unlink()
    (tmp_path / "metrics.jsonl").write_bytes(b"\x00{")
    assert not compare_results(tmp_path, finished).same and not compare_results(finished, tmp_path).same


@pytest.mark.slow
def test_differences_are_named_before_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train_table(tmp_path, tmp_path / "run")
    content = (tmp_path / "table.csv").read_text()
    (tmp_path / "table.csv").write_text(content.replace("\n3,9,0\n", "\n3,8,0\n", 1))
    assert content != (tmp_path / "table.csv").read_text()

    def older(meta: Dict[str, Any]) -> None:
        meta["packages"]["numpy"], meta["runtime"]["OMP_NUM_THREADS"] = "1.0", "17"

    change_meta(tmp_path / "run", older)
    assert reproduce(tmp_path / "run", f"dir={tmp_path}/again", "strict=true", "optimizer.lr=0.5") == 2
    said = capfd.readouterr()
    lines = [line.split() for line in said.out.splitlines()]
    assert ["optimizer.lr", "0.001", "0.5"] in lines or any(line[:1] == ["optimizer.lr"] for line in lines)
    assert any(line[:2] == ["packages.numpy", "1.0"] for line in lines)
    assert any(line[:1] == ["data.files.train.sha256"] for line in lines), said.out
    assert "runtime.threads=17" in said.out and "strict=true" in said.err
    assert not (tmp_path / "again").exists()
    # The content of the data is compared, not its path.
    (tmp_path / "table.csv").write_text(content)
    (tmp_path / "moved").mkdir()
    (tmp_path / "table.csv").rename(tmp_path / "moved/table.csv")
    reproduce(tmp_path / "run", f"dir={tmp_path}/again", "strict=true", f"dataset.train={tmp_path}/moved/table.csv")
    assert "data." not in capfd.readouterr().out


@pytest.mark.slow
def test_relative_data_are_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    train_table(Path(), tmp_path / "run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert reproduce("../run", "dir=again") == 0
    assert_same(tmp_path / "elsewhere/again", tmp_path / "run")


DESCRIPTIONS: List[List[str]] = [
    [
        "dataset.augment.flip=true",
        "parallel=hybrid",
        "+runtime.env.MXNET_X=1",
        "dataset.class_weights={1: 2.0}",
        "dataset.sampler=weighted",
        "metric=[accuracy,class_perplexity]",
    ],
    ["task=translation", "metric=[bleu,token_perplexity]", "trainer.ema_decay=0.9"],
    ["task=detection", "callback=accumulation", "callback.accumulation.schedule={0: 1, 3: 2}"],
    ["experiment=glue_mnli", 'dataset.root="a b\'c"'],
    *([f"task={file.stem}"] for file in sorted((Path(__file__).parents[2] / "conf/task").glob("*.yaml"))),
]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", rest_in_zoo(DESCRIPTIONS, DESCRIPTIONS[0]), ids=" ".join)
def test_recorded_arguments_compose_the_same_description(overrides: List[str]) -> None:
    with Composer() as composer:
        composed, description = compose_and_check(composer, overrides)
        choices = {str(group): str(option) for group, option in composed.hydra.runtime.choices.items()}
        again, same = compose_and_check(composer, overrides_of(description.config, choices, composer))
        assert same.config == description.config
        assert again.config["metric"].keys() == composed.config["metric"].keys()


@pytest.mark.parametrize(
    "group, name, value",
    [
        ("model", "_target_", "evil_module.Net"),
        ("model", "name", "${oc.env:HOME}"),
        ("cluster", "python", "/tmp/evil"),
        ("cluster", "launcher_options", ["-x"]),
        ("distillation", "trust_code", True),
        ("runtime", "env", {"LD_A": "x"}),
    ],
)
def test_descriptions_of_unknown_origin_run_no_code(
    tmp_path: Path,
    finished: Path,
    group: str,
    name: str,
    value: object,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "meta.json").write_bytes((finished / "meta.json").read_bytes())
    change_meta(run_dir, lambda meta: meta["description"][group].update({name: value}))
    before = image(run_dir)
    assert reproduce(run_dir, f"dir={tmp_path}/again") == 2
    assert "--trust-code" in capfd.readouterr().err
    assert not (tmp_path / "was_run").exists() and not (tmp_path / "again").exists() and image(run_dir) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train_here(run_dir, *SMALL, "trainer.max_epochs=1")
    return run_dir


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "there is no meta.json"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"description": {"nothing": {}}}', "has the group 'nothing'"),
        ("[" * 100000, "nested deeper"),
        ('{"description": {"model": 3}}', ""),
    ],
)
def test_damaged_meta(
    tmp_path: Path, content: Any, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    if content is not None:
        (tmp_path / "run/meta.json").write_text(content)
    assert reproduce("run", "dir=again") == 2
    error = capfd.readouterr().err
    assert said in error and "Traceback" not in error and not (tmp_path / "again").exists()


@pytest.mark.slow
def test_reproduce_refuses_the_run_directory_itself(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert reproduce(finished, f"dir={finished}") == 2
    assert "is the run that is to be reproduced" in capfd.readouterr().err
    assert reproduce(finished, "dirr=x") == 2
    assert "dirr" in capfd.readouterr().err


def test_git_diff_is_kept_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=b", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert git_state(str(tmp_path)) is None
    git("init", "-q")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = git_state(str(tmp_path))
    assert clean is not None and clean["dirty"] is False and clean["diff"] == ""
    (tmp_path / "a.py").write_text("x = 2\n")
    (tmp_path / "b.py").write_text("x = 3\n" * 1000)
    small = git_state(str(tmp_path), "a.py")
    assert small is not None and small["diff"] == git("diff", "HEAD", "--", "a.py")
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", 100)
    large = git_state(str(tmp_path))
    whole = git("diff", "HEAD")
    assert large is not None and large["diff"] == whole[:100] and large["diff_bytes"] == len(whole)
    (tmp_path / "b.py").write_text("x = 3\n" * 999 + "x = 4\n")  # beyond what is kept
    assert git_state(str(tmp_path))["diff_sha256"] != large["diff_sha256"]  # type: ignore[index]
