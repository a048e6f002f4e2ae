"""`swampstore data put`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from swampstore.artifacts.metadata import guess_content_type
from swampstore.artifacts.save import to_json_bytes
from swampstore.cli.command import command, pass_session
from swampstore.cli.data import description
from swampstore.cli.options import model_argument, name_argument, tag_option
from swampstore.cli.rendering import printable, size_text
from swampstore.cli.session import Session
from swampstore.errors import ValidationError
from swampstore.files import disk_errors
from swampstore.formats import whole_number
from swampstore.layout import check_data_name, check_model_name, split_namespace
from swampstore.notices import shell_word

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.repo import Repo

_CHUNK = 1 << 20
_IN_MEMORY = 8 << 20
STDIN = "-"


def _mime_type(_context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no MIME type: readers choose by it what they do with the content."""
    if value is not None and not all(value.partition("/")):
        raise click.BadParameter(
            f"{value!r} is no MIME type. Write for example application/yaml or text/plain."
        )
    return value


@command(
    examples="""
    swampstore data put aws/ec2/i-123 state state.json --tag env=prod
    swampstore data put web-server facts --json-value '{"cpus": 4}'
    pg_dump app | swampstore data put web-server dump - --lifetime 30d --gc 5
    tail -n 100 app.log | swampstore data put web-server log --append
    """
)
@model_argument
@name_argument
@click.argument(
    "file", required=False, type=click.Path(), help="What to save; `-` is standard input."
)
@click.option("--json-value", metavar="TEXT", help="Save this JSON document.")
@click.option(
    "--content-type",
    metavar="TYPE",
    callback=_mime_type,
    help="A MIME type.  [default: by the file name]",
)
@tag_option
@click.option(
    "--untag",
    "untag",
    metavar="KEY",
    multiple=True,
    help="Leave out a tag that the version before has; may be repeated.",
)
@click.option("--no-inherit", is_flag=True, help="Keep no tags of the version before.")
@click.option("--spec", metavar="NAME", help="The tag specName.")
@click.option("--model-name", metavar="NAME", help="The tag modelName.")
@click.option(
    "--lifetime",
    metavar="LIFETIME",
    help="infinite, workflow, job, or a duration such as 30d.  [default: infinite]",
)
@click.option(
    "--gc",
    "policy",
    metavar="POLICY",
    help="How many versions to keep, or how long, such as 90d.  [default: 10]",
)
@click.option("--streaming", is_flag=True, help="Allow to append to this version.")
@click.option("--allow-empty", is_flag=True, help="Save also if standard input is empty.")
@click.option("--append", is_flag=True, help="Add to the latest version, a streaming one.")
@pass_session
def put(
    session: Session,
    /,
    model: str,
    name: str,
    file: str | None,
    json_value: str | None,
    append: bool,
    allow_empty: bool,
    **details: Any,
) -> None:
    """Save content as the next version of a data name."""
    if json_value is None and file is None and not sys.stdin.isatty():
        file = STDIN
    if (json_value is None) == (file is None):
        raise click.UsageError("Give one of FILE, `-` for standard input, and --json-value.")
    if json_value is None and file is not None and file.lstrip()[:1] in ("{", "["):
        _refuse_document(session, model, name, file)
    if append and any(details.values()):
        raise click.UsageError("--append adds bytes only; the version keeps its details.")
    wanted = _details(**details)
    with session.open_repo() as repo, ExitStack() as stack:
        # However long it takes to come, nobody has to wait for it; and the number is chosen when
        # it is known what others have saved meanwhile.
        source = None
        if file == STDIN:
            repo.model(model)  # before anything is read in vain
            check_data_name(name)
            source = stack.enter_context(_read_stdin(repo))
            may_be_empty = allow_empty or append or details["streaming"]
            if not (may_be_empty or source.seek(0, os.SEEK_END)):
                raise ValidationError(
                    "standard input is empty, so nothing was saved",
                    hint="Pass --allow-empty to save an empty version, or name a FILE.",
                )
            source.seek(0)
        with session.working(repo, [model]):
            artifact = _save(repo, model, name, source or file, json_value, append, wanted)
        described = description(repo, artifact)
    if "/" in model and str(artifact.model) not in (model, split_namespace(model)[1]):
        session.note(f"The address {model!r} is written {artifact.model}.")
    session.show(
        described,
        lambda: (
            f"Saved {printable(artifact.ref)} version {artifact.version}"
            f" ({size_text(artifact.size)}) at {printable(described['contentPath'])}."
        ),
    )


