"""Rarely used imports of libraries wait until they are used."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mxtrain.engine.late_modules import imported_late


@pytest.fixture
def late_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The text of a module that says that it has been executed."""
    (tmp_path / "late_one.py").write_text(
        "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nVALUE = 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late_one", raising=False)
    return tmp_path / "late_one.ran"


def test_module_is_executed_at_first_attribute_access(late_text: Path) -> None:
    with imported_late(["late_one"]):
        import late_one  # type: ignore[import-not-found]
        import late_one as again  # noqa: F401  # the second import is no use, either
    assert not late_text.exists() and sys.modules["late_one"] is late_one
    assert late_one.VALUE == 7 and late_text.exists()
    late_text.unlink()
    assert late_one.VALUE == 7 and not late_text.exists(), "once"


def test_concurrent_threads_wait_for_module_execution(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "late_two.py").write_text("import time\ntime.sleep(0.2)\nVALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with imported_late(["late_two"]):
        import late_two  # type: ignore[import-not-found]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: late_two.VALUE, range(4))) == [7] * 4


def test_failed_import_fails_again(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "late_three.py").write_text("raise OSError('no disk')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with imported_late(["late_three"]):
        import late_three  # type: ignore[import-not-found]
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            late_three.VALUE  # noqa: B018


def test_other_modules_and_later_imports_are_executed_at_once(late_text: Path) -> None:
    with imported_late(["another"]):
        import late_one  # noqa: F401
    assert late_text.exists()


def test_missing_module_stays_missing() -> None:
    with imported_late(["missing_module"]), pytest.raises(ModuleNotFoundError):
        import missing_module  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.slow
def test_mxnet_imports_rarely_needed_modules_late() -> None:
    """In a process of its own: here it is imported long since."""
    code = """
import sys, warnings
import mxtrain.engine.backend as backend
ran = [name for name in ("requests.api", "urllib3", "scipy.sparse.csgraph._laplacian", "setuptools.dist", "distutils")
       if name in sys.modules]
assert ran == [], ran
warnings.simplefilter("error")
import setuptools
from distutils.version import LooseVersion
assert "setuptools" in sys.modules["distutils"].__file__
from mxnet.gluon import utils
assert callable(utils.requests.get) and "requests.api" in sys.modules
import scipy.sparse, numpy
assert scipy.sparse.csgraph.connected_components(numpy.eye(3))[0] == 3
assert backend.nd.array(scipy.sparse.csr_matrix(numpy.eye(2))).stype == "csr"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
