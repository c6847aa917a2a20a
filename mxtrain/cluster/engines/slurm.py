"""Slurm: a batch script that saves before the time limit, goes back into the queue, and continues."""

from __future__ import annotations

import shlex

from mxtrain.cluster.engines.job import LaunchJob, LaunchTarget
from mxtrain.cluster.stopping import WARNING_PREFIXES

SCRIPT = "job.sbatch"
WARNING_S = 120
"""Seconds before the time limit at which Slurm sends SIGUSR1."""


def script(job: LaunchJob) -> str:
    """Returns the text of the batch script."""
    tasks = job.workers + job.servers if job.nodes > 1 else 1
    lines = [
        "#!/usr/bin/env bash",
        f"# Type sbatch {SCRIPT} in the folder in which the paths of the settings begin, with mxtrain's environment",
        "# active. Arguments are further settings of the run.",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        f"#SBATCH --ntasks={tasks}",
        f"#SBATCH --cpus-per-task={job.cpus}",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        "#SBATCH --time=04:00:00",
        f"#SBATCH --signal=USR1@{WARNING_S}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "set -uo pipefail",
        f'run="outputs/{job.name}-$SLURM_JOB_ID"',
        'for word in "$@"; do [[ "$word" != hydra.run.dir=* ]] || run="${word#*=}"; done',
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
    ]
    words = shlex.join(["python", "-m", "mxtrain", *job.flags, *job.overrides])
    if job.nodes > 1:
        # This process supervises the others through srun, and restarts them from the last checkpoint.
        lines.append(f'{words} cluster.launcher=slurm "$@" hydra.run.dir="$run"')
    else:
        lines.append(f'srun {words} "$@" hydra.run.dir="$run"')
    causes = "|".join(WARNING_PREFIXES)
    return "\n".join(
        [
            *lines,
            "code=$?",
            "# A run also ends with 75 at the end of a budget such as trainer.max_steps, and then is not continued.",
            f'if ((code == 75)) && grep -qE \'"cause": "({causes})\' "$run/status.json"; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$code"',
            "",
        ]
    )


TARGET = LaunchTarget(
    "Slurm",
    lambda job: {SCRIPT: script(job)},
    (
        ("start; options before the file replace those in it", f"sbatch {{folder}}/{SCRIPT}"),
        ("state", "squeue --name {name}"),
        ("save and stop", "scancel --full --signal=TERM --name {name}"),
    ),
    takes=("nodes", "cpus", "gpus"),
    rings=True,
    remarks=(
        f"Slurm sends SIGUSR1 {WARNING_S} seconds before the time limit. The run saves, all workers after the same "
        "step, and the job goes back into the queue under the same number, where it continues.",
        "The run directory is outputs/NAME-JOBID, or that of hydra.run.dir= behind the file. With several nodes, all "
        "of them must see it.",
    ),
)
