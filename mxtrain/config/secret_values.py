"""Removes keys and passwords from messages of client libraries before they are shown or stored."""

from __future__ import annotations

import os
import re
from typing import Mapping

_USER_AND_PASSWORD = re.compile(r"(?<=://)[^/\s]+(?=@)")
"""Ends at the last @, as a password may hold one."""
_SECRET_IN_QUERY = re.compile(
    r"([?&;][\w.%-]*(?:password|passwd|pwd|passphrase|token|secret|api_?key|credential)[\w.%-]*=)[^&;\s]+",
    re.IGNORECASE,
)
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_MIN_SECRET_LENGTH = 6
"""Shorter values, such as "true", would also be replaced within ordinary text."""
HIDDEN = "***"


def hide_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Replaces values of variables that may hold a key, and credentials in addresses, by three asterisks."""
    for name, value in environment.items():
        # Client libraries repeat keys in their messages, whatever variable they came from.
        if len(value) >= _MIN_SECRET_LENGTH and _SECRET_NAMES.search(name):
            text = text.replace(value, HIDDEN)
    return _SECRET_IN_QUERY.sub(rf"\1{HIDDEN}", _USER_AND_PASSWORD.sub(HIDDEN, text))


def holds_credentials(text: str) -> bool:
    """Returns True if an address holds a user name or a password, before its host or among its parameters."""
    return bool(_USER_AND_PASSWORD.search(text) or _SECRET_IN_QUERY.search(text))
