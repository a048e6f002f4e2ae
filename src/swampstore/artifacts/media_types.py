"""What a content type says about how content can be read."""

from __future__ import annotations

_TEXT_TYPES = frozenset({"application/json", "application/yaml", "application/x-yaml"})


def is_json(content_type: str) -> bool:
    """Whether content of this type is a JSON document."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def is_text(content_type: str) -> bool:
    """Whether content of this type can be shown as text."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _TEXT_TYPES


def guess_content_type(file_name: str) -> str:
    """Return the content type that a file's name suggests."""
    if file_name.endswith((".yaml", ".yml")):
        return "application/yaml"
    import mimetypes

    guessed, encoding = mimetypes.guess_type(file_name)
    return guessed if guessed and not encoding else "application/octet-stream"
