from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console as RichConsole
from rich.table import Table

from mxtrain.callback.protocol import CommandLine, Progress, Result, Validation
from mxtrain.logger.config_tree import render_config
from mxtrain.logger.console_logger import ConsoleLogger
from mxtrain.logger.progress import RunProgress
from mxtrain.terminal.report import format_value, next_commands, print_end, render_result

from .conftest import row_of

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A pseudo-terminal; `read` returns what was written to it."""

    def __init__(self, columns: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._chunks = []
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        while True:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:
                return
            if not chunk:
                return
            self._chunks.append(chunk)

    def read(self) -> str:
        self.stream.close()
        self._thread.join()
        os.close(self._master)
        return b"".join(self._chunks).decode()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal


def on_screen(text: str, columns: int):
    """The lines that remain after the escape sequences that rich uses to redraw; the bar's may never wrap."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part and not part.startswith("\x1b") and part != "\r":
            lines[row] += part
            if lines[row].startswith(("epoch ", "train/")):
                assert len(lines[row]) <= columns
    return lines


def test_plain_lines(fake_run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    fake_run.drive(ConsoleLogger(stream=stream), 1, 30)
    text = stream.getvalue()
    assert "\x1b" not in text and "\r" not in text
    val_lines = [line for line in text.splitlines() if line.startswith("val ")]
    assert len(val_lines) == 3 and not [line for line in text.splitlines() if line.startswith("train ")]
    assert "epoch=0 step=10/30" in val_lines[0]
    assert "val/loss=0.2000 val/accuracy=0.9000 best=0.9000 samples_per_s=1010" in val_lines[0]


def test_epochs_without_validation_have_one_line(fake_run):
    stream = io.StringIO()
    logger = ConsoleLogger(stream=stream)
    logger.on_start(fake_run.info())
    for step in range(1, 31):
        logger.on_steps([row_of(step)], Progress(step, step // 10, 30))
    logger.on_end(fake_run.result(30))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("train ")]
    assert [re.search(r"step=(\d+)", line)[1] for line in lines] == ["10", "20", "30"]


def test_long_epoch_has_intermediate_lines(fake_run):
    stream = io.StringIO()
    logger = ConsoleLogger(plain_interval_s=0, stream=stream)
    fake_run.drive(logger, 1, 10)
    assert [line.split()[0] for line in stream.getvalue().splitlines() if "step=" in line] == ["train", "val"]


def test_slow_epoch_shows_step_and_remaining_time(fake_run):
    stream = io.StringIO()
    logger = ConsoleLogger(plain_interval_s=0, stream=stream)
    logger.on_start(fake_run.info())
    for step in (2, 4):
        logger.on_glance({**row_of(step), "loss": step / 8}, Progress(step, 0, 30))
    logger.on_steps([row_of(step) for step in range(1, 11)], Progress(10, 1, 30))
    logger.on_scalars({"train/loss": 0.7, "train/loss_epoch": 0.6, "train/lr": 0.1}, 10)
    logger.on_end(fake_run.result(10))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("train ")]
    found = [re.search(r"step=(\d+)/30 train/loss=([\d.]+)", line).groups() for line in lines]
    assert found == [("2", "0.2500"), ("4", "0.5000"), ("10", "0.6000")], "at its end the loss of the whole epoch"
    assert all(" left=" in line for line in lines)


def test_start_shows_configuration_model_and_resume(fake_run):
    stream = io.StringIO()
    logger = ConsoleLogger(stream=stream)
    logger.on_start(fake_run.info(10, model_table="THE MODEL"))
    logger.on_end(fake_run.result(10))
    text = stream.getvalue()
    assert "optimizer SGD lr=0.1" in text and "THE MODEL" in text and "resumed at step 10" in text
    stream = io.StringIO()
    logger = ConsoleLogger(show_config=False, show_model=False, stream=stream)
    logger.on_start(fake_run.info(model_table="THE MODEL"))
    logger.on_end(fake_run.result(10))
    assert "SGD" not in stream.getvalue() and "THE MODEL" not in stream.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_bar_fits_the_terminal(fake_run, terminal, columns, monkeypatch):
    screen = terminal(columns)
    monkeypatch.setenv("COLUMNS", str(columns))  # rich asks the size of the standard streams only
    logger = ConsoleLogger(refresh_s=0, stream=screen.stream)
    logger.on_start(fake_run.info())
    for step in range(5, 31, 5):
        fake_run.five_steps(logger, step)
    logger.on_message("saving failed, training goes on")
    logging.getLogger("mxtrain.test").warning("a record")
    print("a print")
    logger.on_end(fake_run.result(30))
    text = screen.read()
    assert "epoch 2/3" in ESCAPE.sub("", text) and "step 20/30" in ESCAPE.sub("", text)
    assert "step 0/30" in ESCAPE.sub("", text), "it is there before the first steps are done"
    lines = [line.rstrip() for line in on_screen(text, columns)]
    assert [line for line in lines if "epoch 3/3" in line] == [], "the bar is gone at the end"
    for expected in ("saving failed, training goes on", "a print"):
        assert expected in lines
    assert text.rindex("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor is back"


def test_monitored_value_is_shown_on_a_narrow_terminal(fake_run, terminal, monkeypatch):
    screen = terminal(60)
    monkeypatch.setenv("COLUMNS", "60")
    logger = ConsoleLogger(refresh_s=0, stream=screen.stream)
    fake_run.drive(logger, 1, 20)
    assert "val/accuracy 0.95" in ESCAPE.sub("", screen.read())


def test_no_color(fake_run, terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    screen = terminal(80)
    fake_run.drive(ConsoleLogger(refresh_s=0, stream=screen.stream), 1, 10)
    codes = re.findall(r"\x1b\[([0-9;]+)m", screen.read())
    assert not [code for code in codes for part in code.split(";") if 30 <= int(part) <= 107]


def test_a_dumb_terminal_gets_plain_lines(fake_run, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    screen = terminal(80)
    fake_run.drive(ConsoleLogger(stream=screen.stream), 1, 10)
    assert "\x1b" not in screen.read()


def test_records_of_existing_handlers_appear_above_the_bar_once(fake_run, terminal, monkeypatch):
    screen = terminal(80)
    monkeypatch.setattr(sys, "stdout", screen.stream)
    handler = logging.StreamHandler(screen.stream)
    handler.setFormatter(logging.Formatter("[mine] %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        logger = ConsoleLogger(refresh_s=0)
        logger.on_start(fake_run.info())
        fake_run.five_steps(logger, 5)
        logging.getLogger("mxtrain.test").warning("a record")
        logger.on_end(fake_run.result(5))
        assert handler.stream is screen.stream
    finally:
        root.removeHandler(handler)
    lines = [line.rstrip() for line in on_screen(screen.read(), 80)]
    assert lines.count("[mine] a record") == 1


CHECKPOINT = "checkpoints/step-00000010"
TENSORBOARD = {"logger": {"tensorboard": {"_target_": "mxtrain.logger.tensorboard.TensorBoard"}}}
ENDED = {
    "finished": Result("finished", 0, "", step=10, epoch=1, checkpoint=CHECKPOINT),
    "interrupted": Result("interrupted", 143, "SIGTERM received", step=10, epoch=1, checkpoint=CHECKPOINT),
    "diverged": Result("failed", 3, "the loss is nan", step=10, epoch=1, checkpoint=CHECKPOINT),
    "crashed at once": Result("failed", 1, "KeyError", step=0, epoch=0, checkpoint="checkpoints/step-00000000"),
    "crashed with nothing": Result("failed", 1, "KeyError", step=3, epoch=0),
}


def test_commands_are_printed_on_unbroken_lines(fake_run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / ("a directory's " + "very long name " * 10)
    stream = io.StringIO()
    logger = ConsoleLogger(stream=stream)
    command = CommandLine("scripts/train", "scripts/tensorboard", ["--config-dir", "my conf"], ["model=lenet"])
    logger.on_start(replace(fake_run.info(config=TENSORBOARD), run_dir=run_dir, command=command))
    logger.on_end(ENDED["interrupted"])
    lines = stream.getvalue().splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("scripts/")]
    name = run_dir.name
    assert words[0][:4] == ["scripts/train", "--config-dir", "my conf", "model=lenet"]
    assert words[1:] == [
        ["scripts/tensorboard", "--logdir", name],
        ["scripts/train", "eval", name, "--config-dir", "my conf"],
        ["scripts/train", "predict", name, "sample=5", "--config-dir", "my conf"],
        ["scripts/train", "predict", name, "FILE...", "--config-dir", "my conf"],
    ]


OWN = "predict for its own data"


@pytest.mark.parametrize(
    "ended, config, predicts, purposes",
    [
        ("finished", TENSORBOARD, True, ["watch", "evaluate", OWN, "predict"]),
        ("finished", {}, True, ["evaluate", OWN, "predict"]),
        ("finished", {}, False, ["evaluate"]),
        ("finished", {"logger": {"jsonl": {"_target_": "mxtrain.logger.jsonl.Jsonl"}}}, False, ["evaluate"]),
        ("interrupted", {}, True, ["go on with this run", "evaluate", OWN, "predict"]),
        ("crashed at once", TENSORBOARD, True, ["go on with this run", "watch"]),
        ("crashed with nothing", {}, True, ["try again"]),
    ],
)
def test_advice_names_only_possible_commands(ended, config, predicts, purposes):
    found = next_commands(ENDED[ended], Path("a"), config, CommandLine(), predicts)
    assert [purpose for purpose, _ in found] == purposes


def test_all_objects_needed_by_load_are_named():
    config = {
        **{group: {"given_as": group} for group in ("model", "dataset")},
        "metric": {"accuracy": {}, "mine": {"given_as": "metric.mine"}},
        "optimizer": {"given_as": "optimizer"},
        "loss": {"_target_": "a"},
        "callback": {"mine": {"given_as": "callback.mine"}},
    }
    for metric, named in ((config["metric"], ", metric=..."), ({"accuracy": {}}, "")):
        found = dict(next_commands(ENDED["finished"], Path("a"), {**config, "metric": metric}, CommandLine()))
        load = f"run = mxtrain.load('a', model=..., dataset=...{named})"
        assert found == {"evaluate and predict in Python": load}


@pytest.mark.parametrize("predicts", [True, False])
def test_end_of_a_run_suggests_predict_if_the_task_predicts(fake_run, predicts):
    stream = io.StringIO()
    logger = ConsoleLogger(stream=stream)
    logger.on_start(fake_run.info(predicts=predicts))
    logger.on_end(ENDED["finished"])
    assert (" predict " in stream.getvalue()) == predicts and " eval " in stream.getvalue()


def test_after_divergence_the_advice_is_about_rate_warm_up_and_clipping():
    command = CommandLine("scripts/train", overrides=["model=mlp", "optimizer.lr=0.9", "hydra.run.dir=a"])
    config = {"optimizer": {"lr": 0.9}}
    (advice, text), *others = next_commands(ENDED["diverged"], Path("a"), config, command)
    assert "warm-up" in advice and "lower rate" in advice
    assert [purpose for purpose, _ in others] == ["evaluate", OWN, "predict"]
    assert text == "scripts/train model=mlp optimizer.lr=0.09 trainer.clip_global_norm=1"
    config["kvstore"] = {"tables": "servers"}
    (_, text), *_ = next_commands(ENDED["diverged"], Path("a"), config, command)
    assert text == "scripts/train model=mlp optimizer.lr=0.09 optimizer.clip_gradient=1"


@pytest.mark.parametrize("name", ["plain-1.0", "a b", "it's", 'say "x"', "a,b", "x=1", "back\\", 'b\\"s', "{k}", "[1]"])
def test_the_resume_command_survives_shell_and_hydra(name):
    typed = CommandLine(overrides=["hydra.run.dir=old", "a=[1, 2]"])
    commands = dict(next_commands(ENDED["interrupted"], Path("/runs") / name, {}, typed))
    assert list(commands)[0] == "go on with this run"
    *_, kept, override = shlex.split(commands["go on with this run"])
    assert kept == "a=[1, 2]"
    parsed = OverridesParser.create().parse_override(override)
    assert parsed.value() == f"/runs/{name}"


@pytest.mark.parametrize(
    "name, said", [("lr=0.1", "./lr=0.1"), ("+a", "./+a"), ("~a", "./~a"), ("-a", "./-a"), ("a", "a")]
)
def test_a_directory_in_advice_is_no_override_and_no_option(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = dict(next_commands(ENDED["finished"], tmp_path / name, {}, CommandLine("mxtrain")))
    assert shlex.split(commands["evaluate"]) == ["mxtrain", "eval", said]


def test_result():
    from .conftest import FakeRun

    console = RichConsole(file=io.StringIO(), width=60)
    console.print(render_result(FakeRun(None).result(30, "failed", 3, "the loss became NaN"), plain=True))
    text = console.file.getvalue()
    assert "failed: the loss became NaN" in text
    assert "steps=30 epochs=3 wall=0:01:15" in text
    assert "best val/accuracy=0.7500 at step 10" in text
    assert all(value in text for value in ("test/accuracy=0.5000", "train/loss=0.1000", "val/accuracy=0.7500"))


def test_lines_and_table_of_a_result_agree():
    result = Result(
        "finished",
        0,
        "",
        20,
        2,
        best={"metric": "val/loss", "value": 0.25, "step": 10},
        metrics={"test/loss": 0.5, "train/loss": 0.125, "val/loss": 1.0, "kvstore/staleness": 3.0},
        measured={"test": {"step": 10, "part": ""}, "val": {"step": 20, "part": "2 of 3 batches"}},
    )
    assert shown(render_result(result, plain=True))[2:] == [
        "best val/loss=0.2500 at step 10 (its weights were not kept)",
        "kvstore/staleness=3.0000",
        "test/loss=0.5000 (step 10)",
        "train/loss=0.1250",
        "val/loss=1.0000 (step 20, 2 of 3 batches)",
    ]
    assert [line.split(maxsplit=2) for line in shown(render_result(result))[3:]] == [
        ["train", "0.1250", "while they were trained, in the last epoch"],
        ["val", "1.0000", "step 20, the last, 2 of 3 batches"],
        ["best", "0.2500", "step 10, whose weights were not kept"],
        ["test", "0.5000", "step 10, the best"],
        ["kvstore", "3.0000", "step 20"],
    ]


def shown(renderable, width=200):
    console = RichConsole(file=io.StringIO(), width=width)
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


DESCRIBED = {
    "amp": {"_target_": "mxtrain.amp.spec.FullPrecision"},
    "checkpoint": {"_target_": "mxtrain.checkpoint.spec.CheckpointSpec", "keep_last": 2},
    "trainer": {"_target_": "mxtrain.training.spec.Trainer", "max_epochs": 30, "seed": 0, "ema_decay": 0.9},
    "metric": {"accuracy": {"_target_": "mxtrain.metric.metrics.Accuracy"}},
    "model": {"_target_": "mxtrain.vision.classification.lenet.LeNet", "channels": [16, 32], "hidden": 128},
    "dataset": {"_target_": "own.Shapes", "batch_size": 8, "augment": {"_target_": "own.Crop", "pad": None}},
}
TYPED = CommandLine(
    overrides=["model.channels=[16,32]", "trainer.ema_decay=0.9"],
    choices={"amp": "off", "model": "lenet", "checkpoint": "default", "trainer": "default"},
)


def test_configuration_shows_typed_settings_first_and_hides_defaults():
    title, typed, *groups = shown(render_config(DESCRIBED, TYPED, plain=True))
    assert "logger.console.show_config=full" in title
    assert typed.strip() == "overrides 'model.channels=[16,32]' trainer.ema_decay=0.9"
    assert [line.strip() for line in groups] == [
        "dataset Shapes batch_size=8",
        "augment pad=null",
        "model=lenet channels=[16,32]",
        "metric=[accuracy]",
        "trainer max_epochs=30 seed=0 ema_decay=0.9",
        "amp=off",
    ]


@pytest.mark.parametrize("length, end", [(700, "x" * 700), (701, "x" * 40 + "... (701 characters)")])
def test_contents_of_files_are_cut(length, end):
    """The graph of a network in a file is a setting of it."""
    config = {**DESCRIBED, "model": {"graph": {"content": "x" * length}}}
    lines = shown(render_config(config, TYPED, full=True, plain=True), width=10_000)
    assert any(line.endswith(f"graph content={end}") for line in lines)


def test_all_settings_are_shown_on_request_and_branches_only_on_a_terminal():
    lines = shown(render_config(DESCRIBED, TYPED, full=True, plain=True))
    assert any(line.strip() == "model=lenet channels=[16,32] hidden=128" for line in lines)
    assert any(line.strip() == "checkpoint keep_last=2" for line in lines)
    assert not any(character in "".join(lines) for character in "├│└")
    assert any(line.startswith("├── model=lenet") for line in shown(render_config(DESCRIBED, TYPED, full=True)))


def test_tables_have_frames_on_a_terminal_only(fake_run, terminal):
    table = Table("layer", title="")
    table.add_row("conv0")
    plain = io.StringIO()
    ConsoleLogger(stream=plain).on_start(fake_run.info(model_table=table))
    assert "conv0" in plain.getvalue() and not any(character in plain.getvalue() for character in "┏┃│└├")


def test_an_epoch_leaves_a_line_that_fits_the_terminal(fake_run):
    progress = RunProgress(fake_run.info())
    at = Progress(10, 1, 30)
    progress.update_train([row_of(10)], at)
    row = row_of(10, "val")
    progress.update_validation(Validation(row, {"metric": "val/accuracy", "value": 0.9, "step": 10}, None, None), at)
    line = progress.epoch_line("val", 80).plain
    assert line == "epoch 0/3  train/loss 0.2000  val/loss 0.2000  val/accuracy 0.9000 *"
    assert len(progress.epoch_line("val", 40).plain) <= 40 and "val/" not in progress.epoch_line("train", 80).plain
    progress.update_validation(Validation(row, {"metric": "val/accuracy", "value": 0.95, "step": 5}, None, None), at)
    assert not progress.epoch_line("val", 80).plain.endswith("*")


def test_summary_names_the_weights_of_the_test_measurement():
    result = Result(
        "finished",
        0,
        "",
        step=30,
        epoch=3,
        best={"metric": "val/accuracy", "value": 0.75, "step": 10},
        metrics={"val/accuracy": 0.7, "val/loss": 0.6, "test/accuracy": 0.5, "train/loss": 0.1},
        measured={"val": {"step": 30}, "test": {"step": 10, "part": "2 of 6 batches"}},
        best_checkpoint="step-10",
    )
    text = [" ".join(line.split()) for line in shown(render_result(result))]
    assert "loss accuracy measured with the weights of" in " ".join(text)
    assert "best 0.7500 step 10" in text and "val 0.6000 0.7000 step 30, the last" in text
    assert "test 0.5000 step 10, the best, 2 of 6 batches" in text


def test_the_checkpoint_of_a_long_name_is_on_one_line():
    path = "/runs/" + "0_model-lenet_optimizer.lr-0.001/" * 5
    for is_terminal in (False, True):
        console = RichConsole(file=io.StringIO(), width=80, force_terminal=is_terminal, highlight=False)
        print_end(console, replace(ENDED["finished"], checkpoint=path), Path("a"), {}, CommandLine(job=1))
        assert f"checkpoint {path}\n" in console.file.getvalue()


def test_jobs_of_a_sweep_do_not_repeat_suggestions():
    for job, count in ((None, 3), (0, 0)):
        lines = io.StringIO()
        print_end(RichConsole(file=lines), ENDED["finished"], Path("a"), {}, CommandLine(job=job))
        assert lines.getvalue().count("# ") == count


@pytest.mark.parametrize(
    "value, text",
    [(0.98765, "0.9877"), (0.0, "0.0000"), (1e-5, "1.000e-05"), (3.2e7, "3.200e+07"), (float("nan"), "-")],
)
def test_numbers(value, text):
    assert format_value(value) == text


RUN = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from pathlib import Path; from conftest import FakeRun; from mxtrain.logger.console_logger import ConsoleLogger\n"
    "sys.stdin.read()\n"
    "FakeRun(Path(sys.argv[2])).drive(ConsoleLogger(), 1, 30)\n"
    "print('still here', file=sys.stderr)"
)


@pytest.mark.slow
def test_closed_reader_does_not_stop_the_run(tmp_path):
    arguments = [sys.executable, "-c", RUN, os.path.dirname(__file__), str(tmp_path)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = subprocess.Popen(arguments, **pipes)
    process.stdout.close()
    process.stdin.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(30), error) == (0, b"still here\n")


@pytest.mark.slow
def test_standard_output_on_a_full_disk_does_not_stop_the_run(tmp_path):
    arguments = [sys.executable, "-c", RUN, os.path.dirname(__file__), str(tmp_path)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"still here\n")


def test_the_command_to_continue_does_not_start_again_or_end_at_once() -> None:
    given = ["kvstore=dist_sync", "++checkpoint.resume=never", "trainer.max_steps=10"]
    for result, kept in (
        (replace(ENDED["interrupted"], exit_code=75, cause="trainer.max_steps=10 reached"), given[:1]),
        (ENDED["interrupted"], [given[0], given[2]]),
    ):
        console = RichConsole(file=io.StringIO(), width=200)
        print_end(console, result, Path("/runs/a"), {}, CommandLine("mxtrain", overrides=given))
        command = console.file.getvalue().partition("# go on with this run\n")[2].splitlines()[0]
        assert command.split()[1:-1] == kept