def _refuse_document(session: Session, model: str, name: str, text: str) -> None:
    """Tell whoever wrote a document where a file belongs how it is given."""
    if os.path.lexists(text):
        return
    # `--json` takes no value: it is about what is printed.
    told = "--json takes no value, so " if session.json else ""
    words = " ".join(map(shell_word, ("swampstore", "data", "put", model, name)))
    raise ValidationError(
        f"{told}{text!r} was taken for the name of a file, and there is none",
        hint=f"Run: {words} --json-value {shell_word(text)}",
    )


def _save(
    repo: Repo,
    model: str,
    name: str,
    file: str | BinaryIO | None,
    json_value: str | None,
    append: bool,
    wanted: dict[str, Any],
) -> Artifact:
    if append:
        return _append(repo, model, name, file, json_value)
    if isinstance(file, str):
        return repo.artifacts.save_file(model, name, file, **wanted)
    if file is not None:
        wanted["content_type"] = wanted["content_type"] or guess_content_type(name)
        return repo.artifacts.save(model, name, file, **wanted)
    assert json_value is not None
    wanted["content_type"] = wanted["content_type"] or "application/json"
    return repo.artifacts.save(model, name, _json_bytes(json_value), **wanted)


def _details(
    *,
    content_type: str | None,
    tags: tuple[tuple[str, str], ...],
    spec: str | None,
    model_name: str | None,
    lifetime: str | None,
    policy: str | None,
    streaming: bool,
    untag: tuple[str, ...],
    no_inherit: bool,
) -> dict[str, Any]:
    """Return what was asked for in the words of the library."""
    if lifetime == "ephemeral":
        raise ValidationError(
            "ephemeral data would end with this command",
            hint="Use another lifetime, such as 1h; or save it from a program.",
        )
    chosen: dict[str, str | None] = {**dict.fromkeys(untag), **dict(tags)}
    if spec is not None:
        chosen["specName"] = spec
    if model_name is not None:
        chosen["modelName"] = model_name
    if (named := chosen.get("modelName")) is not None:
        check_model_name(named)
    if no_inherit and untag:
        raise click.UsageError("--no-inherit keeps no tags, so there is none to --untag.")
    wanted: dict[str, Any] = {
        "content_type": content_type,
        "tags": chosen,
        "streaming": streaming,
        "inherit": not no_inherit,
    }
    if lifetime is not None:
        wanted["lifetime"] = lifetime
    if policy is not None:
        count = whole_number(policy)
        wanted["garbage_collection"] = policy if count is None else count
    return wanted


def _json_bytes(text: str) -> bytes:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return to_json_bytes(json.loads(text, parse_constant=refuse))
    except (ValueError, RecursionError) as error:
        raise ValidationError(
            f"the value of --json-value is not a JSON document: {error}",
            hint="Quote it for the shell, for example --json-value '{\"cpus\": 4}'.",
        ) from error


def _read_stdin(repo: Repo) -> BinaryIO:
    """Return all that comes, in memory or, if it is much, in a file without a name."""
    import tempfile

    # Without the buffer, which waits until it is full and may miss an interrupt meanwhile.
    source = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    directory = repo.config.local_dir
    place = directory if os.path.isdir(directory) else None
    with disk_errors(directory):
        spool = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=place)  # noqa: SIM115 - the caller does
        while chunk := source.read(_CHUNK):
            spool.write(chunk)
        spool.seek(0)
    return cast("BinaryIO", spool)


def _append(
    repo: Repo, model: str, name: str, file: str | BinaryIO | None, json_value: str | None
) -> Artifact:
    if json_value is not None:
        return repo.artifacts.append(model, name, _json_bytes(json_value))
    if not isinstance(file, str):
        assert file is not None
        return repo.artifacts.append(model, name, file)
    with open(file, "rb") as source:
        return repo.artifacts.append(model, name, source)
