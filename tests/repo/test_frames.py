"""Data frames and arrays as content, and results as Arrow streams."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from swampstore import Repo
from swampstore.errors import ValidationError

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
