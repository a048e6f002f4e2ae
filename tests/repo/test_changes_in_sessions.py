"""`repo.save`, `repo.delete` and `repo.rename` do what the commands do, sessions included."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import swampstore
from swampstore import Repo
from swampstore.errors import NotFoundError, ValidationError

WEB = "aws/ec2/i-1"


def test_save_rename_and_delete_lock_the_model_while_they_work(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    check = repo.check_session

    def look(model: swampstore.ModelRef) -> None:
        seen.append([str(one) for one in (repo._session and repo._session.models) or ()])
        check(model)

    monkeypatch.setattr(repo, "check_session", look)
    assert repo.save(WEB, "state", {"cpus": 4}, tags={"env": "prod"}).tags["env"] == "prod"
    repo.save(WEB, "state", "text")
    assert repo.rename(WEB, "state", "now").new_version == 1
    assert repo.latest(WEB, "state").text() == "text"
    assert repo.delete(WEB, "now").versions == 1
    assert repo.delete(WEB, "state", version=1).versions == 1
    assert seen == [[WEB]] * len(seen)
    assert seen
    assert repo._session is None


def test_within_a_session_a_save_is_part_of_it(repo: Repo) -> None:
    with repo.session([WEB]) as session:
        repo.save(WEB, "state", "1")
        assert repo._session is session
        with pytest.raises(ValidationError, match="not part of the session"):
            repo.save("aws/ec2/i-2", "state", "1")


def test_threads_that_save_do_not_get_into_the_sessions_of_others(repo: Repo) -> None:
    failures: list[Exception] = []

    def save(number: int) -> None:
        try:
            for _ in range(3):
                repo.save(f"aws/ec2/i-{number}", "state", {"by": number})
        except Exception as error:  # noqa: BLE001 - the thread must not take it along
            failures.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(repo.list_versions(f"aws/ec2/i-{n}", "state") == [1, 2, 3] for n in range(4))


def test_what_cannot_be_done_leaves_no_session_behind(repo: Repo) -> None:
    with pytest.raises(NotFoundError):
        repo.delete(WEB, "state")
    with pytest.raises(ValidationError, match="JSON"):
        repo.save(WEB, "state", object())  # type: ignore[arg-type]
    assert repo._session is None
    assert repo.save(WEB, "state", "x", lifetime="ephemeral").text() == "x"


def test_a_path_is_saved_as_the_file_it_names(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n")
    saved = repo.save(WEB, "table", tmp_path / "a.csv", tags={"env": "prod"})
    assert (saved.text(), saved.content_type, saved.tags["env"]) == ("x,y\n", "text/csv", "prod")
    with pytest.raises(NotFoundError, match=r"nope\.csv does not exist"):
        repo.save(WEB, "table", tmp_path / "nope.csv")


def test_tab_finds_what_is_public_and_not_what_connects_the_parts(repo: Repo) -> None:
    modules = {"errors", "pipeline", "testing"}
    assert {*swampstore.__all__, *modules} == {*dir(swampstore)}
    assert all(getattr(swampstore, name) is not None for name in dir(swampstore))
    shown = {name for name in dir(repo) if not name.startswith("_")}
    wanted = {"save", "delete", "rename", "latest", "query", "session", "artifacts", "sync"}
    assert wanted <= shown
    page = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
    section = page.read_text().partition("## Repo\n")[2].partition("\n## ")[0]
    described = section.partition("The other members")[0]
    assert [name for name in sorted(shown) if f"`{name}" not in described] == []
