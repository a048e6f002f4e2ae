"""What a version of the index means is said by one object for each, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

import swampstore
from swampstore import formats
from swampstore.clock import Clock
from swampstore.errors import NewerFormatError
from swampstore.index.changes import Change, index_moved
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.format import Document, RawEntries
from swampstore.index.meta import Meta, MetaText, encode_meta
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, Scope
from swampstore.index.remote_index import Reader
from swampstore.index.repair import Recovery
from swampstore.index.state import (
    Agreements,
    Committed,
    Fingerprint,
    MetaSnapshot,
    Migrated,
    Proof,
    Slice,
    View,
    document,
    grouped,
    meta_facts,
)
from swampstore.index.version import IndexContext, IndexVersion, Rebuild
from swampstore.index.versions import FIRST, VERSIONS, known_version, version_named, version_of
from swampstore.index.watch import Watch
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.protocol import Fetched
from tests.support.index_machine import IndexMachine, raw_rel, shard_of

SOURCE = Path(swampstore.__file__).parent
# Files that know the index, and compare versions of other things.
OTHERS = {
    "pipeline/gc/marks.py": "versions of an artifact",
    "pipeline/gc/sweep.py": "versions of an artifact; 0 stands for all of them",
}


def comparisons(tree: ast.AST) -> Iterator[ast.Compare]:
    """Yield what compares something that is called a version with a number, or a set of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            if any(map(_is_version, operands)) and any(map(_is_number, operands)):
                yield node


def _is_version(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    is_fact = isinstance(node, ast.Call) and "INDEX_VERSION" in ast.unparse(node)
    return name in ("version", "index_version", "indexVersion") or is_fact


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(map(_is_number, node.elts))
    if isinstance(node, ast.Constant):
        return type(node.value) is int or str(node.value) in ("0", "1", "2", "3")
    return isinstance(node, ast.Name) and node.id.isupper()


def test_nobody_outside_compares_numbers_of_versions() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in ("index", "formats.py")
        and str(path.relative_to(SOURCE)) not in OTHERS
        for node in comparisons(_parsed(path))
    }
    assert found == set()


def _parsed(path: Path) -> ast.AST:
    """Return a file that knows the index, or nothing: others mean other versions."""
    text = path.read_text()
    is_concerned = "swampstore.index" in text or "index_version" in text
    return ast.parse(text if is_concerned else "")


def test_the_exceptions_are_still_needed() -> None:
    for name in OTHERS:
        assert list(comparisons(ast.parse((SOURCE / name).read_text())))


@pytest.mark.parametrize(
    "line",
    [
        "meta.version == 2",
        "1 != state.version",
        "status.index_version < 2",
        "version in (1, 2)",
        "base.fact(INDEX_VERSION) == '2'",
        "meta.version == _SHARDED.NUMBER or meta.version == SHARDED",
    ],
)
def test_the_search_finds_every_way_to_write_it(line: str) -> None:
    assert list(comparisons(ast.parse(line)))


def test_versions_are_found_by_number_by_name_and_by_what_a_base_remembers() -> None:
    assert [version_named(one.name) for one in VERSIONS.values()] == list(VERSIONS.values())
    assert [version_of(number).number for number in VERSIONS] == [1, 2, 3]
    assert known_version(None) is FIRST is version_of(1)
    assert known_version("2") is version_of(2)
    assert max(VERSIONS) == formats.NEWEST["meta of paths"]


def test_a_version_that_nobody_knows_is_of_a_newer_release() -> None:
    with pytest.raises(NewerFormatError):
        version_of(99)


def test_each_path_counts_in_exactly_one_kind_of_document() -> None:
    for version in VERSIONS.values():
        assert version.counts(None) is not version.counts("data--t--u--m")
        is_monolith = MONOLITH_KEY in version.documents(["data--t--u--m"])
        assert is_monolith is version.counts(None)


