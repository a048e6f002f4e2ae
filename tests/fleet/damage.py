"""What happens to disks and buckets: files lost or garbled here, objects lost on the remote.

A machine is off while its disk is damaged. What cannot be told any more afterwards, by whoever, the
oracle must not expect: above all deletions that nobody else had heard of.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.metadata import decode
from swampstore.index.base import BASE
from swampstore.index.path_kinds import metadata_beside
from swampstore.layout import METADATA, SIDECAR
from swampstore.repo.open import CATALOG
from swampstore.sync.journal import JOURNAL
from swampstore.sync.scan import is_covered
from tests.fleet.checks import named_in
from tests.fleet.disks import is_whole
from tests.fleet.documents import index_of
from tests.fleet.oracle import Oracle
from tests.fleet.steps import picked
from tests.fleet.world import REPO_ID, Violation

if TYPE_CHECKING:
    from tests.fleet.fleet import Fleet
    from tests.fleet.machine import Machine

# The oracle, the number of the machine, what it has, and what the index does not name any more.
Doubt = Callable[[Oracle, int, set[str], set[str]], None]
META = "_index/_meta.json"
MONOLITH = ".datastore-index.json"


def _on_machine(
    files: Callable[[Machine], Iterator[Path]], doubt: Doubt = lambda *_: None
) -> Callable[[Fleet, int, dict[str, Any]], bool]:
    def damage(fleet: Fleet, number: int, args: dict[str, Any]) -> bool:
        machine = fleet.machines[number % len(fleet.machines)]
        seen = machine.now(lambda: machine.look(contents=False))
        ids = [one.id for one in seen.result] if seen.ending == "done" else None
        found = list(machine.now(lambda: list(files(machine))).result)
        machine.now(machine.reopen)
        machine.actor.outcome = None
        fleet.world.tell(f"--- damage {machine.name} {args} {[path.name for path in found]}")
        for path in filter(Path.exists, found):
            if args.get("garble"):
                data = path.read_bytes()
                path.write_bytes(data[: len(data) // 2] + b"\xff garbled \x00" * 3)
            else:
                path.unlink()
        oracle = fleet.places.oracle(machine.place)
        held = set(oracle.versions) if ids is None else set(ids)
        for one in fleet.machines:
            if one.home == machine.home:
                doubt(oracle, one.number, held, _pushed(machine, oracle))
        return bool(found)

    return damage


def _pushed(machine: Machine, oracle: Oracle) -> set[str]:
    """Return the versions that the index does not name, as whoever deleted them has told all.

    One that is lost names nothing: then those that have no object any more.
    """
    try:
        named = machine.place.committed()
    except Violation:
        return set()
    if oracle.is_index_lost:
        named |= {data.decode("utf-8", "replace") for data in machine.place.objects().values()}
    return {id_ for id_ in oracle.versions if not any(id_ in text for text in named)}


def _without_base(oracle: Oracle, machine: int, held: set[str], pushed: set[str]) -> None:
    """Without its base a machine cannot tell what others deleted from what is new, both ways."""
    oracle.doubt_deletions(machine, pushed - held, held=held)
    oracle.baseless[machine] = held
    oracle.forgot.setdefault(machine, set()).update(held)


def _without_journal(oracle: Oracle, machine: int, _: set[str], pushed: set[str]) -> None:
    """Without its journal a machine cannot tell what it deleted from what somebody wiped."""
    oracle.doubt_deletions(machine, pushed)


def _named(directory: Path, name: str, *, only: bool = False) -> Iterator[Path]:
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name == name or (not only and path.name in {f"{name}-wal", f"{name}-shm"}):
            yield path


def _base(machine: Machine) -> Iterator[Path]:
    """The base, unless the sidecar was lost since the last sync.

    A cache that has neither is like one that was never synced, and nobody can tell metadata whose
    content never came from metadata of a version that was saved here and lost its content.
    """
    is_told = bool(machine.repo.dirty.state().last_verified_at)
    return _named(machine.cache, BASE) if is_told else iter(())


def _catalog(machine: Machine) -> Iterator[Path]:
    return _named(Path(machine.repo.config.local_dir), CATALOG)


def _sidecar(machine: Machine) -> Iterator[Path]:
    """The sidecar, unless the base was; see there."""
    is_told = machine.repo.connection.base.fact("verified_at") is not None
    return _named(machine.cache, SIDECAR, only=True) if is_told else iter(())


def _journal(machine: Machine) -> Iterator[Path]:
    return _named(machine.cache, JOURNAL, only=True)


def _lose_version(fleet: Fleet, number: int, args: dict[str, Any]) -> bool:
    """Remove a version from a cache by hand, if the remote has every bit of it, and tells so.

    Not of a name of which something was deleted that no push has settled: nobody can tell that
    from one more deletion.
    """
    machine = fleet.machines[number % len(fleet.machines)]
    removals = machine.now(lambda: machine.repo.dirty.peek().removals).result
    machine.now(machine.reopen)
    machine.actor.outcome = None
    cache = machine.home / "repos" / REPO_ID
    found = []
    named = _whole_index(fleet)
    for path in sorted(cache.glob("data/**/raw")):
        files = [one for one in path.parent.iterdir() if one.is_file()]
        is_deleted = is_covered(str(path.relative_to(cache)), removals or ())
        is_there = len(files) == 2 and all(_is_there(fleet, named, cache, one) for one in files)
        if is_there and not is_deleted:
            found.append(path.parent)
    if not found:
        return False
    chosen = picked(found, args)
    fleet.world.tell(f"--- damage {machine.name}: {chosen} is removed")
    id_ = decode((chosen / METADATA).read_bytes(), str(chosen)).id
    if id_ in fleet.oracle.versions:  # else nobody was told that it is there
        fleet.oracle.removed.add((machine.number, id_))
    shutil.rmtree(chosen)
    machine.needs_full = True
    return True


def _whole_index(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Return the entries of the index, none if a part of it is lost."""
    try:
        return index_of({key: one.data for key, one in fleet.bucket.objects.items()})
    except Violation:
        return {}


