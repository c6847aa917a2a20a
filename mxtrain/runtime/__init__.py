r"""Sets what MXNet reads when it is imported: threads, engine resources, instruction set.

    report = apply(Runtime(), num_devices=2)
    print("\n".join(report.lines()))
    import mxtrain.engine.backend

Nothing here imports MXNet or numpy: both read the environment once, when they are loaded.
"""

from __future__ import annotations

from mxtrain.runtime.apply import RuntimeReport, Setting, apply
from mxtrain.runtime.spec import MACHINE_FIELDS, REMOVED_FIELDS, Runtime

__all__ = ["MACHINE_FIELDS", "REMOVED_FIELDS", "Runtime", "RuntimeReport", "Setting", "apply"]
