"""All of a bucket at once, on Spark: is every byte what it should be, and who uses how much."""

from __future__ import annotations

import json
from pathlib import Path

from account import Account
from running import files_with_the_secret
from sharing import ELSEWHERE, MODEL, NAME
from swampstore import open_repo
from swampstore.doctor import examine
from swampstore.pipeline.spark.session import session, stop

REPORT = "report.html"


def look_after_all_of_it(account: Account) -> None:
    """Every object is hashed and compared, one is broken and found, and a page tells the rest."""
    account.chapter("Look after all of it")
    account.say(
        "What has to look at everything runs on Apache Spark: here on the cores of this machine,"
        " elsewhere on a cluster. It reads and hashes every object of the bucket and compares it"
        " with the index. One byte of one object was turned around, which no listing can tell:"
    )
    bucket = account.directory / ELSEWHERE / "bucket"
    victim = f"data/{MODEL}/{NAME}/2/raw"
    sound = (bucket / victim).read_bytes()
    (bucket / victim).write_bytes(bytes([sound[0] ^ 0xFF]) + sound[1:])
    findings = account.directory / "findings.json"
    # Both commands use the one session that is there, instead of starting Spark twice.
    spark = session()
    account.run_here(
        f"swampstore pipeline verify file://{bucket} --grace 0 --findings {findings}", fails=True
    )
    found = [json.loads(line) for line in findings.read_text("utf-8").splitlines()]
    account.claim(
        "that is found, and nothing else",
        [(one["kind"], one["rel"]) for one in found] == [("corrupt", victim)],
    )
    (bucket / victim).write_bytes(sound)
    _write_the_report(account, bucket)
    stop(spark)


def _write_the_report(account: Account, bucket: Path) -> None:
    account.say("And a page to read: who uses how much, what grows, what is stored twice.")
    page = account.directory / REPORT
    account.run_here(f"swampstore pipeline report file://{bucket} --output {page}")
    account.claim("the report needs nothing but a browser", "<svg" in page.read_text("utf-8"))


def back_it_up(account: Account) -> None:
    """Everything is in one directory, so a backup is one command, and so is a restore."""
    account.chapter("Back it up, and restore it")
    place = account.directory / ELSEWHERE / "backup"
    restored = account.directory / ELSEWHERE / "restored"
    place.mkdir()
    account.run(f"swampstore backup create {place}")
    printed = account.ask(f"swampstore backup create {place}")
    account.claim("another backup sends only what changed since then", "sent 0 objects" in printed)
    account.run(f"swampstore backup restore {place} {restored}")
    with open_repo(account.directory, environ={}) as repo, open_repo(restored, environ={}) as copy:
        same = [*repo.catalog.by_name()] == [*copy.catalog.by_name()]
        account.claim("every version is there again", same)
        account.claim("and all of it is sound", examine(copy, deep=True).ok)
    account.claim("the secret is in no backup", files_with_the_secret(place) == [])