def _is_there(fleet: Fleet, named: dict[str, dict[str, Any]], cache: Path, file: Path) -> bool:
    rel, data = str(file.relative_to(cache)), file.read_bytes()
    there, entry = fleet.bucket.objects.get(rel), named.get(rel)
    if there is None or entry is None or there.data != data or entry["size"] != len(data):
        return False
    return entry.get("sha256") in {None, hashlib.sha256(data).hexdigest()}


def _on_remote(
    keys: Callable[[Fleet], list[str]], *, everything: bool = False
) -> Callable[[Fleet, int, dict[str, Any]], bool]:
    def damage(fleet: Fleet, number: int, args: dict[str, Any]) -> bool:
        found = keys(fleet)
        if not found:
            return False
        chosen = found if everything else [picked(found, args)]
        fleet.world.tell(f"--- damage remote: {chosen}")
        # Any sync finds documents to be lost. But nobody looks for objects, nor writes a monolith
        # that names nothing, without being told to look at everything.
        is_empty = MONOLITH in chosen and not _whole_index(fleet)
        needs_full = chosen[0].startswith("data/") or is_empty
        fleet.past.has_lost_documents |= not chosen[0].startswith("data/")
        if not chosen[0].startswith("data/") and not _is_told_otherwise(fleet, chosen):
            _lose_index(fleet)
        elif chosen[0].startswith("data/"):
            fleet.past.lost_objects.update(chosen)
            fleet.oracle.contentless |= _ids_beside(fleet, chosen)
        for key in chosen:
            del fleet.bucket.objects[key]
        if not chosen[0].startswith("data/"):
            fleet.past.note_revived({key: one.data for key, one in fleet.bucket.objects.items()})
        for machine in fleet.machines:
            machine.needs_full |= needs_full
        return True

    return damage


def _ids_beside(fleet: Fleet, contents: list[str]) -> set[str]:
    """Return the versions that these objects are the content of."""
    keys = [f"{key.rpartition('/')[0]}/{METADATA}" for key in contents]
    objects = fleet.bucket.objects
    return {decode(objects[key].data, key).id for key in keys if key in objects}


