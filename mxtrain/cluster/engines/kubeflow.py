"""Kubeflow Trainer v2: a ClusterTrainingRuntime and a TrainJob.

Without a framework in `mlPolicy`, Trainer only sets the number of pods (plugin PlainML): the number of a node is that
of the Indexed Job. Horovod uses the plugin MPI, which writes a host file.

Source of the fields: kubeflow/trainer 8c0f5059, manifests/base/crds and manifests/base/runtimes; JobSet v1alpha2.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from mxtrain.cluster.engines.job import PORT, RESTARTS, LaunchJob
from mxtrain.cluster.engines.kubernetes import (
    CONTAINER,
    RESTARTS_ALL_PODS,
    container,
    dump,
    follow_logs,
    kubernetes_target,
    mounts,
    network_policy,
    pod,
)
from mxtrain.cluster.launched import ROOT

RUNTIME, JOB = "runtime.yaml", "trainjob.yaml"
API = "trainer.kubeflow.org/v1alpha1"
LABEL = "jobset.sigs.k8s.io/jobset-name"
MPI_USER, MPI_HOME = 1000, "/home/mpiuser"
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the pods that take command, image and resources of the TrainJob."""


def files(job: LaunchJob) -> Mapping[str, str]:
    """Returns the manifests."""
    return {
        RUNTIME: dump(f"kubectl apply --server-side -f {RUNTIME}, once, by an administrator", runtime(job)),
        JOB: dump(
            f"kubectl apply -f {JOB}, in the namespace of the volume claim", train_job(job), network_policy(job, LABEL)
        ),
    }


def is_mpi(job: LaunchJob) -> bool:
    """Returns True if mpirun starts the workers."""
    return job.ring and job.nodes > 1


def script(job: LaunchJob) -> str:
    """Returns the shell script of a node, or of the launcher of MPI."""
    if is_mpi(job):
        return "\n".join(
            [
                "read -r root _ < /etc/mpi/hostfile",
                f'exec mpirun -n {job.workers} --bind-to none -x {ROOT}="$root:{PORT}" {job.command()}',
                "",
            ]
        )
    return job.script('"$JOB_COMPLETION_INDEX"', f"{job.name}-node-0-0.{job.name}")


def train_job(job: LaunchJob) -> Dict[str, Any]:
    """Returns the TrainJob."""
    node = container(job, script(job))
    trainer = {key: node[key] for key in ("image", "command", "args")}
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {"name": job.name, "kind": "ClusterTrainingRuntime", "apiGroup": API.partition("/")[0]},
            "trainer": {"numNodes": job.nodes, **trainer, "resourcesPerNode": node["resources"]},
        },
    }


def runtime(job: LaunchJob) -> Dict[str, Any]:
    """Returns the ClusterTrainingRuntime."""
    spec: Dict[str, Any] = {
        "mlPolicy": {"numNodes": job.nodes},
        "template": {
            "spec": {
                # A pod must find the scheduler before that is ready.
                "network": {"publishNotReadyAddresses": True},
                # All pods start again, and the run continues from its last checkpoint.
                "failurePolicy": {"maxRestarts": RESTARTS},
                "replicatedJobs": [_replicated("node", STEP, pod(job, container(job, script(job))))],
            }
        },
    }
    if is_mpi(job):
        _use_mpi(spec, job)
    return {
        "apiVersion": API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": job.name, "labels": {"trainer.kubeflow.org/framework": "mxnet"}},
        "spec": spec,
    }


def _replicated(name: str, labels: Mapping[str, str], pod_spec: Dict[str, Any], **options: Any) -> Dict[str, Any]:
    # Kubernetes would replace a failed pod alone, which could not join the others.
    spec = {"backoffLimit": 0, "template": {"spec": pod_spec}}
    metadata = {"metadata": {"labels": dict(labels)}} if labels else {}
    return {"name": name, **options, "template": {**metadata, "spec": spec}}


def _use_mpi(spec: Dict[str, Any], job: LaunchJob) -> None:
    """Adds the launcher of MPI, which is also the last node, and sshd on the others."""
    spec["mlPolicy"]["mpi"] = {
        "numProcPerNode": job.workers // job.nodes,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": f"{MPI_HOME}/.ssh",
        "runLauncherAsNode": True,
    }
    launcher = container(job, script(job))
    launcher["securityContext"] = {"runAsUser": MPI_USER}
    server = {
        "name": CONTAINER,
        "image": job.image,
        "securityContext": {"runAsUser": MPI_USER},
        "command": ["/usr/sbin/sshd"],
        "args": ["-De", "-f", f"{MPI_HOME}/.sshd_config"],
        "readinessProbe": {"tcpSocket": {"port": 2222}, "initialDelaySeconds": 5},
        "resources": launcher["resources"],
        "volumeMounts": mounts(),
    }
    group = {"securityContext": {"fsGroup": MPI_USER}}  # the volumes belong to the user of mpirun
    template = spec["template"]["spec"]
    template["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    template["replicatedJobs"] = [
        _replicated("node", {}, {**pod(job, server), **group}),
        _replicated("launcher", STEP, {**pod(job, launcher), **group}, dependsOn=[{"name": "node", "status": "Ready"}]),
    ]


TARGET = kubernetes_target(
    "Kubeflow Trainer",
    files,
    (
        ("create the runtime, once", f"kubectl apply --server-side -f {{folder}}/{RUNTIME}"),
        ("start", f"kubectl apply -f {{folder}}/{JOB}"),
        ("output", follow_logs(LABEL)),
        ("stop; starting again continues the run", f"kubectl delete -f {{folder}}/{JOB}"),
    ),
    RESTARTS_ALL_PODS,
    "With kvstore=horovod on several nodes, mpirun starts the workers: the image needs Open MPI, Horovod built with "
    "MPI, an SSH server and the user mpiuser, as in Kubeflow's cmd/runtimes/deepspeed/Dockerfile.",
    rings=True,
)
