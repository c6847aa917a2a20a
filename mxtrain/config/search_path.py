"""Removes the current folder from `sys.path` until the user names a class that may be there.

`python -m` and `python -c` put the current folder first, before the standard library. In an untrusted folder, a
`horovod.py` or `random.py` would then be executed by any module that imports this name.
"""

from __future__ import annotations

import os
import sys

# Do not import `typing` here: at this point of `python -m mxtrain` a file of the current folder could shadow it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

START = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import importlib.util, runpy; "
    "importlib.util.find_spec('mxtrain') or sys.path.append(''); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""As `-P -m` of Python 3.11 and later; mxtrain itself may be in the current folder, a checkout."""


def module_command(module: str, python: str = sys.executable) -> List[str]:
    """Returns the command that runs one of mxtrain's modules without the current folder on its path; arguments may be
    appended.

    Args:
        module: e.g. "mxtrain" or "mxtrain.runtime.probe".
        python: the interpreter, of any version that mxtrain runs on, here or on another host.
    """
    return [python, "-c", START, module]


def leave_out_current_folder() -> None:
    """Removes the current folder that `python -m` has added, unless mxtrain itself was imported from there."""
    # A checkout that is used from its own folder needs that folder on the path.
    own = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
    here = current_folder()
    is_isolated = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not is_isolated and sys.path[:1] in ([""], [here]) and own != here:
        del sys.path[0]


def admit_current_folder(module: str = "") -> None:
    """Adds the current folder to `sys.path` for a class that the user has named.

    The folder is put first if it contains the module, as with `python -m`. Otherwise it is put last, for modules that
    an installed class may import from there.

    Args:
        module: import path of the module of the class.
    """
    here = current_folder()
    if not here or here in sys.path or "" in sys.path:
        return
    first = os.path.join(here, module.partition(".")[0])
    sys.path.insert(0 if module and (os.path.isdir(first) or os.path.exists(f"{first}.py")) else len(sys.path), here)


def current_folder() -> str:
    """Returns the path of the current folder; empty if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
