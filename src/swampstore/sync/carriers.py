"""Who carries files between a cache and its store; here, the threads of this process.

What has to be carried is decided before, and what becomes of it is settled afterwards: the base,
the index and the places of the files are no business of a carrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from swampstore.index.workers import Deadline, Done
from swampstore.sync.downloads import Brought, Download, Downloader, Staging, fetch_all
from swampstore.sync.parts import Parts
from swampstore.sync.uploads import Placed, Upload, Uploader, put_all


class Carrier(Protocol):
    """Carries files one by one, in no order. Each of them comes back once, done or failed.

    Leaving the iteration early ends it. Whatever was carried by then is harmless: the next push
    finds its own objects, and staged files go with their directory.
    """

    def upload(
        self, parts: Parts, uploads: Sequence[Upload], sizes: Mapping[str, int], deadline: Deadline
    ) -> Iterator[Done[Upload, Placed]]:
        """Put files into the store; `sizes` says, by path, how much each is."""

    def download(
        self, parts: Parts, downloads: Sequence[Download], staging: Staging, deadline: Deadline
    ) -> Iterator[Done[Download, Brought]]:
        """Fetch objects into files below the staging directory."""


class Threads:
    """Carries with as many threads as the store allows."""

    def upload(
        self, parts: Parts, uploads: Sequence[Upload], sizes: Mapping[str, int], deadline: Deadline
    ) -> Iterator[Done[Upload, Placed]]:
        """Put files into the store."""
        del sizes
        uploader = Uploader(parts.store, parts.names, parts.clock)
        return put_all(uploader, uploads, parts.limits.push_concurrency, deadline)

    def download(
        self, parts: Parts, downloads: Sequence[Download], staging: Staging, deadline: Deadline
    ) -> Iterator[Done[Download, Brought]]:
        """Fetch objects into files below the staging directory."""
        downloader = Downloader(parts.store, parts.names, staging)
        return fetch_all(downloader, downloads, parts.limits.pull_concurrency, deadline)


THREADS = Threads()
