"""Kubernetes without an operator: an Indexed Job, whose pods find each other by a headless Service.

Source of the fields: Kubernetes API reference, Job v1 and Service v1.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from mxtrain.cluster.engines.job import Commands, LaunchJob
from mxtrain.cluster.engines.kubernetes import container, dump, follow_logs, kubernetes_target, network_policy, pod

MANIFEST = "job.yaml"
LABEL = "batch.kubernetes.io/job-name"


def files(job: LaunchJob) -> Mapping[str, str]:
    """Returns the manifest."""
    objects = (service(job), manifest(job), network_policy(job, LABEL))
    return {MANIFEST: dump(f"kubectl apply -f {MANIFEST}, in the namespace of the volume claim", *objects)}


def commands(job: LaunchJob, folder: str) -> Commands:
    """Returns the commands that start and watch the job."""
    return [
        ("start, or start again after a failure", f"kubectl replace --force -f {folder}/{MANIFEST}"),
        ("output", follow_logs(job, LABEL)),
        ("stop; starting again continues the run", f"kubectl delete -f {folder}/{MANIFEST}"),
    ]


def service(job: LaunchJob) -> Dict[str, Any]:
    """Returns the Service, by which each pod has a name before it is ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: job.name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": job.name}, "spec": spec}


def manifest(job: LaunchJob) -> Dict[str, Any]:
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
    files,
    commands,
    "If a pod fails, the Job fails and the others are ended. Starting it again continues the run from its last "
    "checkpoint; for=kubeflow and for=volcano do so by themselves.",
)
