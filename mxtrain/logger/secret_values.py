"""Removes keys and passwords from messages of client libraries before they are shown or stored."""

from __future__ import annotations

import os
import re
from typing import Mapping

URL_WITH_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_MIN_SECRET_LENGTH = 6
"""Shorter values, such as "true", would also be replaced within ordinary text."""
HIDDEN = "***"


def hide_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Replaces values of variables that may hold a key, and credentials in addresses, by three asterisks."""
    for name, value in environment.items():
        if len(value) >= _MIN_SECRET_LENGTH and _SECRET_NAMES.search(name):
            text = text.replace(value, HIDDEN)
    return URL_WITH_CREDENTIALS.sub(HIDDEN, text)
