"""`swampstore backup`: create, list, verify and restore."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import rows_options
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import (
    counted,
    fields,
    named_lines,
    printable,
    size_text,
)
from swampstore.cli.row_formats import Column, Listing
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR, BackupDamagedError, NewerFormatError, SwampstoreError
from swampstore.relocate.backup import (
    SecretNames,
    create_backup,
    open_place,
    restore_backup,
    verify_backups,
)
from swampstore.relocate.backup.restore import check_target
from swampstore.repo import open_repo
from swampstore.vaults import Vaults
from swampstore.vaults.provider import LOCAL

if TYPE_CHECKING:
    from swampstore.relocate.backup import (
        BackupPlace,
        BackupReport,
        RestoreReport,
        VerifyReport,
    )
    from swampstore.repo import Repo

_OF_OTHERS = frozenset({"SWAMP_DATASTORE", "SWAMP_NAMESPACE", "SWAMP_REPO_DIR"})
place_argument = click.argument(
    "place", metavar="PLACE", help="A directory, or the URL of a store such as s3://bucket/prefix."
)
backup_option = click.option(
    "--backup", "wanted", metavar="ID", help="This backup, or the beginning of its id."
)


@contextmanager
def _opened(where: str) -> Iterator[BackupPlace]:
    place = open_place(where)
    try:
        yield place
    finally:
        place.close()


@command(
    examples="""
    swampstore backup create /mnt/backup
    swampstore backup create s3://bucket/backups --verify
    swampstore backup create s3://bucket/backups --json
    """
)
@place_argument
@click.option("--verify", is_flag=True, help="Afterwards, check that all of its content is there.")
@pass_session
def create(session: Session, place: str, verify: bool) -> None:
    """Back up everything that the datastore holds; the exit status is 1 if something is damaged.

    Content that a backup in that place has already is not sent again. Secrets and bundles are in no
    backup, and neither is what is in git.
    """
    with session.open_repo() as repo, _opened(place) as opened, progress_shown() as progress:
        names = _secret_names(repo)
        report = create_backup(repo, opened, secret_names=names, progress=progress)
        checked = verify_backups(opened, [report.manifest.key]) if verify else None
    document = report.to_json()
    if checked:
        document["problems"] = [one.to_json() for one in checked.problems]
    session.show(document, lambda: _created_text(report, checked))
    if report.unpushed:
        session.note(
            f"warning: {counted(report.unpushed, 'path')} changed on this machine and not pushed:"
            " the backup is of the remote. Run `swampstore sync`, then back up again."
        )
    if report.kept_here:
        session.note(
            f"warning: the settings keep {counted(report.kept_here, 'file')} on this machine"
            " (`directories`, `exclude`): the backup is of the remote, and does not have them."
        )
    if report.manifest.left_out or (checked and not checked.ok):
        click.get_current_context().exit(EXIT_ERROR)


def _secret_names(repo: Repo) -> list[SecretNames]:
    """Return which secrets are on this machine only; those of other providers are elsewhere."""
    vaults = Vaults(repo, caller="cli")
    found = []
    for config in vaults.all()[0]:
        if config.type == LOCAL:
            try:
                keys = vaults.vault(config).keys()
            except SwampstoreError:
                keys = []
            found.append(SecretNames(config.name, config.type, tuple(keys)))
    return found


def _created_text(report: BackupReport, checked: VerifyReport | None) -> str:
    manifest = report.manifest
    lines = named_lines("left out", [(one.path, one.reason) for one in manifest.left_out])
    lines += named_lines("skipped", [(one.path, one.reason) for one in report.skipped])
    lines += _problem_lines(checked) if checked else []
    lines.append(
        f"Backed up {counted(len(manifest.files), 'file')}, {size_text(manifest.size)}, as"
        f" {manifest.key.id}; sent {counted(report.objects, 'object')},"
        f" {size_text(report.bytes_sent)}."
    )
    if manifest.secrets:
        count = sum(len(one.keys) for one in manifest.secrets)
        lines.append(f"Not in it: {counted(count, 'secret')}, and what is in git.")
    return "\n".join(lines)


@command(
    examples="""
    swampstore backup list /mnt/backup
    swampstore backup list s3://bucket/backups --json
    """
)
@place_argument
@rows_options
@pass_session
def list_(session: Session, place: str) -> None:
    """List the backups in a place."""
    found, damaged = [], []
    with _opened(place) as opened:
        for key in opened.keys():  # noqa: SIM118 - no mapping
            try:
                found.append(opened.read(key))
            except (BackupDamagedError, NewerFormatError) as error:
                damaged.append((key.id, error.message))
    columns = (
        Column("id", lambda one: one.key.id),
        Column("repoId", lambda one: one.key.repo_id, rank=2, heading="repository"),
        Column("namespace", lambda one: one.key.namespace, rank=3),
        Column("files", lambda one: len(one.files), right=True),
        Column("bytes", lambda one: one.size, size_text, right=True, heading="size"),
        Column("leftOut", lambda one: len(one.left_out), right=True, rank=1, heading="left out"),
        Column("source", lambda one: one.origin.location, rank=4),
    )
    document = {
        "backups": [one.to_json() for one in found],
        "damaged": [{"id": key, "error": reason} for key, reason in damaged],
    }
    listing = Listing(
        columns,
        found,
        lambda one: one.to_json(),
        footer=lambda: counted(len(found), "backup"),
        empty="There is no backup yet.",
    )
    session.show_rows(listing, lambda: document)
    for line in named_lines("cannot be read", damaged):
        session.note(line)


@command(
    examples="""
    swampstore backup verify /mnt/backup
    swampstore backup verify /mnt/backup --deep
    swampstore backup verify s3://bucket/backups --backup 20260514T201951042Z --json
    """
)
@place_argument
@backup_option
@click.option("--deep", is_flag=True, help="Read all content, and compare it with its hash.")
@pass_session
def verify(session: Session, place: str, wanted: str | None, deep: bool) -> None:
    """Check that the content of backups is there; the exit status is 1 if something is wrong.

    What is missing or damaged is noted in the place: the next backup sends it again, if the
    datastore still has it.
    """
    with _opened(place) as opened, progress_shown() as progress:
        keys = None if wanted is None else [opened.find(wanted)]
        report = verify_backups(opened, keys, deep=deep, progress=progress)

    def text() -> str:
        how = "read" if deep else "looked for"
        verdict = "all is well" if report.ok else f"{counted(len(report.problems), 'problem')}"
        return "\n".join(
            [
                *_problem_lines(report),
                f"{counted(report.backups, 'backup')}: {how} {counted(report.objects, 'object')},"
                f" {size_text(report.bytes)}; {verdict}.",
            ]
        )

    session.show(report.to_json(), text)
    if not report.ok:
        click.get_current_context().exit(EXIT_ERROR)


def _problem_lines(report: VerifyReport) -> list[str]:
    return named_lines(
        "problem",
        [(one.sha256[:12] or one.backups[0], one.reason, *one.paths) for one in report.problems],
    )


@command(
    examples="""
    swampstore backup restore /mnt/backup ~/restored
    swampstore backup restore s3://bucket/backups ~/restored --backup 20260514T201951042Z
    swampstore backup restore /mnt/backup ~/restored --json
    """
)
@place_argument
@click.argument("directory", metavar="DIR", help="Where the repository is made: an empty place.")
@backup_option
@pass_session
def restore(session: Session, place: str, directory: str, wanted: str | None) -> None:
    """Make a repository from a backup, in an empty place.

    Its data is in the repository itself, or with `--datastore filesystem:/path` in another empty
    directory. Interrupted, it goes on when it is run again.
    """
    target = check_target(session.datastore)
    with _opened(place) as opened, progress_shown() as progress:
        key = opened.find(wanted)
        report = restore_backup(opened, key, directory, datastore=target, progress=progress)
    # It is what it says itself, whatever datastore the environment names for others.
    environ = {one: value for one, value in os.environ.items() if one not in _OF_OTHERS}
    with open_repo(report.directory, environ=environ) as repo:
        repo.rebuild_catalog()
    session.show(report.to_json(), lambda: _restored_text(report))


def _restored_text(report: RestoreReport) -> str:
    manifest = report.manifest
    members = {
        "repository": report.directory,
        "backup": manifest.key.id,
        "was at": manifest.origin.location,
        "files": f"{len(manifest.files)}, {size_text(manifest.size)}",
    }
    lines = [fields(members)]
    lines += named_lines("was left out", [(one.path, one.reason) for one in manifest.left_out])
    lines += _secret_lines(report.secrets)
    lines.append("What is in git (models, workflows, vaults) is in no backup: check it out there.")
    return "\n".join(lines)


def _secret_lines(secrets: Sequence[SecretNames]) -> list[str]:
    return [
        f"to be put again: swampstore vault put {printable(one.vault)} {printable(key)}"
        for one in secrets
        for key in one.keys
    ]
