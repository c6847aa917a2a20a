"""A process that has loaded its libraries, and waits to take the place of a process of the run that was lost.

The supervisor starts one for each process with the same command line, and tells it the final one when it is needed:
most of the time of a restart is spent in imports, in composing the configuration, and in opening data.
"""

from __future__ import annotations

import json
import os
import sys
from typing import List, Optional

from mxtrain.cluster.member import STANDBY_FD
from mxtrain.errors import EXIT_FINISHED


def is_standby() -> bool:
    """Returns True until `wait_until_needed` was called in a process that the supervisor has started as a standby."""
    return STANDBY_FD in os.environ


def wait_until_needed() -> Optional[List[str]]:
    """Waits until the supervisor needs this standby, and then takes the environment of the process that it replaces.

    Returns:
        The command line of that process, without the program; None in a process that is no standby, at once.
    """
    number = os.environ.pop(STANDBY_FD, "")
    if not number:
        return None
    with open(int(number), "rb") as pipe:
        line = pipe.readline()
    if not line:  # the supervisor has ended
        sys.exit(EXIT_FINISHED)
    order = json.loads(line)
    for name, value in order["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return list(order["arguments"])
