"""`datastore setup` from every kind of datastore to every other one, with data in it.

Whatever happens on the way, everything can be read afterwards, and nothing is given up before it
was read back from where it went.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.config import Hydration
from swampstore.datastore_address import Address
from swampstore.errors import (
    AlreadyExistsError,
    DiskError,
    LockTimeoutError,
    SwampstoreError,
    ValidationError,
)
from swampstore.files.signature import signature
from swampstore.layout import CLAIM, SIDECAR
from swampstore.marker import read_marker, update_marker
from swampstore.relocate import destinations
from swampstore.relocate import moving as relocation
from swampstore.relocate import settings as new_settings
from swampstore.relocate import setup as setting_up
from swampstore.relocate.own_directory import OwnDirectory
from swampstore.relocate.report import SetupReport
from swampstore.relocate.setup import set_up_datastore
from swampstore.stores import Store, Written
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import CorruptObjectError, StoreError, StoreNotMountedError
from swampstore.stores.probe import ProbeReport
from swampstore.sync import hashing, staged_cache
from swampstore.sync.push import Push
from swampstore.sync.staged_cache import StagedCache
from tests.support.gcs_server import GcsServer
from tests.support.machines import contents
from tests.support.remotes import BUCKET
from tests.support.servers import AZURITE_ACCOUNT, AZURITE_KEY, S3_KEY, S3Server

MODEL = "aws/ec2/i-1"
STATE = "data/aws/ec2/i-1/state"
LARGE = b"0123456789abcdef" * (280 << 10)  # more than is sent in one piece
OUTPUT = "outputs/aws/run.yaml"


def _believe(store: Store, *, racers: int = 0) -> ProbeReport:
    """Spare the proofs, which cost more than all the rest, and have tests of their own."""
    return ProbeReport(store.identity, ())


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "SWAMPSTORE_FSYNC": "off",
        "AWS_ACCESS_KEY_ID": S3_KEY["accessKeyId"],
        "AWS_SECRET_ACCESS_KEY": S3_KEY["secretAccessKey"],
        "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(setting_up, "probe", _believe)


# Places ---------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Address]:
    """Return a new, empty place of a kind."""

    def made(kind: str) -> Address:  # noqa: PLR0911 - one for each kind
        name = uuid.uuid4().hex
        match kind:
            case "default":
                return Address("filesystem")
            case "path":
                return Address("filesystem", path=f"{tmp_path}/{name}")
            case "file":
                (tmp_path / name).mkdir()
                return Address(f"file://{tmp_path}/{name}")
            case "s3":
                s3: S3Server = request.getfixturevalue("s3_server")
                return Address(f"s3://{BUCKET}/{name}?endpoint={s3.url}&region=eu-central-1")
            case "gcs":
                gcs: GcsServer = request.getfixturevalue("gcs_server")
                return Address("gcs", {"bucket": BUCKET, "prefix": name, "apiEndpoint": gcs.url})
            case "mongodb":
                server: str = request.getfixturevalue("mongodb_server")
                return Address(f"mongodb://{server}/tests?tenantId={name}")
            case _:
                azure = request.getfixturevalue("azure_server")
                return Address(f"az://{BUCKET}/{name}?endpoint={azure}")

    return made


class Desk:
    """A machine with a repository on it."""

    def __init__(self, directory: Path) -> None:
        self.repo_dir = directory / "repo"
        self.environ = {"SWAMP_HOME": str(directory / "home"), "SWAMPSTORE_FSYNC": "off"}
        init_repo(self.repo_dir).close()

    def open(self) -> Repo:
        return open_repo(self.repo_dir, environ=self.environ)

    def move(self, address: Address, **options: Any) -> SetupReport:
        with self.open() as repo:
            return set_up_datastore(repo, address, environ=self.environ, **options)

    def save(self, name: str, *contents: str) -> None:
        with self.open() as repo:
            for content in contents:
                repo.artifacts.save(MODEL, name, content)

    def texts(self, name: str) -> list[str]:
        with self.open() as repo:
            return contents(repo, MODEL, name)

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = read_marker(str(self.repo_dir)).get("datastore") or {}
        return found

    @property
    def cache(self) -> Path:
        with self.open() as repo:
            return Path(repo.config.base)


@pytest.fixture
def desk(tmp_path: Path) -> Callable[[str], Desk]:
    return lambda name: Desk(tmp_path / name)


@pytest.fixture
def ana(desk: Callable[[str], Desk]) -> Desk:
    return desk("ana")


@pytest.fixture
def bob(desk: Callable[[str], Desk]) -> Desk:
    return desk("bob")


# Data -----------------------------------------------------------------------------------------


class Version(NamedTuple):
    """What must be the same wherever the data is."""

    address: str
    version: int
    id: str
    sha256: str


def fill(repo: Repo) -> None:
    for number in (1, 2):
        repo.artifacts.save(MODEL, "state", {"n": number})
    repo.artifacts.save(MODEL, "größe", b"")
    repo.artifacts.save("@acme/probe/p-1", "207333", LARGE)
    output = Path(repo.config.datastore_dir, OUTPUT)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("status: ok\n")


def everything(repo: Repo) -> set[Version]:
    """Read every version, content included."""
    found = set()
    for one in repo.query("version > 0", limit=1000):
        artifact = repo.version(one.model, one.name, one.version)
        sha256 = hashlib.sha256(artifact.bytes()).hexdigest()
        found.add(Version(f"{one.model} {one.name}", one.version, artifact.metadata.id, sha256))
    return found


# From anywhere to anywhere --------------------------------------------------------------------

KINDS = ("default", "path", "file", "s3", "gcs", "azure")
REMOTE = KINDS[2:]
PAIRS = [(one, other) for one in KINDS for other in KINDS if one != other]
PAIRS += [(kind, kind) for kind in ("path", "file", "s3")]
PAIRS += [pair for kind in (*KINDS, "mongodb") for pair in ((kind, "mongodb"), ("mongodb", kind))]


class Case(NamedTuple):
    """A move; the switches are spread over the pairs so that each meets each kind."""

    source: str
    target: str
    namespace: str | None
    sharded: bool
    lazy: bool

    @property
    def index_version(self) -> int:
        """What the index of the target is; a database has its own."""
        return 3 if self.target == "mongodb" else 2 if self.sharded else 1

    def __str__(self) -> str:
        switches = [name for name in ("namespace", "sharded", "lazy") if getattr(self, name)]
        return "-".join([self.source, self.target, *switches])


CASES = [
    Case(
        source,
        target,
        namespace="infra" if number % 2 else None,
        sharded=number // 2 % 2 == 1,
        lazy=source in (*REMOTE, "mongodb") and number % 3 != 0,
    )
    for number, (source, target) in enumerate(PAIRS)
]


def test_the_switches_meet_every_kind() -> None:
    for kind in REMOTE:
        for name in ("namespace", "sharded", "lazy"):
            assert {bool(getattr(case, name)) for case in CASES if case.source == kind} == {
                *(False, True)
            }, (kind, name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_everything_arrives_as_it_was(
    case: Case, ana: Desk, bob: Desk, place: Callable[[str], Address]
) -> None:
    source, target = place(case.source), place(case.target)
    with ana.open() as repo:
        fill(repo)
        expected = everything(repo)
    (ana.repo_dir / ".swamp/secrets").mkdir()
    (ana.repo_dir / ".swamp/secrets/key").write_text("mine")
    if case.source != "default":
        ana.move(source)
    mover = ana
    if case.lazy:
        mover = bob
        bob.move(source, hydration="lazy")
    mover.save("late", "saved and never pushed")
    index = "sharded" if case.sharded and target.is_remote else None
    mover.move(target, namespace=case.namespace, index=index)
    with mover.open() as repo:
        (late,) = (one for one in everything(repo) if one.address == f"{MODEL} late")
        expected.add(late)
        assert everything(repo) == expected
        cache = Path(repo.config.base)
    if target.is_remote:
        # All of it is on the remote, not only in the cache.
        shutil.rmtree(cache)
    with mover.open() as repo:
        if target.is_remote:
            repo.sync.pull()
            assert repo.sync.status().index_version == case.index_version
        assert everything(repo) == expected
        assert Path(repo.config.datastore_dir, OUTPUT).read_text() == "status: ok\n"
    assert (ana.repo_dir / ".swamp/secrets/key").read_text() == "mine"
    if case.target != "default":
        assert not list((mover.repo_dir / ".swamp").rglob("raw"))


# Nothing is given up before it was read back --------------------------------------------------


def spoil(patch: pytest.MonkeyPatch, how: str) -> None:
    """Let a store, once, keep another content than it was sent for one object, or none at all."""
    real = DirectoryStore.put_if_absent
    spoilt: list[str] = []

    def spoiling(self: DirectoryStore, key: str, data: bytes) -> Written:
        is_meant = key.endswith(f"{STATE}/2/raw") and not spoilt
        if is_meant:
            spoilt.append(key)
        written = real(self, key, b"spoiled" if is_meant and how == "corrupted" else data)
        if is_meant and how == "lost":
            self.delete(key)
        return written

    patch.setattr(DirectoryStore, "put_if_absent", spoiling)


@pytest.mark.parametrize("how", ["corrupted", "lost"])
@pytest.mark.parametrize("source", ["default", "file"])
def test_an_object_that_is_not_what_was_sent_stops_the_move(
    ana: Desk,
    place: Callable[[str], Address],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    how: str,
) -> None:
    ana.save("state", "one", "two")
    ana.move(place(source))
    before, settings, target = files(ana.repo_dir / ".swamp"), ana.settings, place("file")
    with monkeypatch.context() as patch, pytest.raises(CorruptObjectError) as told:
        spoil(patch, how)
        ana.move(target)
    assert f"{STATE}/2/raw" in told.value.message
    assert ana.settings == settings
    assert files(ana.repo_dir / ".swamp") == before
    assert ana.texts("state") == ["one", "two"]
    # What it has lost or spoiled was sent anew.
    ana.move(target)
    assert Path(target.target.removeprefix("file://"), f"{STATE}/2/raw").read_text() == "two"
    assert ana.texts("state") == ["one", "two"]


@pytest.mark.parametrize("given", [True, False])
def test_where_etags_are_md5_a_listing_proves_what_arrived_and_only_the_rest_is_fetched(
    ana: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    if not given:
        file_by_file(monkeypatch)
    ana.save("state", *(f"version {number}" for number in range(20)))
    asked: list[dict[str, int]] = []
    real = setting_up.Setup._check_none_wrong
    spoilt: list[bytes] = []

    def counting(self: setting_up.Setup, *args: Any) -> None:
        connection = self._there.connection
        for content in spoilt:
            connection.store.put(connection.names.remote(f"{STATE}/2/raw"), content)
        connection.counting.reset()
        try:
            real(self, *args)
        finally:
            asked.append(connection.counting.tally().requests)

    monkeypatch.setattr(setting_up.Setup, "_check_none_wrong", counting)
    ana.move(place("s3"))
    assert asked == [{"list": 1}]
    spoilt.append(b"VERSION 1")  # as long as what was there
    target = place("s3")
    with pytest.raises(CorruptObjectError, match=f"{STATE}/2/raw"):
        ana.move(target)
    spoilt.clear()
    ana.move(target)
    assert ana.texts("state") == [f"version {number}" for number in range(20)]


def test_what_a_setup_has_sent_is_not_read_again_to_prove_that_it_arrived(
    ana: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.save("state", "one", "two")
    target = place("s3")
    read: list[str] = []
    real = hashing.sha256_and_md5

    def reading(path: str) -> tuple[str, str]:
        read.append(path.partition("/.swamp/")[2])
        return real(path)

    monkeypatch.setattr(destinations, "sha256_and_md5", reading)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(setting_up.Setup, "_check_none_wrong", _stop)
        ana.move(target)
    # Of what an earlier setup has sent, nobody remembers the MD5.
    ana.save("other", "three")
    ana.move(target)
    earlier = [f"{STATE}/{version}/{name}" for version in "12" for name in ("metadata.yaml", "raw")]
    assert sorted(read) == earlier
    assert ana.texts("state") == ["one", "two"]


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def files(directory: Path) -> dict[str, bytes]:
    """Return the payload below a directory."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found if "swampstore." not in str(path)}


