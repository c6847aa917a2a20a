"""A Ray Serve application beside an exported network: the program, and its configuration with batching and replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import yaml

from mxtrain.files.durable import replace_file
from mxtrain.files.regular_files import read_regular

PROGRAM, CONFIG = "ray_application.py", "serve.yaml"
MIN_REPLICAS, MAX_REPLICAS, ONGOING, TARGET_ONGOING = 1, 4, 64, 16


def write(folder: Path, name: str) -> None:
    """Writes the program and its configuration into an exported folder.

    Args:
        folder: with the exported network and its predict.py.
        name: of the network, for clients.
    """
    source = read_regular(Path(__file__).with_name(PROGRAM)).decode()
    replace_file(folder / PROGRAM, source.replace('NAME = "model"', f'NAME = "{name}"').encode())
    text = yaml.safe_dump(config(name), sort_keys=False)
    replace_file(folder / CONFIG, f"# In this folder: serve run {CONFIG}\n{text}".encode())


def config(name: str) -> Dict[str, Any]:
    """Returns the configuration of the application for `serve run` and `serve deploy`."""
    scaling = {"min_replicas": MIN_REPLICAS, "max_replicas": MAX_REPLICAS, "target_ongoing_requests": TARGET_ONGOING}
    return {
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": name,
                "route_prefix": "/",
                "import_path": f"{PROGRAM[: -len('.py')]}:app",
                "deployments": [
                    {
                        "name": "Network",
                        "max_ongoing_requests": ONGOING,
                        "autoscaling_config": scaling,
                        "ray_actor_options": {"num_cpus": 1},
                    }
                ],
            }
        ],
    }
