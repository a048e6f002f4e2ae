"""`swampstore doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.rendering import printable, size_text
from swampstore.cli.row_formats import table
from swampstore.cli.session import Session
from swampstore.doctor import examine, unusable
from swampstore.errors import (
    EXIT_ERROR,
    ConfigError,
    LockTimeoutError,
    RepoDamagedError,
    SwampstoreError,
)
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.doctor import Finding, Report
    from swampstore.repo import Repo

_EVERY = 5.0


@command(
    examples="""
    swampstore doctor
    swampstore doctor --repair
    swampstore doctor --deep --json
    """
)
@click.option(
    "--repair",
    is_flag=True,
    help="Mend what can be mended without losing anything: interrupted changes, `latest` markers,"
    " leftovers of interrupted writes, the catalog, locks that nobody holds any more.",
)
@click.option(
    "--deep",
    is_flag=True,
    help="Also read all content that is here and compare it with what was saved, and compare the"
    " index of the remote with all of its objects, which needs a listing of them.",
)
@pass_session
def doctor(session: Session, repair: bool, deep: bool) -> None:
    """Check the repository and its remote; the exit status is 1 if something is wrong."""
    report = _examine(session, repair=repair, deep=deep)
    session.show(report.to_json(), lambda: _text(report))
    if not report.ok:
        click.get_current_context().exit(EXIT_ERROR)


def _examine(session: Session, *, repair: bool, deep: bool) -> Report:
    try:
        repo = session.open_repo()
    except (ConfigError, RepoDamagedError) as error:
        return unusable(error)
    with repo, _alone(repo) if repair else nullcontext():
        return examine(repo, repair=repair, deep=deep, progress=_Comparing(session))


class _Comparing:
    """Says now and then how much content was compared, if that takes long."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last = time.monotonic()

    def __call__(self, versions: int, size: int) -> None:
        if time.monotonic() - self._last > _EVERY:
            self._last = time.monotonic()
            self._session.note(f"compared {versions} versions, {size_text(size)}")


@contextmanager
def _alone(repo: Repo) -> Iterator[None]:
    """Let nobody else work meanwhile, unless what is wrong is that nothing can be locked."""
    with ExitStack() as stack:
        try:
            stack.enter_context(repo.locks.everything())
        except LockTimeoutError:
            raise
        except SwampstoreError as error:
            notice("repairing without a lock: %s", error.message)
        yield


def _text(report: Report) -> str:
    rows = [[finding.check, _verdict(finding), finding.message] for finding in report.findings]
    blocks = [table(["check", "result", "finding"], rows)]
    blocks += [
        _explained(finding) for finding in report.findings if finding.warning or not finding.passed
    ]
    blocks.append("All is well." if report.ok else "Something is wrong.")
    return "\n\n".join(blocks)


def _verdict(finding: Finding) -> str:
    if finding.passed:
        return "warning" if finding.warning else "ok"
    return "repaired" if finding.repaired else "WRONG"


def _explained(finding: Finding) -> str:
    lines = [f"{finding.check}: {printable(finding.message)}"]
    lines += [f"  {printable(detail)}" for detail in finding.details]
    if finding.remedy:
        lines.append(f"  -> {printable(finding.remedy)}")
    return "\n".join(lines)
