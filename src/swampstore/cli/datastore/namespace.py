"""`swampstore datastore namespace` and `swampstore datastore catalog`: sharing a datastore."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from swampstore.catalog.export import EXPORT
from swampstore.cli.command import command, pass_session
from swampstore.cli.options import rows_options, timeout_option
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import age_text, counted, printable, size_text
from swampstore.cli.row_formats import Column, Listing, item, same, table
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR, MoveInterruptedError
from swampstore.namespaces import list_namespaces
from swampstore.relocate import namespace
from swampstore.relocate.namespace import (
    check_may_unset,
    preview_migration,
    set_namespace,
    unset_namespace,
)

if TYPE_CHECKING:
    from swampstore.namespaces.catalog_pull import PulledCatalogs
    from swampstore.relocate.namespace import Migration, NamespaceSet, NamespaceUnset

confirm_option = click.option(
    "-y", "--confirm", is_flag=True, help="Do it. Without this, only show what would move."
)


@command(
    examples="""
    swampstore datastore namespace set team-a
    """
)
@click.argument("slug", metavar="NAME", help="Lower-case letters, digits and inner hyphens.")
@pass_session
def set_(session: Session, slug: str) -> None:
    """Give the repository a namespace of its own.

    The name is registered in the datastore first, so that no other repository can take it. Data
    that is there already stays where it is until it is migrated.
    """
    with session.open_repo() as repo:
        done = set_namespace(repo, slug)
    _fill_catalog(session)
    session.show(done.to_json(), lambda: _set_text(done))
    _warn_of_environment(session)


def _set_text(done: NamespaceSet) -> str:
    lines = [f"The namespace is {done.namespace} now, in {printable(done.datastore_path)}."]
    return "\n".join([*lines, *([f"warning: {printable(done.warning)}"] if done.warning else [])])


def _fill_catalog(session: Session) -> None:
    """Read what the namespace holds that is used from now on, so that nothing seems to be amiss."""
    with session.open_repo() as repo:
        repo.ready(complete=True)


def _warn_of_environment(session: Session) -> None:
    for name in ("SWAMP_NAMESPACE", "SWAMP_DATASTORE"):
        if os.environ.get(name):
            session.note(f"warning: {name} is set, and wins over what was written")


@command(
    examples="""
    swampstore datastore namespace unset
    swampstore datastore namespace unset --migrate
    swampstore datastore namespace unset --migrate --confirm
    """
)
@click.option("--migrate", "move", is_flag=True, help="Take the data out of the namespace, too.")
@confirm_option
@timeout_option
@pass_session
def unset(session: Session, move: bool, confirm: bool, timeout: int | None) -> None:
    """Let the repository work without a namespace again.

    Only as long as no other repository has a namespace in the same datastore. Without --migrate,
    the data stays where it is, and so does the registration.
    """
    with session.open_repo() as repo:
        if move and not confirm:
            check_may_unset(repo)
            _show_preview(session, preview_migration(repo, reverse=True))
            return
        try:
            with progress_shown() as progress:
                done = unset_namespace(repo, move=move, timeout=timeout, progress=progress)
        except MoveInterruptedError as error:
            _show_partial(session, error)
            return
    _fill_catalog(session)
    session.show(done.to_json(), lambda: _unset_text(done))
    _warn_of_environment(session)


def _unset_text(done: NamespaceUnset) -> str:
    if done.migration is None:
        return (
            f"The repository has no namespace any more. The data in {done.previous} stays there;"
            f" `swampstore datastore namespace set {done.previous}` leads back to it."
        )
    return f"{_moved(done.migration)} The repository has no namespace any more."


@command(
    examples="""
    swampstore datastore namespace list
    swampstore datastore namespace list --json
    """
)
@rows_options
@pass_session
def list_(session: Session) -> None:
    """List who has which namespace of the datastore."""
    with session.open_repo() as repo:
        found, current = list_namespaces(repo), repo.config.namespace
    members = [one.to_json() | {"isCurrent": one.namespace == current} for one in found]
    columns = (
        Column("namespace", item("namespace")),
        Column("repoId", item("repoId"), rank=1),
        Column("registeredAt", item("registeredAt"), age_text, right=True, heading="age", rank=2),
        Column("isCurrent", item("isCurrent"), heading="current"),
    )
    listing = Listing(columns, members, same, empty="No namespace is registered.")
    session.show_rows(listing, lambda: {"namespaces": members, "currentNamespace": current or None})


@command(
    examples="""
    swampstore datastore namespace migrate
    swampstore datastore namespace migrate --confirm
    swampstore datastore namespace migrate --reverse --confirm
    """
)
@confirm_option
@click.option("--reverse", is_flag=True, help="Move it out of the namespace instead.")
@timeout_option
@pass_session
def migrate(session: Session, confirm: bool, reverse: bool, timeout: int | None) -> None:
    """Move the data from before the namespace was set into it.

    Nothing is overwritten: if other data of the same name is there, nothing moves. If it is
    interrupted, run it again.
    """
    with session.open_repo() as repo:
        if not confirm:
            _show_preview(session, namespace.preview_migration(repo, reverse=reverse))
            return
        try:
            with progress_shown() as progress:
                done = namespace.migrate(repo, reverse=reverse, timeout=timeout, progress=progress)
        except MoveInterruptedError as error:
            _show_partial(session, error)
            return
    session.show(done.to_json(), lambda: _migrated_text(done))


def _show_preview(session: Session, planned: Migration) -> None:
    session.show(planned.preview_json(), lambda: _preview_text(planned))


def _preview_text(planned: Migration) -> str:
    if not planned.plan.directories:
        return "There is nothing to move."
    directories = planned.plan.directories
    first = directories[0]
    places = [
        f"{what} {printable(place.removesuffix(f'/{first.subdir}'))}"
        for what, place in (("from", first.source), ("to  ", first.destination))
    ]
    rows = [[one.subdir, one.files, size_text(one.bytes)] for one in directories]
    drawn = table(["directory", "files", "size"], rows, right=("files", "size"))
    return "\n".join([*places, drawn, "Nothing was moved. Pass --confirm to move it."])


def _moved(done: Migration) -> str:
    if not done.plan.directories:
        return "There was nothing to move."
    return f"Moved {counted(done.plan.files, 'file')}, {size_text(done.plan.bytes)}."


def _migrated_text(done: Migration) -> str:
    return "\n".join([_moved(done), *(f"warning: {printable(one)}" for one in done.warnings)])


def _show_partial(session: Session, error: MoveInterruptedError) -> None:
    document: dict[str, Any] = {
        "succeededDirectories": error.succeeded,
        "failedDirectory": error.failed,
        "error": error.message,
        "code": error.code,
        "hint": error.hint,
    }
    moved = ", ".join(error.succeeded) or "nothing"
    session.show(
        document, lambda: f"Moved {moved}. {printable(error.message)}.\n{printable(error.hint)}"
    )
    click.get_current_context().exit(EXIT_ERROR)


@command(
    examples="""
    swampstore datastore catalog pull
    swampstore datastore catalog pull --namespaces infra,network --json
    """
)
@click.option(
    "--namespaces", metavar="A,B", help="Only these namespaces.  [default: all but the own]"
)
@pass_session
def pull(session: Session, namespaces: str | None) -> None:
    """Learn what other namespaces of the datastore hold.

    Queries find their artifacts from then on, and NAMESPACE:MODEL names one of their models.
    """
    chosen = None if namespaces is None else [one.strip() for one in namespaces.split(",")]
    with session.open_repo() as repo:
        result = repo.pull_catalogs(chosen)
    session.show(result.to_json(), lambda: _pulled_text(result))


def _pulled_text(result: PulledCatalogs) -> str:
    lines = [
        f"{printable(one.namespace)} is skipped: {printable(one.reason)}." for one in result.skipped
    ]
    for one in result.pulled:
        if one.bad_rows:
            bad = counted(one.bad_rows, "row")
            lines.append(f"{bad} of {one.namespace} could not be understood.")
    if result.pulled:
        rows = [(one.namespace, one.rows, one.exported_at) for one in result.pulled]
        lines.insert(0, table(("namespace", "rows", "exportedAt"), rows, right=("rows",)))
    return "\n".join(lines) or "There are no other namespaces."


@command(
    examples="""
    swampstore datastore catalog export
    swampstore datastore catalog export --json
    """
)
@pass_session
def export(session: Session) -> None:
    """Publish the catalog for other namespaces now.

    The next push brings it to the remote. Pushes do the same by themselves, but of a large
    catalog only every ten minutes.
    """
    with session.open_repo() as repo:
        repo.export_catalog(force=True)
        path = f"{repo.config.datastore_dir}/{EXPORT}"
        document = {"namespace": repo.config.namespace, "path": path}
    session.show(
        document, lambda: f"Wrote the catalog of {document['namespace']} to {printable(path)}."
    )