def file_by_file(patch: pytest.MonkeyPatch) -> None:
    """Have files moved that could be given to the cache with their directories."""
    patch.setattr(OwnDirectory, "may_be_given", lambda _: False)


_link = os.link


def no_links(source: str, target: str, **options: bool) -> None:
    """Link as if a repository were on a file system of its own."""
    if "/.swamp/" in source:
        raise OSError(errno.EXDEV, "Invalid cross-device link", source)
    _link(source, target, **options)


def test_a_copy_that_is_not_what_was_copied_stops_the_move(
    ana: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.save("state", "one", "two")
    before, target = files(ana.repo_dir / ".swamp"), place("path")
    real = relocation._copy_bytes

    def spoiling(source: str, target: str) -> int:
        size = real(source, target)
        if source.endswith("/2/raw"):
            Path(target).write_text("spoiled")
        return size

    with monkeypatch.context() as patch, pytest.raises(DiskError) as told:
        patch.setattr(relocation, "_copy_bytes", spoiling)
        patch.setattr(os, "link", no_links)
        ana.move(target)
    assert f"{STATE}/2/raw" in told.value.message
    assert (ana.settings, files(ana.repo_dir / ".swamp")) == ({}, before)


@pytest.mark.parametrize("can_link", [True, False])
@pytest.mark.parametrize("kind", ["file", "path"])
def test_what_was_moved_belongs_to_its_new_place_alone(
    ana: Desk,
    place: Callable[[str], Address],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    can_link: bool,
) -> None:
    ana.save("state", "one", "two")
    file_by_file(monkeypatch)
    if not can_link:
        monkeypatch.setattr(os, "link", no_links)
    report = ana.move(place(kind))
    assert report.warnings == []
    assert not list((ana.repo_dir / ".swamp/data").iterdir())
    with ana.open() as repo:
        raws = list(Path(repo.tree.path("data")).rglob("raw"))
        assert [raw.stat().st_nlink for raw in raws] == [1, 1]
        if repo.config.remote:
            # It is known as it looks now: nothing is read again to find that out.
            rels = (f"{STATE}/{version}/raw" for version in (1, 2))
            known = repo.connection.base.get_many(rels).values()
            assert {one.held for one in known} == {signature(str(raw)) for raw in raws}


def test_what_is_appended_while_it_moves_is_at_its_new_place_and_stays_at_the_old_one(
    ana: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.save("state", "one", "two")
    raw, target = ana.repo_dir / f".swamp/{STATE}/2/raw", place("file")
    real = setting_up.Setup.remove_moved

    def appending(self: setting_up.Setup, there: Repo) -> None:
        with raw.open("a") as file:
            file.write(", and more")
        real(self, there)

    with monkeypatch.context() as patch:
        file_by_file(patch)
        patch.setattr(setting_up.Setup, "remove_moved", appending)
        report = ana.move(target)
    assert any(f"{STATE}/2/raw" in warning for warning in report.warnings)
    with ana.open() as repo:
        assert Path(repo.tree.path(f"{STATE}/2/raw")).read_text() == "two, and more"
    assert raw.read_text() == "two, and more"


@pytest.mark.parametrize("given", [True, False])
def test_the_settings_are_written_when_everything_is_there_and_nothing_removed(
    ana: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    ana.save("state", "one", "two")
    if not given:
        file_by_file(monkeypatch)
    before, target = files(ana.repo_dir / ".swamp"), place("file")
    bucket = Path(target.target.removeprefix("file://"))
    calls: list[bool] = []

    def looking(repo_dir: str, changes: dict[str, Any]) -> None:
        calls.append(files(ana.repo_dir / ".swamp") == before)
        calls.append((bucket / f"{STATE}/2/raw").read_text() == "two")
        update_marker(repo_dir, changes)

    monkeypatch.setattr(new_settings, "update_marker", looking)
    ana.move(target)
    assert calls == [True, True]


# In one and the same directory ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["filesystem:", "file://"])
def test_data_is_not_moved_to_where_it_is_already(ana: Desk, tmp_path: Path, kind: str) -> None:
    ana.save("state", "one")
    alias = tmp_path / "alias"
    alias.symlink_to(ana.repo_dir / ".swamp")
    with pytest.raises(ValidationError, match="already"):
        ana.move(Address.parse(f"{kind}{alias}", "test"))
    assert ana.settings == {}
    assert ana.texts("state") == ["one"]


def test_a_shared_directory_can_become_a_bucket_and_the_other_way_round(
    ana: Desk, place: Callable[[str], Address]
) -> None:
    share = place("path")
    ana.save("state", "one")
    ana.move(share)
    ana.move(Address(f"file://{share.path}"))
    assert ana.texts("state") == ["one"]
    ana.save("state", "two")
    ana.move(share)
    assert ana.texts("state") == ["one", "two"]


@pytest.mark.parametrize("before", [None, "infra"])
def test_data_gets_another_namespace_on_the_same_remote(
    ana: Desk, bob: Desk, place: Callable[[str], Address], before: str | None
) -> None:
    remote = place("file")
    ana.save("state", "one", "two")
    ana.move(remote, namespace=before)
    if before is None:
        bob.move(remote, hydration="lazy")
        ana = bob
    ana.save("state", "never pushed")
    ana.move(remote, namespace="web")
    assert ana.texts("state") == ["one", "two", "never pushed"]
    bucket = Path(remote.target.removeprefix("file://"), "web")
    assert (bucket / f"{STATE}/3/raw").read_text() == "never pushed"
    assert not (ana.cache / "data").exists()


# Leaving a remote -----------------------------------------------------------------------------


def test_a_remote_that_is_out_of_reach_can_only_be_left_without_its_data(
    ana: Desk, place: Callable[[str], Address]
) -> None:
    old, new = place("file"), place("file")
    ana.move(old)
    ana.save("state", "never pushed")
    bucket = Path(old.target.removeprefix("file://"))
    bucket.rename(bucket.with_name("unmounted"))
    settings = ana.settings
    with pytest.raises(StoreNotMountedError) as told:
        ana.move(new)
    assert "--skip-migration" in (told.value.hint or "")
    assert ana.settings == settings
    report = ana.move(new, migrate=False)
    assert ana.settings["url"] == new.target
    assert any("1 changed path(s)" in warning for warning in report.warnings)
    # What was never pushed is in the cache of then, and goes nowhere.
    with ana.open() as repo:
        repo.sync.push()
    assert not list(Path(new.target.removeprefix("file://")).rglob("raw"))
    (warning,) = [text for text in report.warnings if "in use until now" in text]
    old_cache = Path(warning.rpartition(" ")[2])
    assert (old_cache / f"{STATE}/1/raw").read_text() == "never pushed"


def test_what_others_pushed_and_what_was_never_pushed_is_both_taken_along(
    ana: Desk, bob: Desk, place: Callable[[str], Address]
) -> None:
    shared = place("file")
    ana.save("state", "one")
    ana.move(shared)
    bob.move(shared)
    bob.save("state", "of bob")
    with bob.open() as repo:
        repo.sync.push()
    ana.save("state", "of ana")
    ana.move(Address("filesystem"))
    assert ana.texts("state") == ["one", "of bob", "of ana"]


def test_what_is_left_in_the_cache_of_an_earlier_remote_does_not_come_back(
    ana: Desk, place: Callable[[str], Address]
) -> None:
    second = place("file")
    ana.save("state", "one")
    ana.save("gone", "soon deleted")
    ana.move(place("file"))
    ana.move(Address("filesystem"))
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "gone")
    ana.move(second)
    bucket = Path(second.target.removeprefix("file://"))
    assert [path.parent.parent.name for path in bucket.rglob("raw")] == ["state"]
    assert (ana.texts("state"), ana.texts("gone")) == (["one"], [])


def test_unfinished_versions_and_links_are_told_of_once(
    ana: Desk, place: Callable[[str], Address]
) -> None:
    ana.save("state", "one")
    half = ana.repo_dir / f".swamp/{STATE}/2"
    half.mkdir()
    (half / "raw").write_text("half")
    (ana.repo_dir / f".swamp/{OUTPUT}").parent.mkdir(parents=True)
    (ana.repo_dir / f".swamp/{OUTPUT}").symlink_to("/etc/hostname")
    os.mkfifo(ana.repo_dir / f".swamp/{OUTPUT}.fifo")
    report = ana.move(place("file"))
    told = dict(warning.split(": ", 1) for warning in report.warnings)
    assert told.keys() == {f"{STATE}/2", OUTPUT, f"{OUTPUT}.fifo"}
    assert told[OUTPUT].startswith("a link")
    assert told[f"{OUTPUT}.fifo"].startswith("no regular file")
    assert (half / "raw").exists()


def test_a_version_whose_writer_was_killed_after_the_commit_goes_and_comes_back(
    ana: Desk, place: Callable[[str], Address]
) -> None:
    ana.save("state", "one")
    version = ana.repo_dir / f".swamp/{STATE}/1"
    (version / CLAIM).touch()
    ana.move(place("file"))
    assert not version.exists()
    ana.move(Address("filesystem"))
    assert ana.texts("state") == ["one"]


@pytest.mark.parametrize("work", ["a change", "a deletion"])
def test_a_cache_with_unpushed_work_of_another_program_is_not_set_aside(
    ana: Desk, place: Callable[[str], Address], work: str
) -> None:
    there = place("file")
    ana.save("state", "one")
    ana.move(there)
    cache = ana.cache
    ana.move(Address("filesystem"))
    (cache / "_catalog.db-base").unlink()
    if work == "a deletion":
        shutil.rmtree(cache / STATE)
    marks = {"localDirty": True, "dirtyPaths": [f"{STATE}/1"], "bulkInvalidated": False}
    sidecar = {"version": 2, "remoteIndexETag": "", "lastVerifiedAt": "", **marks}
    (cache / SIDECAR).write_text(json.dumps(sidecar))
    with pytest.raises(AlreadyExistsError, match=f"{STATE}/1"):
        ana.move(there)
    assert ana.texts("state") == ["one"]
    (cache / SIDECAR).write_text(json.dumps({**sidecar, "localDirty": False, "dirtyPaths": []}))
    ana.move(there)
    assert ana.texts("state") == ["one"]


@pytest.mark.parametrize("target", ["path", "file"])
def test_versions_without_content_stay_behind_and_are_named(
    ana: Desk, place: Callable[[str], Address], tmp_path: Path, target: str
) -> None:
    ana.save("state", "one", "two", "three")
    home = ana.repo_dir / f".swamp/{STATE}"
    (home / "2/raw").unlink()
    (home / "3/raw").rename(tmp_path / "elsewhere")
    (home / "3/raw").symlink_to(tmp_path / "elsewhere")
    report = ana.move(place(target))
    told = [one for one in report.warnings if "content is not here" in one]
    assert [one.partition(":")[0] for one in told] == [f"{STATE}/2", f"{STATE}/3"]
    assert ana.texts("state") == ["one"]
    assert (home / "3/metadata.yaml").exists()


# Stopped on the way from one remote to another --------------------------------------------------


def stop(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def between(ana: Desk, bob: Desk, place: Callable[[str], Address]) -> tuple[Address, Address]:
    """Two remotes: ana has data on the first, bob other data of the same name on the second."""
    first, second = place("file"), place("file")
    ana.save("state", "one", "two")
    ana.move(first)
    bob.save("state", "of bob")
    bob.move(second)
    return first, second


def test_a_move_that_was_stopped_leaves_the_old_remote_as_it_was(
    ana: Desk, between: tuple[Address, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = between
    old = Path(first.target.removeprefix("file://"))
    before = set(old.rglob("raw"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(new_settings, "update_marker", stop)
        ana.move(second)
    with ana.open() as repo:
        repo.sync.pull()
        repo.sync.push(full=True)
    assert set(old.rglob("raw")) == before
    assert ana.texts("state") == ["one", "two"]
    ana.move(second)
    assert ana.texts("state") == ["of bob", "one", "two"]


@pytest.mark.parametrize("again", [False, True])
def test_a_move_that_was_stopped_before_the_caches_changed_places_is_finished_by_any_command(
    ana: Desk,
    bob: Desk,
    between: tuple[Address, Address],
    monkeypatch: pytest.MonkeyPatch,
    again: bool,
) -> None:
    _, second = between
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StagedCache, "put_in_place", stop)
        ana.move(second)
    assert ana.settings["url"] == second.target
    assert ana.texts("state") == ["of bob", "one", "two"]
    ana.save("meanwhile", "saved")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
        repo.sync.push()
        repo.sync.pull()
    if again:
        ana.move(second)
    assert ana.texts("state") == ["one", "two"], "each once, and what was deleted is not back"
    assert ana.texts("meanwhile") == ["saved"]
    assert not list(ana.cache.parent.glob("*.setup"))
    assert not (ana.repo_dir / ".swamp" / "swampstore.exchange").exists()
    with bob.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "meanwhile") == ["saved"]
        assert contents(repo, MODEL, "state") == ["one", "two"]


@pytest.mark.parametrize("stopped_at", ["prepare", "commit"])
def test_what_was_deleted_after_a_move_was_killed_does_not_come_along_when_it_is_done_again(
    ana: Desk,
    between: tuple[Address, Address],
    monkeypatch: pytest.MonkeyPatch,
    stopped_at: str,
) -> None:
    _, second = between
    ana.save("gone", "deleted later")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Push, stopped_at, stop)
        ana.move(second)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "gone")
        repo.artifacts.delete(MODEL, "state", version=2)
        repo.sync.push()
    report = ana.move(second)
    assert (ana.texts("state"), ana.texts("gone")) == (["of bob", "one"], [])
    (aside,) = ana.cache.parent.glob("*.left")
    assert {path.read_text() for path in aside.rglob("raw")} == {"two", "deleted later"}
    told = {one.partition(":")[0] for one in report.warnings if str(aside) in one}
    assert len(told) == 2
    with ana.open() as repo:
        repo.sync.pull(full=True)
        repo.sync.push(full=True)
    assert (ana.texts("state"), ana.texts("gone")) == (["of bob", "one"], [])


def test_what_was_lost_after_a_move_was_killed_is_set_aside_when_it_is_done_again(
    ana: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = place("file")
    ana.save("state", "one")
    ana.move(place("file"))
    ana.move(Address("filesystem"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Push, "prepare", stop)
        ana.move(second)
    shutil.rmtree(ana.repo_dir / f".swamp/{STATE}")
    ana.save("other", "two")
    ana.move(second)
    assert (ana.texts("state"), ana.texts("other")) == ([], ["two"])
    (aside,) = ana.cache.parent.glob("*.left")
    assert (aside / STATE / "1" / "raw").read_text() == "one"


def test_a_version_that_others_took_along_after_a_move_was_killed_is_there_once(
    ana: Desk, bob: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = place("file"), place("file")
    ana.save("state", "one", "two", "three")
    for desk in (ana, bob):
        desk.move(first)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Push, "commit", stop)
        ana.move(second)
    bucket = Path(second.target.removeprefix("file://"))
    for left in (bucket / "_index", bucket / STATE / "2"):
        shutil.rmtree(left)  # it had not come to that
    (bucket / ".datastore-index.json").unlink()
    bob.move(second)
    assert bob.texts("state") == ["one", "three", "two"]
    ana.move(second)
    assert ana.texts("state") == ["one", "three", "two"]


def test_a_version_that_grew_after_others_took_it_along_comes_with_its_end_and_is_there_once(
    ana: Desk, bob: Desk, place: Callable[[str], Address]
) -> None:
    first, second = place("file"), place("file")
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "log", "one\n", streaming=True)
    for desk in (ana, bob):
        desk.move(first)
    ana.move(second)
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "log", "two\n")
        repo.artifacts.save(MODEL, "log", "three\n")
    bob.move(second)
    with ana.open() as repo:
        repo.sync.pull()
    assert ana.texts("log") == bob.texts("log") == ["one\ntwo\n", "three\n"]


@pytest.mark.parametrize("hydration", ["full", "lazy"])
@pytest.mark.parametrize("both", [False, True])
def test_who_moves_to_where_others_have_appended_takes_back_nothing_of_that(
    ana: Desk, bob: Desk, place: Callable[[str], Address], hydration: Hydration, both: bool
) -> None:
    first, second = place("file"), place("file")
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "log", "one\n", streaming=True)
    for desk in (ana, bob):
        desk.move(first)
    ana.move(second)
    with ana.open() as repo:
        longer = repo.artifacts.append(MODEL, "log", "two\nand more\n")
        repo.sync.push()
    if both:
        with bob.open() as repo:
            repo.artifacts.append(MODEL, "log", "three\n")
    bob.move(second, hydration=hydration)
    with ana.open() as repo:
        repo.sync.pull()
        assert repo.version(MODEL, "log", longer.version).size == longer.size
    expected = ["one\ntwo\nand more\n", "one\nthree\n"] if both else ["one\ntwo\nand more\n"]
    assert ana.texts("log") == bob.texts("log") == expected


@pytest.mark.parametrize("hydration", ["full", "lazy"])
@pytest.mark.parametrize("end", ["3rd\n", "three\n"])
@pytest.mark.parametrize("before", [[], ["zero\n"]])
@pytest.mark.parametrize("is_known", [True, False])
def test_both_ends_of_what_was_appended_to_apart_are_there_once_wherever_they_are_brought(
    ana: Desk,
    bob: Desk,
    tmp_path: Path,
    place: Callable[[str], Address],
    hydration: Hydration,
    end: str,
    before: list[str],
    is_known: bool,
) -> None:
    first, second = place("file"), place("file")
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "log", "one\n", streaming=True)
    for desk, target in ((bob, second), (ana, second)):
        desk.move(target)
    cem = Desk(tmp_path / "cem")
    cem.move(first)
    for content in before:
        cem.save("log", content)
        with cem.open() as repo:
            repo.sync.push()
    ana.move(first)
    for desk, ours in ((ana, "two\n"), (bob, end)):
        with desk.open() as repo:
            repo.artifacts.append(MODEL, "log", ours)
            repo.sync.push()
    bob.move(first)
    assert bob.texts("log") == [*before, "one\ntwo\n", f"one\n{end}"]
    (ana if is_known else cem).move(second, hydration=hydration)
    expected = [f"one\n{end}", *before, "one\ntwo\n"]
    assert (ana if is_known else cem).texts("log") == expected


@pytest.mark.parametrize("hydration", ["full", "lazy"])
@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_appended_in_one_remote_comes_to_another_at_once_though_its_number_is_taken(
    ana: Desk,
    bob: Desk,
    tmp_path: Path,
    place: Callable[[str], Address],
    hydration: Hydration,
    is_known: bool,
) -> None:
    first, second = place("file"), place("file")
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "log", "one\n", streaming=True)
    for desk, target in ((bob, second), (ana, second)):
        desk.move(target)
    cem = Desk(tmp_path / "cem")
    cem.move(first)
    cem.save("log", "zero\n")
    with cem.open() as repo:
        repo.sync.push()
    ana.move(first)
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", "two\n")
        repo.sync.push()
    mover = ana if is_known else cem
    mover.move(second, hydration=hydration)
    with bob.open() as repo:
        repo.sync.pull()
    assert sorted(mover.texts("log")) == sorted(bob.texts("log")) == ["one\ntwo\n", "zero\n"]


