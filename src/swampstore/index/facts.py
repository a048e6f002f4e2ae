"""What the base remembers about the index: the names of its facts, and what ETags may prove.

Two kinds of facts must not be mixed up. `meta`, `meta_etag`, `meta_token`, `index_version` and
`commit_seq` tell what `_meta.json` said when it was last seen, whether or not the cache followed.
`agreed` tells with which state of the remote the whole base agrees; `agreed:{scope}` the same of a
scope. Only these make a sync that has nothing to do.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from swampstore.index.base import Base
from swampstore.index.partitions import Scope

META = "meta"
META_ETAG = "meta_etag"
META_TOKEN = "meta_token"  # noqa: S105 - the condition of a write, no secret
INDEX_VERSION = "index_version"
COMMIT_SEQ = "commit_seq"
ORIGIN = "origin"
AGREED = "agreed"
_EPOCH = "agreed_epoch"
_FIRST = "0"
MONOLITH_ETAG = "monolith_etag"
MONOLITH_CHECKED = "monolith_checked"
FOREIGN_WRITER = "foreign_writer"

# What is recorded instead of a shard's ETag when there is none that the base agrees with. Every
# partition that the base has rows of is recorded under the scope "", so that one that vanishes
# from the remote is missed; no store makes such ETags.
GONE = "gone: the partition has no entries"
PARTIAL = "partial: only some entries are known"

_MULTIPART = re.compile(r"[0-9a-fA-F]{32}-[0-9]+")


def from_monolith(etag: str) -> str:
    """Return what is recorded for a partition whose entries came from this monolith."""
    return f"monolith: {etag}"


def same(etag: str | None, other: str | None) -> bool:
    """Whether two ETags prove that nothing changed. Those of multipart uploads prove nothing."""
    return etag is not None and etag == other and not _MULTIPART.fullmatch(etag)


class Fingerprint(NamedTuple):
    """A state of the remote index: ETags of `_meta.json` and, on version 1, of the monolith."""

    version: int
    meta: str | None
    monolith: str | None


class Agreements:
    """The states of the remote that a base agrees with, as a whole or in a scope."""

    def __init__(self, base: Base) -> None:
        self._base = base

    @property
    def epoch(self) -> str:
        """What changes whenever all agreements are revoked."""
        return self._base.fact(_EPOCH) or _FIRST

    def of(self, scope: Scope | None) -> Fingerprint | None:
        """Return what the base agrees with in this scope."""
        agreed, now = self._base.facts(_name(scope), _EPOCH)
        epoch, _, text = (agreed or "").partition(" ")
        if epoch != (now or _FIRST):
            return None
        try:
            return msgspec.json.decode(text, type=Fingerprint)
        except msgspec.MsgspecError:
            return None

    @staticmethod
    def fact(scope: Scope | None, state: Fingerprint, epoch: str) -> dict[str, str | None]:
        """Return the fact that the base, in this scope, agrees with a state of the remote."""
        return {_name(scope): f"{epoch} {msgspec.json.encode(state).decode()}"}

    def revoke(self) -> None:
        """Make the base agree with nothing, in any scope."""
        self._base.apply(facts={_EPOCH: str(int(self.epoch) + 1)})


def _name(scope: Scope | None) -> str:
    return f"{AGREED}:{scope.key}" if scope else AGREED
