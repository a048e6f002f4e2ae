"""What tests of backups share: a repository full of everything, and what a restored one holds."""

from __future__ import annotations

from pathlib import Path

from swampstore import Repo, open_repo
from swampstore.doctor import examine
from swampstore.relocate.backup import (
    BackupPlace,
    BackupReport,
    create_backup,
    open_place,
    restore_backup,
)
from swampstore.relocate.backup.format import belongs

MODEL, OTHER = "aws/ec2/i-1", "aws/ec2/i-2"
PLAIN = {
    "outputs/aws/ec2/start/i-1-2026-05-14T20-19-51-042Z.yaml": "definitionId: i-1\n",
    "workflow-runs/9b2c/workflow-run-77aa.yaml": "status: succeeded\n",
    "audit/host-2026-05-14-1.jsonl": '{"kind":"x"}\n',
    "definitions-evaluated/aws/ec2/web.yaml": "id: i-1\n",
    "files/notes.txt": "kept\n",
}


def fill(repo: Repo) -> None:
    """Save a bit of everything that a datastore can hold."""
    repo.artifacts.save(MODEL, "state", {"n": 1})
    repo.artifacts.save(MODEL, "state", {"n": 2})
    repo.artifacts.save(MODEL, "empty", b"")
    repo.artifacts.save(MODEL, "log", b"one\n", content_type="text/plain", streaming=True)
    repo.artifacts.append(MODEL, "log", b"two\n")
    repo.artifacts.save(OTHER, "gone", {"a": 1})
    repo.artifacts.mark_deleted(OTHER, "gone", method="destroy")
    repo.artifacts.save(OTHER, "old name", b"text")
    repo.artifacts.rename(OTHER, "old name", "new name")
    for rel, text in PLAIN.items():
        put(repo, rel, text)


def put(repo: Repo, rel: str, text: str) -> None:
    """Write a file that is no version, as runs and audits do."""
    Path(repo.tree.path(rel)).parent.mkdir(parents=True, exist_ok=True)
    with repo.tree.changing(rel) as change:
        change.write(rel, text.encode())


def held(directory: str | Path) -> dict[str, bytes]:
    """Return every file of a datastore that a backup should have."""
    top = Path(directory)
    paths = (path for path in top.rglob("*") if path.is_file())
    named = ((path.relative_to(top).as_posix(), path) for path in paths)
    return {rel: path.read_bytes() for rel, path in named if belongs(rel)}


def backed_up(repo: Repo, place: Path | BackupPlace) -> BackupReport:
    """Make a backup."""
    opened = place if isinstance(place, BackupPlace) else open_place(str(place))
    return create_backup(repo, opened)


def restored(
    place: Path | BackupPlace, directory: Path, wanted: str | None = None
) -> dict[str, bytes]:
    """Restore a backup, see that all is well with it, and return the files that it has."""
    opened = place if isinstance(place, BackupPlace) else open_place(str(place))
    report = restore_backup(opened, opened.find(wanted), str(directory), durable=False)
    with open_repo(directory, durable=False) as repo:
        repo.rebuild_catalog()
        findings = examine(repo, deep=True)
        assert findings.ok, [one for one in findings.findings if not one.ok]
        found = held(repo.config.datastore_dir)
    assert found.keys() == {file.path for file in report.manifest.files}
    return found