@pytest.mark.parametrize("namespace", [None, "web"])
def test_what_was_deleted_before_a_remote_was_left_stays_deleted(
    ana: Desk, bob: Desk, place: Callable[[str], Address], namespace: str | None
) -> None:
    first = place("file")
    second = place("file") if namespace is None else first
    ana.save("state", "one")
    ana.save("other", "two")
    for desk in (ana, bob):
        desk.move(first)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    ana.move(second, namespace=namespace)
    assert (ana.texts("state"), ana.texts("other")) == ([], ["two"])
    with bob.open() as repo:
        repo.sync.pull()
    assert (bob.texts("state"), bob.texts("other")) == ([], ["two"])


def test_a_remote_can_be_left_that_takes_no_deletions(
    ana: Desk, place: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.save("state", "one")
    ana.save("other", "two")
    ana.move(place("file"))
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")

    def refused(*_: object, **__: object) -> None:
        raise StoreError("it may only be read")

    with monkeypatch.context() as patch:
        patch.setattr(setting_up, "share_deletions", refused)
        report = ana.move(place("file"))
    assert any("deleted here stays" in one and "only be read" in one for one in report.warnings)
    assert (ana.texts("state"), ana.texts("other")) == ([], ["two"])


def stopped_setup(desk: Desk, target: Address, where: tuple[type, str]) -> None:
    """Have something that can be appended to, and a setup that was stopped somewhere."""
    with desk.open() as repo:
        repo.artifacts.save(MODEL, "log", "one\n", streaming=True)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*where, stop)
        desk.move(target)


