"""The main job from start to end, in a temporary directory, with an account of it.

Every claim is checked; if one does not hold, the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everything
import running
import scan
import sharing
import writers
from account import Account, ClaimError
from swampstore import Repo, open_repo
from swampstore.doctor import examine
from swampstore.retention import gc

KILLS = 4
HOT = 'tags.env == "prod" && specName == "state" && attributes.cpu > 80'


def main() -> int:
    """Tell the whole story; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="an empty directory (default: a temporary one)")
    place = parser.parse_args().dir or Path(tempfile.mkdtemp(prefix="swampstore-demo-"))
    account = Account(place.resolve())
    for name in [name for name in os.environ if name.startswith("SWAMP")]:
        del os.environ[name]  # nothing but the defaults counts
    try:
        for tell in CHAPTERS:
            tell(account)
    except ClaimError as error:
        account.console.print(f"\n[bold red]This does not hold:[/] {error}", soft_wrap=True)
        account.console.print(f"Look at {account.directory}.", soft_wrap=True)
        return 1
    return 0


def _repo(account: Account) -> Repo:
    return open_repo(account.directory, environ={})


def make_a_repository(account: Account) -> None:
    """A directory becomes a repository."""
    account.chapter("Make a repository")
    account.say("Any directory can be one. There is nothing to install beside it, or to start.")
    account.run("swampstore init")
    account.run("cat .swamp.yaml")
    account.claim("the directory is a repository", (account.directory / ".swamp.yaml").is_file())


def save_what_runs_produce(account: Account) -> None:
    """Automation saves its results, night after night."""
    account.chapter("A nightly scan saves what it finds")
    account.say(
        f"Three machines, {scan.NIGHTS} nights: a state as JSON, a memory image, a line in a log."
        " This is the code that runs every night:"
    )
    account.show_code(scan.scan)
    clock = scan.NightlyClock()
    started = time.monotonic()
    with open_repo(account.directory, clock=clock, environ={}) as repo:
        scan.start_logs(repo)
        for clock.night in range(1, scan.NIGHTS + 1):
            scan.scan(repo, clock.night)
        scan.stream_backup(repo)
        took = time.monotonic() - started
        count = repo.catalog.counts()["versions"]
        changes = len(scan.MACHINES) * (1 + 3 * scan.NIGHTS) + 1
        account.say(f"{changes} durable changes in {took:.2f} s, one backup of 8 MB among them.")
        nights = repo.list_versions("db-1", "state")
        log = repo.latest("web-1", "scan.log").text()
    account.claim(f"every state has {scan.NIGHTS} versions", nights == [*range(1, scan.NIGHTS + 1)])
    account.claim("the log has a line of each night", log.count("\n") == scan.NIGHTS)
    account.claim(f"the catalog knows all {count} versions", count == _versions_on_disk(account))


def _versions_on_disk(account: Account) -> int:
    return sum(1 for _ in account.directory.glob(".swamp/data/**/metadata.yaml"))


def look_something_up(account: Account) -> None:
    """One artifact, the latest or an earlier version of it."""
    account.chapter("Look something up")
    account.run("swampstore data get db-1 state")
    account.run("swampstore data get web-1 scan.log --raw | tail -n 3")
    database = scan.MACHINES[2]
    with _repo(account) as repo:
        started = time.perf_counter()
        latest = repo.latest(database.model, "state")
        took = (time.perf_counter() - started) * 1000
        account.say(f"From Python, repo.latest() took {took:.2f} ms, opening the catalog included.")
        account.claim(
            "the latest state is that of last night", latest.json() == database.state(scan.NIGHTS)
        )
        account.claim(
            "the first one is still there",
            repo.version(database.model, "state", 1).json() == database.state(1),
        )
        backup = repo.latest("aws/ec2/i-0a11", "backup")
        account.claim("the backup has 8 MB", backup.size == 8 * scan.MEGABYTE)


def ask_a_question(account: Account) -> None:
    """Artifacts by what is true of them."""
    account.chapter("Ask a question")
    account.say("A predicate in CEL. The catalog answers what it can; only states are opened.")
    account.run(f"swampstore data query '{HOT}'")
    account.run(
        "swampstore data query 'specName == \"state\"' --order modelName"
        ' --select \'{"machine": modelName, "env": tags.env, "cpu": attributes.cpu}\''
    )
    with _repo(account) as repo:
        found = {artifact.model_name for artifact in repo.query(HOT)}
    hot = {
        machine.name
        for machine in scan.MACHINES
        if machine.env == "prod" and int(str(machine.state(scan.NIGHTS)["cpu"])) > 80
    }
    account.claim(f"the answer is right: {', '.join(sorted(hot))}", found == hot)
    account.say("A question that can never be right is refused, with a way out:")
    account.run("swampstore data query 'size > \"10\"'", fails=True)


