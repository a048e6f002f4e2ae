"""What never crosses: bookkeeping, hostile names, other namespaces, and previews."""

# ruff: noqa: D102 - the names of the tests are the sentences

from __future__ import annotations

from swampstore.testing.sync.ground import PLAIN, STATE, Ground, needs, settle, share
from swampstore.testing.sync.host import Host
from swampstore.testing.sync.machine import NewMachine, Plant

STAYS = (
    ".datastore-index.json",
    ".datastore-sync-state.json",
    ".datastore.lock",
    ".push-queue.json",
    "_index/data--x.json",
    "_control/heartbeats/1",
    ".locks/red.lock",
    "data/aws/ec2/i-1/.lock",
    "data/aws/ec2/i-1/state/_catalog.db-wal",
    "files/.0b9d3c1e-6c3c-4a0b-9a51-1d5a0d4f1a11.tmp",
    "secrets/key",
    "bundles/code.js",
)
HOSTILE = ("../outside", "files/../../outside", "/etc/outside", "files//x", "files/./x", "a\\b")


class Borders(Ground):
    """Only what belongs to the user and to the namespace travels."""

    def test_bookkeeping_and_secrets_stay_on_their_machine(self, here: Host, there: Host) -> None:
        here.push()
        for rel in STAYS:
            if not here.path(rel).exists():
                here.write(rel, b"{}")
        here.write(PLAIN, b"1")
        here.service.mark_dirty()
        assert here.push() == 1
        there.pull()
        assert there.files() == {PLAIN: b"1"}
        assert not there.path("secrets").exists()

    def test_links_are_not_followed(self, here: Host, there: Host) -> None:
        outside = here.machine.cache_dir.parent / "outside"
        outside.mkdir(exist_ok=True)
        (outside / "private").write_bytes(b"private")
        here.write(PLAIN, b"1")
        here.path("files/link").symlink_to(outside / "private")
        here.path("files/directory").symlink_to(outside)
        here.mark("files/link")
        here.mark("files/directory/private")
        here.service.mark_dirty()
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"1"}

    def test_hostile_names_do_not_land(self, here: Host, there: Host, plant: Plant) -> None:
        here.write(PLAIN, b"1")
        here.push()
        # Of a lock that nobody can read has to be assumed that it is held.
        harmless = [rel for rel in STAYS if not rel.endswith(".lock")]
        plant(here.machine, dict.fromkeys([*HOSTILE, *harmless], b"hostile"))
        there.pull()
        assert there.files() == {PLAIN: b"1"}
        assert b"hostile" not in _files_around(there)
        here.write(PLAIN, b"2")
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"2"}

    def test_namespaces_do_not_see_each_other(self, new_machine: NewMachine) -> None:
        hosts = {name: Host(new_machine(name)) for name in ("", "red", "blue")}
        again = {name: Host(new_machine(name)) for name in hosts}
        needs(hosts[""], "namespaced_sync")
        for name, host in hosts.items():
            host.save(STATE, name.encode())
            host.write(f"files/{name or 'none'}", b"1")
            host.push()
        for name, host in again.items():
            host.pull()
            assert host.files() == hosts[name].files()
        again["red"].remove(STATE.rel)
        again["red"].service.mark_dirty()
        again["red"].push()
        for name, host in hosts.items():
            host.pull()
            expected = {} if name == "red" else {1: name.encode()}
            assert host.versions(STATE) == expected

    def test_a_preview_tells_and_does_nothing(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1", "files/a": b"1", "files/b": b"1", "files/c": b"1"})
        there.write("files/a", b"theirs")
        there.remove("files/b")
        there.push()
        here.write(PLAIN, b"mine")
        here.remove("files/c")
        before = here.files()
        for _ in range(2):
            told = here.service.preview()
            assert list(told.push) == [PLAIN]
            assert list(told.delete_remote) == ["files/c"]
            assert list(told.pull) == ["files/a"]
            assert list(told.delete_local) == ["files/b"]
        assert here.files() == before
        assert there.pull() == 0
        settle(here, there)
        assert here.files() == {PLAIN: b"mine", "files/a": b"theirs"}


def _files_around(host: Host) -> list[bytes]:
    """Return the contents of all files in and beside the cache, bookkeeping too."""
    around = host.machine.cache_dir.parent
    return [path.read_bytes() for path in around.rglob("*") if path.is_file()]
