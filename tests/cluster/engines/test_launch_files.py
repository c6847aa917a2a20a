"""Files of `mxtrain launch`: checked against the published schemas, and what is refused before anything is written."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import jsonschema
import pytest
import yaml

import mxtrain
from mxtrain.cli import main
from mxtrain.cluster.engines import TARGETS
from mxtrain.errors import ConfigError
from mxtrain.kvstore.spec import has_horovod

SCHEMAS = Path(__file__).with_name("schemas")
DIST = ("kvstore=dist_sync", "cluster.workers=4", "cluster.servers=2")
RING = ("kvstore=horovod", "cluster.workers=4")
needs_horovod = pytest.mark.skipif(not has_horovod(), reason="Horovod is not installed")
HARD = "dataset.root='a $(HOME) $$b \"c\" `d`'"
"""An override that a shell, Kubernetes or Compose would change, if it were not quoted for each of them."""
NEEDED = {
    "kubernetes": {"image": "example.com/a:1", "storage": "pvc://outputs"},
    "kubeflow": {"image": "example.com/a:1", "storage": "pvc://outputs"},
    "volcano": {"image": "example.com/a:1", "storage": "pvc://outputs"},
    "skypilot": {"image": "example.com/a:1", "storage": "gs://outputs"},
    "sagemaker": {"image": "1.dkr.ecr.us-east-1.amazonaws.com/a:1", "storage": "s3://bucket/runs"},
}


def write(folder: Path, target: str, *overrides: str, **settings: Any) -> Dict[str, str]:
    """Returns the texts of the written files by name."""
    written = mxtrain.launch(*overrides, for_=target, out=folder, **{**NEEDED.get(target, {}), **settings})
    assert written.files == sorted(path.name for path in folder.iterdir()) and written.target == target
    return {path.name: path.read_text() for path in folder.iterdir()}


def check(content: Any, schema: str) -> None:
    loaded = json.loads((SCHEMAS / f"{schema}.json").read_text())
    validator = jsonschema.validators.validator_for(loaded)(loaded)
    errors = [f"{list(error.absolute_path)}: {error.message}" for error in validator.iter_errors(content)]
    assert errors == []


def pods(manifest: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Returns the specifications of all pods below a value."""
    if isinstance(manifest, dict) and "containers" in manifest:
        return [manifest]
    inner = manifest.values() if isinstance(manifest, dict) else manifest if isinstance(manifest, list) else ()
    return [pod for value in inner for pod in pods(value)]


