"""The YAML of our files: read strictly as YAML 1.2, written so that every YAML reader agrees.

Start with `reading`, which is quick for the plain style of most files and has `full_reader` do the
rest; `writing` also edits a file and leaves all other bytes as they are. What a scalar means, and
how it is spelled, both know from `scalars`. It knows `errors` and nothing else.
"""

from __future__ import annotations

from swampstore.yaml_dialect.reading import load, load_mapping
from swampstore.yaml_dialect.writing import dump, edit

__all__ = ["dump", "edit", "load", "load_mapping"]