@pytest.mark.parametrize("way", ["given", "linked", "copied"])
@pytest.mark.parametrize("stopped_at", ["prepare", "commit"])
def test_what_is_appended_after_a_setup_was_killed_comes_along_when_it_is_done_again(
    ana: Desk,
    bob: Desk,
    place: Callable[[str], Address],
    monkeypatch: pytest.MonkeyPatch,
    stopped_at: str,
    way: str,
) -> None:
    target = place("file")
    go(monkeypatch, way)
    stopped_setup(ana, target, (Push, stopped_at))
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", "two\n")
    assert ana.move(target).warnings == []
    bob.move(target)
    for desk in (ana, bob, ana):
        with desk.open() as repo:
            repo.sync.pull(full=True)
            repo.sync.push(full=True)
        assert desk.texts("log") == ["one\ntwo\n"]
    assert not (ana.repo_dir / ".swamp/data/aws").exists()


@pytest.mark.parametrize("way", ["given", "linked", "copied"])
@pytest.mark.parametrize("pushed", [True, False])
@pytest.mark.parametrize("then", ["again", "elsewhere", "back"])
def test_what_is_appended_after_a_setup_was_killed_at_its_end_comes_along_wherever_it_goes(
    ana: Desk,
    place: Callable[[str], Address],
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    pushed: bool,
    way: str,
) -> None:
    first = place("file")
    go(monkeypatch, way)
    stopped_setup(ana, first, (setting_up.Setup, "remove_moved"))
    cache = ana.cache
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", "two\n")
        if pushed:
            repo.sync.push()
    ana.move({"again": first, "elsewhere": place("file"), "back": Address("filesystem")}[then])
    assert ana.texts("log") == ["one\ntwo\n"]
    left = ana.repo_dir / ".swamp/data/aws"
    assert left.exists() is (then == "back")
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", "three\n")
    assert ana.texts("log") == ["one\ntwo\nthree\n"]
    if then == "back":
        # The cache is not given up: it may be that of others.
        assert (cache / "data/aws/ec2/i-1/log/1/raw").read_text() == "one\ntwo\n"


