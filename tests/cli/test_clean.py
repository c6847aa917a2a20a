"""`mxtrain clean`: deletes what it lists, only when told, and never what a run still needs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest
from run_directories import size_of, tree, write_checkpoint, write_run

from mxtrain.archive import cleanup
from mxtrain.archive.cleanup import BY_DEFAULT, KINDS, Kept, delete, plan_cleanup
from mxtrain.archive.registry import read_run, read_runs
from mxtrain.checkpoint.run_directory import lock_run_directory
from mxtrain.cli.dispatch import run as main
from mxtrain.files.removal import mount_of, open_folder
from mxtrain.workflows.clean import Cleanup

CHECKPOINTS = {10: 0.5, 20: 0.9, 30: 0.7, 40: 0.6}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run: step 20 is the best, step 40 the last; a killed save has left a part."""
    path = write_run(tmp_path / "runs" / "a", best=0.9, step=40, checkpoints=CHECKPOINTS)
    (path / "checkpoints" / ".tmp-step-00000050-1").mkdir()
    (path / "checkpoints" / ".tmp-step-00000050-1" / "model.params").write_bytes(b"x" * 1000)
    return path


def cleaned(capsys: pytest.CaptureFixture, *arguments: str, code: int = 0) -> Dict[str, Any]:
    assert main(["clean", *arguments, "format=json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_clean_lists_sizes_and_deletes_only_on_request(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    before = tree(run_dir)
    found = cleaned(capsys, str(run_dir.parent))
    names = {os.path.basename(one["path"]): one["size"] for one in found["removable"]}
    assert sorted(names) == [".tmp-step-00000050-1", "step-00000010", "step-00000030"]
    assert names["step-00000010"] == size_of(run_dir / "checkpoints" / "step-00000010")
    assert found["bytes"] == sum(names.values()) and found["deleted"] is False
    for word in ("delete=false", "format=table", "format=lines"):
        assert main(["clean", str(run_dir.parent), word]) == 0
    assert "delete=true deletes it" in capsys.readouterr().err
    assert tree(run_dir) == before

    cleaned(capsys, str(run_dir.parent), "delete=true")
    left = tree(run_dir)
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["step-00000020", "step-00000040"]
    left.pop(".lock")
    assert {name: before[name] for name in left} == left and len(before) == len(left) + 7
    assert cleaned(capsys, str(run_dir.parent))["removable"] == []


def test_only_checkpoint_and_checkpoints_of_unfinished_runs_are_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "single", checkpoints={10: 0.5}, step=10)
    for state, code in (("interrupted", 130), ("interrupted", 75), ("failed", 1), ("running", None), ("damaged", 0)):
        write_run(tmp_path / f"{state}{code}", state=state, exit_code=code, checkpoints=CHECKPOINTS)
    plan = plan_cleanup(read_runs([str(tmp_path)]), BY_DEFAULT)
    assert {os.path.basename(one.run) for one in plan.removable} == {"damaged0"}  # a state of somebody's, exit code 0
    whole = plan_cleanup(read_runs([str(tmp_path)]), ["runs"])
    assert {os.path.basename(one.path) for one in whole.removable} == {"single", "damaged0"}
    every = plan_cleanup(read_runs([str(tmp_path)]), ["runs"], unfinished=True)
    assert len(every.removable) == 6


def test_locked_run_is_kept(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    with lock_run_directory(run_dir):
        before = tree(run_dir)
        found = cleaned(capsys, str(run_dir.parent), "what=runs,checkpoints", "where=best>0", "delete=true")
        assert found["removable"] == [] and found["kept"][0]["reason"] == "it is in use"
        assert tree(run_dir) == before


def test_failed_deletions_are_not_counted(run_dir: Path) -> None:
    run = read_run(str(run_dir))
    plan = plan_cleanup([run], BY_DEFAULT)
    assert Cleanup(plan.removable, [], [], True, [run]).summary().startswith("deleted: 1 ")
    failed = [Kept(plan.removable[0].run, "Read-only file system")]
    found = Cleanup(plan.removable, [], failed, True, [run])
    assert found.summary() == "deleted: nothing; 1 run could not be cleaned"
    assert str(found).endswith("not deleted: " + str(run_dir) + ": Read-only file system")


def test_run_that_starts_after_listing_is_kept(run_dir: Path) -> None:
    plan = plan_cleanup([read_run(str(run_dir))], BY_DEFAULT)
    before = sorted(os.listdir(run_dir / "checkpoints"))
    with lock_run_directory(run_dir):
        assert "in use" in delete(plan)[0].reason
    (run_dir / "status.json").write_text((run_dir / "status.json").read_text().replace("finished", "running"))
    assert [one.reason for one in delete(plan)] == ["it has changed"]
    assert sorted(os.listdir(run_dir / "checkpoints")) == before


def test_damaged_checkpoint_keeps_the_other_checkpoints(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    """Its size is right, so only reading it shows the damage."""
    file = run_dir / "checkpoints" / "step-00000020" / "model.params"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = cleaned(capsys, str(run_dir.parent), "delete=true", code=1)
    assert "step-00000020 cannot be used" in found["failed"][0]["reason"]
    assert len(os.listdir(run_dir / "checkpoints")) == 5


def test_empty_run_is_deleted_unless_it_holds_other_files(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """hydra.run.dir=. makes a folder with somebody's work a run directory."""
    write_run(tmp_path / "empty", state="failed", exit_code=1, best=None, step=0)
    write_run(tmp_path / "work", state="failed", exit_code=1, best=None, step=0)
    (tmp_path / "work" / "thesis.tex").write_text("years")
    write_run(tmp_path / "tried", state="failed", exit_code=1, best=None, step=9, checkpoints={9: 0.1})
    found = cleaned(capsys, str(tmp_path), "delete=true")
    assert [os.path.basename(one["path"]) for one in found["removable"]] == ["empty"]
    assert "thesis.tex" in found["kept"][0]["reason"]
    assert sorted(os.listdir(tmp_path)) == ["tried", "work"]


def test_links_are_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    other = write_run(tmp_path / "other" / "run", checkpoints=CHECKPOINTS)
    planted = write_run(tmp_path / "runs" / "a", checkpoints=None)
    os.symlink(other / "checkpoints", planted / "checkpoints")
    os.symlink(other, planted / "previous")
    os.symlink(other, tmp_path / "runs" / "b")
    linked = write_run(tmp_path / "runs" / "c", checkpoints={40: 0.9})
    os.rename(other / "checkpoints" / "step-00000010", tmp_path / "step")
    os.symlink(tmp_path / "step", linked / "checkpoints" / "step-00000010")
    before = tree(other), tree(tmp_path / "step")
    for kinds in (",".join(KINDS), "runs"):
        cleaned(capsys, str(tmp_path / "runs"), f"what={kinds}", "where=step>=0", "unfinished=true", "delete=true")
    assert (tree(other), tree(tmp_path / "step")) == before


def test_trials_of_a_running_study_are_kept(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    from mxtrain.tuning.file_lock import FileLock

    (run_dir.parent / "study.json").write_text("{}")
    (run_dir.parent / ".claims").mkdir()
    with FileLock(run_dir.parent / ".claims" / "7"):
        assert cleaned(capsys, str(run_dir.parent))["kept"][0]["reason"] == "its study is being trained"
    assert len(cleaned(capsys, str(run_dir.parent))["removable"]) == 3


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["what=runs"], "needs a filter"),
        (["what=checkpoint"], "Did you mean 'checkpoints'?"),
        (["what="], "name at least one"),
        (["unfinished=true"], "belongs to what=runs"),
        (["delete=yes"], "delete=yes"),
        (["deleted=true"], "Did you mean 'delete'?"),
    ],
)
def test_wrong_arguments_delete_nothing(
    arguments: Any, said: str, run_dir: Path, capsys: pytest.CaptureFixture
) -> None:
    before = tree(run_dir)
    assert main(["clean", str(run_dir.parent), *arguments]) == 2
    assert said in capsys.readouterr().err and tree(run_dir) == before


def test_best_of_two_equal_checkpoints_is_the_one_in_status(tmp_path: Path) -> None:
    """The best checkpoint by status.json is kept, even if the ranking of the checkpoints differs."""
    path = write_run(tmp_path / "a", best=0.9, step=20, checkpoints={20: 0.9, 30: 0.9, 40: 0.2})
    write_checkpoint(path / "checkpoints" / "step-00000050", 50, 0.1)
    plan = plan_cleanup([read_run(str(path))], BY_DEFAULT)
    assert {os.path.basename(one.path) for one in plan.removable} == {"step-00000040"}


# Files that mxtrain did not write, and folders that are replaced by links meanwhile.


def failed_run(path: Path) -> Path:
    return write_run(path, state="failed", exit_code=1, checkpoints=CHECKPOINTS)


def plan_whole(*runs: Path) -> Any:
    return plan_cleanup([read_run(str(run)) for run in runs], ["runs", "leftovers", "checkpoints", "previous"], True)


@pytest.mark.parametrize(
    "file",
    [
        "thesis.tex",
        "profile-photos/family.jpg",
        "export/thesis.tex",
        "eval/mine/notes.txt",
        "checkpoints/notes.txt",
        "eval/val/holiday.png",
        "slim/mine",
        ".hydra/mine.yaml",
        "previous/mine",
        "checkpoints/step-00000010/mine.txt",
        "averaged/a/b/model.params",
        "workers/mine/x.log",
        "previous/photos/model.params",
        "empty/",
        "checkpoints/mine/",
    ],
)
def test_run_with_other_files_is_kept_and_the_files_are_named(tmp_path: Path, file: str) -> None:
    run, other = failed_run(tmp_path / "a"), failed_run(tmp_path / "b")
    (run / file).parent.mkdir(parents=True, exist_ok=True)
    (run / file).mkdir() if file.endswith("/") else (run / file).write_text("mine")
    plan = plan_whole(run, other)
    assert plan.kept[0].run == str(run) and file.rstrip("/") in plan.kept[0].reason
    assert delete(plan) == [] and (run / file).exists() and not other.exists()


def test_every_written_file_is_deleted(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "a")
    for file in (
        "train.log",
        "events.out.tfevents.1.host",
        "metrics.csv",
        "workers/worker-0.log",
        "workers/.lock",
        ".lock",
        "eval/val/metrics.json",
        "eval/val/confusion.png",
        "eval/val/confusion.html",
        "replay/step-7/bundle.json",
        "replay/step-7/arrays.npz",
        "averaged/last-5/model.params",
        "export/model.onnx",
        "export/signature.json",
        "export/reading/images.py",
        "slim/checkpoints/step-00000040/state.json",
        "previous/1/status.json",
        "tracker-mlflow.json",
        "previous/1/slim/checkpoints/step-00000040/state.json",
        "previous/1/checkpoints/step-00000010/model.params",
        "checkpoints/.tmp-step-00000050-1/model.params",
    ):
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_text("x")
    (run / "eval" / "val" / "metrics.json").write_text(
        '{"files": ["confusion.png", "confusion.html", "../../status.json"]}'
    )
    (run / "checkpoints" / ".tmp-empty").mkdir()
    plan = plan_whole(run)
    assert [one.path for one in plan.removable] == [str(run)], plan.kept
    assert delete(plan) == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["before the lock", "after the lock", "at the end"])
def test_run_replaced_by_a_link_is_not_followed(tmp_path: Path, monkeypatch: Any, moment: str) -> None:
    shared, victim = failed_run(tmp_path / "shared"), failed_run(tmp_path / "victim")
    (victim / "previous").mkdir()
    (victim / "previous" / "mine").write_text("mine")
    before = tree(victim)
    plan = plan_whole(shared)

    def exchange() -> None:
        os.rename(shared, tmp_path / "old")
        os.symlink(victim, shared)

    def exchanging(function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            if not shared.is_symlink():
                exchange()
            return function(*arguments)

        return run

    if moment == "before the lock":
        exchange()
    else:
        name = "read_status" if moment == "after the lock" else "remove_empty_folder"
        monkeypatch.setattr(f"mxtrain.archive.cleanup.{name}", exchanging(getattr(cleanup, name)))
    assert len(delete(plan)) == 1
    assert tree(victim) == before and shared.is_symlink()


def test_run_replaced_by_another_run_is_kept(tmp_path: Path) -> None:
    shared, victim = failed_run(tmp_path / "shared"), failed_run(tmp_path / "victim")
    plan = plan_whole(shared)
    os.rename(shared, tmp_path / "old")
    os.rename(victim, shared)
    assert delete(plan) == [Kept(str(shared), "it was exchanged meanwhile")]
    assert (shared / "checkpoints").is_dir()


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step-00000010", "previous"])
def test_folder_replaced_by_a_link_is_not_entered(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    run, victim = failed_run(tmp_path / "run"), failed_run(tmp_path / "victim")
    for path in (run, victim):
        (path / "previous" / "1").mkdir(parents=True)
        (path / "previous" / "1" / "status.json").write_text("{}")
    before = tree(victim)
    plan = plan_whole(run)
    listed = cleanup.remove_files

    def exchange(*arguments: Any) -> None:
        os.rename(run / name, tmp_path / "old")
        os.symlink(victim / name, run / name)
        listed(*arguments)

    monkeypatch.setattr("mxtrain.archive.cleanup.remove_files", exchange)
    assert len(delete(plan)) == 1 and tree(victim) == before and run.exists()


def test_a_mounted_folder_is_not_emptied(tmp_path: Path, monkeypatch: Any) -> None:
    """A folder of the same device can be mounted there: its mount has another number."""
    run = failed_run(tmp_path / "run")
    inside = (run / "checkpoints").stat().st_ino

    def mount(fd: int) -> Any:
        return ("mounted" if os.fstat(fd).st_ino == inside else "here"), ""

    plan = plan_whole(run)
    with monkeypatch.context() as patch:
        patch.setattr("mxtrain.files.removal.mount_of", mount)
        assert plan_whole(run).removable == [] and "checkpoints/" in plan_whole(run).kept[0].reason
        assert "is mounted" in delete(plan)[0].reason
    assert len(os.listdir(run / "checkpoints")) == 4
    with open_folder(str(run)) as here, open_folder("/proc") as other:
        assert mount_of(here) != mount_of(other) and mount_of(here)[1].isdecimal()


def test_links_and_pipes_among_files_keep_a_run(tmp_path: Path) -> None:
    for name in ("status.json", ".lock", "train.log"):
        run = failed_run(tmp_path / f"link-{name}")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to("/etc/hostname")
        pipe = failed_run(tmp_path / f"pipe-{name}")
        (pipe / name).unlink(missing_ok=True)
        os.mkfifo(pipe / name)
    os.symlink(failed_run(tmp_path / "real" / "run"), tmp_path / "linked")
    before = tree(tmp_path)
    plan = plan_whole(*sorted(tmp_path.glob("*-*")), tmp_path / "linked")
    assert plan.removable == [] and len(plan.kept) == 7 and delete(plan) == []
    assert tree(tmp_path) == before


# The runs and checkpoints that `clean` deletes.


@pytest.mark.parametrize(
    "state, exit_code, best, content, goes",
    [
        ("failed", 1, None, "", True),
        ("interrupted", 130, None, "", True),
        ("pruned", 75, None, "", True),
        ("stopped_early", 0, None, "", False),
        ("finished", 0, None, "", False),
        ("failed", 1, 0.5, "", False),
        ("failed", 0, None, "", False),
        ("failed", 1, None, "previous/1/status.json", False),
        ("failed", 1, None, "averaged/last-5/model.params", False),
    ],
)
def test_runs_without_a_result_are_empty(
    tmp_path: Path, state: str, exit_code: int, best: Any, content: str, goes: bool
) -> None:
    run = write_run(tmp_path / "a", state=state, exit_code=exit_code, best=best, step=0)
    if content:
        (run / content).parent.mkdir(parents=True)
        (run / content).write_text("{}")
    plan = plan_cleanup([read_run(str(run))], BY_DEFAULT)
    assert [one.kind for one in plan.removable] == ["empty"] * goes


def test_killed_run_with_an_earlier_exit_code_is_resumable(tmp_path: Path) -> None:
    run = read_run(str(write_run(tmp_path / "a", state="running", exit_code=0, checkpoints=CHECKPOINTS)))
    assert plan_cleanup([run], ["runs", *BY_DEFAULT]).removable == [] and cleanup.is_resumable(run)
    finished = read_run(str(write_run(tmp_path / "b")))
    assert cleanup.why_nothing([run, finished, finished]) == "nothing can go of 3 runs; 1 of them can be continued"
    assert cleanup.why_nothing([finished]) == "nothing can go of 1 runs"


def test_the_best_checkpoint_is_found_without_status(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", best=None, checkpoints=CHECKPOINTS)
    plan = plan_cleanup([read_run(str(path))], BY_DEFAULT)
    assert sorted(os.path.basename(one.path) for one in plan.removable) == ["step-00000010", "step-00000030"]


def test_unneeded_damaged_checkpoint_is_deleted(run_dir: Path) -> None:
    file = run_dir / "checkpoints" / "step-00000010" / "model.params"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert delete(plan_cleanup([read_run(str(run_dir))], BY_DEFAULT)) == [] and not file.exists()


def test_partly_removed_checkpoint_is_renamed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("Input/output error")

    monkeypatch.setattr("mxtrain.archive.cleanup.remove_files", fail)
    plan = plan_cleanup([read_run(str(run_dir))], ["checkpoints"])
    assert delete(plan) == [Kept(str(run_dir), "Input/output error")]
    names = sorted(os.listdir(run_dir / "checkpoints"))
    assert "step-00000010" not in names and names[0].startswith(".tmp-discarded-step-00000010-")


def test_lock_file_is_deleted_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: List[str] = []
    remove = cleanup.remove_files

    def note(folder: int, paths: Any) -> None:
        removed.extend(paths)
        remove(folder, paths)

    monkeypatch.setattr("mxtrain.archive.cleanup.remove_files", note)
    run = failed_run(tmp_path / "a")
    lock_run_directory(run).release()
    assert delete(plan_whole(run)) == [] and removed[-1] == ".lock" and removed.count(".lock") == 1
    assert not run.exists()


def test_a_run_without_status_is_deleted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "status.json").unlink()
    plan = plan_whole(run)
    assert len(plan.removable) == 1 and delete(plan) == [] and not run.exists()


def test_other_files_keep_only_their_folder(run_dir: Path) -> None:
    mine = run_dir / "checkpoints" / ".tmp-step-00000050-12"
    mine.mkdir()
    (mine / "mine.txt").write_text("mine")
    plan = plan_cleanup([read_run(str(run_dir))], ["leftovers"])
    assert [os.path.basename(one.path) for one in plan.removable] == [".tmp-step-00000050-1"]
    assert delete(plan) == [] and (mine / "mine.txt").exists()
    for number in range(4):
        (run_dir / f"mine{number}").touch()
    reason = plan_whole(run_dir).kept[0].reason
    assert reason.count("mine") == 3 and "mine.txt" in reason


def test_reasons_name_the_run_directory(run_dir: Path) -> None:
    plan = plan_cleanup([read_run(str(run_dir))], BY_DEFAULT)
    (run_dir / "checkpoints" / "step-00000020" / "model.params").write_bytes(b"x")
    reason = delete(plan)[0].reason
    assert str(run_dir) in reason and "/proc/" not in reason


def test_tables_show_the_largest_first(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxtrain.cli.clean.SHOWN", 2)
    (run_dir / "checkpoints" / ".tmp-step-00000050-1" / "model.params").write_bytes(b"x" * 100_000)
    assert main(["clean", str(run_dir.parent), "format=table"]) == 0
    shown = capsys.readouterr()
    lines = [line for line in shown.out.splitlines() if "checkpoints/" in line]
    assert len(lines) == 2 and ".tmp-step-00000050-1" in lines[0] and shown.err == ""
    assert "and 1 smaller ones: format=lines lists all" in shown.out and "delete=true deletes it" in shown.out


def test_piped_output_has_one_line_per_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcde":
        run = failed_run(tmp_path / name)
        (run / "mine").touch()
    failed_run(tmp_path / "f")
    assert main(["clean", str(tmp_path), "what=runs", "where=step>=0", "unfinished=true", "format=lines"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1 and shown.out.startswith("runs") and "/f" in shown.out
    assert " and 2 more: it holds files that are not a run's: mine\n" in shown.err
    assert "files" not in json.loads(
        json.dumps(cleaned(capsys, str(tmp_path), "what=runs", "where=step>=0", "unfinished=true")["removable"][0])
    )


@pytest.mark.parametrize(
    "names, is_foreign",
    [
        (["confusion.png"], False),
        (["x.csv", "confusion.png"], False),
        (["confusion.txt"], True),
        ("confusion.png", True),
        ([1], True),
        ({}, True),
        ({"confusion.png": 1}, True),
        (["/confusion.png"], True),
        (["a/confusion.png"], True),
    ],
)
@pytest.mark.parametrize("folder", ["eval/val", "eval/averaged/last-5/test", "eval/val/by_class"])
def test_files_that_an_evaluation_lists_are_its_own(tmp_path: Path, folder: str, names: Any, is_foreign: bool) -> None:
    run = failed_run(tmp_path / "a")
    (run / folder).mkdir(parents=True)
    name = "confusion.txt" if names == ["confusion.txt"] else "confusion.png"
    (run / folder / name).touch()
    (run / folder / "metrics.json").write_text(json.dumps({"files": names}))
    assert bool(plan_whole(run).kept) == is_foreign


@pytest.mark.parametrize("content", ["[]", "{", "{}", "3"])
def test_damaged_evaluation_results_list_no_files(tmp_path: Path, content: str) -> None:
    run = failed_run(tmp_path / "a")
    (run / "eval/val").mkdir(parents=True)
    (run / "eval/val/a.wav").touch()
    (run / "eval/val/metrics.json").write_text(content)
    assert plan_whole(run).kept[0].reason.endswith(": eval/val/a.wav")
    (run / "eval/val/metrics.json").write_text('{"files": ["a.wav"]}')
    (run / "eval/mine").mkdir()
    (run / "eval/mine/metrics.json").write_text("{}")
    assert plan_whole(run).kept[0].reason.endswith(": eval/mine/metrics.json")


def test_results_are_beside_the_list_that_names_them(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "a")
    (run / "eval/val/mine").mkdir(parents=True)
    (run / "eval/val/mine/photo.png").touch()
    (run / "eval/val/metrics.json").write_text(json.dumps({"files": ["mine/photo.png"]}))
    assert plan_whole(run).kept[0].reason.endswith(": eval/val/mine/photo.png")


def test_killed_run_without_checkpoints_is_resumable(tmp_path: Path) -> None:
    for state, code, can in (("running", None, True), ("damaged", 1, True), ("failed", 1, False)):
        run = read_run(str(write_run(tmp_path / state, state=state, exit_code=code)))
        assert cleanup.is_resumable(run) is can
        plan = plan_cleanup([run], ["runs"])
        reasons = [one.reason for one in plan.kept]
        assert reasons == ["it can be continued: unfinished=true deletes it, too"] * can
        assert len(plan.removable) == (not can)


def test_links_are_not_listed(tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", checkpoints=CHECKPOINTS)
    run = write_run(tmp_path / "a", best=None, checkpoints={40: 0.9})
    (run / "previous").symlink_to(other)
    for name, target in ((".tmp-x", other), ("step-00000010", other / "checkpoints" / "step-00000010")):
        (run / "checkpoints" / name).symlink_to(target)
    assert plan_cleanup([read_run(str(run))], ["leftovers", "checkpoints", "previous"]).removable == []
    linked = write_run(tmp_path / "b")
    (linked / "checkpoints").symlink_to(other / "checkpoints")
    assert plan_whole(linked).kept == [Kept(str(linked), "its folder checkpoints is a link")]
