"""Scripts by chance: the same ones for the same seed."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.fleet.fleet import SETTLE, Script, Step
from tests.fleet.oracle import MODELS, NAMES
from tests.fleet.world import DISK, STORE, Fault

LARGE = 400
# How often what is done, and by how many requests and changes of the disk it takes at most.
OPS: dict[str, tuple[int, int, int]] = {
    "save": (22, 0, 30),
    "session": (16, 60, 120),
    "append": (6, 6, 20),
    "group": (4, 0, 60),
    "delete_one": (6, 0, 20),
    "delete_all": (4, 0, 20),
    "rename": (4, 6, 40),
    "gc": (3, 0, 40),
    "push": (14, 40, 40),
    "pull": (10, 15, 40),
    "sync": (18, 50, 70),
    "hydrate": (2, 6, 30),
    "read": (3, 4, 10),
    "evict": (5, 6, 20),
    "migrate_index": (1, 30, 20),
    "repair": (2, 40, 40),
    "offline": (2, 0, 0),
    "online": (4, 0, 0),
    "reopen": (2, 0, 0),
    "idle": (2, 0, 0),
    "foreign_save": (3, 12, 0),
    "foreign_migrate": (1, 12, 0),
    "damage_base": (1, 0, 0),
    "damage_catalog": (1, 0, 0),
    "damage_sidecar": (1, 0, 0),
    "damage_journal": (1, 0, 0),
    "lose_version": (1, 0, 0),
    "lose_shard": (1, 0, 0),
    "lose_meta": (1, 0, 0),
    "lose_monolith": (1, 0, 0),
    "lose_shards": (1, 0, 0),
    "lose_index": (1, 0, 0),
    "lose_object": (1, 0, 0),
}
_REQUESTS = (
    *("fail", "lost", "late", "late", "twice", "kill", "kill", "kill-after", "kill-after"),
    *("kill-late", "stop", "stop", "slow", "slow", "slow-after"),
)
_CHANGES = ("kill", "kill", "kill", "kill", "torn", "stop", "slow", "full")
_IN_SESSIONS = (*("save", "save", "save", "append", "delete_one", "delete_all", "rename", "group"),)
_OF_PEERS = ("fail", "kill", "slow")


class Act(NamedTuple):
    """A step of a plot: who does what, and what may befall which of its requests."""

    machine: int
    op: str
    kinds: tuple[str, ...] = ()
    points: tuple[int, int] = (0, 1)
    seconds: tuple[float, ...] = (45.0,)
    overlaps: bool = False
    args: tuple[tuple[str, Any], ...] = ()
    times: int = 1


def generate_plot(seed: str, plot: tuple[Act, ...], store: str = "", hydration: str = "") -> Script:
    """Return a script that follows a plot: where exactly something happens is left to chance."""
    chance = random.Random(seed)
    steps = []
    for act in plot:
        args = {**_args(chance, act.op, MODELS[:1], NAMES[:1]), **dict(act.args)}
        for flag in ("appendable", "stream"):
            args.pop(flag, None)
        faults = []
        if act.kinds:
            number, kind = chance.randrange(*act.points), chance.choice(act.kinds)
            seconds = chance.choice(act.seconds)
            faults = [Fault(STORE, number + more, kind, seconds) for more in range(act.times)]
        steps.append(Step(act.machine, act.op, args, faults, act.overlaps))
    return Script(
        seed=seed,
        machines=2,
        store=store or chance.choice(["s3", "old-s3", "gcs"]),
        epoch="2026-06-01T10:00:00",
        hydration=hydration or "full",
        skews=[0.0, 0.0],
        steps=steps,
    )


class Mix(NamedTuple):
    """What happens in scripts that look for one thing: how often what is done, and befalls it."""

    ops: dict[str, int]
    faults: tuple[str, ...] = ()
    store: str = ""
    hydration: str = ""
    sizes: tuple[int, ...] = (10,)
    roughness: float = 0.3


def generate(seed: str, length: int = 60, *, without: frozenset[str] = frozenset()) -> Script:
    """Return the script of a seed; `without` are operations to leave out."""
    chance = random.Random(seed)
    weights = {op: weight for op, (weight, _, _) in OPS.items() if op not in without}
    # Each run has its own mix: what is rare in the long run happens often in some.
    weights = {op: weight * chance.choice([0, 1, 1, 2]) for op, weight in weights.items()}
    if chance.random() < 0.6:
        for op in weights:
            if op.startswith(("foreign", "damage", "lose")):
                weights[op] = 0
    weights["sync"] = weights.get("sync", 0) + 10
    weights["save"] = weights.get("save", 0) + 10
    roughness = chance.choice([0.0, 0.15, 0.3, 0.5])
    machines = chance.choice([2, 2, 2, 3, 3, 4])
    is_mixed = any(weights[op] for op in weights if op.startswith("foreign"))
    most = 5 if is_mixed else 600
    steps: list[Step] = []
    names = NAMES[: chance.choice([1, 1, 2, 3])]
    models = MODELS[: chance.choice([1, 1, 2])]
    rest = chance.choice([12, 20, 30])
    for number in range(length):
        op = chance.choices(list(weights), list(weights.values()))[0]
        args = _args(chance, op, models, names)
        step = Step(chance.randrange(machines), op, args)
        if chance.random() < roughness:
            step.faults = _faults(chance, op)
        step.overlaps = chance.random() < 0.4
        steps.append(step)
        if number % rest == rest - 1:
            steps.append(Step(-1, SETTLE))
    return Script(
        seed=seed,
        machines=machines,
        store=chance.choice(["s3", "s3", "old-s3", "lax-s3", "gcs", "gcs"]),
        epoch=chance.choice(["2026-06-01T10:00:00", "2026-06-01T10:00:00", "2033-01-01T00:00:00"]),
        hydration=chance.choice(["full", "lazy"]),
        skews=[round(chance.uniform(-most, most), 1) for _ in range(machines)],
        steps=steps,
    )


_PAUSES = ("stop", "slow", "slow-after")


class Theme(NamedTuple):
    """What narrow scripts are about: how often what is done, and what befalls it where."""

    ops: dict[str, int]
    faults: tuple[str, ...] = ()
    # Kinds of requests (see `aim_of`), or the disk.
    aims: tuple[str, ...] = (DISK,)
    seconds: tuple[float, ...] = (0.1, 1.0, 5.0, 20.0, 45.0)
    sizes: tuple[int, ...] = (10,)
    hydration: tuple[str, ...] = ("full", "lazy")
    # What befalls which kind of requests, instead of anything that befalls any of them.
    pairs: tuple[tuple[str, str], ...] = ()
    # After how many steps all come to rest. Whoever is at rest has read everything.
    rest: int = 8
    # Whether all that is saved has the same content.
    is_equal: bool = False
    # What is done in sessions.
    work: tuple[str, ...] = ("save",)


_SAVING = {"op": "save", "model": MODELS[0], "name": NAMES[0], "size": 10}
THEMES = (
    # Sessions of one model, one of which stands still for longer than its locks live.
    Theme(
        {"session": 1},
        ("stop", "stop", "stop", "slow", "twice", "late"),
        ("put index", "read index", "put data", "put lock", "delete lock"),
        (0.2, 0.5, 20.0, 45.0, 45.0, 45.0),
    ),
    # Deletions whose objects are not removed at once, while others save the same.
    Theme(
        {"save": 6, "delete_all": 4, "delete_one": 2, "push": 8, "sync": 2, "pull": 4}
        | {"lose_index": 1},
        ("fail", "fail", "slow", "slow", "stop", "kill", "kill-after"),
        ("delete data", "put data", "put index", "put index", "put note"),
    ),
    # Documents of the index are lost.
    Theme(
        {"save": 6, "push": 4, "sync": 4, "pull": 2, "delete_one": 2, "delete_all": 1}
        | {"migrate_index": 3, "lose_shard": 3, "lose_index": 1, "lose_meta": 1}
    ),
    # Content is not where it was: evicted, never fetched, lost.
    Theme(
        {"save": 6, "push": 4, "sync": 5, "pull": 4, "delete_one": 4, "evict": 4, "hydrate": 1}
        | {"lose_object": 3, "lose_version": 2, "damage_base": 3},
        hydration=("full", "lazy", "lazy"),
    ),
    # Somebody is killed while he writes.
    Theme(
        {"save": 8, "group": 3, "append": 3, "rename": 2, "delete_one": 1, "sync": 6},
        ("kill", "kill", "torn", "full"),
    ),
    # Two save the same version, and send it at once.
    Theme(
        {"save": 8, "push": 8, "pull": 1},
        ("stop", "slow", "slow", "late", "lost"),
        ("put data", "put data", "read data", "put index", "read index"),
        sizes=(10, LARGE, LARGE),
    ),
    # Objects are lost, and content that is on the remote leaves the disk.
    Theme({"save": 6, "push": 6, "evict": 5, "lose_object": 5, "sync": 1}),
    # The index is lost before what was deleted is gone.
    Theme(
        {"save": 4, "delete_all": 4, "push": 8, "pull": 5, "lose_index": 4},
        ("fail", "fail", "kill"),
        ("delete data", "delete data", "delete note"),
    ),
    # Sessions that stand still right where they commit, and others that come and stand still, too.
    Theme(
        {"session": 1},
        seconds=(20.0, 45.0, 45.0),
        pairs=(
            *(("stop", "put index"), ("stop", "read index"), ("slow", "put index")),
            *(("slow", "read index"), ("slow", "put lock"), ("slow-after", "put lock")),
        ),
    ),
    # Versions are deleted whose content others never fetched, and who lost their base.
    Theme(
        {"session": 6, "pull": 3, "damage_base": 2, "sync": 3},
        hydration=("lazy",),
        rest=24,
        work=("save", "save", "delete_one"),
    ),
    # The same large content is saved again, while what it is a copy of goes, or is lost.
    Theme(
        {"save": 10, "push": 8, "pull": 2, "delete_one": 4, "delete_all": 1, "lose_object": 1},
        ("stop", "slow", "late", "lost", "twice", "kill", "kill-after", "fail"),
        ("copy data", "copy data", "put data", "read data", "put index", "delete data"),
        sizes=(LARGE,),
        is_equal=True,
    ),
)


def generate_narrow(seed: str, theme: Theme | None = None, length: int = 24) -> Script:
    """Return a script of little variety, about one theme: few machines, one data name.

    What goes wrong takes two who meet at one name at the wrong moment. That happens most often
    where there is nothing else to do, and where somebody comes while another one stands still.
    """
    chance = random.Random(f"narrow {seed}")
    theme = theme or chance.choice(THEMES)
    machines = chance.choice([2, 2, 2, 3])
    roughness, overlap = chance.choice([0.3, 0.6]), chance.choice([0.1, 0.4])
    is_plain = chance.random() < 0.7
    weights = {op: weight * chance.choice([1, 1, 2]) for op, weight in theme.ops.items()}
    steps: list[Step] = []
    for number in range(length):
        op = chance.choices(list(weights), list(weights.values()))[0]
        step = Step(chance.randrange(machines), op, _args(chance, op, MODELS[:1], NAMES[:1]))
        for one in (step.args, *step.args.get("work", ())):
            if "size" in one:
                one["size"] = chance.choice(theme.sizes)
                one["equal"] = theme.is_equal
            for flag in ("appendable", "stream", "scope") if is_plain else ():
                one.pop(flag, None)
        if op == "session" and is_plain:
            step.args = {"work": [_plain_work(chance, theme)], "all": False}
        if (theme.faults or theme.pairs) and chance.random() < roughness:
            step.faults = _aimed(chance, op, theme)
        step.overlaps = chance.random() < overlap
        if steps and any(one.kind in _PAUSES for one in steps[-1].faults):
            step.machine = (steps[-1].machine + chance.randrange(1, machines)) % machines
            step.overlaps = chance.random() < 0.8
        steps.append(step)
        if number % theme.rest == theme.rest - 1:
            steps.append(Step(-1, SETTLE))
    return Script(
        seed=seed,
        machines=machines,
        store=chance.choice(["s3", "old-s3", "lax-s3", "gcs"]),
        epoch="2026-06-01T10:00:00",
        hydration=chance.choice(theme.hydration),
        skews=[0.0] * machines,
        steps=steps,
    )


# What is done in calm scripts, and how often.
_CALM = {
    "save": 8,
    "push": 7,
    "pull": 6,
    "sync": 3,
    "delete_one": 5,
    "delete_all": 3,
    "append": 4,
} | {
    **dict.fromkeys(("rename", "migrate_index", "evict", "hydrate", "gc"), 1),
    "session": 2,
}


def generate_calm(seed: str, length: int = 28) -> Script:
    """Return a script in which nothing befalls anybody: what goes wrong is wrong in the rules."""
    chance = random.Random(f"calm {seed}")
    machines = chance.choice([2, 2, 3])
    names, models = NAMES[: chance.choice([1, 1, 2])], MODELS[: chance.choice([1, 1, 2])]
    weights = {op: weight * chance.choice([0, 1, 1, 2]) for op, weight in _CALM.items()}
    weights["push"] += 3
    weights["save"] += 3
    rest = chance.choice([8, 14, 28])
    steps: list[Step] = []
    for number in range(length):
        op = chance.choices(list(weights), list(weights.values()))[0]
        steps.append(Step(chance.randrange(machines), op, _args(chance, op, models, names)))
        if number % rest == rest - 1:
            steps.append(Step(-1, SETTLE))
    return Script(
        seed=seed,
        machines=machines,
        store=chance.choice(["s3", "old-s3", "lax-s3", "gcs"]),
        epoch="2026-06-01T10:00:00",
        hydration=chance.choice(["full", "lazy"]),
        skews=[0.0] * machines,
        steps=steps,
    )


def _plain_work(chance: random.Random, theme: Theme) -> dict[str, Any]:
    """Return what a session does to the one data name."""
    op = chance.choice(theme.work) if len(theme.work) > 1 else theme.work[0]
    if op == "save":
        return _SAVING
    return {"op": op, **_args(chance, op, MODELS[:1], NAMES[:1])}


def _aimed(chance: random.Random, op: str, theme: Theme) -> list[Fault]:
    """Return what befalls one of the first requests of a kind, or a change of the disk."""
    _, requests, changes = OPS[op]
    if theme.pairs:
        kind, aim = chance.choice(theme.pairs)
    else:
        kind, aim = chance.choice(theme.faults), chance.choice(theme.aims)
    if aim == DISK:
        return [Fault(DISK, chance.randrange(changes), kind, 1.0)] if changes else []
    if not requests:
        return []
    number, seconds = chance.choice([0, 0, 0, 1, 1, 2, 3]), chance.choice(theme.seconds)
    # What fails once is tried again; only what fails three times has failed.
    times = 3 if kind == "fail" else 1
    return [Fault(aim, number + more, kind, seconds) for more in range(times)]


def generate_mix(seed: str, mix: Mix, length: int = 24) -> Script:
    """Return a script of little variety: two machines, one data name."""
    chance = random.Random(seed)
    steps = []
    for number in range(length):
        op = chance.choices(list(mix.ops), list(mix.ops.values()))[0]
        step = Step(chance.randrange(2), op, _args(chance, op, MODELS[:1], NAMES[:1]))
        if "size" in step.args:
            step.args["size"] = chance.choice(mix.sizes)
        if mix.faults and chance.random() < mix.roughness:
            faults = (_faults(chance, op) for _ in range(8))
            found = [one for some in faults for one in some if one.kind in mix.faults]
            step.faults = found[:1]
        step.overlaps = chance.random() < 0.5
        steps.append(step)
        if number % 8 == 7:
            steps.append(Step(-1, SETTLE))
    return Script(
        seed=seed,
        machines=2,
        store=mix.store or chance.choice(["s3", "old-s3", "gcs"]),
        epoch="2026-06-01T10:00:00",
        hydration=mix.hydration or chance.choice(["full", "lazy"]),
        skews=[0.0, 0.0],
        steps=steps,
    )


def _args(
    chance: random.Random, op: str, models: tuple[str, ...], names: tuple[str, ...]
) -> dict[str, Any]:
    place: dict[str, Any] = {"model": chance.choice(models), "name": chance.choice(names)}
    if op in {"save", "foreign_save"}:
        place["size"] = chance.choice([10, 10, 10, LARGE])
        if op == "save":
            flags = {"appendable": chance.random() < 0.3, "stream": chance.random() < 0.3}
            flags["equal"] = place["size"] == LARGE and chance.random() < 0.5
        else:
            flags = {"old": chance.random() < 0.3}
        return place | {flag: True for flag, is_up in flags.items() if is_up}
    if op == "session":
        return _session(chance, models, names)
    if op in {"push", "pull", "sync"}:
        return _sync(chance, op, place["model"])
    more: dict[str, Any] = {
        "group": {
            "work": [_args(chance, "save", models, names) for _ in range(1 + (op == "group"))]
        },
        "delete_one": {**place, "pick": chance.choice([0.0, 0.5, 0.99])},
        "rename": {**place, "to": chance.choice(NAMES)},
        "hydrate": {"model": place["model"]},
        "repair": {"deep": chance.random() < 0.3},
        "idle": {"seconds": chance.choice([1.0, 40.0, 4000.0])},
        "damage": {"garble": chance.random() < 0.4},
        "lose": {"pick": round(chance.random(), 3)},
    }
    kind = op.partition("_")[0] if op.startswith(("damage", "lose")) else op
    return dict(more.get(kind, place if op in {"append", "delete_all", "read"} else {}))


def _session(
    chance: random.Random, models: tuple[str, ...], names: tuple[str, ...]
) -> dict[str, Any]:
    inner = [chance.choice(_IN_SESSIONS) for _ in range(chance.choice([1, 1, 2]))]
    work = [{"op": one, **_args(chance, one, models, names)} for one in inner]
    for one in work:
        if one["op"] == "group":
            one["model"] = one["work"][0]["model"]
            for part in one["work"]:
                part["model"] = one["model"]
    return {"work": work, "all": chance.random() < 0.2}


def _sync(chance: random.Random, op: str, model: str) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if chance.random() < 0.2:
        args["scope"] = model
    if chance.random() < 0.15:
        args["full"] = True
    if op != "push" and chance.random() < 0.3:
        args["lazy"] = True
    return args


def _faults(chance: random.Random, op: str) -> list[Fault]:
    _, requests, changes = OPS[op]
    if op.startswith("foreign"):
        kind = chance.choice(_OF_PEERS)
        return [Fault(STORE, chance.randrange(requests), kind, round(chance.uniform(0.1, 8), 1))]
    faults = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        if requests and (not changes or chance.random() < 0.65):
            kind, where, most = chance.choice(_REQUESTS), STORE, requests
        elif changes:
            kind, where, most = chance.choice(_CHANGES), DISK, changes
        else:
            continue
        # Early points are passed by every run, late ones only by those that have much to do.
        number = int(most * chance.random() ** 1.7)
        seconds = chance.choice([0.1, 1.0, 5.0, 45.0, 100.0])
        faults.append(Fault(where, number, kind, seconds))
    return faults
