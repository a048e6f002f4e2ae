"""What a machine may do in one step. Each tells the oracle before and after.

Whatever ends a step early (an error, a kill) leaves it at what was told before.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from swampstore.artifacts.metadata import Draft
from swampstore.doctor import examine
from swampstore.errors import NotFoundError, SwampstoreError
from swampstore.index.errors import IncompleteSyncError
from swampstore.layout import RAW, DataRef, ModelRef
from swampstore.retention import gc, prune
from tests.fleet.disks import cache_of, content_of, is_whole, known_to_all
from tests.fleet.machine import Machine
from tests.fleet.oracle import MODELS, PEER, WORK, Found, Session, State, look_at
from tests.fleet.places import Places

One = TypeVar("One")
Args = dict[str, Any]
KEEP = 4


class Fleet(Protocol):
    """What steps need of the whole."""

    machines: list[Machine]

    @property
    def places(self) -> Places: ...


class Tell:
    """What a step of one machine tells the oracle."""

    def __init__(self, fleet: Fleet, machine: Machine) -> None:
        self.fleet = fleet
        self.oracle = fleet.places.oracle(machine.place)
        self.machine = machine
        self.repo = machine.repo

    def versions(self, model: str, name: str) -> list[Found]:
        return look_at(self.repo, model, name, contents=False)

    def saved_beside(self, since: Container[str], model: str, name: str | None = None) -> list[str]:
        """Return what was saved into the cache of this machine since, by whoever, in order."""
        beside = {one.number for one in self.fleet.machines if one.home == self.machine.home}
        return [
            id_
            for id_, one in self.oracle.versions.items()
            if id_ not in since and one.maker in beside
            if one.model == model and name in {None, one.name}
        ]

    def there(self, ids: Iterable[str]) -> set[str]:
        """Return those of the versions that must be there."""
        known = self.oracle.versions
        return {id_ for id_ in ids if id_ in known and known[id_].state is State.THERE}

    def pieces_in(self, found: Iterable[Found]) -> dict[str, set[bytes]]:
        """Return what was appended to versions, by id, as far as these copies of them have it."""
        root = Path(self.repo.config.datastore_dir)
        pieces: dict[str, set[bytes]] = {}
        for one in found:
            rel = f"data/{one.model}/{one.name}/{one.version}"
            content = content_of(root / rel, self.machine.place.objects().get(f"{rel}/{RAW}"))
            pieces.setdefault(one.id, set()).update(self.oracle.pieces_in(content))
        return pieces

    def deleting(self, ids: Iterable[str]) -> None:
        """Tell what this machine is about to delete, and what of that everybody knows."""
        ids = list(ids)
        roots = {one.directory: cache_of(one.home) for one in self.fleet.machines}
        known = known_to_all(ids, self.machine.place, roots) if ids else set()
        is_guessed = self.oracle.is_index_lost and not is_whole(self.machine.place.objects())
        self.oracle.deleting(ids, self.machine.number, known, is_guessed=is_guessed)


# Work ------------------------------------------------------------------------------------------


def save(tell: Tell, args: Args) -> None:
    model, name = args["model"], args["name"]
    tag, content = tell.oracle.new_work(
        model, name, args["size"], tell.machine.name, is_equal=bool(args.get("equal"))
    )
    data: Any = io.BytesIO(content) if args.get("stream") else content
    made = tell.repo.artifacts.save(
        model,
        name,
        data,
        tags={WORK: tag},
        streaming=bool(args.get("appendable")),
        garbage_collection=KEEP,
    )
    tell.oracle.saved(made.id, model, name, tag, tell.machine.number)


def session(tell: Tell, args: Args) -> None:
    """Work in a session; what was saved is certain even if it could not be pushed."""
    chosen = None if args["all"] else sorted({one["model"] for one in args["work"]})
    with tell.repo.session(chosen) as work:
        locked = tell.machine.world.now
        seen = {one.id for one in tell.machine.look(contents=False)}
        seen |= tell.oracle.removed_from(tell.machine.number)
        before = set(tell.oracle.versions)
        for one in args["work"]:
            OPS[one["op"]](tell, one)
    if not work.is_offline:
        if work.pulled is None:
            # It could not get all there is, on a full disk for example, and was told so. What it
            # has made itself, those after it must see.
            seen |= before
        mine = tell.oracle.versions.keys() - before
        # What other programs save into its cache meanwhile may have to wait for another push.
        found = [tell.oracle.versions[id_] for id_ in mine]
        ours = [one for one in found if one.maker == tell.machine.number]
        made = {one.id for one in ours if not one.work.endswith(PEER)}
        models = set(MODELS if chosen is None else chosen)
        tell.oracle.ended_well(Session(locked, models, seen, made))


def append(tell: Tell, args: Args) -> None:
    model, name = args["model"], args["name"]
    latest = tell.repo.latest(model, name, default=None)
    if latest is None or not latest.row.streaming or WORK not in latest.tags:
        return
    work = latest.tags[WORK]
    tell.oracle.appending(latest.id, tell.machine.number)
    piece = tell.oracle.piece(work)
    with contextlib.ExitStack() as stack:
        if sum(one.home == tell.machine.home for one in tell.fleet.machines) > 1:
            stack.enter_context(tell.oracle.appending_beside(model, name, piece))
        made = tell.repo.artifacts.append(model, name, piece)
    tell.oracle.appended(made.id, piece, tell.machine.number)


def group(tell: Tell, args: Args) -> None:
    made = []
    with tell.repo.artifacts.deferring() as deferral:
        for one in args["work"]:
            model, name = one["model"], one["name"]
            tag, content = tell.oracle.new_work(
                model, name, one["size"], tell.machine.name, is_equal=bool(one.get("equal"))
            )
            draft = Draft(tags={WORK: tag}, garbage_collection=KEEP)
            ref = DataRef(ModelRef.parse(model), name)
            made.append((deferral.save(ref, content, draft).id, model, name, tag))
    for one in made:
        tell.oracle.saved(*one, tell.machine.number)


def picked(found: Sequence[One], args: Args) -> One:
    """Return one of several, by a share of their number."""
    return found[min(int(args.get("pick", 0.0) * len(found)), len(found) - 1)]


def delete_one(tell: Tell, args: Args) -> None:
    found = tell.versions(args["model"], args["name"])
    if not found:
        return
    chosen = picked(found, args)
    tell.deleting([chosen.id])
    tell.repo.artifacts.delete(args["model"], args["name"], version=chosen.version)
    tell.oracle.deleted([chosen.id], tell.machine.number)


def delete_all(tell: Tell, args: Args) -> None:
    before = set(tell.oracle.versions)
    found = [one.id for one in tell.versions(args["model"], args["name"])]
    if not found:
        return
    # Who deletes a name may mean the versions that were removed by hand before, or not.
    removed = tell.oracle.removed_from(tell.machine.number, args["model"], args["name"])
    tell.deleting([*found, *removed])
    with _taking_along(tell, args["model"], args["name"]):
        done = tell.repo.artifacts.delete(args["model"], args["name"])
    tell.oracle.deleted(found, tell.machine.number)
    if done.versions:
        # Others have saved into the same cache while it waited, and perhaps deleted what it found.
        left = {one.id for one in tell.versions(args["model"], args["name"])}
        new = tell.saved_beside(before, args["model"], args["name"])
        tell.oracle.deleting([id_ for id_ in new if id_ not in left], tell.machine.number)


@contextlib.contextmanager
def _taking_along(tell: Tell, model: str, name: str | None = None) -> Iterator[None]:
    """While a deletion waits, others may save into the same cache what then goes with the rest.

    One that ends says how much it was, or is looked at; of one that is killed, nobody can say.
    """
    before = set(tell.oracle.versions)
    try:
        yield
    except BaseException:
        tell.oracle.deleting(tell.saved_beside(before, model, name), tell.machine.number)
        raise


def rename(tell: Tell, args: Args) -> None:
    model, old, new = args["model"], args["name"], args["to"]
    with tell.oracle.renaming(model, old, new):
        _rename(tell, model, old, new)


def _rename(tell: Tell, model: str, old: str, new: str) -> None:
    latest = [one for one in tell.versions(model, old) if one.is_latest and not one.is_tombstone]
    target = [one for one in tell.versions(model, new) if one.is_latest and not one.is_tombstone]
    if old == new or not latest or target:
        return
    work = latest[0].work
    before = {one.id for name in (old, new) for one in tell.versions(model, name)}
    tell.oracle.works[work].places.add((model, new))
    tell.oracle.renames.add((model, old))
    tell.repo.artifacts.rename(model, old, new)
    for name in (old, new):
        for one in tell.versions(model, name):
            if one.id not in before:
                if one.work and (model, old) in tell.oracle.works[one.work].places:
                    # What somebody was killed at is healed first, and may be the latest by then.
                    tell.oracle.works[one.work].places.add((model, new))
                number, tombstone = tell.machine.number, one.is_tombstone
                tell.oracle.saved(one.id, model, name, one.work, number, tombstone=tombstone)


def collect(tell: Tell, args: Args) -> None:
    """Collect garbage: what is beyond the policy goes, and nothing else."""
    known = set(tell.oracle.versions)
    before = tell.machine.look(contents=False)
    due = []
    for model, name in {(one.model, one.name) for one in before}:
        versions = [one for one in before if (one.model, one.name) == (model, name)]
        due += versions[:-KEEP]
    excess = [one.id for one in due]
    there = tell.there(excess)
    due_pieces = tell.pieces_in(due)
    tell.deleting(excess)
    gc(tell.repo)
    after = tell.machine.look(contents=False)
    left = {one.id for one in after}
    tell.oracle.collected(due_pieces, tell.pieces_in(after))
    tell.oracle.deleted([id_ for id_ in excess if id_ not in left], tell.machine.number)
    tell.oracle.spared(there & left, tell.machine.number)
    # What others have saved into the same cache meanwhile makes as many more of the oldest due.
    for model, name in {(one.model, one.name) for one in before}:
        ids = [one.id for one in before if (one.model, one.name) == (model, name)]
        ids += [id_ for id_ in tell.saved_beside(known, model, name) if id_ not in ids]
        also = [id_ for id_ in ids[:-KEEP] if id_ not in left and id_ not in excess]
        tell.oracle.deleted(also, tell.machine.number)


def prune_model(tell: Tell, args: Args) -> None:
    """Let a model be defined no longer, and prune: all of its data goes, and nothing else."""
    known = set(tell.oracle.versions)
    tell.machine.define(one for one in MODELS if one != args["model"])
    before = tell.machine.look(contents=False)
    orphans = [one.id for one in before if one.model == args["model"]]
    there = tell.there(orphans)
    tell.deleting(orphans)
    with _taking_along(tell, args["model"]):
        prune(tell.repo)
    orphans += tell.saved_beside(known, args["model"])
    left = {one.id for one in tell.machine.look(contents=False)}
    tell.oracle.deleted([id_ for id_ in orphans if id_ not in left], tell.machine.number)
    tell.oracle.spared(there & left, tell.machine.number)


# Sync ------------------------------------------------------------------------------------------


def _scope(tell: Tell, args: Args) -> list[ModelRef] | None:
    return [tell.repo.model(args["scope"])] if args.get("scope") else None


def _is_lazy(tell: Tell, args: Args) -> bool:
    """Whether contents stay on the remote; all of them would never fit where few may be here."""
    remote = tell.repo.config.remote
    return bool(args.get("lazy")) or (remote is not None and remote.cache_limit is not None)


def push(tell: Tell, args: Args) -> None:
    tell.repo.sync.push(_scope(tell, args), full=bool(args.get("full")))


def pull(tell: Tell, args: Args) -> None:
    tell.repo.sync.pull(
        _scope(tell, args), metadata_only=_is_lazy(tell, args), full=bool(args.get("full"))
    )
    if not args.get("scope"):
        tell.oracle.synced(tell.machine.number)


def sync(tell: Tell, args: Args) -> int:
    """Do what the command does; return how much that changed."""
    service, full, lazy = tell.repo.sync, bool(args.get("full")), _is_lazy(tell, args)
    failed: SwampstoreError | None = None
    changes, is_partial = 0, False
    try:
        pulled = service.pull(_scope(tell, args), metadata_only=lazy, full=full)
        changes += pulled.files + pulled.deleted
        is_partial = pulled.is_partial
    except IncompleteSyncError as error:
        failed = error
    tell.repo.export_catalog()
    pushed = service.push(_scope(tell, args), full=full)
    changes += pushed.changes + len(pushed.conflicts)
    if (is_partial or pushed.conflicts) and not failed:
        pulled = service.pull(_scope(tell, args), metadata_only=lazy, full=full)
        changes += pulled.files + pulled.deleted
    if failed:
        raise failed
    if not args.get("scope"):
        tell.oracle.synced(tell.machine.number)
    return changes


def hydrate(tell: Tell, args: Args) -> None:
    tell.repo.hydrate(model=args["model"], all_versions=True)


def read(tell: Tell, args: Args) -> None:
    with contextlib.suppress(NotFoundError):
        tell.repo.latest(args["model"], args["name"]).bytes()


def evict(tell: Tell, args: Args) -> None:
    tell.repo.sync.evict(0)


def migrate_index(tell: Tell, args: Args) -> None:
    tell.repo.sync.migrate_index()


def repair(tell: Tell, args: Args) -> None:
    with tell.repo.locks.everything():
        examine(tell.repo, repair=True, deep=bool(args.get("deep")))


def offline(tell: Tell, args: Args) -> None:
    tell.machine.actor.is_offline = True


def online(tell: Tell, args: Args) -> None:
    tell.machine.actor.is_offline = False


def reopen(tell: Tell, args: Args) -> None:
    tell.machine.reopen()


def idle(tell: Tell, args: Args) -> None:
    """Let time pass."""
    tell.machine.actor.wait(args["seconds"])


OPS: dict[str, Callable[[Tell, Args], Any]] = {
    "save": save,
    "session": session,
    "append": append,
    "group": group,
    "delete_one": delete_one,
    "delete_all": delete_all,
    "rename": rename,
    "gc": collect,
    "prune": prune_model,
    "push": push,
    "pull": pull,
    "sync": sync,
    "hydrate": hydrate,
    "read": read,
    "evict": evict,
    "migrate_index": migrate_index,
    "repair": repair,
    "offline": offline,
    "online": online,
    "reopen": reopen,
    "idle": idle,
}
assert len(MODELS) > 1
