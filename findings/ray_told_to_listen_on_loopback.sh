#!/usr/bin/env bash
# ray 2.60.0
# Guess: a cluster that is started with ray.init(_node_ip_address="127.0.0.1") is at 127.0.0.1, and listens there.
# What happened: Ray replaces addresses of loopback by the address of the machine's network (its ray.init resolves
# them), and its head listens on all interfaces in any case. Whoever keeps others out needs Ray's token (RAY_AUTH_MODE)
# or a firewall; the address does nothing. Exit code 0 as long as this is so (on a machine with a network).
set -euo pipefail
folder="$(mktemp -d /tmp/finding-XXXX)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ray==2.60.0
RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')" \
  "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import ray

context = ray.init(
    address="local",
    _node_ip_address="127.0.0.1",
    _temp_dir=sys.argv[1] + "/ray",
    include_dashboard=False,
    logging_level="ERROR",
    num_cpus=1,
)
host, port = context.address_info["address"].rsplit(":", 1)
# In /proc/net/tcp*, an address of zeros is that of all interfaces.
listening = {
    line.split()[1].rpartition(":")[0].strip("0") or "all interfaces"
    for file in ("/proc/net/tcp", "/proc/net/tcp6")
    for line in Path(file).read_text().splitlines()[1:]
    if line.split()[3] == "0A" and int(line.split()[1].rpartition(":")[2], 16) == int(port)
}
print(f"ray {ray.__version__}: told 127.0.0.1, is at {host}, and listens on {', '.join(sorted(listening))}")
ray.shutdown()
assert host != "127.0.0.1" and listening == {"all interfaces"}
PYTHON
