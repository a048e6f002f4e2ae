"""What a base install brings along."""

from __future__ import annotations

from importlib import metadata

import pytest

requirements = pytest.importorskip("packaging.requirements")
MOST_PACKAGES = 20
MOST_BYTES = 50_000_000  # of files; Python adds about half of it as bytecode


def _with_dependencies(name: str) -> dict[str, metadata.Distribution]:
    """Return what installing a package installs here, without extras."""
    found: dict[str, metadata.Distribution] = {}
    asked = [name]
    while asked:
        package = metadata.distribution(asked.pop())
        key = package.metadata["Name"].lower().replace("_", "-")
        if key in found:
            continue
        found[key] = package
        for text in package.requires or ():
            wanted = requirements.Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                asked.append(wanted.name)
    return found


def test_a_base_install_stays_small() -> None:
    packages = _with_dependencies("swampstore")
    others = packages.keys() - {"swampstore"}
    assert len(others) <= MOST_PACKAGES, sorted(others)
    files = (file for name in others for file in packages[name].files or ())
    assert sum(file.size or 0 for file in files) <= MOST_BYTES
    assert not others & {"pyspark", "pyarrow", "pandas", "numpy", "cryptography", "fsspec"}
