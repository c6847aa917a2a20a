"""The steps of the Dockerfile, in a fresh environment: a server without MXNet."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import served_folders
from docker_files import copy_context, ignored, steps

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/serving"
DOCKERFILE = EXAMPLE / "Dockerfile"


def test_dockerfile_versions_match_the_extra() -> None:
    given = dict(re.findall(r"^([\w-]+)(\S*)", (EXAMPLE / "requirements.txt").read_text("utf-8"), re.MULTILINE))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extra = json.loads(re.findall(r"^serve = (\[.*\])$", project, re.MULTILINE)[0])
    for line in extra:
        name, version = re.fullmatch(r"([\w-]+)(.*)", line).groups()  # type: ignore[union-attr]
        assert given[name] == version


def test_environments_and_outputs_are_not_copied(tmp_path: Path) -> None:
    for name in (
        ".git/x",
        ".venv/bin/python",
        "outputs/run/x",
        "mxtrain/__pycache__/x.pyc",
        "mxtrain/data/x.py",
        "exported/digits/model.onnx",
        "examples/serving/requirements.txt",
        "README.md",
    ):
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text("x")
    copy_context(tmp_path / "root", tmp_path / "copy")
    found = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert found == {
        "mxtrain/data/x.py",
        "exported/digits/model.onnx",
        "examples/serving/requirements.txt",
        "README.md",
    }
    for step in steps(DOCKERFILE, "COPY"):
        first = step.split()[0].split("/")[0]
        assert first == "." or not ignored(first, True)


@pytest.mark.slow(30)
def test_dockerfile_steps_start_a_server(tmp_path: Path) -> None:
    copy_context(ROOT, tmp_path / "src")
    environment = tmp_path / "environment"
    python = environment / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=120)
    pip = f"{sys.executable} -m pip --python {python}"
    for step in steps(DOCKERFILE, "RUN"):
        if step.startswith("pip "):
            command = step.replace("/src", str(tmp_path / "src"), 1).replace("pip ", f"{pip} ", 1) + " --no-compile"
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=900, check=False)
            if "Could not find a version" in done.stderr or "No route" in done.stderr:
                pytest.skip("there is no package index here")
            assert done.returncode == 0, done.stderr[-2000:]
    folder = served_folders.write_pixels(tmp_path / "digits")
    program, command, _, host = json.loads(steps(DOCKERFILE, "CMD")[0])
    assert (command, host) == ("serve", "host=0.0.0.0")
    process = subprocess.Popen(
        [str(environment / "bin" / program), command, str(folder), "port=0"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={},
    )
    try:
        assert process.stdout is not None
        # After two seconds, a line of progress comes first.
        port = next(int(match[1]) for line in process.stdout if (match := re.search(r":(\d+)$", line.strip())))
        image = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v2/models/digits/predict",
            json.dumps({"input": image.tolist()}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            found = json.loads(answer.read())
        expected = served_folders.pixels_of(image)[0]
        assert found["class"] == served_folders.CLASSES[expected.argmax()]
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()
    listed = subprocess.run([*pip.split(), "list"], capture_output=True, text=True, check=True).stdout
    assert "mxtrain" in listed and "mxnet" not in listed and "torch" not in listed
