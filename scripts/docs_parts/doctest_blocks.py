"""Shows the examples of docstrings as code: Markdown reads a line that begins with >>> as a quotation."""

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class DoctestBlocks(Extension):
    """Fences each paragraph that begins with >>>."""

    def on_instance(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
