#!/usr/bin/env bash
# skypilot 0.14.1
# Guess: in a task, `run: exec python train.py` does what `run: python train.py` does, as at the end of any shell script.
# What happened: SkyPilot appends a script to `run` that waits until buckets with mode: MOUNT_CACHED have all files.
# After exec there is no shell to run it: the job counts as finished while its last checkpoint is not in the bucket.
# Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q skypilot==0.14.1
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import subprocess

from sky.backends.task_codegen import TaskCodeGen


def waits(run):
    """Returns whether the script that waits for the bucket begins, by what the shell traces."""
    script = TaskCodeGen.build_task_bash_script(run)
    assert "cached mount is still uploading" in script
    done = subprocess.run(["bash", "-xc", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return "__skypilot_user_exit_code=0" in done.stderr


plain, with_exec = waits("true"), waits("exec true")
print(f"waits for the bucket: {plain} after `true`, {with_exec} after `exec true`")
assert plain and not with_exec
PYTHON
