"""Making sure that a task sees the very files that the driver means, not others of the same name.

The driver has a staging directory beside them, whose name nobody could guess: whoever sees that
directory sees the files.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from swampstore.pipeline.errors import FilesNotSeenError


class Unseen(NamedTuple):
    """What a task answers where the files cannot be seen."""

    host: str

    def error(self, directory: str) -> FilesNotSeenError:
        """Return what to tell whoever insists on Spark."""
        return FilesNotSeenError(
            f"the executors on {self.host} do not see {directory}",
            hint="Share that directory with them under the same path, or use --engine local.",
        )


def unseen(staging_path: str) -> Unseen | None:
    """Return the answer of a task on this machine, None if it sees the staging directory."""
    return None if os.path.isdir(staging_path) else Unseen(socket.gethostname())
