"""Our package, sent to the executors of a cluster, so that it need not be installed there.

Only the package itself: what it needs from others has compiled parts and has to be there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = "swampstore"
_METADATA = ("METADATA", "entry_points.txt")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession) -> None:
    """Let every executor of a session import the very package that runs here.

    It comes before one that is installed there. Sessions that `session` starts on a cluster have
    it already; call this for others.
    """
    directory = tempfile.mkdtemp(prefix="swampstore-")
    weakref.finalize(spark, shutil.rmtree, directory, ignore_errors=True)
    spark.addArtifacts(write_archive(directory), pyfile=True)


def write_archive(directory: str) -> str:
    """Write the package as a zip file that Python imports from, and return its path.

    The name tells the content, so that a session can be sent another one later on.
    """
    members = dict(_members())
    content = hashlib.sha256()
    for name, data in sorted(members.items()):
        content.update(f"{name}\0{len(data)}\0".encode() + data)
    path = f"{directory}/{_PACKAGE}-{content.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return path


def _members() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package, and the metadata by which its stores are found."""
    import swampstore

    root = os.path.dirname(swampstore.__file__)
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in files:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                yield f"{_PACKAGE}/{os.path.relpath(path, root)}", file.read()
    found = distribution(_PACKAGE)
    for name in _METADATA:
        text = found.read_text(name) or ""
        yield f"{_PACKAGE}-{found.version}.dist-info/{name}", text.encode()
