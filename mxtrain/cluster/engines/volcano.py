"""Volcano: a Job whose pods start all together or not at all.

The plugin `svc` makes names for the pods and puts them into VC_NODE_HOSTS, `env` their numbers into VC_TASK_INDEX.

Source of the fields: volcano-sh/volcano ed72c7c8, config/crd/volcano/bases/batch.volcano.sh_jobs.yaml and
pkg/controllers/job/plugins.
"""

from __future__ import annotations

from typing import Any, Dict

from mxtrain.cluster.engines.job import RESTARTS, LaunchJob
from mxtrain.cluster.engines.kubernetes import (
    APPLY,
    CONTAINER,
    MANIFEST,
    RESTARTS_ALL_PODS,
    container,
    dump,
    follow_logs,
    kubernetes_target,
    pod,
)


def manifest(job: LaunchJob) -> Dict[str, Any]:
    """Returns the Job."""
    script = job.script('"$VC_TASK_INDEX"', '"${VC_NODE_HOSTS%%,*}"')
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": job.nodes,
            "maxRetry": RESTARTS,
            # All pods start again, and the run continues from its last checkpoint.
            "policies": [{"events": ["PodFailed", "PodEvicted"], "action": "RestartJob"}],
            "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
            "tasks": [
                {
                    "name": CONTAINER,
                    "replicas": job.nodes,
                    "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
                    "template": {"spec": pod(job, container(job, script))},
                }
            ],
        },
    }


TARGET = kubernetes_target(
    "Volcano",
    lambda job: {MANIFEST: dump(APPLY, manifest(job))},
    (
        ("start", f"kubectl apply -f {{folder}}/{MANIFEST}"),
        ("output", follow_logs("volcano.sh/job-name")),
        ("stop; starting again continues the run", f"kubectl delete -f {{folder}}/{MANIFEST}"),
    ),
    RESTARTS_ALL_PODS,
    "Volcano's plugin svc makes a NetworkPolicy that admits only the pods of the job.",
)
