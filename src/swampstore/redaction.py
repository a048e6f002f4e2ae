"""What must not be shown: passwords and keys in settings, and in URLs wherever they appear."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r".*(secret\w*|password|passphrase|token|(access|account|api|private|shared)_?key(_?id)?|sig)",
    re.IGNORECASE,
)
_USER = re.compile(r"(?<=://)[^\s/?#'\"]*@")
_PARAMETER = re.compile(r"(?<=[?&])([\w.\-]+)=([^\s&#'\"]*)")


def is_secret(name: str) -> bool:
    """Whether a setting or a parameter of this name holds credentials."""
    return _SECRET.fullmatch(name) is not None


def without_credentials(text: str) -> str:
    """Return a text with `***` for the users, passwords and keys in the URLs that it holds."""
    return _PARAMETER.sub(_shown, _USER.sub("***@", text))


def _shown(found: re.Match[str]) -> str:
    return f"{found[1]}=***" if is_secret(found[1]) else found[0]