@pytest.mark.parametrize(
    "overrides", [(), DIST, pytest.param(RING, marks=needs_horovod)], ids=["one", "servers", "ring"]
)
def test_kubeflow(tmp_path: Path, overrides: Any) -> None:
    is_mpi = overrides == RING
    texts = write(tmp_path / "job", "kubeflow", *overrides, gpus=2, nodes=2 if is_mpi else None, name="digits")
    (runtime,) = yaml.safe_load_all(texts["runtime.yaml"])
    job, policy = yaml.safe_load_all(texts["trainjob.yaml"])
    check(runtime, "kubeflow-clustertrainingruntime")
    check(job, "kubeflow-trainjob")
    nodes = {(): 1, DIST: 4, RING: 2}[overrides]
    assert job["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == nodes
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "digits"
    assert job["spec"]["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "2"
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert [one["name"] for one in jobs] == (["node", "launcher"] if is_mpi else ["node"])
    assert all(one["template"]["spec"]["backoffLimit"] == 0 for one in jobs)
    assert all(pod["restartPolicy"] == "Never" and pod["containers"][0]["name"] == "node" for pod in pods(runtime))
    labelled = [one["name"] for one in jobs if "metadata" in one["template"]]
    assert labelled == (["launcher"] if is_mpi else ["node"])
    if is_mpi:
        mpi = runtime["spec"]["mlPolicy"]["mpi"]
        assert (mpi["numProcPerNode"], mpi["runLauncherAsNode"], mpi["sshAuthMountPath"]) == (
            2,
            True,
            "/home/mpiuser/.ssh",
        )
        (script,) = job["spec"]["trainer"]["args"]
        assert 'mpirun -n 4 --bind-to none -x MXTRAIN_ROOT="$root:9091" mxtrain kvstore=horovod' in script
        assert "cluster.launcher" not in script


def test_kubernetes(tmp_path: Path) -> None:
    service, job, policy = yaml.safe_load_all(write(tmp_path / "job", "kubernetes", *DIST)["job.yaml"])
    # The schema of JobSet holds that of a Job's template.
    runtime = json.loads((SCHEMAS / "kubeflow-clustertrainingruntime.json").read_text())
    jobs = runtime["properties"]["spec"]["properties"]["template"]["properties"]["spec"]["properties"]["replicatedJobs"]
    jsonschema.validate(job["spec"], jobs["items"]["properties"]["template"]["properties"]["spec"])
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4 and job["spec"]["backoffLimit"] == 0
    (pod,) = pods(job)
    assert pod["subdomain"] == service["metadata"]["name"] == "mxtrain"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"]
    assert "MXTRAIN_ROOT=mxtrain-0.mxtrain:9091\n" in pod["containers"][0]["args"][0]


def test_volcano(tmp_path: Path) -> None:
    manifest = yaml.safe_load(write(tmp_path / "job", "volcano", *DIST, name="digits")["job.yaml"])
    check(manifest, "volcano-job")
    spec = manifest["spec"]
    assert spec["minAvailable"] == spec["tasks"][0]["replicas"] == 4
    assert spec["plugins"] == {"env": [], "svc": ["--publish-not-ready-addresses=true"]}
    (pod,) = pods(manifest)
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "outputs"}
    assert pod["terminationGracePeriodSeconds"] == 60


def test_skypilot(tmp_path: Path) -> None:
    task = yaml.safe_load(write(tmp_path / "job", "skypilot", *DIST, nodes=2, cpus=8)["task.yaml"])
    check(task, "skypilot-task")
    assert (task["num_nodes"], task["resources"]["cpus"]) == (2, "8+")
    assert task["file_mounts"]["/outputs"] == {"source": "gs://outputs", "mode": "MOUNT_CACHED"}
    assert "hydra.run.dir=/outputs/mxtrain" in task["run"] and "exec " not in task["run"]


def test_sagemaker(tmp_path: Path) -> None:
    words = ("dataset=image_folder", "dataset.root=/opt/ml/input/data/photos", "~callback.ema", "model.hidden=[8,4]")
    texts = write(tmp_path / "job", "sagemaker", *DIST, *words[:2], "model=mlp", words[3])
    request = json.loads(texts["training-job.json"])
    check({**request, "RoleArn": "arn:aws:iam::123456789012:role/training"}, "sagemaker-create-training-job")
    assert request["ResourceConfig"]["InstanceCount"] == 4
    assert request["HyperParameters"]["model.hidden"] == "[8,4]"
    (channel,) = request["InputDataConfig"]
    assert channel["ChannelName"] == "photos"
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://bucket/runs/data/photos"
    assert 'ENTRYPOINT ["python", "/opt/mxtrain/sagemaker_entry.py"]' in texts["Dockerfile"]
    assert "COPY sagemaker_entry.py " in texts["Dockerfile"]


def test_docker(tmp_path: Path) -> None:
    compose = yaml.safe_load(write(tmp_path / "job", "docker", *DIST, gpus=1)["compose.yaml"])
    check(compose, "compose")
    service = compose["services"]["train"]
    assert service["command"][:3] == list(DIST) and service["command"][-1] == "hydra.run.dir=/outputs/mxtrain"
    assert "cluster.launcher=nodes" not in service["command"]  # all processes are in one container
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 1


def test_slurm(tmp_path: Path) -> None:
    text = write(tmp_path / "job", "slurm", *DIST, nodes=2, gpus=1)["job.sbatch"]
    options = [line.split("#SBATCH ")[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    expected = ["--nodes=2", "--ntasks=6", "--cpus-per-task=4", "--gpus-per-node=1", "--signal=USR1@120", "--requeue"]
    assert set(options) >= set(expected)
    assert "cluster.launcher=slurm" in text
    subprocess.run(["bash", "-n", str(tmp_path / "job" / "job.sbatch")], check=True)
    alone = write(tmp_path / "alone", "slurm")["job.sbatch"]
    assert "--ntasks=1\n" in alone and "\nsrun python -m mxtrain " in alone and "cluster.launcher" not in alone


@pytest.mark.parametrize(
    "cause, is_requeued",
    [
        ("SIGUSR1 received", True),
        ("SIGUSR1, SIGUSR2 or a notice of preemption received by another worker", True),
        ("notice of preemption received", True),
        ("trainer.max_steps reached", False),
    ],
    ids=["signal", "other_worker", "notice", "budget"],
)
def test_slurm_requeues_runs_that_were_told_to_end(tmp_path: Path, cause: str, is_requeued: bool) -> None:
    """Programs with the names of Slurm's stand for a run that has saved, and for the controller."""
    write(tmp_path / "job", "slurm")
    status = json.dumps({"cause": cause}, indent=2)
    for name, command in (
        ("srun", f"mkdir -p run; echo '{status}' > run/status.json; exit 75"),
        ("scontrol", "echo $*"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{command}\n")
        (tmp_path / name).chmod(0o700)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    command = ["bash", "job/job.sbatch", "hydra.run.dir=run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 75 and done.stdout == ("requeue 7\n" if is_requeued else "") and not done.stderr


@pytest.mark.parametrize("target", ["kubernetes", "kubeflow", "volcano"])
def test_output_of_more_pods_than_kubectl_shows_by_default(tmp_path: Path, target: str) -> None:
    written = mxtrain.launch(
        "kvstore=dist_sync", "cluster.workers=8", for_=target, out=tmp_path / "job", **NEEDED[target]
    )
    (command,) = (command for purpose, command in written.commands if purpose == "output")
    assert command.endswith("=mxtrain --prefix --max-log-requests 8")


def test_docker_builds_the_image_that_its_own_starts_from(tmp_path: Path) -> None:
    written = mxtrain.launch(for_="docker", out=tmp_path / "job")
    base = written.commands[0][1].split()
    assert base[:2] == ["docker", "build"] and (Path(__file__).parents[3] / base[3]).is_file() and base[5] == "mxtrain"
    assert "ARG BASE=mxtrain\n" in (tmp_path / "job" / "Dockerfile").read_text()


def test_commands_name_the_image_and_start_spot_machines(tmp_path: Path) -> None:
    def commands_of(target: str, **settings: str) -> Dict[str, str]:
        return dict(
            mxtrain.launch(for_=target, out=tmp_path / target, **{**NEEDED.get(target, {}), **settings}).commands
        )

    on_pods = commands_of("kubernetes", image="registry/a:1")
    folder = tmp_path / "kubernetes"
    assert on_pods["the image of the job"] == f"docker build -t registry/a:1 {folder}"
    assert on_pods["send it to the registry"] == "docker push registry/a:1"
    spot = commands_of("skypilot", name="night")["start on spot machines, which are replaced"]
    assert spot == f"sky jobs launch -n night --use-spot {tmp_path / 'skypilot' / 'task.yaml'}"


def test_overrides_arrive_unchanged(tmp_path: Path) -> None:
    """Through YAML, the engine's own variables and a shell."""
    arrived = {}
    for target in TARGETS:
        texts = write(tmp_path / target, target, "dataset=image_folder", HARD)
        if target in ("kubernetes", "kubeflow", "volcano"):
            objects = list(yaml.safe_load_all(texts["trainjob.yaml" if target == "kubeflow" else "job.yaml"]))
            found = objects[0]["spec"]["trainer"] if target == "kubeflow" else pods(objects)[0]["containers"][0]
            # Kubernetes replaces $$ by $, and leaves variables that it does not know.
            arrived[target] = shlex.split(found["args"][0].replace("$$", "$"))
        elif target == "skypilot":
            arrived[target] = shlex.split(yaml.safe_load(texts["task.yaml"])["run"])
        elif target == "sagemaker":
            parameters = json.loads(texts["training-job.json"])["HyperParameters"]
            arrived[target] = [f"{key}={value}" for key, value in parameters.items()]
        elif target == "docker":
            command = yaml.safe_load(texts["compose.yaml"])["services"]["train"]["command"]
            arrived[target] = [word.replace("$$", "$") for word in command]
        else:
            (line,) = [line for line in texts["job.sbatch"].splitlines() if line.startswith("srun ")]
            arrived[target] = shlex.split(line)
    assert set(arrived) == set(TARGETS)
    assert all(HARD in words for words in arrived.values()), arrived


@pytest.mark.parametrize("target", TARGETS)
def test_readme_lists_files_and_commands(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [f"{name}={value}" for name, value in NEEDED.get(target, {}).items()]
    assert main(["launch", f"for={target}", "out=my job", "model=mlp", *given]) == 0
    printed = capfd.readouterr().out.splitlines()
    names = sorted(path.name for path in (tmp_path / "my job").iterdir())
    assert printed[0] == f"written to my job: {', '.join(names)}"
    readme = (tmp_path / "my job" / "README.md").read_text()
    assert "\nmxtrain model=mlp\n" in readme and all(name in readme for name in names if name != "README.md")
    commands = [line for line in printed[1:] if not line.startswith("#")]
    assert any("'my job'" in command for command in commands)
    for command in commands:
        assert command.replace("'my job'", ".") in readme
    assert main(["launch", f"for={target}", "out=my job", *given]) == 2
    assert "out=my job: it is there already" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        (["for=slurm"], "for=ENGINE and out=FOLDER are needed"),
        (["out=job"], "engines: kubernetes, kubeflow, volcano, slurm, skypilot, sagemaker, docker"),
        (["for=slrum", "out=job"], "launch.for=slrum: should be 'kubernetes', 'kubeflow', 'volcano', 'slurm'"),
        (["for=slurm", "out=job", "model=mpl"], "Did you mean 'mlp'?"),
        (["for=slurm", "out=job", "optimizer.lr=fast"], "optimizer.lr=fast"),
        (["for=slurm", "out=job", "modle=mlp"], "Did you mean 'model'?"),
        (["for=slurm", "out=job", "-m", "optimizer.lr=0.1,0.2"], "Leave out -m"),
        (["for=slurm", "out=job", "hydra.run.dir=x"], "the files name the run directory"),
        (["for=slurm", "out=job", "hydra.mode=MULTIRUN"], "the files start one run"),
        (["for=slurm", "out=job", *DIST, "cluster.launcher=ray"], "processes are started, by cluster.launcher=slurm."),
        (["for=docker", "out=job", *DIST, "cluster.launcher=nodes"], "choose how processes are started. Leave it out."),
        (["for=slurm", "out=job", "image=a:1"], "launch.image=a:1: for=slurm writes no such setting"),
        (["for=docker", "out=job", "nodes=2"], "launch.nodes=2: for=docker writes no such setting"),
        (["for=slurm", "out=job", "nodes=2"], "launch.nodes=2 with cluster.workers=1: each node needs a worker"),
        (["for=slurm", "out=job", "name=My_Job"], "launch.name=My_Job"),
        (["for=slurm", "out=job", f"name={'a' * 41}"], "at most 40"),
        (["for=kubeflow", "out=job", "storage=pvc://a"], "image is missing, e.g. image=registry.example.com/mxtrain:1"),
        (["for=kubeflow", "out=job", "image=a:1"], "storage is missing, e.g. storage=pvc://NAME"),
        (["for=kubeflow", "out=job", "image=a:1", "storage=s3://a"], "for=kubeflow takes pvc://NAME"),
        (["for=skypilot", "out=job", "image=a:1", "storage=s3://a/b"], "for=skypilot takes s3://NAME or gs://NAME"),
        pytest.param(
            ["for=volcano", "out=job", "image=a:1", "storage=pvc://a", *RING],
            "on 4 nodes needs mpirun or srun",
            marks=needs_horovod,
        ),
        pytest.param(
            ["for=kubeflow", "out=job", "image=a:1", "storage=pvc://a", "nodes=3", *RING],
            "multiple of that of nodes",
            marks=needs_horovod,
        ),
        (["for=docker", "out=job", "--config-dir", "."], "is a folder of this machine"),
        (["for=slurm", "out=job", *DIST, "trainer.folds=2"], "folds are several runs"),
    ],
)
def test_nothing_is_written_for_wrong_input(
    words: List[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *words]) == 2
    printed = capfd.readouterr()
    assert said in printed.err and printed.out == "", printed.err
    assert list(tmp_path.iterdir()) == []


@needs_horovod
def test_horovod_may_use_one_node_of_any_engine(tmp_path: Path) -> None:
    text = write(tmp_path / "job", "volcano", *RING, nodes=1)["job.yaml"]
    assert "cluster.launcher" not in text and "MXTRAIN_ROOT" not in text


def test_network_interface_is_a_setting_of_several_nodes(tmp_path: Path) -> None:
    words = (*DIST, "cluster.launcher=nodes", "cluster.interface=eth1")
    text = write(tmp_path / "job", "volcano", *words)["job.yaml"]
    assert text.count("cluster.launcher=nodes") == 1 and "cluster.interface=eth1" in text


def test_own_configuration_goes_to_slurm(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    text = write(tmp_path / "job", "slurm", config_dir=tmp_path / "conf")["job.sbatch"]
    assert f"\nsrun python -m mxtrain --config-dir {tmp_path / 'conf'} " in text


def test_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="launch: metric.* is an object, which cannot be sent"):
        mxtrain.launch(metric=lambda targets, outputs: 0.0, for_="slurm", out=tmp_path / "job")
    with pytest.raises(ConfigError, match="launch.nodes=0"):
        mxtrain.launch(for_="slurm", out=tmp_path / "job", nodes=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_mxnet_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from mxtrain.cli import main; code = main(sys.argv[1:]); assert 'mxnet' not in sys.modules; "
        "assert 'onnx' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "launch", "for=docker", f"out={tmp_path / 'job'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
