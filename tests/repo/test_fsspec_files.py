"""Artifacts as files, by the URL `swamp://MODEL/NAME[@VERSION]`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from swampstore import Repo
from swampstore.errors import ValidationError

fsspec = pytest.importorskip("fsspec", reason="the extra `fsspec` is not installed")
WEB = "aws/ec2/i-1"
URL = f"swamp://{WEB}"


@pytest.fixture(autouse=True)
def here(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(repo.config.repo_dir)
    yield
    gc.collect()


def test_a_file_that_is_closed_is_the_next_version(repo: Repo) -> None:
    for text in ("one\n", "two\n"):
        with fsspec.open(f"{URL}/notes.txt", "w") as file:
            file.write(text)
            assert len(repo.list_versions(WEB, "notes.txt")) == (text == "two\n")
    assert repo.latest(WEB, "notes.txt").content_type == "text/plain"
    with fsspec.open(f"{URL}/notes.txt") as latest, fsspec.open(f"{URL}/notes.txt@1") as first:
        assert (latest.read(), first.read()) == (b"two\n", b"one\n")


def test_an_exception_saves_nothing_however_the_file_is_closed(repo: Repo) -> None:
    files = fsspec.filesystem("swamp")
    with pytest.raises(RuntimeError), fsspec.open(f"{URL}/x", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    with pytest.raises(RuntimeError), files.open(f"{URL}/x", "w") as file:
        file.write("half")
        raise RuntimeError
    dropped = files.open(f"{URL}/x", "wb")
    dropped.write(b"half")
    del dropped
    gc.collect()
    with pytest.raises(RuntimeError), files.transaction:
        with files.open(f"{URL}/x", "wb") as file:
            file.write(b"whole, but not the rest")
        raise RuntimeError
    assert repo.list_versions(WEB, "x") == []
    try:
        raise KeyError  # noqa: TRY301 - whoever writes while handling an error has not failed
    except KeyError:
        with fsspec.open(f"{URL}/x", "wb") as file:
            file.write(b"whole")
    assert repo.latest(WEB, "x").bytes() == b"whole"


def test_models_are_directories_and_what_is_not_there_is_not_found(repo: Repo) -> None:
    repo.save(WEB, "state", {"cpus": 4}, tags={"modelName": "web"})
    files = fsspec.filesystem("swamp", repo=repo)
    assert files.ls(URL, detail=False) == [f"{WEB}/state"]
    assert files.isdir("swamp://web")
    assert files.info("swamp://web/state")["version"] == 1
    assert not files.exists(f"{URL}/nope")
    with pytest.raises(FileNotFoundError, match="has no data named 'nope'"):
        files.open(f"{URL}/nope")
    for path, mode in ((f"{URL}/state@1", "wb"), (f"{URL}/state", "ab"), ("swamp://web", "wb")):
        with pytest.raises(ValidationError):
            files.open(path, mode)


def test_polars_reads_and_writes_parquet_by_what_fsspec_opens(repo: Repo) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"cpu": [0.5, 0.25], "host": ["a", "b"]})
    with fsspec.open(f"{URL}/metrics", "wb") as file:
        frame.write_parquet(file)
    with fsspec.open(f"{URL}/metrics@1") as file:
        assert polars.read_parquet(file).equals(frame)
    assert repo.latest(WEB, "metrics").to_polars().equals(frame)


# pyarrow leaves the files that it reads to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_pandas_reads_and_writes_parquet_by_url(repo: Repo) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"cpu": [0.5, 0.25], "host": ["a", "b"]})
    frame.to_parquet(f"{URL}/metrics")
    assert repo.list_versions(WEB, "metrics") == [1]
    assert pandas.read_parquet(f"{URL}/metrics@1").equals(frame)
    assert repo.latest(WEB, "metrics").content_type == "application/vnd.apache.parquet"
    options = {"repo": repo.config.repo_dir}
    frame.to_csv(f"{URL}/metrics.csv", index=False, storage_options=options)
    assert pandas.read_csv(f"{URL}/metrics.csv", storage_options=options).equals(frame)
