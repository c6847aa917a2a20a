#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: after a worker of dist_sync was killed, another worker can give up its sum, and join a new group of scheduler,
# server and workers without being started again: ps-lite's Postoffice has a Finalize.
# What happened: it waits for the sum for ever. No Python signal handler runs, because its main thread is inside MXNet;
# in another thread, a second kv.create with the address of a new group does not return either (it waits for a barrier of
# the first group), and deleting the first store waits for the sum (its destructor begins with WaitForAll). Nothing but
# an end of the process ends these waits. Source: src/kvstore/kvstore_dist.h. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
cat > worker.py <<'PYTHON'
import os, signal, sys, threading, time
import mxnet as mx

handled, found = [], {}
signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))


def in_time(name, work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(15)
    found[name] = "waits" if thread.is_alive() else "returned"


def watch(kv):
    time.sleep(5)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(10)
    found["sum"] = "returned" if summed else "waits"
    found["signal handler"] = "ran" if handled else "did not run"
    os.environ["DMLC_PS_ROOT_PORT"] = os.environ["NEW_PORT"]
    in_time("second kv.create, new address", lambda: mx.kv.create("dist_sync"))
    in_time("end of the first store", lambda: mx.base._LIB.MXKVStoreFree(kv.handle))
    for name, outcome in found.items():
        print(f"  {name}: {outcome}", flush=True)
    as_expected = [found[name] for name in found if name != "signal handler"] == ["waits"] * 3 and not handled
    os._exit(0 if as_expected else 1)


kv = mx.kv.create("dist_sync")
kv.init("w", mx.nd.zeros(4))
if kv.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
summed = []
threading.Thread(target=watch, args=(kv,), daemon=True).start()
kv.push("w", mx.nd.ones(4))
out = mx.nd.zeros(4)
kv.pull("w", out)
out.wait_to_read()
summed.append(1)
time.sleep(120)
PYTHON
port() { venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
first="$(port)"
second="$(port)"
export DMLC_PS_ROOT_URI=127.0.0.1 DMLC_NODE_HOST=127.0.0.1 DMLC_NUM_SERVER=1 DMLC_NUM_WORKER=2 NEW_PORT="$second"
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; rm -rf "$folder"' EXIT
for group in "$first" "$second"; do
  for role in scheduler server; do
    DMLC_ROLE=$role DMLC_PS_ROOT_PORT=$group venv/bin/python -W ignore -c "import mxnet" > /dev/null 2>&1 &
    pids+=($!)
  done
done
for number in 0 1; do
  DMLC_ROLE=worker DMLC_PS_ROOT_PORT=$first venv/bin/python -W ignore worker.py > "worker$number" 2> /dev/null &
  pids+=($!)
  workers[number]=$!
done
# In the new group, too, one worker is there; the survivor would be the second one.
DMLC_ROLE=worker DMLC_PS_ROOT_PORT=$second venv/bin/python -W ignore -c 'import mxnet as mx; mx.kv.create("dist_sync")' > /dev/null 2>&1 &
pids+=($!)
echo "a worker of dist_sync, 15 s after the other one was killed:"
codes=()
for number in 0 1; do
  code=0
  wait "${workers[number]}" || code=$?
  codes+=("$code")
done
cat worker0 worker1
[[ " ${codes[*]} " == *" 0 "* && " ${codes[*]} " == *" 137 "* ]]
