"""Canonical JSON: one spelling for one document, so that its hash says whether it is the same."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

_WRITTEN_OUT = 1e21  # from here on, other clients write numbers with an exponent


def canonical_hash(document: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of a document's canonical JSON."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """Return a value as JSON: keys sorted at every level, no white space, numbers as JavaScript.

    Other clients must come to the same hash, and they know no difference between 1 and 1.0.
    """
    match value:
        case bool() | str() | None:
            return json.dumps(value, ensure_ascii=False)
        case int():
            return str(value)
        case float():
            return _number(value)
        case Mapping():
            # As JavaScript sorts: by UTF-16 units.
            keys = sorted(value, key=lambda key: str(key).encode("utf-16-be", "surrogatepass"))
            inside = ",".join(f"{canonical_json(str(k))}:{canonical_json(value[k])}" for k in keys)
            return f"{{{inside}}}"
        case list() | tuple():
            return f"[{','.join(map(canonical_json, value))}]"
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    if value.is_integer() and abs(value) < _WRITTEN_OUT:
        return str(int(value))
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    if -6 <= int(exponent) < 0:
        return f"{value:.{len(digits.replace('.', '').lstrip('-')) - 1 - int(exponent)}f}"
    return f"{digits}e{int(exponent):+d}"
