"""`swampstore data get` and `swampstore data hydrate`: content, shown or fetched."""

from __future__ import annotations

import io
import json
import os
import stat
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from swampstore.artifacts.content import parse_content
from swampstore.artifacts.metadata import is_json, is_text
from swampstore.cli.command import command, pass_session
from swampstore.cli.data import description
from swampstore.cli.options import (
    complete_model,
    model_argument,
    name_argument,
    timeout_option,
    version_option,
)
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import (
    counted,
    fields,
    named_lines,
    printable,
    size_text,
)
from swampstore.cli.session import Session, write_output
from swampstore.errors import DiskError
from swampstore.files import disk_errors, replacing
from swampstore.notices import shell_word

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.sync.hydrate import Hydrated

_CHUNK = 1 << 20
STDOUT = "-"


@command(
    examples="""
    swampstore data get aws/ec2/i-123 state
    swampstore data get web-server state --version 2 --json
    swampstore data get web-server log --raw | grep ERROR
    swampstore data get web-server backup -o backup.tar.gz
    """
)
@model_argument
@name_argument
@version_option
@click.option("--raw", is_flag=True, help="Print exactly the bytes, nothing else.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), help="Write the bytes to a file."
)
@click.option("--no-content", is_flag=True, help="Leave the content out.")
@pass_session
def get(
    session: Session,
    model: str,
    name: str,
    version: int | None,
    raw: bool,
    output: str | None,
    no_content: bool,
) -> None:
    """Show a version of a data name and its content."""
    _check_combination(raw, output, no_content, as_json=session.json)
    if output == STDOUT:
        raw, output = True, None
    with session.open_repo() as repo:
        artifact = (
            repo.latest(model, name) if version is None else repo.version(model, name, version)
        )
        if raw:
            _write_raw(artifact)
        elif output is not None:
            _check_output(output, artifact, model)
            _write_file(artifact, output)
            session.show(
                {**description(repo, artifact), "output": output},
                lambda: f"Wrote {size_text(artifact.size)} to {printable(output)}.",
            )
        elif session.json:
            content = {} if no_content else _content_members(artifact)
            session.show({**description(repo, artifact), **content}, str)
        else:
            write_output(f"{_block(description(repo, artifact), artifact)}\n")
            if not no_content:
                _print_content(artifact)


def _check_combination(raw: bool, output: str | None, no_content: bool, *, as_json: bool) -> None:
    chosen = [
        option
        for option, given in (
            ("--raw", raw),
            ("--output", output is not None),
            ("--no-content", no_content),
        )
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} cannot be used together.")
    if raw and as_json:
        raise click.UsageError("--raw and --json cannot be used together.")


def _content_members(artifact: Artifact) -> dict[str, Any]:
    """Return the content, if it is text, and whether it is known to be what was saved."""
    if not is_text(artifact.content_type):
        return {"content": None}
    with artifact.open() as file:
        content = parse_content(artifact.content_type, file.read())[1]
        verified = getattr(file, "verified", None)
    return {"content": content} | ({} if verified is None else {"verified": verified})


def _json_content(artifact: Artifact) -> Any:
    """Return parsed JSON, text, or None for anything else."""
    if not is_text(artifact.content_type):
        return None
    return parse_content(artifact.content_type, artifact.bytes())[1]


def _block(described: dict[str, Any], artifact: Artifact) -> str:
    owner = described["ownerDefinition"]
    latest = " (latest)" if artifact.is_latest else ""
    return fields(
        {
            "namespace": described.get("namespace"),
            "model": artifact.model,
            "modelName": described["modelName"],
            "name": described["name"],
            "version": f"{artifact.version}{latest}",
            "contentType": described["contentType"],
            "size": size_text(artifact.size),
            "createdAt": described["createdAt"],
            "lifetime": described["lifetime"],
            "garbageCollection": described["garbageCollection"],
            "streaming": "yes" if described["streaming"] else "",
            "tags": _pairs(described["tags"]),
            "owner": _pairs(owner),
            "checksum": described.get("checksum"),
            "lifecycle": described.get("lifecycle"),
            "renamedTo": described.get("renamedTo"),
            "id": described["id"],
            "path": described["contentPath"],
        }
    )