def _is_told_otherwise(fleet: Fleet, lost: list[str]) -> bool:
    """Whether all that these documents tell is told by others: nobody has to guess anything.

    Those are copies for readers of one model, and a monolith of before a migration. Where
    `_meta.json` is lost, the monolith tells if it did so before, and names every version that is
    stored: else it may be one of long ago.
    """
    objects = {key: one.data for key, one in fleet.bucket.objects.items()}
    left = {key: data for key, data in objects.items() if key not in lost}
    try:
        told = index_of(objects)
        is_told = told == index_of(left)
    except Violation:  # a part of it is lost already
        return False
    stored = {key for key in objects if key.startswith("data/") and key.endswith(f"/{METADATA}")}
    if META not in objects:
        return False  # it is lost already, and what the others are is anybody's guess
    if json.loads(objects[META]).get("version") == 2:
        return is_told and META not in lost
    return is_told and MONOLITH in left and (META not in lost or stored <= told.keys())


def note_strays(fleet: Fleet) -> None:
    """Where `_meta.json` is lost, the monolith tells no more as soon as it leaves a version out.

    Somebody was stopped who had sent one. For all that the others know, it is one that was
    committed to shards, and those are lost as well.
    """
    objects = fleet.bucket.objects
    if META in objects or MONOLITH not in objects or fleet.oracle.is_index_lost:
        return
    named = index_of({MONOLITH: objects[MONOLITH].data})
    stored = {key for key in objects if key.startswith("data/") and key.endswith(f"/{METADATA}")}
    if not stored <= named.keys():
        _lose_index(fleet)


def _lose_index(fleet: Fleet) -> None:
    """An index is about to be lost: whatever anybody still has counts as new from now on."""
    oracle = fleet.oracle
    documents = [fleet.bucket.objects[key] for key in [*_meta(fleet), *_monolith(fleet)]]
    has_origin = any(b'"origin"' in one.data for one in documents)
    fleet.past.has_origin = has_origin or (oracle.is_index_lost and fleet.past.has_origin)
    oracle.is_index_lost = fleet.past.was_guessed = True
    with contextlib.suppress(Violation):  # a part of it is lost already
        fleet.past.named = named_in({key: one.data for key, one in fleet.bucket.objects.items()})
    for machine in fleet.machines:
        outcome = machine.now(partial(machine.look, contents=False))
        machine.actor.outcome = None
        is_known = outcome.ending == "done"
        seen = {one.id for one in outcome.result} if is_known else set(oracle.versions)
        oracle.held |= {(machine.number, id_) for id_ in seen}
        for one in outcome.result if is_known else ():
            places = oracle.held_at.setdefault(one.id, set())
            places.add((one.model, one.name, one.version))
        for id_ in () if is_known else seen:
            oracle.held_at.setdefault(id_, set()).add(("", "", 0))
    for id_, place in _stored(fleet):
        if id_ in oracle.held_at:
            oracle.held_at[id_].add(place)
    held = {id_ for _, id_ in oracle.held}
    oracle.adopted |= _sent_and_not_noted(fleet)
    oracle.doubt_deletions(None, _deleted_for_good(fleet, oracle.versions.keys() - held))


def note_arrivals(fleet: Fleet, machine: Machine) -> None:
    """Until lost documents are made anew, what a machine gets counts as new afterwards.

    Nobody tells it then that others had deleted that before, and pushed it with the new documents.
    """
    oracle, objects = fleet.oracle, fleet.bucket.objects
    if not (oracle.is_index_lost and fleet.past.has_lost_documents):
        return
    if is_whole({key: one.data for key, one in objects.items()}):
        return
    outcome = machine.now(partial(machine.look, contents=False))
    machine.actor.outcome = None
    seen = {one.id for one in outcome.result} if outcome.ending == "done" else set()
    new = {id_ for id_ in seen if (machine.number, id_) not in oracle.held}
    oracle.held |= {(machine.number, id_) for id_ in new}
    oracle.doubt_deletions(-1, held=new)


