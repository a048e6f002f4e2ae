"""A client of another make on the same bucket: it locks everything, and asks for no conditions."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.metadata import Draft, Owner, encode
from swampstore.clock import from_iso, to_iso
from swampstore.errors import LockTimeoutError
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.index.path_kinds import metadata_beside
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from tests.fleet.bucket import FleetStore
from tests.fleet.documents import index_of
from tests.fleet.oracle import PEER, WORK
from tests.fleet.places import Place
from tests.fleet.world import REPO_ID, Actor, Violation, World
from tests.support.old_client import OldClient, OldPeer

if TYPE_CHECKING:
    from tests.fleet.fleet import Fleet

LOCK = ".datastore.lock"
TTL = 30.0
_PATIENCE = 60.0


def begin() -> None:
    """Let its clock begin anew."""
    OldPeer._moments = itertools.count()


class Peer:
    """The machine of that client; it keeps nothing."""

    number = -1

    def __init__(self, world: World, number: int) -> None:
        self.actor = Actor(world, number, PEER)
        self.actor.on_death = self._revive
        self.claim: Path | None = None

    def _revive(self) -> None:
        """Be there again; what was half saved into a cache is cleared away, or made whole.

        Others can tell neither from somebody who is at work, until a day has passed.
        """
        self.actor.is_dead, self.actor.faults = False, {}
        if self.claim is None:
            return
        if (self.claim / "raw").exists():
            _write(self.claim.parent / "latest", self.claim.name.encode())
        else:
            shutil.rmtree(self.claim)
        self.claim = None


def _locked(fleet: Fleet, store: FleetStore, work: Callable[[OldPeer], None]) -> None:
    """Lock everything as it does: what looks stale is deleted, whatever it is by then."""
    world, actor = fleet.world, fleet.peer.actor
    nonce = str(uuid.uuid4())
    end = world.now + _PATIENCE
    while True:
        record = {
            "holder": "peer@peer",
            "hostname": "peer",
            "pid": 1,
            "acquiredAt": to_iso(world.moment()),
            "ttlMs": int(TTL * 1000),
            "nonce": nonce,
        }
        try:
            store.put_if_absent(LOCK, json.dumps(record, indent=2).encode())
            break
        except PreconditionFailedError:
            pass
        try:
            held = json.loads(store.get(LOCK).data)
        except ObjectNotFoundError:
            continue
        age = world.moment() - from_iso(held["acquiredAt"])
        if age > timedelta(milliseconds=held["ttlMs"]):
            store.delete(LOCK)
            continue
        if world.now > end:
            raise LockTimeoutError("the peer gives up", hint="")
        actor.wait(1.0)
    try:
        work(OldPeer(store))
    finally:
        if fleet.oracle.is_index_lost:
            fleet.past.note_revived({key: one.data for key, one in fleet.bucket.objects.items()})
            fleet.oracle.expect_to_see(_named(fleet))
            for machine in fleet.machines:
                # It may have left out of the index what only the objects still show.
                machine.needs_full = True
    held = json.loads(store.get(LOCK).data)
    if held["nonce"] == nonce:
        store.delete(LOCK)


@contextlib.contextmanager
def _not_half_replaced(fleet: Fleet, raw: str) -> Iterator[None]:
    """Undo what a client that is killed did to content beside metadata of another version.

    Nobody can tell it from one that is about to commit, so nobody puts back what was there. It
    is damage, of which verify tells, and it can be repaired from a cache.
    """
    objects = fleet.bucket.objects
    content, metadata = objects.get(raw), objects.get(metadata_beside(raw))
    try:
        yield
    except BaseException:
        if content is not None and objects.get(metadata_beside(raw)) is metadata:
            objects[raw] = content
        raise


def _entries(peer: OldPeer) -> tuple[dict[str, Any], int]:
    """Return the entries that it believes, and the version of the index."""
    meta = peer.read("_index/_meta.json")
    if meta is None or meta["version"] == 1:
        return (peer.read(".datastore-index.json") or {"entries": {}})["entries"], 1
    entries: dict[str, Any] = {}
    for partition in meta["partitions"]:
        shard = peer.read(f"_index/{partition}.json")
        entries |= shard["entries"] if shard else {}
    return entries, 2


def _push(peer: OldPeer, version: int, files: dict[str, bytes | None], *, old: bool) -> None:
    if version == 2:
        peer.push_v2(files)
    elif old:
        peer.push_monolith_only(files)
    else:
        peer.push_v1(files)


def _numbers(entries: dict[str, Any], where: str) -> list[int]:
    rests = (rel.removeprefix(where) for rel in entries if rel.startswith(where))
    return sorted({int(rest.split("/")[0]) for rest in rests if rest.split("/")[0].isdigit()})


def save(fleet: Fleet, args: dict[str, Any]) -> None:
    """Save a version above all that the index names."""
    model, name = args["model"], args["name"]
    tag, content = fleet.oracle.new_work(model, name, args["size"], PEER)
    id_ = str(uuid.uuid4())

    def work(peer: OldPeer) -> None:
        entries, index = _entries(peer)
        where = f"data/{model}/{name}/"
        number = max(_numbers(entries, where), default=0) + 1
        draft = Draft(tags={WORK: tag}, garbage_collection=4, id=id_).checked()
        now = to_iso(fleet.world.moment())
        metadata = draft.metadata(name, number, Owner(), now, len(content), _sha256(content))
        files: dict[str, bytes | None] = {
            f"{where}{number}/raw": content,
            f"{where}{number}/metadata.yaml": encode(metadata),
            f"{where}latest": str(number).encode(),
        }
        if fleet.oracle.is_index_lost:
            # It takes a document that is lost for an empty one, and asks for no conditions.
            replaced = fleet.bucket.objects.get(f"{where}{number}/metadata.yaml")
            is_kept = _is_surely_kept(
                fleet,
                model,
                f"{where}{number}/",
                {*entries, *files},
                keeps_origin=index == 1 and bool(args.get("old")) and _meta_tells_origin(fleet),
            )
            fleet.oracle.overwritten(replaced.data if replaced else b"", is_kept=is_kept)
        with _not_half_replaced(fleet, f"{where}{number}/raw"):
            _push(peer, index, files, old=bool(args.get("old")))
        if fleet.oracle.is_index_lost:
            fleet.oracle.left_out(_untold(fleet))
        fleet.oracle.saved(id_, model, name, tag, fleet.peer.number)

    _locked(fleet, FleetStore(fleet.bucket), work)


def _named(fleet: Fleet) -> bytes:
    """Return the metadata of all versions that the index names, nothing if it is not whole."""
    with contextlib.suppress(Violation):
        return "".join(Place(fleet.bucket.name).committed()).encode()
    return b""


def _untold(fleet: Fleet) -> list[bytes]:
    """Return metadata that no document of the index names any more, and none of our machines has.

    Where the monolith is missing, such a client lists the objects, and names them all. The one here
    does not, which is harder on everybody else, but of its own versions it must not lose more.
    """
    objects = fleet.bucket.objects
    documents = [key for key in objects if key == ".datastore-index.json" or "_index/" in key]
    told = b"".join(objects[key].data for key in documents)
    caches = {machine.home / "repos" / REPO_ID for machine in fleet.machines}
    return [
        one.data
        for key, one in objects.items()
        if key.endswith("/metadata.yaml")
        and key.encode() not in told
        and not any(_has(cache, key, one.data) for cache in caches)
    ]


def _has(cache: Path, key: str, data: bytes) -> bool:
    """Whether a cache has this very file; of one name and number there may be two versions."""
    path = cache / key
    return path.is_file() and path.read_bytes() == data


def _meta_tells_origin(fleet: Fleet) -> bool:
    found = fleet.bucket.objects.get("_index/_meta.json")
    return found is not None and b'"origin"' in found.data


def _is_surely_kept(
    fleet: Fleet, model: str, version: str, named: set[str], *, keeps_origin: bool
) -> bool:
    """Whether all who can tell by the rest of a model that the index was lost have this version.

    Whoever of them comes first moves it out of the way. Where nothing else is left out, or by
    somebody else alone, it looks as if the version had been deleted, and its number used again. So
    it does if one who cannot tell comes first, and names the rest again, unless the index has an
    origin, which is another one then. One that such a client made has none. And one that knows
    nothing but the monolith `keeps_origin` of the rest, which tells of no loss.
    """
    objects = fleet.bucket.objects
    left_out = [key for key in objects if key.startswith(f"data/{model}/") and key not in named]
    own = [key for key in objects if key.startswith(version)]
    caches = {machine.home / "repos" / REPO_ID for machine in fleet.machines}

    def has(cache: Path, key: str) -> bool:
        return _has(cache, key, objects[key].data)

    witnesses = [cache for cache in caches if any(has(cache, key) for key in left_out)]
    has_origin = fleet.past.has_origin and not keeps_origin
    is_told = len(witnesses) == len(caches) or has_origin
    return is_told and bool(witnesses) and all(has(one, key) for one in witnesses for key in own)


def _sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def migrate(fleet: Fleet, args: dict[str, Any]) -> None:
    """Make the index sharded, as that client does it."""

    def work(peer: OldPeer) -> None:
        _, index = _entries(peer)
        if index == 1 and peer.read(".datastore-index.json") and not _is_overtaken(fleet):
            peer.migrate()
        if fleet.oracle.is_index_lost:
            # Without `_meta.json` it takes a monolith of before an earlier migration for the index.
            fleet.oracle.left_out(_untold(fleet))

    _locked(fleet, FleetStore(fleet.bucket), work)


def _is_overtaken(fleet: Fleet) -> bool:
    """Whether the monolith names content in whose place there is other content by now.

    It is one of before an earlier migration, and `_meta.json` is lost. Whoever takes that for the
    index leaves entries that fit no object: each pull of those versions fails, and says so.
    """
    objects = fleet.bucket.objects
    if MONOLITH_KEY not in objects:
        return False
    named = index_of({MONOLITH_KEY: objects[MONOLITH_KEY].data})
    return any(
        entry.get("sha256") not in {None, _sha256(objects[rel].data)}
        for rel, entry in named.items()
        if rel in objects
    )


def save_here(fleet: Fleet, args: dict[str, Any]) -> None:
    """Save into the cache of a machine as other programs there do, and perhaps push it."""
    machine = fleet.machines[args["machine"] % len(fleet.machines)]
    place = machine.place
    if not place.is_remote or machine.owes_migration:
        return
    model, name = args["model"], args["name"]
    oracle = fleet.places.oracle(place)
    tag, content = oracle.new_work(model, name, args["size"], PEER)
    id_ = str(uuid.uuid4())
    cache = machine.home / "repos" / REPO_ID
    where = f"data/{model}/{name}"
    directory = cache / place.prefix / where

    cache.mkdir(parents=True, exist_ok=True)
    client = OldClient(cache)
    is_noted = client.mark(f"{place.prefix}{where}")
    at_work = [one for one in fleet.machines if one.home == machine.home and not one.actor.is_idle]
    if at_work and not is_noted:
        # Everything is marked already, so it leaves no mark of its own; and a push that is under
        # way, and has looked there, is about to forget that everything was.
        machine.needs_full = True
    directory.mkdir(parents=True, exist_ok=True)
    number = _claim(directory)
    fleet.peer.claim = directory / str(number)
    draft = Draft(tags={WORK: tag}, garbage_collection=4, id=id_).checked()
    now = to_iso(fleet.world.moment())
    metadata = encode(draft.metadata(name, number, Owner(), now, len(content), _sha256(content)))
    for file, data in (("metadata.yaml", metadata), ("raw", content)):
        _write(directory / str(number) / file, data)
    _write(directory / "latest", str(number).encode())
    fleet.peer.claim = None
    oracle.saved(id_, model, name, tag, machine.number)


def _claim(directory: Path) -> int:
    """Take the next number; the directory is the claim."""
    taken = [int(one.name) for one in directory.iterdir() if one.name.isdigit()]
    number = max(taken, default=0) + 1
    while True:
        try:
            os.mkdir(directory / str(number))
        except FileExistsError:
            number += 1
        else:
            return number


def _write(path: Path, data: bytes) -> None:
    temp = path.with_name(f".{uuid.uuid4()}.tmp")
    with open(temp, "xb") as file:
        file.write(data)
    os.rename(temp, path)


OPS: dict[str, Callable[[Fleet, dict[str, Any]], None]] = {
    "foreign_save": save,
    "foreign_migrate": migrate,
    "foreign_cache": save_here,
}