class OneList(IndexVersion):
    """A version for this test: `_meta.json` itself holds all entries, and is a cursor too."""

    number = 4
    name = "list"
    counts_commits = True

    def counts(self, partition: str | None) -> bool:
        return partition is None

    def documents(self, partitions: Iterable[str]) -> list[str]:
        return [META_KEY]

    def entries(self, documents: Documents, partitions: Collection[str]) -> Iterator[RawEntries]:
        raise NotImplementedError

    def lost_partitions(self, snapshot: MetaSnapshot, stored: Container[str]) -> set[str] | None:
        return None

    def is_unchanged(self, watch: Watch, agreed: Fingerprint) -> bool:
        return True

    def proof(self, context: IndexContext, agreed: Fingerprint) -> Proof:
        return Proof()

    def agreed_facts(self, state: Fingerprint, clock: Clock) -> dict[str, str | None]:
        return {}

    def recovered(self, recovery: Recovery, etag: str | None, token: str | None) -> MetaSnapshot:
        return MetaSnapshot(self.number, exists=False)

    def read(self, reader: Reader, snapshot: MetaSnapshot) -> Iterator[Slice]:
        groups = grouped(_entries(snapshot))
        etags = dict.fromkeys(groups, snapshot.etag or "")
        for partition in reader.outdated(etags):
            covered = reader.covered(groups[partition])
            yield Slice(partition, covered, etags[partition], complete=True)
        yield from reader.gone(etags)
        reader.seen = snapshot.fingerprint(None)

    def view(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        partitions: set[str],
        additions: set[str],
        *,
        rels: Collection[str] = (),
    ) -> View:
        return View(snapshot, monolith=StoredDocument(Document(_entries(snapshot)), snapshot.etag))

    def commit(
        self,
        context: IndexContext,
        view: View,
        change: Change,
        scope: Scope | None,
        look_again: Callable[[Collection[str]], None],
    ) -> Committed:
        meta, found = view.snapshot.meta, view.monolith
        assert meta is not None
        assert found is not None
        seq = (meta.commit_seq or 0) + 1
        entries = change.onto(document(found), seq).entries
        extra = {"list": msgspec.Raw(msgspec.json.encode(entries))}
        made = Meta(self.number, (), commit_seq=seq, extra=extra)
        data = encode_meta(made, str(seq))
        try:
            written = context.documents.put_meta(data, view.snapshot.token, commits=True)
        except PreconditionFailedError:
            raise index_moved("others were faster", change.rels) from None
        facts = meta_facts(context.base, made, MetaText.of(data, made), written.etag, written.token)
        agreements = Agreements(context.base)
        if agreements.of(None) == view.snapshot.fingerprint(None):
            state = Fingerprint(self.number, written.etag, None)
            facts |= agreements.fact(None, state, agreements.epoch)
        return Committed(seq, facts, {(one, ""): written.etag for one in grouped(entries)})

    def fence(self, context: IndexContext, meta: Meta, fetched: Fetched, *, is_new: bool) -> None:
        data = encode_meta(meta, "fence")
        context.documents.put_meta(data, fetched.info.token, commits=False)

    def fence_without_meta(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        fetched: Fetched | None,
        *,
        is_new: bool,
    ) -> None:
        raise NotImplementedError

    def migrate(self, context: IndexContext, snapshot: MetaSnapshot) -> Migrated | None:
        return Migrated(self.number, 0, len(_entries(snapshot)), 1, already=True)

    def rebuild(self, work: Rebuild) -> int:
        raise NotImplementedError


def _entries(snapshot: MetaSnapshot) -> RawEntries:
    members = snapshot.meta.extra if snapshot.meta else {}
    return msgspec.json.decode(members.get("list", b"{}"), type=dict[str, msgspec.Raw])


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setitem(VERSIONS, 4, OneList())
    monkeypatch.setitem(formats.NEWEST, "meta", 4)
    store = MemoryStore("third", MemoryBucket())
    store.put(META_KEY, encode_meta(Meta(4, (), commit_seq=1), "first"))
    return store


def test_a_third_version_is_one_class_and_its_registration(
    third: MemoryStore, tmp_path: Path
) -> None:
    ana, ben = (IndexMachine(tmp_path / name, third) for name in ("ana", "ben"))
    assert ana.pull() == []
    ana.commit({raw_rel("m1"): "one", raw_rel("m2"): "two"})
    assert ana.index.is_unchanged()
    assert ben.pull() == [shard_of("m1"), shard_of("m2")]
    assert ben.index.is_unchanged()
    assert ben.commit(removals=[raw_rel("m1")]).commit_seq == 3
    assert not ana.index.is_unchanged()
    ana.pull()
    assert list(ana.base.rels()) == [raw_rel("m2")]
    assert ana.index.migrate().version == 4


def test_a_fence_stops_commits_to_a_third_version_too(third: MemoryStore, tmp_path: Path) -> None:
    ana, ben = (IndexMachine(tmp_path / name, third) for name in ("ana", "ben"))
    view = ana.index.view({shard_of("m1")})
    ben.index.fence()
    with pytest.raises(PreconditionFailedError):
        third.put_if_match(META_KEY, b"{}", view.snapshot.token or "")
