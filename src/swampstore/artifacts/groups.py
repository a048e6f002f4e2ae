"""Versions written now and committed together later, or not at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from swampstore.artifacts import claims
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import wins
from swampstore.artifacts.metadata import Draft, Metadata
from swampstore.artifacts.name_lock import Outcome
from swampstore.artifacts.publish import advance_latest
from swampstore.artifacts.save import ArtifactStore
from swampstore.artifacts.streaming import VersionWriter
from swampstore.artifacts.versions import StoredVersion
from swampstore.errors import MetadataError, NotFoundError
from swampstore.files import Change, Hold
from swampstore.layout import DEFERRED, DataRef


class Receipt(NamedTuple):
    """A version that waits to be committed."""

    ref: DataRef
    version: int


class Deferral:
    """A group of versions that become latest together; use it in a `with` block.

    Leaving the block commits, an exception rolls back. Until then the versions can be read by
    their number but are nobody's latest. They are held for as long as this process lives: after a
    kill, whoever meets them first clears them away, unless the commit had begun: then it is
    finished by the next process. Only the commit waits for the disk, for all of them together.
    Whether the commit `prunes` is as for `ArtifactStore.save`.
    """

    def __init__(self, store: ArtifactStore, *, prunes: bool = True) -> None:
        self._store = store
        self._prunes = prunes
        self._writers: list[VersionWriter] = []
        self._saved: list[Receipt] = []
        self._hold = Hold()

    @property
    def receipts(self) -> list[Receipt]:
        """The versions written so far."""
        return [
            *self._saved,
            *(Receipt(writer.ref, writer.version) for writer in self._writers),
        ]

    def save(self, ref: DataRef, content: bytes, draft: Draft) -> Metadata:
        """Save bytes as a version that waits for the commit."""
        metadata = self._store.save(ref, content, draft, group=self._hold)
        self._saved.append(Receipt(ref, metadata.version))
        return metadata

    def open_writer(self, ref: DataRef, draft: Draft) -> VersionWriter:
        """Return a writer for a version that waits for the commit."""
        writer = self._store.open_writer(ref, draft, group=self._hold)
        self._writers.append(writer)
        return writer

    def adopt(self, receipts: Iterable[Receipt]) -> None:
        """Take over versions that another process deferred, which must still live.

        Raises NotFoundError if one of them is there no longer.
        """
        for ref, version in receipts:
            if not claims.adopt(self._store.tree, ref, version, self._hold):
                raise NotFoundError(
                    f"{ref} version {version} does not wait to be committed any more",
                    hint="Keep the group that saved it until another one has adopted it.",
                )
            self._saved.append(Receipt(ref, version))

    def commit(self) -> None:
        """Make every version the latest of its name.

        Raises MetadataError, and commits none of them, if one was never finalised or is gone;
        LockTimeoutError if somebody else is at one of the names. It can be tried again then.
        """
        versions: dict[DataRef, set[int]] = defaultdict(set)
        for ref, version in self.receipts:
            versions[ref].add(version)
        if not versions:
            return
        refs = list(versions)
        by_path = {ref.rel: sorted(versions[ref]) for ref in refs}
        changed = [ref.version_rel(version) for ref in refs for version in versions[ref]]
        changed += by_path
        mutations, tree = self._store.mutations, self._store.tree
        found: dict[Receipt, Metadata] = {}
        # Whoever finishes the commit after a power failure must find what it is about, and the
        # intent stays until the commit itself is on the disk.
        tree.make_durable(changed)
        with mutations.changing_many(
            *(refs, "commit"),
            durable=False,
            versions=by_path,
            check=lambda: found.update(self._described(versions)),
        ) as changes:
            self._hold.seal()  # from here on it is finished, by whoever knows the intent
            outcomes = [
                self._commit_name(
                    change, ref, [found[Receipt(ref, one)] for one in by_path[ref.rel]]
                )
                for ref, change in zip(refs, changes, strict=True)
            ]
            tree.make_durable(changed)
            mutations.record_all(outcomes)
        self._take()
        self._hold.release()
        for outcome in outcomes if self._prunes else ():
            self._store.prune_after(outcome.ref, outcome.stored[-1].metadata)

    def _described(self, versions: Mapping[DataRef, Iterable[int]]) -> dict[Receipt, Metadata]:
        """Return the metadata of all versions: as long as one has none, none may count."""
        found: dict[Receipt, Metadata] = {}
        for ref, numbers in versions.items():
            for version in numbers:
                metadata = on_disk.read_metadata(self._store.tree, ref, version)
                if metadata is None:
                    raise MetadataError(
                        f"{ref} version {version} was never finalised, or somebody deleted it;"
                        " nothing of its group is committed",
                        hint="Finalise every writer before committing.",
                    )
                found[Receipt(ref, version)] = metadata
        return found

    def _commit_name(self, change: Change, ref: DataRef, described: Sequence[Metadata]) -> Outcome:
        tree = self._store.tree
        marker = on_disk.effective_marker(tree, ref)  # as long as these versions do not count
        for metadata in described:
            change.remove(ref.file_rel(metadata.version, DEFERRED))
            claims.settle(change, ref, metadata.version)
        newest = described[-1].version
        if wins(newest, marker):
            marker = advance_latest(tree, change, ref, newest)
        stored = [StoredVersion(metadata, deferred=False) for metadata in described]
        return Outcome(ref, marker, stored)

    def rollback(self) -> None:
        """Remove every version of the group."""
        for writer in self._writers:
            writer.abort()
        for ref, version in self._take():
            self._store.delete_versions(ref, [version])
        self._hold.release()

    def _take(self) -> list[Receipt]:
        receipts = self.receipts
        self._saved, self._writers = [], []
        return receipts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()
