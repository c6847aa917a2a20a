"""Kubernetes: the parts of all targets that run pods, and the target without an operator.

That is an Indexed Job, whose pods find each other by a headless Service. Source of the fields: Kubernetes API
reference, Job v1 and Service v1.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping

import yaml

from mxtrain.cluster.engines.job import GRACE_S, OUTPUTS, RESTARTS, Commands, LaunchJob, LaunchTarget, without_expansion

CONTAINER = "node"
MANIFEST = "job.yaml"
APPLY = f"kubectl apply -f {MANIFEST}, in the namespace of the volume claim"
"""Comment of a manifest."""
LABEL = "batch.kubernetes.io/job-name"
"""Label of the pods of a Job."""
RESTARTS_ALL_PODS = (
    f"If a pod fails or is evicted, all pods start again, {RESTARTS} times at most, and the run continues from its "
    "last checkpoint."
)
"""Behaviour after a failure, for the README."""


def kubernetes_target(
    title: str,
    files: Callable[[LaunchJob], Mapping[str, str]],
    commands: Commands,
    after_failure: str,
    *remarks: str,
    rings: bool = False,
) -> LaunchTarget:
    """Returns a target that runs pods, whose run directory is in a volume claim.

    Args:
        title: as for `LaunchTarget`; `files`, `commands`, `rings` and `remarks` as well.
        after_failure: behaviour if a pod fails, as sentences.
    """
    return LaunchTarget(
        title,
        files,
        commands,
        needs=("image", "storage"),
        takes=("nodes", "cpus", "memory", "gpus"),
        storage=("pvc",),
        rings=rings,
        remarks=(f"Node 0 writes the run directory into the volume claim. {after_failure}", *remarks),
    )


def dump(comment: str, *objects: Dict[str, Any]) -> str:
    """Returns a YAML file with a comment and several objects."""
    return f"# {comment}\n" + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and repeats objects instead of referring to the first one."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def container(job: LaunchJob, script: str) -> Dict[str, Any]:
    """Returns the container of a node.

    Args:
        job: the job.
        script: shell script; its variables are those of the shell, and the command's own `$` are escaped.
    """
    command = job.command()
    assert command in script
    return {
        "name": CONTAINER,
        "image": job.image,
        "command": ["bash", "-euc"],
        "args": [script.replace(command, without_expansion(command))],
        "resources": {"requests": resources(job), "limits": resources(job)},
        "volumeMounts": mounts(),
    }


def resources(job: LaunchJob) -> Dict[str, str]:
    """Returns the resources of a node."""
    gpus = {"nvidia.com/gpu": str(job.gpus)} if job.gpus else {}
    return {"cpu": str(job.cpus), "memory": f"{job.memory}Gi", **gpus}


def mounts() -> List[Dict[str, str]]:
    """Returns the volume mounts of a container."""
    return [{"name": "outputs", "mountPath": OUTPUTS}, {"name": "memory", "mountPath": "/dev/shm"}]


def pod(job: LaunchJob, *containers: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the specification of a pod with the volumes of the job."""
    return {
        # A container that restarts by itself could not join the others again: the engine restarts all pods.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "volumes": [
            {"name": "outputs", "persistentVolumeClaim": {"claimName": job.storage.partition("://")[2]}},
            # Workers that decode images need more than the 64 MiB of shared memory that containers have.
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
        "containers": list(containers),
    }


def follow_logs(label: str) -> str:
    """Returns the command that shows the output of all pods; `label` as for `network_policy`."""
    return f"kubectl logs -f -l {label}={{name}} --prefix --max-log-requests {{max_pods}}"


def network_policy(job: LaunchJob, label: str) -> Dict[str, Any]:
    """Returns a NetworkPolicy that admits only the pods of the job: MXNet's protocol has no authentication.

    Args:
        job: the job.
        label: label of its pods, whose value is the name of the job.
    """
    pods = {"matchLabels": {label: job.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job.name},
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]},
    }


# The target without an operator.


def service(job: LaunchJob) -> Dict[str, Any]:
    """Returns the Service, by which each pod has a name before it is ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: job.name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": job.name}, "spec": spec}


def indexed_job(job: LaunchJob) -> Dict[str, Any]:
    """Returns the Job."""
    script = job.script('"$JOB_COMPLETION_INDEX"', f"{job.name}-0.{job.name}")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            # Kubernetes would replace a failed pod alone, which could not join the others.
            "backoffLimit": 0,
            "template": {"spec": {"subdomain": job.name, **pod(job, container(job, script))}},
        },
    }


TARGET = kubernetes_target(
    "Kubernetes",
    lambda job: {MANIFEST: dump(APPLY, service(job), indexed_job(job), network_policy(job, LABEL))},
    (
        ("start, or start again after a failure", f"kubectl replace --force -f {{folder}}/{MANIFEST}"),
        ("output", follow_logs(LABEL)),
        ("stop; starting again continues the run", f"kubectl delete -f {{folder}}/{MANIFEST}"),
    ),
    "If a pod fails, the Job fails and the others are ended. Starting it again continues the run from its last "
    "checkpoint; for=kubeflow and for=volcano do so by themselves.",
)
