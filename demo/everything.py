"""All of a bucket at once, on Spark: is every byte what it should be, and who uses how much."""

from __future__ import annotations

import json
from pathlib import Path

from account import Account
from sharing import ELSEWHERE, MODEL, NAME

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
    account.run(
        f"swampstore pipeline verify file://{bucket} --grace 0 --findings {findings}", fails=True
    )
    found = [json.loads(line) for line in findings.read_text("utf-8").splitlines()]
    account.claim(
        "that is found, and nothing else",
        [(one["kind"], one["rel"]) for one in found] == [("corrupt", victim)],
    )
    (bucket / victim).write_bytes(sound)
    _write_the_report(account, bucket)


def _write_the_report(account: Account, bucket: Path) -> None:
    account.say("And a page to read: who uses how much, what grows, what is stored twice.")
    page = account.directory / REPORT
    account.run(f"swampstore pipeline report file://{bucket} --output {page}")
    account.claim("the report needs nothing but a browser", "<svg" in page.read_text("utf-8"))
