"""The YAML of our files: read strictly as YAML 1.2, written so that every YAML reader agrees."""

from __future__ import annotations

from swampstore.yaml_dialect.reading import load, load_mapping
from swampstore.yaml_dialect.writing import dump, edit

__all__ = ["dump", "edit", "load", "load_mapping"]
