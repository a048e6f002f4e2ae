"""Content that stays on the remote until somebody wants it: queries, bulk fetching, reading."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.errors import (
    ContentMissingError,
    ContentOutdatedError,
    QueryError,
    SyncNotSupportedError,
    ValidationError,
)
from swampstore.index.errors import IncompleteSyncError
from swampstore.index.results import Step
from swampstore.stores.config import Limits
from swampstore.stores.errors import CorruptObjectError, StoreUnreachableError
from swampstore.sync.hydrate import OUTDATED
from tests.support.machines import Machine
from tests.support.remotes import ProxiedRemote, Remote
from tests.support.sync_harness import Machine as Host

MODEL = "aws/ec2/i-1"
OTHER = "aws/ec2/i-2"
HOME = "data/aws/ec2/i-1/state"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def machine(
    tmp_path: Path,
    bucket: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Machine]:
    def make(name: str, **settings: object) -> Machine:
        made = Machine(tmp_path / name, capsysbinary, monkeypatch)
        made.use(bucket, hydrationStrategy=None, **settings)
        return made

    return make


@pytest.fixture
def ana(machine: Callable[..., Machine]) -> Machine:
    """A machine that has shared two names of one model, one of them twice, and one of another."""
    made = machine("ana")
    with made.open() as repo:
        repo.artifacts.save(MODEL, "state", {"cpus": 4})
        repo.artifacts.save(MODEL, "state", {"cpus": 8})
        repo.artifacts.save(MODEL, "size", {"cpus": 2})
        repo.artifacts.save(OTHER, "log", "one\n", streaming=True)
        repo.sync.push()
    return made


@pytest.fixture
def bob(ana: Machine, machine: Callable[..., Machine]) -> Machine:
    """A machine that has pulled all that, as pulls are if nobody says anything."""
    made = machine("bob")
    assert made("sync").status == 0
    return made


def raws(machine: Machine) -> list[str]:
    """Return the content that is on a machine, as model, name and version."""
    data = machine.cache / "data/aws/ec2"
    return sorted(str(path.parent.relative_to(data)) for path in data.rglob("raw"))


def requests(repo: Repo) -> int:
    return sum(repo.connection.counting.tally().requests.values())


# Pulling ----------------------------------------------------------------------------------------


def test_a_pull_brings_everything_but_content(bob: Machine) -> None:
    assert raws(bob) == []
    with bob.open() as repo:
        assert repo.list_versions(MODEL, "state") == [1, 2]
        assert repo.sync.status().not_hydrated == 4
        assert repo.sync.status().content_bytes == 0


def test_full_brings_content_too(
    ana: Machine, machine: Callable[..., Machine], bucket: Path
) -> None:
    carl = machine("carl")
    carl.use(bucket, hydrationStrategy="full")
    assert carl("sync").status == 0
    assert raws(carl) == ["i-1/size/1", "i-1/state/1", "i-1/state/2", "i-2/log/1"]


def test_a_dry_run_does_not_promise_content(ana: Machine, machine: Callable[..., Machine]) -> None:
    pulls = machine("carl")("sync", "--dry-run", "--json").json["pull"]
    assert pulls
    assert not [rel for rel in pulls if rel.endswith("/raw")]


# Reading ----------------------------------------------------------------------------------------


def test_what_is_read_is_fetched_and_stays(bob: Machine) -> None:
    assert json.loads(bob.get(MODEL, "state")) == {"cpus": 8}
    assert raws(bob) == ["i-1/state/2"]
    with bob.open() as repo:
        assert repo.latest(MODEL, "state").json() == {"cpus": 8}
        assert "connection" not in repo.__dict__


def test_the_path_of_content_is_that_of_a_file(bob: Machine) -> None:
    with bob.open() as repo:
        assert json.loads(repo.latest(MODEL, "state").path.read_text()) == {"cpus": 8}


def test_reading_without_the_remote_says_what_to_do(bob: Machine, bucket: Path) -> None:
    bucket.rename(bucket.with_name("unmounted"))
    with bob.open() as repo, pytest.raises(ContentMissingError) as caught:
        repo.latest(MODEL, "state").bytes()
    assert f"{HOME}/2/raw is not on this machine" in caught.value.message
    assert "data hydrate" in (caught.value.hint or "")
    assert "error: the content" in bob("data", "get", MODEL, "state", "--raw").err


def test_new_versions_can_be_made_from_content_that_is_on_the_remote(bob: Machine) -> None:
    with bob.open() as repo:
        repo.artifacts.append(OTHER, "log", "two\n")
        assert repo.latest(OTHER, "log").text() == "one\ntwo\n"
        repo.artifacts.rename(MODEL, "state", "status")
        assert repo.latest(MODEL, "status").json() == {"cpus": 8}
        buried = repo.artifacts.mark_deleted(MODEL, "size", method="destroy")
        assert buried.json()["cpus"] == 2


def test_content_that_others_appended_to_is_known_here_after_a_sync(
    ana: Machine, bob: Machine
) -> None:
    with ana.open() as repo:
        repo.artifacts.append(OTHER, "log", "two\n")
        repo.sync.push()
    with bob.open() as repo:
        for change in (
            lambda: repo.artifacts.append(OTHER, "log", "three\n"),
            lambda: repo.artifacts.rename(OTHER, "log", "journal"),
            lambda: repo.latest(OTHER, "log").bytes(),
        ):
            with pytest.raises(ContentOutdatedError, match="others have changed it") as caught:
                change()
            assert "swampstore sync" in (caught.value.hint or "")
        with pytest.raises(IncompleteSyncError) as incomplete:
            repo.hydrate()
        assert list(incomplete.value.failures.values()) == [OUTDATED]
        repo.sync.pull(metadata_only=True)
        repo.artifacts.append(OTHER, "log", "three\n")
        assert repo.latest(OTHER, "log").text() == "one\ntwo\nthree\n"
        repo.sync.push()
        assert len(repo.versions(OTHER, "log")) == 1


def test_content_that_others_saved_anew_is_known_here_after_a_sync(
    ana: Machine, bob: Machine
) -> None:
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "size")
        repo.sync.push()
        repo.artifacts.save(MODEL, "size", {"cpus": 3})
        repo.sync.push()
    with bob.open() as repo:
        with pytest.raises(ContentOutdatedError):
            repo.latest(MODEL, "size").bytes()
        repo.sync.pull(metadata_only=True)
        assert repo.latest(MODEL, "size").json() == {"cpus": 3}


def test_content_that_is_damaged_where_it_is_stored_is_called_that(
    bob: Machine, bucket: Path
) -> None:
    (bucket / f"{HOME}/2/raw").write_text('{\n  "cpus": 9\n}')
    with bob.open() as repo, pytest.raises(CorruptObjectError):
        repo.latest(MODEL, "state").bytes()


# Queries ----------------------------------------------------------------------------------------


def test_content_elsewhere_matches_nothing_and_is_counted(bob: Machine) -> None:
    with bob.open() as repo:
        results = repo.query("attributes.cpus > 1")
        assert (len(results), results.unhydrated) == (0, 3)
        assert raws(bob) == []
        repo.latest(MODEL, "state").bytes()
        results = repo.query("attributes.cpus > 1")
        assert ([found.name for found in results], results.unhydrated) == (["state"], 2)


def test_what_only_asks_the_catalog_concerns_no_content(bob: Machine) -> None:
    with bob.open() as repo:
        results = repo.query('name == "state"')
        assert (len(results), results.unhydrated) == (1, 0)


def test_a_row_counts_once_however_often_its_content_is_missed(bob: Machine) -> None:
    with bob.open() as repo:
        results = repo.query('name == "state" && (size > 0 || content == "")', select="content")
        assert (list(results), results.unhydrated) == ([None], 1)


def test_a_query_fetches_what_its_predicate_needs(bob: Machine) -> None:
    with bob.open() as repo:
        results = repo.query('name != "log" && attributes.cpus > 4', hydrate=True)
        assert ([found.name for found in results], results.unhydrated) == (["state"], 0)
    assert raws(bob) == ["i-1/size/1", "i-1/state/2"]


def test_a_query_fetches_what_its_projection_needs(bob: Machine) -> None:
    with bob.open() as repo:
        results = repo.query('name == "state"', select="attributes.cpus", hydrate=True)
        assert (list(results), results.unhydrated) == ([8], 0)
        assert raws(bob) == ["i-1/state/2"]
        before = requests(repo)
        assert list(repo.query('name == "state"', select="attributes.cpus", hydrate=True)) == [8]
        assert requests(repo) == before


def test_a_query_with_a_limit_does_not_fetch_everything(
    ana: Machine, machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.repo.querying._FIRST_PAGE", 1)
    with ana.open() as repo:
        for number in range(6):
            repo.artifacts.save(OTHER, f"n{number}", {"number": number})
        repo.sync.push()
    carl = machine("carl")
    assert carl("sync").status == 0
    with carl.open() as repo:
        found = repo.query(
            'name.startsWith("n") && attributes.number >= 1', order="name", limit=2, hydrate=True
        )
        assert [one.name for one in found] == ["n1", "n2"]
    assert len(raws(carl)) == 3  # the pages have 1 and 2 of them


def test_ephemeral_data_is_found_by_a_query_that_fetches(bob: Machine) -> None:
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "now", {"cpus": 99}, lifetime="ephemeral")
        found = repo.query("attributes.cpus > 4", order="name", hydrate=True)
        assert [one.name for one in found] == ["now", "state"]


def test_where_there_is_no_remote_a_query_that_fetches_is_a_query(tmp_path: Path) -> None:
    from swampstore import init_repo

    with init_repo(tmp_path) as repo:
        repo.artifacts.save(MODEL, "state", {"cpus": 4})
        assert len(repo.query("attributes.cpus == 4", hydrate=True)) == 1


def test_the_command_line_tells_what_a_query_could_not_look_into(bob: Machine) -> None:
    outcome = bob("data", "query", "attributes.cpus > 1", "--json")
    assert (outcome.json["total"], outcome.json["unhydrated"]) == (0, 3)
    assert "3 artifacts is not on this machine" in outcome.err
    assert "--hydrate" in outcome.err
    outcome = bob("data", "query", "attributes.cpus > 1", "--hydrate", "--json")
    assert (outcome.json["total"], outcome.json["unhydrated"], outcome.err) == (2, 0, "")


def test_documents_show_content_that_they_fetch(bob: Machine) -> None:
    outcome = bob("data", "query", 'name == "state"', "--json")
    assert (outcome.json["results"][0]["content"], outcome.json["unhydrated"]) == ("", 1)
    outcome = bob("data", "query", 'name == "state"', "--json", "--hydrate")
    assert outcome.json["results"][0]["content"] == {"cpus": 8}
    assert outcome.json["unhydrated"] == 0


def test_a_search_needs_no_content(bob: Machine) -> None:
    document = bob("data", "search", "state", "--json").json
    assert (document["total"], document["unhydrated"]) == (1, 0)


# Fetching much of it ----------------------------------------------------------------------------


def test_everything_latest_can_be_fetched(bob: Machine) -> None:
    with bob.open() as repo:
        planned = repo.hydrate(dry_run=True)
        assert raws(bob) == []
        hydrated = repo.hydrate()
        assert (planned.files, planned.bytes) == (hydrated.files, hydrated.bytes)
        assert (hydrated.files, hydrated.missing) == (3, ())
    assert raws(bob) == ["i-1/size/1", "i-1/state/2", "i-2/log/1"]


def test_what_is_here_costs_no_request(bob: Machine) -> None:
    with bob.open() as repo:
        repo.hydrate()
        before = requests(repo)
        assert repo.hydrate().files == 0
        assert requests(repo) == before


@pytest.mark.parametrize(
    ("options", "fetched"),
    [
        (["--all-versions"], ["i-1/size/1", "i-1/state/1", "i-1/state/2", "i-2/log/1"]),
        (["--model", MODEL], ["i-1/size/1", "i-1/state/2"]),
        (
            ["--model", MODEL, "--all-versions", 'name == "state" || name == "log"'],
            ["i-1/state/1", "i-1/state/2"],
        ),
        (['name == "log"'], ["i-2/log/1"]),
        (['tags.env == "none"'], []),
    ],
)
def test_what_is_fetched_can_be_chosen(
    bob: Machine, options: list[str], fetched: list[str]
) -> None:
    document = bob("data", "hydrate", *options, "--json").json
    assert (document["files"], document["missing"]) == (len(fetched), [])
    assert raws(bob) == fetched


def test_the_command_line_says_how_much_it_was(bob: Machine) -> None:
    assert bob("data", "hydrate", "--dry-run").out == "Would fetch 3 files, 34 B.\n"
    assert bob("data", "hydrate").out == "Fetched 3 files, 34 B.\n"
    assert bob("data", "hydrate").out == "Fetched 0 files, 0 B.\n"


def test_content_that_the_remote_lost_is_named(bob: Machine, bucket: Path) -> None:
    (bucket / f"{HOME}/2/raw").unlink()
    outcome = bob("data", "hydrate")
    assert outcome.out.startswith("Fetched 2 files")
    assert f"missing: {HOME}/2/raw: the remote does not have it" in outcome.out


def test_content_that_is_not_what_the_index_says_does_not_come(bob: Machine, bucket: Path) -> None:
    (bucket / f"{HOME}/2/raw").write_text('{\n  "cpus": 9\n}')
    with bob.open() as repo, pytest.raises(IncompleteSyncError) as caught:
        repo.hydrate()
    assert list(caught.value.failures) == [f"{HOME}/2/raw"]
    assert raws(bob) == ["i-1/size/1", "i-2/log/1"]


def test_a_predicate_about_content_is_no_choice_of_what_to_fetch(bob: Machine) -> None:
    with bob.open() as repo, pytest.raises(QueryError, match="still to be fetched"):
        repo.hydrate("attributes.cpus > 1")


def test_more_than_the_cache_may_hold_is_not_even_begun(
    ana: Machine, machine: Callable[..., Machine]
) -> None:
    carl = machine("carl", cache={"maxBytes": 20})
    assert carl("sync").status == 0
    with carl.open() as repo, pytest.raises(ValidationError, match="may hold 20"):
        repo.hydrate()
    assert raws(carl) == []


def test_without_a_remote_there_is_nothing_to_fetch(tmp_path: Path) -> None:
    from swampstore import init_repo

    with init_repo(tmp_path) as repo, pytest.raises(SyncNotSupportedError):
        repo.hydrate()


# The service ------------------------------------------------------------------------------------


def share(host: Host, versions: int) -> list[str]:
    for version in range(1, versions + 1):
        host.write(f"{HOME}/{version}/raw", b"content %d" % version)
        host.write(f"{HOME}/{version}/metadata.yaml", b"version: %d\n" % version)
    host.push()
    return [f"{HOME}/{version}/raw" for version in range(1, versions + 1)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[[str, Remote], Host]]:
    with ExitStack() as stack:

        def make(name: str, remote: Remote) -> Host:
            limits = Limits(pull_concurrency=4)
            return stack.enter_context(Host(tmp_path / name, remote.open(), limits=limits))

        yield make


def test_many_contents_cost_a_request_each(
    s3_remote: ProxiedRemote, host: Callable[[str, Remote], Host]
) -> None:
    rels = share(host("a", s3_remote), 12)
    b = host("b", s3_remote)
    b.pull(metadata_only=True)
    s3_remote.proxy.requests.clear()
    steps: list[Step] = []
    hydrated = b.service.hydrate_many([*rels, *rels], progress=steps.append)
    assert (hydrated.files, hydrated.bytes) == (12, 9 * 9 + 3 * 10)
    assert len(s3_remote.proxy.requests) == 12
    assert steps[-1] == Step("hydrate", 12, 12, hydrated.bytes, hydrated.bytes)
    assert b.service.hydrate_many(rels).files == 0
    assert len(s3_remote.proxy.requests) == 12
    assert b.service.status().not_hydrated == 0


def test_what_a_stopped_fetch_brought_is_not_fetched_again(
    directory_remote: Remote, host: Callable[[str, Remote], Host]
) -> None:
    rels = share(host("a", directory_remote), 8)
    b = host("b", directory_remote)
    b.pull(metadata_only=True)

    def stop(step: Step) -> None:
        if step.files == 3:
            raise KeyboardInterrupt

    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        b.service.hydrate_many(rels, progress=stop)
    for thread in set(threading.enumerate()) - threads:
        thread.join(30)  # nobody waits for what is still under way, and it is paid for
    here = [rel for rel in rels if b.path(rel).exists()]
    assert 2 <= len(here) < 8
    b.cost()
    assert b.service.hydrate_many(rels).files == 8 - len(here)
    assert sum(b.cost().requests.values()) == 8 - len(here)


def test_two_readers_may_want_the_same_content(
    directory_remote: Remote,
    host: Callable[[str, Remote], Host],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [rel] = share(host("a", directory_remote), 1)
    b, other = host("b", directory_remote), host("b", directory_remote)
    b.pull(metadata_only=True)
    download = b.store.download

    def slow(key: str, fd: int, **options: object) -> object:
        other.service.hydrate(rel)
        return download(key, fd, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(b.store, "download", slow)
    assert b.service.hydrate(rel)
    assert b.read(rel) == b"content 1"
    b.path(rel).unlink()
    assert b.service.hydrate_many([rel]).missing == ()
    assert b.read(rel) == b"content 1"


def test_a_remote_that_does_not_answer_is_not_asked_for_everything(
    directory_remote: Remote,
    host: Callable[[str, Remote], Host],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rels = share(host("a", directory_remote), 40)
    b = host("b", directory_remote)
    b.pull(metadata_only=True)

    def silent(*_args: object, **_options: object) -> None:
        raise StoreUnreachableError("nobody answers", hint="Wait.")

    monkeypatch.setattr(b.store, "download", silent)
    with pytest.raises(StoreUnreachableError):
        b.service.hydrate_many(rels)


def test_content_that_the_base_does_not_know_is_looked_up(
    directory_remote: Remote, host: Callable[[str, Remote], Host], tmp_path: Path
) -> None:
    rels = share(host("a", directory_remote), 2)
    b = host("b", directory_remote)
    hydrated = b.service.hydrate_many([*rels, f"{HOME}/9/raw"])
    assert (hydrated.files, hydrated.missing) == (2, (f"{HOME}/9/raw",))
    assert b.read(rels[0]) == b"content 1"


def test_fetched_content_is_no_change_of_ours(bob: Machine, bucket: Path) -> None:
    before = {path: path.read_bytes() for path in bucket.rglob("raw")}
    with bob.open() as repo:
        repo.hydrate(all_versions=True)
        assert repo.sync.status().dirty_paths == ()
        assert repo.sync.push(full=True).changes == 0
    assert {path: path.read_bytes() for path in bucket.rglob("raw")} == before


def test_a_cache_whose_content_somebody_removed_fetches_it_again(bob: Machine) -> None:
    with bob.open() as repo:
        repo.hydrate()
        os.unlink(repo.latest(MODEL, "state").path)
        assert repo.hydrate().files == 1
        shutil.rmtree(bob.cache / "data/aws/ec2/i-1/size/1")
        assert repo.sync.push().deleted == 0
