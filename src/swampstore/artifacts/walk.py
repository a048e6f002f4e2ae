"""Finding every data name below `data/`, whatever the depth of its model type.

A directory is a data name if a numeric child of it holds `metadata.yaml`: numeric data names
are not mistaken for versions, and an unreadable branch is reported, never taken for empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from swampstore.files import Tree
from swampstore.layout import METADATA, DataRef, ModelRef, is_temp, parse_version

Complain = Callable[[str, OSError], None]
_MAX_DEPTH = 64


def data_names(tree: Tree, complain: Complain) -> Iterator[DataRef]:
    """Yield every data name in path order; memory does not grow with how many there are."""
    yield from _below(tree, (), complain)


def names_at(tree: Tree, path: str) -> Iterator[DataRef]:
    """Yield the data names that a path is in, and those below it; what is unreadable is left."""
    parts = tuple(path.split("/")[1:])
    for end in range(3, len(parts)):
        rel = "/".join(("data", *parts[:end]))
        if any(_versions(tree, rel, _children(tree, rel, _ignore))):
            yield DataRef(ModelRef("/".join(parts[: end - 2]), parts[end - 2]), parts[end - 1])
    yield from _below(tree, parts, _ignore)


def _ignore(_place: str, _error: OSError) -> None:
    """Leave it to whoever walks everything."""


def _below(tree: Tree, parts: tuple[str, ...], complain: Complain) -> Iterator[DataRef]:
    rel = "/".join(("data", *parts))
    children = _children(tree, rel, complain)
    versions = set()
    if len(parts) >= 3:
        versions = set(_versions(tree, rel, children))
    if versions:
        yield DataRef(ModelRef("/".join(parts[:-2]), parts[-2]), parts[-1])
    if len(parts) < _MAX_DEPTH:
        for child in children:
            if child not in versions:
                yield from _below(tree, (*parts, child), complain)


def _children(tree: Tree, rel: str, complain: Complain) -> list[str]:
    names: set[str] = set()
    for place in tree.places(rel):
        try:
            with os.scandir(place) as entries:
                names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            continue
        except OSError as error:
            complain(place, error)
    return sorted(name for name in names if not is_temp(name))


def _versions(tree: Tree, rel: str, children: list[str]) -> Iterator[str]:
    """Yield the finalised versions: `207333/` may as well be a numeric data name."""
    places = tree.places(rel)
    for name in children:
        if parse_version(name) is not None:
            inside = f"{name}/{METADATA}"
            # There are a great many; only where tiers mix is it a question of the single file.
            path = f"{places[0]}/{inside}" if len(places) == 1 else tree.path(f"{rel}/{inside}")
            if os.path.lexists(path):
                yield name
