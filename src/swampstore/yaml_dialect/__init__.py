"""The YAML of our files: read strictly as YAML 1.2, written so that every YAML reader agrees."""

from __future__ import annotations

from swampstore.yaml_dialect.editor import edit
from swampstore.yaml_dialect.reader import load, load_mapping
from swampstore.yaml_dialect.writer import dump

__all__ = ["dump", "edit", "load", "load_mapping"]
