"""Exported folders predict from questions, observations, histories, sparse rows and texts to speak, as the run does."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import pytest
import served_folders
from small_runs import BOUGHT, CASES, FOUR
from test_export_contract import export, folder  # noqa: F401  # fixtures
from test_exported_readers import predicted, require_equal
from tiers import rest_in_zoo

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.exporting import standalone

pytestmark = pytest.mark.usefixtures("own_cache")
Export = Callable[..., Path]
BLOCKED = "import sys; sys.modules.update(mxnet=None, mxtrain=None, scipy=None, pydantic=None, soundfile=None); "


def rows_of_run(exported: Path, *arguments: Any) -> List[Dict[str, Any]]:
    return [dict(row) for row in mxtrain.load(exported.parent).predict(*arguments)]


def in_folder(exported: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Runs predict.py in a process that can import neither MXNet nor mxtrain."""
    program = (
        f"{BLOCKED}import runpy; del sys.argv[0]; sys.path[0] = {str(exported)!r}; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = [sys.executable, "-c", program, str(exported / "predict.py"), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=exported.parent)


PASSAGE = "one w3 two three\nİstanbul W7 seven eight nine ten one w5 w6 five four " * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bilstm, questions", pytest.param("bert, questions", marks=pytest.mark.zoo)])
def test_questions_are_answered_as_by_the_run(export: Export, name: str, tmp_path: Path) -> None:
    exported = export(*CASES[name])
    lines, squad = tmp_path / "asked.jsonl", tmp_path / "asked.json"
    asked = [
        {"question": "one w5 two three", "context": PASSAGE},
        {"id": "b", "question": "W7?", "context": PASSAGE},
        {"question": "one", "context": "w1"},
        {"question": "none", "context": " "},
    ]
    lines.write_text("\n".join(map(json.dumps, asked)) + "\n")
    paragraphs = [{"context": PASSAGE, "qas": [{"id": "7", "question": "w3 W7"}, {"id": "8", "question": "ten"}]}]
    squad.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    expected = rows_of_run(exported, [lines, squad])
    assert len({row["answer"] for row in expected}) > 1
    require_equal(predicted(exported, lines, squad), expected)


@pytest.mark.slow
def test_texts_are_spoken_as_by_the_run(export: Export, tmp_path: Path) -> None:
    exported = export(*CASES["fastspeech"], "dataset.features.preemphasis=0.5", "task.iterations=8")
    symbols = json.loads((exported / "signature.json").read_text())["signature"]["symbols"]
    lines = [
        {"phonemes": symbols[:4], "durations_frames": [3, 0, 4, 9], "text": "four"},
        {"phonemes": symbols[-2:], "durations_s": [0.31, 0.2]},
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = [f"folder={tmp_path}/right", f"output={tmp_path}/right.jsonl"]
    assert run(["predict", str(exported.parent), str(tmp_path / "said.jsonl"), *words]) == 0
    expected = list(map(json.loads, (tmp_path / "right.jsonl").read_text().splitlines()))
    found = predicted(exported, Path("--out"), tmp_path / "out", tmp_path / "said.jsonl")
    for row, other in zip(found, expected):
        sound_S, wanted_S = (samples_of(Path(one.pop("audio"))) for one in (row, other))
        assert len(sound_S) == len(wanted_S) > 100 and np.abs(wanted_S).max() > 100
        assert np.abs(sound_S - wanted_S).max() <= 0.002 * np.abs(wanted_S).max()
    require_equal(found, expected)
    done = in_folder(exported, tmp_path / "said.jsonl", tmp_path / "said.jsonl")
    assert done.returncode == 2 and "predicted/said-1.wav would be written for" in done.stderr


def samples_of(path: Path) -> np.ndarray:
    with wave.open(io.BytesIO(path.read_bytes())) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64)


PLAY = """
import json, sys, gymnasium, numpy as np
from predict import OpenedExport
from reading.exported_policy import act
opened, environment = OpenedExport(sys.argv[1]), gymnasium.make(sys.argv[2])
for seed in map(int, sys.argv[3:]):
    observation, _ = environment.reset(seed=seed)
    total, length, is_over = 0.0, 0, False
    while not is_over:
        action = act(opened, np.asarray(observation, np.float32))["action"]
        observation, reward, *ends, _ = environment.step(action if isinstance(action, int) else np.array(action, "f4"))
        total, length, is_over = total + float(reward), length + 1, any(ends)
    print(json.dumps({"return": round(total, 6), "length": length}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, name",
    rest_in_zoo(
        [
            ("actor_critic", "CartPole-v1"),
            ("actor_critic", "Pendulum-v1"),
            ("q_network", "CartPole-v1"),
            ("soft_actor_critic", "Pendulum-v1"),
        ],
        ("actor_critic", "CartPole-v1"),
    ),
)
def test_policies_act_as_the_run_does(export: Export, model: str, name: str, tmp_path: Path) -> None:
    from mxtrain.reinforcement.draws import ReinforcementDraw
    from mxtrain.reinforcement.episodes import Episodes
    from mxtrain.reinforcement.gymnasium import Gymnasium

    exported = export(*CASES[model], f"dataset.id={name}")
    dataset = Gymnasium(id=name)
    maker, spaces = dataset._open_environment()
    draw = ReinforcementDraw.MEASURED_EPISODE + 2
    seeds = Episodes.from_seed(maker, spaces, 3, dataset.split_seed, draw).seed_N.tolist()
    words = [sys.executable, "-c", f"{BLOCKED}sys.path[0] = {str(exported)!r}\n{PLAY}", str(exported), name]
    done = subprocess.run([*words, *map(str, seeds)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert run(["predict", str(exported.parent), f"output={tmp_path}/right.jsonl"]) == 0
    expected = list(map(json.loads, (tmp_path / "right.jsonl").read_text().splitlines()))
    require_equal(
        list(map(json.loads, done.stdout.splitlines())),
        [{key: row[key] for key in ("return", "length")} for row in expected],
    )
    size = spaces.shape[0]
    file = tmp_path / "seen.jsonl"
    file.write_text(f"{[0.01] * size}\n{[-0.2] * size}\n")
    rows = predicted(exported, file)
    require_served_actions(exported, [[0.01] * size, [-0.2] * size], [row["action"] for row in rows])
    file.write_text(f"{[0.01] * (size + 1)}\n")
    done = in_folder(exported, file)
    assert done.returncode == 2 and f"an observation has ({size},)" in done.stderr


def require_served_actions(exported: Path, observations: Sequence[Any], expected: Sequence[Any]) -> None:
    """Requires that the outputs of the server choose the actions of predict.py."""
    from mxtrain.reinforcement.action_limits import ActionLimits
    from mxtrain.reinforcement.policy import Actions

    said = json.loads((exported / "signature.json").read_text())
    actions, limits = Actions.from_json(said["signature"]["actions"]), ActionLimits.from_json(said["facts"]["limits"])
    outputs = []
    with served_folders.Served(exported) as server:
        for observation in observations:
            status, answer, _ = server.ask("/v2/models/export/predict", {said["inputs"][0]["name"]: [observation]})
            assert status == 200, answer
            outputs.append(answer["output"])
    output_BO = np.array(outputs, np.float32)
    assert output_BO.shape == (len(observations), actions.num_outputs) and not np.allclose(*output_BO[:2])
    chosen = limits.actions_for(actions, actions.choose(output_BO, np.zeros(1, np.float32)))
    np.testing.assert_allclose(np.array(chosen, np.float64), np.array(expected, np.float64), rtol=1e-5)


RECOMMENDERS: Dict[str, Tuple[str, ...]] = {
    "fism": (*BOUGHT, "dataset.max_history=3"),
    "neumf": CASES["neumf"],
    "factorization_machine": (*BOUGHT[:-2], "model=factorization_machine", "model.units=4", *FOUR),
    "svd_pp": CASES["svd_pp"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "fism" else pytest.mark.zoo) for name in RECOMMENDERS]
)
def test_users_with_histories_are_recommended_the_items_of_the_run(
    export: Export,
    name: str,
    tmp_path: Path,
) -> None:
    exported = export(*RECOMMENDERS[name])
    pairs = [line.split(",") for line in (exported.parent.parent / "bought.csv").read_text().splitlines()[1:]]
    users = ["u3", "u11", "u0"]
    ids, lines = tmp_path / "users.txt", tmp_path / "users.jsonl"
    ids.write_text("\n".join(users))
    history = {user: [item for own, item in pairs if own == user] for user in users}
    lines.write_text("\n".join(json.dumps({"user": user, "history": history[user][::-1]}) for user in users))
    found, expected = predicted(exported, lines), rows_of_run(exported, ids)
    require_equal([{**row, "file": ""} for row in found], [{**row, "file": ""} for row in expected])
    text = lines.read_text()
    for content, count in ((text, 3), (text.splitlines()[0], 1)):  # the same lines under another extension
        (tmp_path / "users.json").write_text(content)
        found = predicted(exported, tmp_path / "users.json")
        require_equal([{**row, "file": ""} for row in found], [{**row, "file": ""} for row in expected[:count]])
    for text, said in (
        ('{"user": "u99", "history": []}', "no user 'u99'"),
        ('{"user": "u3"}', "is no JSON object such as"),
        ('{"user": "u3", "history": ["i99"]}', "no item 'i99'"),
    ):
        lines.write_text(text)
        done = in_folder(exported, lines)
        assert done.returncode == 2 and said in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sasrec", pytest.param("gru4rec", marks=pytest.mark.zoo)])
def test_histories_are_continued_as_by_the_run(export: Export, name: str, tmp_path: Path) -> None:
    exported = export(*CASES[name], "task.exclude_seen=true")
    lines = tmp_path / "given.jsonl"
    long = [f"item{number % 20}" for number in range(30)]
    rows = [{"user": "anna", "history": ["item3", "item7"]}, {"history": long}, {"user": 5, "history": ["item0"]}]
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found, expected = predicted(exported, lines), rows_of_run(exported, lines)
    assert [row["user"] for row in found] == ["anna", "2", "5"] and found[1]["items"] == []
    require_equal([{**row, "file": ""} for row in found], [{**row, "file": ""} for row in expected])
    with served_folders.Served(exported) as server:
        status, answer, _ = server.ask("/v2/models/export/predict", lines.read_text().splitlines()[0].encode())
        assert status == 200, answer
        require_equal(answer, {key: value for key, value in expected[0].items() if key != "file"})
    for text, said in (
        ('{"history": []}', "the history is empty"),
        ('{"user": "u3"}', "is no JSON object such as"),
        ('{"history": ["item99"]}', "no item 'item99'"),
        ('{"history": ["item1"], "time": 3}', "no key 'time'"),
    ):
        lines.write_text(text)
        done = in_folder(exported, lines)
        assert done.returncode == 2 and said in done.stderr, done.stderr


@pytest.mark.zoo_except("tabular-3")
@pytest.mark.slow
@pytest.mark.parametrize("task, count", [("tabular", 2), ("tabular", 3), ("regression", 60)])
def test_sparse_rows_are_predicted_as_by_the_run(
    export: Export,
    tmp_path: Path,
    task: str,
    count: int,
) -> None:
    draw = np.random.default_rng(0)
    rows = [
        " ".join([str(number % count), *(f"{k}:{draw.normal():.3f}" for k in sorted(draw.choice(30, 5, False)))])
        for number in range(60)
    ]
    (tmp_path / "train.svm").write_text("\n".join(rows) + "\n")
    exported = export(f"task={task}", "dataset=libsvm", f"dataset.train={tmp_path}/train.svm", "model.units=4", *FOUR)
    given = tmp_path / "given.svm"
    given.write_text("1 0:0.5 7:-2.5e-1 # comment\n\n3:1 99:4\n0\n2:7:0.25 1:1:1 4:1:2 5:1:1 6:1:1 8:1:1 9:1:1\n")
    require_equal(predicted(exported, given), rows_of_run(exported, given))
    for text, said in (
        ("1 0:0.5\n0 7=2\n", "given.svm:2: '7=2' is no index:value"),
        ("user,item\n", "given.svm:1: 'user,item' is neither a target nor index:value"),
    ):
        given.write_text(text)
        done = in_folder(exported, given)
        assert done.returncode == 2 and said in done.stderr


@pytest.mark.slow
def test_task_without_file_predictions_is_reported(export: Export, tmp_path: Path) -> None:
    exported = export(*CASES["bert, masked"])
    said = "Runs of masked_language_modeling predict nothing for files. FILE is a .npz or .json file"
    assert said in (exported / "README.md").read_text() and not (exported / "reading").exists()
    (tmp_path / "x.txt").write_text("one\n")
    done = in_folder(exported, tmp_path / "x.txt")
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr


WRONG: Dict[str, Tuple[Tuple[str, ...], str]] = {
    "missing": (("none.txt",), "none.txt cannot be read: No such file or directory"),
    "folder": (("m",), "m is a folder and not a file"),
    "option": (("--chek",), "--chek is neither an option (--check, --out FOLDER, --help) nor a file"),
    "out": (("x.txt", "--out"), "--out needs a folder"),
    "text": (("x.txt",), "x.txt is no file that this folder reads"),
    "no JSON": (("x.json",), "x.json holds no JSON"),
    "list": (("list.json",), "list.json holds no JSON object with x"),
    "uneven": (("uneven.json",), "uneven.json: x is no array of numbers"),
    "texts": (("texts.json",), "texts.json: x is no array of numbers"),
    "name": (("name.json",), "name.json has 'y', which is no input. The network reads x (float32, batch x 2)"),
    "no name": (("none.json",), "none.json has no 'x'. The network reads x (float32, batch x 2)"),
    "shape": (("shape.json",), "shape.json: x has the shape 1 x 3, and the network reads batch x 2"),
    "rank": (("rank.json",), "rank.json: x has the shape 3, and the network reads batch x 2"),
    "nan": (("nan.json",), "nan.json: x has a number that is not finite (NaN or infinite)"),
    "infinite": (("large.json",), "large.json: x has a number that is not finite (NaN or infinite)"),
    "too large": (("1e39.json",), "1e39.json: x has 1e+39; float32 goes from -3.40282e+38 to 3.40282e+38"),
    "shape of a file": (("shape.npz",), "shape.npz: x has the shape 2 x 3, and the network reads batch x 2"),
    "NaN of a file": (("nan.npz",), "nan.npz: x has a number that is not finite (NaN or infinite)"),
    "no arrays": (("x.npz",), "x.npz is damaged"),
    "check": (("--check", "x.txt"), "--check takes no files: it repeats the proof of this folder"),
    "pipe": (("/dev/zero",), "it is no regular file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_end_with_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    served_folders.write_mixing(tmp_path / "m")
    files = {
        "x.txt": "one",
        "x.json": "{",
        "list.json": "[1]",
        "uneven.json": '{"x": [[1], [2, 3]]}',
        "name.json": '{"y": [[1, 2]]}',
        "x.npz": "PK",
        "texts.json": '{"x": [["one"]]}',
        "none.json": "{}",
        "shape.json": '{"x": [[1, 2, 3]]}',
        "rank.json": '{"x": [1, 2, 3]}',
        "nan.json": '{"x": [[NaN, 2]]}',
        "large.json": '{"x": [[1e400, 2]]}',
        "1e39.json": '{"x": [[1e39, 2]]}',
    }
    for file, text in files.items():
        Path(file).write_text(text)
    files.update({"shape.npz": "", "nan.npz": ""})
    np.savez("shape.npz", x=np.zeros((2, 3), np.float32))
    np.savez("nan.npz", x=np.full((1, 2), np.nan, np.float32))
    words, said = WRONG[name]
    assert standalone.main(words, "m") == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1) and said in found.err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["m", *files])


def test_ids_and_bytes_must_be_integers(tmp_path: Path) -> None:
    specs = [
        {"name": "x", "dtype": "uint8", "shape": ["batch", 2]},
        {"name": "n", "dtype": "int32", "shape": ["batch"]},
    ]
    found = standalone.checked_inputs({"x": [[0, 255.0]], "n": np.array([3], np.int64)}, specs, "f")
    assert {key: array.dtype.name for key, array in found.items()} == {"x": "uint8", "n": "int32"}
    for given, said in (
        ({"x": [[0, 256]], "n": [1]}, "f: x has 256; uint8 goes from 0 to 255"),
        ({"x": [[0, 1.5]], "n": [1]}, r"f: x has 1.5, and the network reads whole numbers \(uint8\)"),
        ({"x": [[0, 1]], "n": [1, 2]}, "f: n has the shape 2, and the network reads batch"),
    ):
        with pytest.raises(ValueError, match=said):
            standalone.checked_inputs(given, specs, "f")  # type: ignore[arg-type]  # as JSON has them


def test_help_names_code_of_the_folder_and_check_prints_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(served_folders.write_mixing(tmp_path / "m"))
    assert standalone.main(["--help"], place) == 0
    said = capsys.readouterr().out
    assert "predict.py and reading/ are code of the folder" in said and "mxtrain export\ncheck FOLDER" in said
    checked = said.partition("check FOLDER")[2].split("\n\n")[0]
    assert "of an untrusted folder without executing its code" in checked and said.count("untrusted") == 1
    assert standalone.main(["--check"], place) == 0
    assert capsys.readouterr().out.endswith(f"{place}: proven\n")


def test_non_finite_numbers_become_null() -> None:
    assert standalone.strict({"a": [1.0, float("nan"), (float("-inf"), "x")], "b": True}) == {
        "a": [1.0, None, [None, "x"]],
        "b": True,
    }


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["start", "rows"])
def test_an_interrupted_program_ends_without_a_traceback(stage: str, tmp_path: Path) -> None:
    place = served_folders.write_mixing(tmp_path / "m")
    (place / "predict.py").write_bytes(Path(standalone.__file__).read_bytes())
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 2), np.float32))
    block = tmp_path / "block"  # NumPy or the second file is slow
    block.mkdir()
    os.mkfifo(block / "pipe")
    (block / "numpy.py").write_text(f"print('ready', flush=True)\nopen({str(block / 'pipe')!r})\n")
    files = [tmp_path / "x.npz"] * 20_000
    environment = {**os.environ, **({"PYTHONPATH": str(block)} if stage == "start" else {})}
    process = subprocess.Popen(
        [sys.executable, str(place / "predict.py"), *map(str, files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
