"""Where locks are, relative to the root of the store."""

from __future__ import annotations

from swampstore.errors import ValidationError
from swampstore.layout import ModelRef

_LOCK = ".lock"
_CONTROL = "_control/locks"


def below(namespace: str) -> str:
    """Return what comes before the keys of a namespace."""
    return f"{namespace}/" if namespace else ""


def global_key(namespace: str) -> str:
    """Return the lock of everything in a namespace, which older clients know as well."""
    return f".locks/{namespace}.lock" if namespace else ".datastore.lock"


def model_key(namespace: str, model: ModelRef) -> str:
    """Return the lock of one model, which older clients know as well."""
    return f"{below(namespace)}{model.rel}/{_LOCK}"


def model_of_key(key: str, namespace: str) -> ModelRef | None:
    """Return the model that a key is the lock of, None if it is no such key."""
    prefix, suffix = f"{below(namespace)}data/", f"/{_LOCK}"
    if not (key.startswith(prefix) and key.endswith(suffix)):
        return None
    try:
        model = ModelRef.parse(key[len(prefix) : -len(suffix)])
    except ValidationError:
        return None
    return model if model_key(namespace, model) == key else None


def gate_key(namespace: str) -> str:
    """Return the lock of whoever wants everything, held while others finish their work."""
    return f"{below(namespace)}{_CONTROL}/gate.lock"


def registry_prefix(namespace: str) -> str:
    """Return where sessions say which models they have locked."""
    return f"{below(namespace)}{_CONTROL}/sessions/"
