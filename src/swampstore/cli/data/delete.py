"""`swampstore data delete` and `swampstore data rename`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.data import model_members
from swampstore.cli.options import (
    complete_name,
    dry_deletion_option,
    model_argument,
    optional_name_argument,
    version_option,
    yes_option,
)
from swampstore.cli.rendering import counted, printable
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR, SwampstoreError
from swampstore.notices import shell_word

if TYPE_CHECKING:
    from swampstore.layout import ModelRef
    from swampstore.repo import Repo


@command(
    examples="""
    swampstore data delete aws/ec2/i-123 state
    swampstore data delete web-server state --version 3
    swampstore data delete web-server --prefix tmp- --dry-run
    swampstore data delete web-server --all -y --json
    """
)
@model_argument
@optional_name_argument
@version_option
@click.option("--prefix", metavar="TEXT", help="Every name that begins with this.")
@click.option("--all", "everything", is_flag=True, help="Every name of the model.")
@dry_deletion_option
@yes_option
@pass_session
def delete(
    session: Session,
    model: str,
    name: str | None,
    version: int | None,
    prefix: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete a data name, one version, or many names."""
    chosen = [name is not None, prefix is not None, everything]
    if chosen.count(True) != 1:
        raise click.UsageError("Give one of NAME, --prefix and --all.")
    if prefix == "":
        raise click.UsageError("--prefix is empty; --all deletes every name.")
    if name is None and version is not None:
        raise click.UsageError("--version needs a NAME.")
    if name is not None and dry_run:
        raise click.UsageError("--dry-run is for --prefix and --all.")
    with session.open_repo() as repo:
        if name is not None:
            _delete_one(session, repo, model, name, version)
            return
        batch = _Batch(repo, repo.model(model), prefix or "")
        if dry_run:
            batch.preview(session)
        elif session.confirm(batch.question, yes=yes):
            with session.working(repo, [batch.model]):
                batch.run(session)
        else:
            session.show_cancelled()


def _delete_one(session: Session, repo: Repo, model: str, name: str, version: int | None) -> None:
    ref = repo.ref(model, name)
    members = model_members(ref.model, repo.versions(ref.model, name, limit=1))
    with session.working(repo, [ref.model]):
        deleted = repo.artifacts.delete(ref.model, name, version=version)
    document = {**members, "dataName": name}
    if version is not None:
        document["version"] = version
    document["versionsDeleted"] = deleted.versions
    which = f" version {version}" if version is not None else ""
    session.show(
        document,
        lambda: f"Deleted {printable(ref)}{which}: {counted(deleted.versions, 'version')}.",
    )


class _Batch:
    """Many names of one model."""

    def __init__(self, repo: Repo, model: ModelRef, prefix: str) -> None:
        self._repo = repo
        self.model = model
        self._members = model_members(model, repo.list_data(model))
        self._names = [name for name in repo.catalog.names(model) if name.startswith(prefix)]

    @property
    def question(self) -> str:
        """What a person is asked."""
        names = counted(len(self._names), "data name")
        return f"Delete {names} of {printable(self.model)} with all versions?"

    def preview(self, session: Session) -> None:
        """Show what would be deleted."""
        versions = {name: len(self._repo.list_versions(self.model, name)) for name in self._names}
        lines = [
            f"{printable(name)}: {counted(count, 'version')}" for name, count in versions.items()
        ]
        total = sum(versions.values())
        lines.append(_summary("Would delete", len(versions), total))
        session.show(
            self._document(len(versions), total, [], dry_run=True), lambda: "\n".join(lines)
        )

    def run(self, session: Session) -> None:
        """Delete, whatever happens to single names, and show what became of them."""
        deleted, versions, failed = 0, 0, []
        for name in self._names:
            try:
                versions += self._repo.artifacts.delete(self.model, name).versions
                deleted += 1
            except SwampstoreError as error:
                failed.append({"dataName": name, "error": error.message, "code": error.code})
        lines = [f"{printable(item['dataName'])} stays: {item['error']}" for item in failed]
        lines.append(_summary("Deleted", deleted, versions))
        document = self._document(deleted, versions, failed, dry_run=False)
        session.show(document, lambda: "\n".join(lines))
        if failed:
            click.get_current_context().exit(EXIT_ERROR)

    def _document(
        self, deleted: int, versions: int, failed: list[dict[str, str]], *, dry_run: bool
    ) -> dict[str, Any]:
        return {
            **self._members,
            "totalDeleted": deleted,
            "totalVersionsDeleted": versions,
            "failed": failed,
            "dryRun": dry_run,
        }


def _summary(verb: str, names: int, versions: int) -> str:
    return f"{verb} {counted(names, 'data name')}, {counted(versions, 'version')}."


@command(
    examples="""
    swampstore data rename aws/ec2/i-123 state instance-state
    swampstore data rename web-server log access-log --json
    """
)
@model_argument
@click.argument("old", shell_complete=complete_name, help="The data name to give up.")
@click.argument("new", help="The data name to have instead.")
@pass_session
def rename(session: Session, model: str, old: str, new: str) -> None:
    """Give a data name another name; the history stays with the old one."""
    with session.open_repo() as repo:
        ref = repo.ref(model, old)
        history = len(repo.require_name(ref.model, old)) - 1
        if history and not session.json:
            stay = "stays" if history == 1 else "stay"
            session.note(
                f"{counted(history, 'earlier version')} of {printable(old)} {stay} under that"
                f" name: `swampstore log {shell_word(model)} {shell_word(old)}`."
            )
        with session.working(repo, [ref.model]):
            renamed = repo.artifacts.rename(ref.model, old, new)
            members = model_members(ref.model, [repo.latest(ref.model, new)])
    warning = f"{old!r} forwards to {new!r} until something is saved as {old!r} again."
    session.show(
        {
            **members,
            "oldName": old,
            "newName": new,
            "copiedVersion": renamed.copied_version,
            "newVersion": renamed.new_version,
            "warning": warning,
        },
        lambda: (
            f"Renamed {printable(renamed.old)} to {printable(new)}: version"
            f" {renamed.copied_version} became version {renamed.new_version}."
        ),
    )
    if not session.json:
        session.note(f"warning: {warning}")