def kill_writers(account: Account) -> None:
    """Processes die while they write; nobody else notices."""
    account.chapter("Kill writers in the middle of their work")
    account.say("A backup is being streamed. 2 MB have arrived when the process is killed (-9).")
    account.echo("python backup.py")
    status = writers.kill_a_stream(account.directory, account.environment())
    account.console.print("Killed")
    account.claim("the writer was killed", status == -9)
    account.run("ls .swamp/data/aws/ec2/i-0a11/backup/2")
    account.run("swampstore data versions web-1 backup")
    with _repo(account) as repo:
        kept = repo.latest("web-1", "backup")
        account.claim("version 1 is still the latest", kept.version == 1)
        account.claim("version 2 never came to be", repo.list_versions("web-1", "backup") == [1])
    account.run("echo 'the next backup' | swampstore data put web-1 backup -")
    with _repo(account) as repo:
        text = repo.latest("web-1", "backup").text()
        account.claim("the next save goes on as if nothing had been", text == "the next backup\n")
    _kill_busy_writers(account)


def _kill_busy_writers(account: Account) -> None:
    account.say(f"Now {KILLS} processes that save as fast as they can, killed at any moment.")
    kills = [
        writers.kill_a_busy_writer(account.directory, account.environment()) for _ in range(KILLS)
    ]
    for number, kill in enumerate(kills, 1):
        account.console.print(
            f"  killed writer {number}: told of version {kill.acknowledged},"
            f" the next process finds {kill.latest}"
        )
    with _repo(account) as repo:
        account.claim(
            "every version that was acknowledged is there",
            all(kill.acknowledged <= kill.latest for kill in kills),
        )
        account.claim("no version is torn", writers.torn_versions(repo) == [])
        account.claim("nothing is left unfinished", repo.catalog.counts()["pending"] == 0)
        before = _rows(repo)
        repo.rebuild_catalog()
        account.claim("the catalog is what the files say", _rows(repo) == before)


def _rows(repo: Repo) -> list[Any]:
    return list(repo.catalog.by_name())


def lose_the_catalog(account: Account) -> None:
    """The catalog is deleted, and comes back."""
    account.chapter("Lose the catalog")
    question = f"swampstore data query '{HOT}' --select modelName"
    with _repo(account) as repo:
        before = _rows(repo)
    account.say("The catalog is a cache. Delete it, and the next query builds it again:")
    account.run("rm .swamp/swampstore.db")
    account.run(question)
    with _repo(account) as repo:
        account.claim("every row is back", _rows(repo) == before)


def clean_up(account: Account) -> None:
    """Retention: a preview, then the real run."""
    account.chapter("Clean up")
    account.say(
        f"States keep {scan.KEPT_VERSIONS} versions, memory images live 3 days."
        " First see what would go, then let it go."
    )
    account.run("swampstore data gc --dry-run")
    with _repo(account) as repo:
        plan = gc(repo, dry_run=True).plan
        before = _versions_on_disk(account)
        account.run("swampstore data gc -y | tail -n 1")
        gone = before - _versions_on_disk(account)
        account.claim(f"the {gone} versions of the plan are gone", gone == plan.version_count)
        states = repo.list_versions("web-1", "state")
        account.claim(f"the newest {scan.KEPT_VERSIONS} states are kept", states == [4, 5, 6, 7, 8])
        images = [found.name for found in repo.list_data("web-1") if found.name.endswith(".img")]
        account.claim("the young images are kept", images == [f"memory-{n}.img" for n in (6, 7, 8)])
        account.claim("there is nothing left to clean up", gc(repo, dry_run=True).plan.size == 0)


def see_the_doctor(account: Account) -> None:
    """An examination of everything that is there by now."""
    account.chapter("See the doctor")
    account.say("Everything is looked at once more: files, markers, sizes, leftovers, the catalog.")
    account.run("swampstore doctor")
    with _repo(account) as repo:
        account.claim("nothing is wrong, after all of this", examine(repo).ok)


def sum_up(account: Account) -> None:
    """What it took, and where everything is."""
    account.chapter("What happened")
    with _repo(account) as repo:
        counts = repo.catalog.counts()
    data = [path for path in account.directory.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in data)
    ends = [start for _, start in account.chapters[1:]] + [time.monotonic()]
    account.show_fields(
        {
            f"{end - start:5.2f} s": title
            for (title, start), end in zip(account.chapters, ends, strict=True)
        }
    )
    account.show_fields(
        {
            "claims": f"{account.claims} made, {account.claims} held",
            "artifacts": f"{counts['latest']} names, {counts['versions']} versions",
            "on disk": f"{size / scan.MEGABYTE:.1f} MB in {len(data)} files",
            "time": f"{account.seconds:.1f} s",
            "repository": str(account.directory),
            "content": f"{account.directory}/.swamp/data",
            "catalog": f"{account.directory}/.swamp/swampstore.db",
            "bucket": f"{account.directory}/{sharing.ELSEWHERE}/bucket",
            "report": f"{account.directory}/{everything.REPORT}",
            "command": f"{Path(sys.executable).parent}/swampstore",
            "next": "README.md, docs/index.md",
        }
    )
    account.say(f"Look around in it, then remove it: rm -r {account.directory}")


CHAPTERS: tuple[Callable[[Account], None], ...] = (
    make_a_repository,
    save_what_runs_produce,
    running.run_something,
    look_something_up,
    ask_a_question,
    running.use_a_secret,
    running.kill_a_workflow,
    kill_writers,
    lose_the_catalog,
    sharing.share_it,
    clean_up,
    everything.back_it_up,
    see_the_doctor,
    everything.look_after_all_of_it,
    sum_up,
)

if __name__ == "__main__":
    raise SystemExit(main())
