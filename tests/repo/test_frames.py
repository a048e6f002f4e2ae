"""Data frames and arrays as content, and results as Arrow streams."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from swampstore import Repo
from swampstore.errors import ValidationError

duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")
WEB = "aws/ec2/i-1"
COLUMNS = {"host": ["a", "b"], "cpu": [0.5, 0.25]}


class Mine(pd.DataFrame):  # type: ignore[misc,name-defined]
    """A frame of a library that builds upon pandas."""


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(COLUMNS),
        Mine(COLUMNS),
        pl.DataFrame(COLUMNS),
        pa.table(COLUMNS),
        pa.record_batch(COLUMNS),
    ],
    ids=lambda frame: f"{type(frame).__module__}.{type(frame).__name__}",
)
def test_a_frame_is_saved_as_parquet_and_read_back_as_any(repo: Repo, frame: Any) -> None:
    saved = repo.save(WEB, "metrics", frame)
    assert saved.content_type == "application/vnd.apache.parquet"
    assert saved.to_arrow().to_pydict() == COLUMNS
    assert saved.to_polars().to_dict(as_series=False) == COLUMNS
    assert saved.to_pandas().to_dict("list") == COLUMNS


def test_the_index_of_a_frame_comes_back(repo: Repo) -> None:
    frame = pd.DataFrame({"cpu": [1, 2]}, index=pd.Index(["a", "b"], name="host"))
    assert repo.save(WEB, "metrics", frame).to_pandas().equals(frame)


def test_an_array_comes_back_and_pickles_are_refused(repo: Repo) -> None:
    array = np.arange(6, dtype="int16").reshape(2, 3)
    back = repo.save(WEB, "array", array).to_numpy()
    assert (back == array).all()
    assert back.dtype == array.dtype
    with pytest.raises(ValidationError, match="cannot be saved"):
        repo.save(WEB, "objects", np.array([object()]))
    assert repo.list_versions(WEB, "objects") == []


def test_what_is_no_table_is_said_not_to_be_one(repo: Repo) -> None:
    saved = repo.save(WEB, "notes", "text")
    for read in (saved.to_arrow, saved.to_pandas, saved.to_polars, saved.to_numpy):
        with pytest.raises(ValidationError, match=r"notes version 1 is not .* \(text/plain\)"):
            read()


def test_results_are_arrow_streams(repo: Repo) -> None:
    repo.save(WEB, "state", {"cpus": 4})
    found = repo.query('name == "state"', select='{"cpus": attributes.cpus}')
    assert pa.table(found).to_pydict() == {"cpus": [4]}
    assert pl.DataFrame(found).to_dict(as_series=False) == {"cpus": [4]}
    artifacts = repo.query("true")
    assert pl.DataFrame(artifacts)["name"].to_list() == ["state"]
    assert pa.table(artifacts)["name"].to_pylist() == ["state"]
    assert duckdb.sql("SELECT name, version FROM artifacts").fetchall() == [("state", 1)]


def test_times_are_times_and_tags_are_what_was_asked_for(repo: Repo) -> None:
    repo.save(WEB, "state", {"cpus": 4}, tags={"env": "prod"})
    repo.save(WEB, "other", {"cpus": 4})
    found = repo.query("true", order="name desc")
    moments = [one.created for one in found]
    table = found.to_arrow()
    assert str(table.schema.field("createdAt").type) == "timestamp[us, tz=UTC]"
    assert table["createdAt"].to_pylist() == moments
    assert str(found.to_pandas()["createdAt"].dtype).endswith(", UTC]")
    assert found.to_polars()["createdAt"].to_list() == moments
    assert table["tags"].to_pylist()[0] == '{"env": "prod", "type": "resource"}'
    assert str(found.to_arrow(tags="map").schema.field("tags").type) == "map<string, string>"
    assert dict(found.to_arrow(tags="map")["tags"].to_pylist()[0])["env"] == "prod"
    assert found.to_pandas(tags="map")["tags"][0]["env"] == "prod"
    assert {"key": "env", "value": "prod"} in found.to_polars(tags="map")["tags"].to_list()[0]
    for frame in (found.to_arrow(tags="columns"), found.to_polars(tags="columns")):
        assert pl.DataFrame(frame)["tags.env"].to_list() == ["prod", None]


def test_a_notebook_shows_tables(repo: Repo) -> None:
    for number in range(2):
        repo.save(WEB, "state", {"n": number}, tags={"modelName": "<web>"})
    assert "<td>&lt;web&gt;</td><td>state</td><td>2</td>" in repo.query("true")._repr_html_()
    values = repo.query("true", select='{"n": attributes.n}')
    assert "<th>n</th></tr></thead><tbody><tr><td>1</td>" in values._repr_html_()
    for listed in (repo.versions(WEB, "state"), repo.list_data(WEB)):
        assert "<td>state</td><td>2</td>" in listed._repr_html_()  # type: ignore[attr-defined]
    assert "<td>versions</td><td>2</td>" in repo._repr_html_()
    assert repo.config.repo_dir in repr(repo)


def test_recognising_frames_imports_none_of_their_libraries(repo: Repo) -> None:
    program = f"""
import sys, swampstore
with swampstore.open_repo({repo.config.repo_dir!r}) as repo:
    repo.save("a/b", "c", {{"d": 1}})
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {"pandas", "polars", "pyarrow", "numpy", "fsspec"} & set(done.stdout.split()) == set()
