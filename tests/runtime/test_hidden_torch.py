"""GluonCV is imported beside any version of PyTorch."""

import subprocess
import sys

import pytest

from mxtrain.runtime.hidden_torch import hidden_torch


def test_torch_is_hidden_for_a_while(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    with pytest.raises(KeyError), hidden_torch():
        with pytest.raises(ImportError):
            import torch
        raise KeyError
    import torch

    assert torch is sys
    monkeypatch.delitem(sys.modules, "torch")
    with hidden_torch():
        pass
    assert "torch" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement", ["import mxtrain.vision.networks.gluoncv", "import mxtrain.runtime.probe as p; p.gluoncv()"]
)
def test_gluoncv_is_imported_beside_torch_2(tmp_path, monkeypatch, statement):
    (tmp_path / "torch.py").write_text('__version__ = "2.14.1"\n')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", statement], capture_output=True, text=True)
    assert done.returncode == 0 and "Legacy" not in done.stdout + done.stderr, done.stderr