def go(patch: pytest.MonkeyPatch, way: str) -> None:
    """Choose how files get into a cache."""
    if way != "given":
        file_by_file(patch)
    if way == "copied":
        patch.setattr(relocation.Relocation, "_bring", copied_bytes)


def copied_bytes(_: relocation.Relocation, source: str, target: str) -> int:
    shutil.copy2(source, target)
    return os.stat(target).st_size


def test_two_setups_of_one_repository_do_not_run_at_once(
    ana: Desk, between: tuple[Address, Address]
) -> None:
    _, second = between
    before = ana.settings["url"]
    with staged_cache.setting_up(str(ana.repo_dir / ".swamp")), pytest.raises(LockTimeoutError):
        ana.move(second)
    assert ana.settings["url"] == before


def test_an_old_remote_with_broken_settings_says_so(
    ana: Desk, place: Callable[[str], Address]
) -> None:
    ana.move(place("file"))
    marker = ana.repo_dir / ".swamp.yaml"
    marker.write_text(
        marker.read_text().replace("type: file", "type: mongo").replace("url: file", "url: mongo")
    )
    with pytest.raises(SwampstoreError, match="mongo") as told:
        ana.move(Address("filesystem"))
    assert "--skip-migration" in (told.value.hint or "")
    ana.move(Address("filesystem"), migrate=False)
    assert ana.settings["type"] == "filesystem"
