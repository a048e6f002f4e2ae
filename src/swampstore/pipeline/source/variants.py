"""JSON as Spark's VARIANT: a value that keeps its shape and is asked by path."""

from __future__ import annotations

import json
from typing import Any


def variant_of(text: str | bytes) -> dict[str, bytes] | None:
    """Return what Arrow carries of a JSON document, None if it is none or too large for Spark."""
    from pyspark.sql.types import VariantVal

    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        found = VariantVal.parseJson(decoded)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return {"value": found.value, "metadata": found.metadata}


def variant_of_value(value: Any) -> dict[str, bytes] | None:
    """Return the same of a document that was read already."""
    try:
        return variant_of(json.dumps(value))
    except (ValueError, RecursionError):
        return None
