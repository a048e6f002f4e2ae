"""`swampstore doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.rendering import printable, table
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR, ConfigError, RepoDamagedError

if TYPE_CHECKING:
    from swampstore.doctor import Finding, Report


@command(
    examples="""
    swampstore doctor
    swampstore doctor --repair
    swampstore doctor --json
    """
)
@click.option(
    "--repair",
    is_flag=True,
    help="Mend what can be mended without losing anything: interrupted changes, `latest` markers,"
    " leftovers of interrupted writes, the catalog.",
)
@pass_session
def doctor(session: Session, repair: bool) -> None:
    """Check the repository; the exit status is 1 if something is wrong."""
    report = _examine(session, repair=repair)
    session.show(report.to_json(), lambda: _text(report))
    if not report.ok:
        click.get_current_context().exit(EXIT_ERROR)


def _examine(session: Session, *, repair: bool) -> Report:
    from swampstore.doctor import examine, unusable

    try:
        repo = session.open_repo()
    except (ConfigError, RepoDamagedError) as error:
        return unusable(error)
    with repo:
        return examine(repo, repair=repair)


def _text(report: Report) -> str:
    rows = [[finding.check, _verdict(finding), finding.message] for finding in report.findings]
    blocks = [table(["check", "result", "finding"], rows)]
    blocks += [_explained(finding) for finding in report.findings if not finding.passed]
    blocks.append("All is well." if report.ok else "Something is wrong.")
    return "\n\n".join(blocks)


def _verdict(finding: Finding) -> str:
    if finding.passed:
        return "ok"
    return "repaired" if finding.repaired else "WRONG"


def _explained(finding: Finding) -> str:
    lines = [f"{finding.check}: {printable(finding.message)}"]
    lines += [f"  {printable(detail)}" for detail in finding.details]
    if finding.remedy:
        lines.append(f"  -> {printable(finding.remedy)}")
    return "\n".join(lines)