def _stored(fleet: Fleet) -> Iterator[tuple[str, tuple[str, str, int]]]:
    """Yield each version that the remote has an object of, with its name and number."""
    for key, one in fleet.bucket.objects.items():
        if key.startswith("data/") and key.endswith(f"/{METADATA}"):
            where, name, number = key.removeprefix("data/").rsplit("/", 3)[:3]
            yield decode(one.data, key).id, (where, name, int(number))


def _sent_and_not_noted(fleet: Fleet) -> set[str]:
    """Return the versions that killed pushes had sent, without anybody having noted that.

    Who makes the index anew takes them for data, and who deletes them cannot know.
    """
    known = {one.rel for one in fleet.past.named}
    for machine in fleet.machines:
        outcome = machine.now(partial(_noted, machine))
        machine.actor.outcome = None
        known |= outcome.result if outcome.ending == "done" else set()
    left = [
        one.data
        for key, one in fleet.bucket.objects.items()
        if key.endswith(f"/{METADATA}") and key not in known
    ]
    return {id_ for id_ in fleet.oracle.versions if any(id_.encode() in data for data in left)}


def _noted(machine: Machine) -> set[str]:
    return {*machine.repo.connection.base.all_noted_uploads()}


def _deleted_for_good(fleet: Fleet, gone: set[str]) -> set[str]:
    """Return those of the versions that no machine has of which no object tells, or all know why.

    Objects that are left are noted as such, or the index still names them: then whoever deleted
    them has still to push that.
    """
    objects = fleet.bucket.objects
    notes = b"".join(one.data for key, one in objects.items() if "_control/removals/" in key)
    named: dict[str, Any] = {}
    with contextlib.suppress(Violation):  # a part of it is lost already
        named = index_of({key: one.data for key, one in objects.items()})
    left = {
        one.data
        for key, one in objects.items()
        if key.endswith("/metadata.yaml") and key.encode() not in notes and key not in named
    }
    return {id_ for id_ in gone if not any(id_.encode() in data for data in left)}


def _shards(fleet: Fleet) -> list[str]:
    return [key for key in sorted(fleet.bucket.objects) if key.startswith("_index/data")]


def _index(fleet: Fleet) -> list[str]:
    return [*_shards(fleet), *_meta(fleet), *_monolith(fleet)]


def _meta(fleet: Fleet) -> list[str]:
    return [META] if META in fleet.bucket.objects else []


def _monolith(fleet: Fleet) -> list[str]:
    return [MONOLITH] if MONOLITH in fleet.bucket.objects else []


def _objects(fleet: Fleet) -> list[str]:
    """Return objects of which a machine has a copy, so that nothing is lost for good.

    Equal content of another version, which was saved there under the same number, is no copy.
    """
    objects = fleet.bucket.objects
    caches = [machine.home / "repos" / REPO_ID for machine in fleet.machines]

    def is_copy(cache: Path, key: str) -> bool:
        path = cache / key
        return path.is_file() and key in objects and path.read_bytes() == objects[key].data

    return [
        key
        for key in sorted(objects)
        if key.startswith("data/") and key.endswith("/raw")
        if any(is_copy(one, key) and is_copy(one, metadata_beside(key)) for one in caches)
    ]


KINDS: dict[str, Callable[[Fleet, int, dict[str, Any]], bool]] = {
    "damage_base": _on_machine(_base, _without_base),
    "damage_catalog": _on_machine(_catalog),
    "damage_sidecar": _on_machine(_sidecar),
    "damage_journal": _on_machine(_journal, _without_journal),
    "lose_version": _lose_version,
    "lose_shard": _on_remote(_shards),
    "lose_shards": _on_remote(lambda fleet: [*_shards(fleet), *_meta(fleet)], everything=True),
    "lose_index": _on_remote(_index, everything=True),
    "lose_meta": _on_remote(_meta),
    "lose_monolith": _on_remote(_monolith),
    "lose_object": _on_remote(_objects),
}
