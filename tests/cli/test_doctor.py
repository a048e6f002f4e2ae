"""`swampstore doctor` shows every finding and fails if something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swampstore import open_repo
from swampstore.cli import main

MODEL = "aws/ec2/i-1"


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    monkeypatch.setattr("os.fsync", lambda _file: None)


@pytest.fixture
def marker(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The marker of the one data name in the current repository."""
    monkeypatch.chdir(repo_dir)
    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
        repo.ready(complete=True)
        return Path(repo.tree.path("data/aws/ec2/i-1/state/latest"))


def doctor_json(capsys: pytest.CaptureFixture[str], *options: str, status: int = 0) -> Any:
    assert main(["doctor", "--json", *options]) == status
    return json.loads(capsys.readouterr().out)


def test_a_sound_repository_passes(marker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = doctor_json(capsys)
    assert list(document) == [
        "overallStatus",
        "datastoreType",
        "healthFindings",
        "catalogCompletenessFinding",
    ]
    assert document["overallStatus"] == "pass"
    assert document["catalogCompletenessFinding"]["diskRecords"] == 1
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "WRONG" not in out
    assert out.endswith("All is well.\n")


def test_what_is_wrong_is_shown_with_a_remedy_and_fails(
    marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker.unlink()
    document = doctor_json(capsys, status=1)
    assert document["overallStatus"] == "fail"
    (found,) = [item for item in document["healthFindings"] if not item["passed"]]
    assert found["check"] == "latest_markers"
    assert "doctor --repair" in found["remedy"]
    assert str(marker) in found["details"][0]
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert str(marker) in out
    assert "-> Run `swampstore doctor --repair`." in out


def test_a_repair_is_shown_and_passes(marker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker.unlink()
    document = doctor_json(capsys, "--repair")
    assert document["overallStatus"] == "pass"
    (found,) = [item for item in document["healthFindings"] if not item["passed"]]
    assert found["repaired"] is True
    assert marker.read_text() == "1"
    marker.unlink()
    assert main(["doctor", "--repair"]) == 0
    assert "repaired" in capsys.readouterr().out


def test_what_no_repair_can_mend_still_fails(
    marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (marker.parent / "1/raw").unlink()
    document = doctor_json(capsys, "--repair", status=1)
    assert document["overallStatus"] == "fail"


def test_settings_that_cannot_be_read_are_a_finding(
    marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(".swamp.yaml").write_text("autoGc: maybe\n")
    document = doctor_json(capsys, status=1)
    (found,) = document["healthFindings"]
    assert found["check"] == "configuration"
    assert "autoGc" in found["message"]
    assert document["catalogCompletenessFinding"] is None
    Path(".swamp.yaml").unlink()
    (found,) = doctor_json(capsys, status=1)["healthFindings"]
    assert "swampstore init" in found["remedy"]


def test_no_repository_is_an_error_and_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["code"] == "repo_not_found"
