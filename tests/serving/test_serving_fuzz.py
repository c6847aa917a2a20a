"""Requests that schemathesis makes of the server's own description: none fails, none is answered as it does not say."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import served_folders
from served_folders import Served

pytestmark = [pytest.mark.slow, pytest.mark.zoo]


def test_schemathesis_finds_no_errors(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    makers = {
        "pixels": served_folders.write_pixels,
        "ids": served_folders.write_ids,
        "mixing": served_folders.write_mixing,
    }
    folders = [make(tmp_path / name) for name, make in makers.items()]
    program = Path(sysconfig.get_path("scripts")) / "schemathesis"
    with Served(*folders) as served:
        # Not "unsupported_method" etc.: these checks ask whether the server is strict where the protocol is not.
        done = subprocess.run(
            [
                sys.executable,
                str(program),
                "run",
                f"{served.url}/openapi.json",
                "--max-examples",
                "60",
                "--checks",
                "not_a_server_error,response_schema_conformance,content_type_conformance",
                "--phases",
                "examples,coverage,fuzzing",
                "--seed",
                "1",
                "--request-timeout",
                "20",
                "--no-color",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert served.infer("ids", "ids", np.array([[1]], np.int32), "INT32")[0] == 200
        assert not [row for row in served.log if row["event"] == "error"]
