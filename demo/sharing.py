"""Two machines that share a bucket: what crosses, what it costs, and what a collision does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from account import Account, Machine
from running import files_with_the_secret
from swampstore import Repo, open_repo

ELSEWHERE = "elsewhere"
MODEL, NAME = "aws/ec2/i-0a11", "report"
_REQUESTS = re.compile(r"\d+ requests? \((.+)\)")
# Three files, the two shards they are in, the whole index, its directory; three looks; and the
# lock, which is taken, looked at and given back. Now and then the index is looked at once more.
COST_OF_AN_ARTIFACT = 18
_OFFLINE = "SWAMPSTORE_OFFLINE=1"


def share_it(account: Account) -> None:
    """A repository moves to a bucket, another machine joins, and in the end it moves back."""
    account.chapter("Share it with another machine")
    server, laptop = _machines(account)
    _set_up(account, server)
    _join(account, server, laptop)
    _change_one_thing(account, server, laptop)
    _collide(account, server, laptop)
    _go_back(account, server)


def _machines(account: Account) -> tuple[Machine, Machine]:
    elsewhere = account.directory / ELSEWHERE
    (elsewhere / "bucket").mkdir(parents=True)
    (elsewhere / "laptop").mkdir()
    homes = [{"SWAMP_HOME": str(elsewhere / f"{name}-home")} for name in ("server", "laptop")]
    server = Machine("server", account.directory, homes[0])
    return server, Machine("laptop", elsewhere / "laptop", homes[1])


def _repo(machine: Machine) -> Repo:
    return open_repo(machine.directory, environ=machine.variables)


def _rows(machine: Machine) -> list[Any]:
    with _repo(machine) as repo:
        return list(repo.catalog.by_name())


def _versions_below(directory: Path) -> set[str]:
    found = (directory / "data").rglob("metadata.yaml")
    return {path.parent.relative_to(directory).as_posix() for path in found}


def _set_up(account: Account, server: Machine) -> None:
    account.say(
        "A directory stands for the bucket; s3://, gs:// and az:// work the same way."
        " The data moves there, and a cache of it stays here. What killed writers never finished"
        " is left where it is."
    )
    before, versions = _rows(server), _versions_below(server.directory / ".swamp")
    bucket = server.directory / ELSEWHERE / "bucket"
    account.run(f"swampstore datastore setup file://{bucket} | head -n 2", on=server)
    account.claim(
        f"all {len(versions)} versions are in the bucket", _versions_below(bucket) == versions
    )
    account.claim("the secret is not", files_with_the_secret(bucket) == [])
    account.claim("the server still sees every version", _rows(server) == before)


def _join(account: Account, server: Machine, laptop: Machine) -> None:
    account.say("A laptop has a copy of the repository, as git makes one, and no data.")
    shutil.copy(server.directory / ".swamp.yaml", laptop.directory)
    account.run("swampstore sync", on=laptop)
    account.claim("the laptop has the same versions", _rows(laptop) == _rows(server))
    with _repo(laptop) as repo:
        cache = Path(repo.config.datastore_dir)
        log = repo.latest(MODEL, "scan.log")
    content = cache / f"data/{MODEL}/scan.log/{log.version}/raw"
    account.claim("but no content yet: that comes when it is read", not content.exists())
    printed = account.ask("swampstore data get web-1 scan.log --raw | head -n 1", on=laptop)
    account.claim("now it is there", "is running" in printed and content.exists())
    printed = account.ask(
        "swampstore data query 'attributes.cpu > 80' --hydrate --select modelName", on=laptop
    )
    account.claim("a question fetches what it has to look into", "db-1" in printed)


def _change_one_thing(account: Account, server: Machine, laptop: Machine) -> None:
    account.say(
        "A command that changes something locks its model, pulls, works and pushes. Here the"
        " server does not, to show what a push costs: that depends on what changed alone."
    )
    account.run(
        f'{_OFFLINE} swampstore data put web-1 {NAME} --json-value \'{{"by": "nobody"}}\'',
        on=server,
    )
    cost = _requests(account.ask("swampstore sync --push --model web-1", on=server))
    account.claim(f"one artifact took {cost} requests", 0 < cost <= COST_OF_AN_ARTIFACT)
    account.run("swampstore sync --pull", on=laptop)
    account.claim("the laptop has it", _contents(laptop) == {1: "nobody"})
    account.say("And with nothing to do:")
    cost = _requests(account.ask("swampstore sync", on=laptop))
    account.claim("nothing to do took one request in each direction", cost == 2)


def _requests(printed: str) -> int:
    """Return the number of requests that a sync says it made."""
    found = _REQUESTS.search(printed)
    return sum(map(int, re.findall(r"\d+", found[1]))) if found else 0


def _collide(account: Account, server: Machine, laptop: Machine) -> None:
    account.say("Both are offline, and both save version 2 of the same artifact:")
    for machine in (server, laptop):
        value = f'{{"by": "{machine.name}"}}'
        line = f"{_OFFLINE} swampstore data put web-1 {NAME} --json-value '{value}'"
        account.run(line, on=machine)
    account.claim(
        "there are two versions 2",
        (_contents(server)[2], _contents(laptop)[2]) == ("server", "laptop"),
    )
    account.say("Whoever comes second finds out, and gives its own version the next number:")
    account.run("swampstore sync", on=server)
    account.run("swampstore sync", on=laptop)
    account.run("swampstore sync", on=server)
    account.run(
        f"swampstore data query 'name == \"{NAME}\" && version > 0' --order version --hydrate"
        ' --select \'{"version": version, "by": attributes.by}\'',
        on=server,
    )
    both = {1: "nobody", 2: "server", 3: "laptop"}
    account.claim("nothing is lost, on the server", _contents(server) == both)
    account.claim("nor on the laptop", _contents(laptop) == both)
    account.claim("both agree on everything", _rows(server) == _rows(laptop))


def _contents(machine: Machine) -> dict[int, str]:
    with _repo(machine) as repo:
        return {one.version: one.json()["by"] for one in repo.versions(MODEL, NAME)}


def _go_back(account: Account, server: Machine) -> None:
    account.say("Going back takes one command as well; the bucket stays as it is.")
    before = _rows(server)
    account.run("swampstore datastore setup filesystem", on=server)
    account.claim("the data is in the repository again, all of it", _rows(server) == before)
