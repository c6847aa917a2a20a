#!/usr/bin/env bash
# mlflow-skinny 3.17.2
# Guess: log_batch logs the metrics that it can and names the one that it refuses, or none of them reaches a run in
# log_metric either.
# What happened: a name outside its alphabet ("acc@5", "acc (val)") makes log_batch raise an error and log nothing of
# the call, while the same metrics, logged one by one, are all there but one. A caller that reports a failure of logging
# and goes on has an empty run.
# Source: mlflow/utils/validation.py, _validate_batch_log_data. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata
import logging

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

logging.disable(logging.WARNING)
client = MlflowClient(tracking_uri="sqlite:///runs.db")
experiment = client.create_experiment("metrics")
metrics = {"loss": 1.0, "précision": 0.25, "f1": 0.5, "acc@5": 0.75}
whole, single = client.create_run(experiment).info.run_id, client.create_run(experiment).info.run_id
refused = []
try:
    client.log_batch(whole, [Metric(name, value, 0, 0) for name, value in metrics.items()])
except MlflowException as error:
    refused.append(str(error).split(":")[0])
for name, value in metrics.items():
    try:
        client.log_metric(single, name, value)
    except MlflowException as error:
        refused.append(name)
found = [client.get_run(run).data.metrics for run in (whole, single)]
print(f"mlflow-skinny {importlib.metadata.version('mlflow-skinny')}: metrics of a run, logged at once and one by one")
print(f"  {found[0]}\n  {found[1]}\n  refused: {refused}")
assert found == [{}, {name: value for name, value in metrics.items() if name != "acc@5"}] and len(refused) == 2
PYTHON