def _pairs(members: dict[str, Any]) -> str:
    return "  ".join(f"{key}={value}" for key, value in members.items())


def _print_content(artifact: Artifact) -> None:
    if not is_text(artifact.content_type):
        write_output(
            f"\n({size_text(artifact.size)} that are not text;"
            " --raw prints them, -o FILE writes them to a file)\n"
        )
        return
    write_output("\n")
    if is_json(artifact.content_type):
        content = _json_content(artifact)
        if not isinstance(content, str):
            write_output(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
            return
    with artifact.open() as file:
        _print_text(file)


def _print_text(file: BinaryIO) -> None:
    """Print text of any size, a piece at a time."""
    last = ""
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="") as text:
        while piece := text.read(_CHUNK):
            write_output(piece)
            last = piece
    if last and not last.endswith("\n"):
        write_output("\n")


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while chunk := source.read(_CHUNK):
        target.write(chunk)


def _write_raw(artifact: Artifact) -> None:
    with artifact.open() as file:
        while chunk := file.read(_CHUNK):
            write_output(chunk)


def _check_output(output: str, artifact: Artifact, model: str) -> None:
    """Say what to type instead, if a file of that name cannot be written."""
    again = f"swampstore data get {shell_word(model)} {shell_word(artifact.name)} -o"
    if not output:
        raise DiskError(
            "-o takes the name of a file, and got nothing",
            hint=f"Run: {again} {shell_word(artifact.name)}",
        )
    above = os.path.dirname(os.path.abspath(output))
    if os.path.isdir(output):
        better = shell_word(os.path.join(output, artifact.name))
        raise DiskError(
            f"{output} is a directory, and -o takes the name of a file",
            hint=f"Run: {again} {better}",
        )
    if not os.path.isdir(above):
        raise DiskError(
            f"there is no directory {above} to write {os.path.basename(output)} to",
            hint=f"Run: mkdir -p {shell_word(above)} && {again} {shell_word(output)}",
        )


def _write_file(artifact: Artifact, output: str) -> None:
    """Write the bytes to a file that is either complete or not there."""
    path = os.path.realpath(output)
    with artifact.open() as file, disk_errors(output):
        if os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            # A pipe or a device is written to, not replaced; a directory is refused here.
            with open(path, "wb") as target:
                _copy(file, target)
            return
        with replacing(path, durable=False) as temp, open(temp, "xb") as target:
            _copy(file, target)


@command(
    examples="""
    swampstore data hydrate
    swampstore data hydrate 'tags.env == "prod" && size < 1000000'
    swampstore data hydrate --model aws/ec2/i-0abc --all-versions
    swampstore data hydrate --dry-run --json
    """
)
@click.argument("predicate", required=False, help="What must hold, in CEL.  [default: everything]")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_model,
    help="Only of this model, TYPE/ID or its name.",
)
@click.option("--all-versions", is_flag=True, help="Not only of the latest versions.")
@click.option("--dry-run", is_flag=True, help="Only show how much would be fetched.")
@timeout_option
@pass_session
def hydrate(
    session: Session,
    predicate: str | None,
    model: str | None,
    all_versions: bool,
    dry_run: bool,
    timeout: int | None,
) -> None:
    """Fetch content that is only on the remote, much of it at once.

    What is here already costs nothing. If it is interrupted, run it again: it goes on from there.
    """
    with session.open_repo() as repo, progress_shown() as progress:
        hydrated = repo.hydrate(
            predicate,
            model=model,
            all_versions=all_versions,
            dry_run=dry_run,
            deadline=timeout,
            progress=progress,
        )
    document: dict[str, Any] = {"dryRun": True} if dry_run else {}
    document |= {
        "files": hydrated.files,
        "bytes": hydrated.bytes,
        "missing": list(hydrated.missing),
    }
    session.show(document, lambda: _hydrated_text(hydrated, dry_run=dry_run))


def _hydrated_text(hydrated: Hydrated, *, dry_run: bool) -> str:
    verb = "Would fetch" if dry_run else "Fetched"
    lines = [f"{verb} {counted(hydrated.files, 'file')}, {size_text(hydrated.bytes)}."]
    missing = [(rel, "the remote does not have it") for rel in hydrated.missing]
    return "\n".join([*lines, *named_lines("missing", missing)])
