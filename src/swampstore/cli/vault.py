"""`swampstore vault`: secrets come in by standard input or a prompt, never by the command line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import (
    TagParam,
    limit_option,
    moment,
    rows_options,
    since_option,
    vault_argument,
    yes_option,
)
from swampstore.cli.rendering import age_text, counted, fields, printable, size_text
from swampstore.cli.row_formats import Column, Listing
from swampstore.cli.session import Session, write_output
from swampstore.errors import ValidationError
from swampstore.retention.lifetimes import parse_duration
from swampstore.vaults import Vaults
from swampstore.vaults.errors import VaultProviderError
from swampstore.vaults.events import events
from swampstore.vaults.migration import migrate as copy_secrets

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.vaults import Vault, VaultConfig

_LARGEST = 1 << 20

key_argument = click.argument("key", help="The key of a secret.")
config_option = click.option(
    "--config",
    "settings",
    type=TagParam("setting"),
    multiple=True,
    help="A setting of the type; may be repeated.",
)
label_option = click.option(
    "--label", "labels", type=TagParam("label"), multiple=True, help="A label; may be repeated."
)


def _vaults(repo: Repo) -> Vaults:
    return Vaults(repo, caller="cli")


def _settings(pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return settings as they were meant: true, numbers and lists in JSON, all else as text."""
    return {name: _setting(text) for name, text in pairs}


def _setting(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, str | dict) else value


@command(
    examples="""
    swampstore vault create local_encryption ops
    swampstore vault create local_encryption ops --config ssh_key_path=~/.ssh/id_rsa
    swampstore vault create environment ci --config prefix=CI_SECRET_
    swampstore vault create command team --config get='pass show team/{key}' --audit-reads
    """
)
@click.argument("type", help="local_encryption, environment, command, or an installed one.")
@click.argument("name", help="What to call it: a-z, 0-9 and '-'.")
@config_option
@click.option("--audit-reads", is_flag=True, help="Write down who reads secrets, too.")
@pass_session
def create(
    session: Session,
    type: str,  # noqa: A002 - the argument is called so
    name: str,
    settings: tuple[tuple[str, str], ...],
    audit_reads: bool,
) -> None:
    """Make a vault."""
    with session.open_repo() as repo:
        made = _vaults(repo).create(type, name, _settings(settings), audit_reads=audit_reads)
    session.show(
        _described(made), lambda: f"Made the vault {name} of type {printable(type)}: {made.path}"
    )


def _described(vault: VaultConfig) -> dict[str, Any]:
    return {
        "name": vault.name,
        "type": vault.type,
        "id": vault.id,
        "createdAt": vault.created_at,
        "auditReads": vault.audit_reads,
        "config": dict(vault.config),
        "path": vault.path,
    }


@command(
    examples="""
    swampstore vault put ops db-password
    pwgen -s 32 1 | swampstore vault put ops db-password
    swampstore vault put ops deploy-key --keep-newline < deploy-key.pem
    aws-token | swampstore vault put ops aws --refresh-from aws-token --refresh-ttl 1h
    """
)
@vault_argument
@key_argument
@click.option("--keep-newline", is_flag=True, help="Keep the newline at the end of the value.")
@label_option
@click.option("--refresh-from", metavar="COMMAND", help="A command that prints a new value.")
@click.option("--refresh-ttl", metavar="AGE", help="From which age on it is run: 90m, 12h, 7d.")
@yes_option
@pass_session
def put(
    session: Session,
    vault: str,
    key: str,
    keep_newline: bool,
    labels: tuple[tuple[str, str], ...],
    refresh_from: str | None,
    refresh_ttl: str | None,
    yes: bool,
) -> None:
    """Keep a secret, which is read from standard input or asked for."""
    if click.get_current_context().args or "=" in key:
        raise click.UsageError(
            "A value is never taken from the command line, where others can read it."
            " Pipe it in, or type it when asked."
        )
    if (refresh_from is None) != (refresh_ttl is None):
        raise click.UsageError("--refresh-from and --refresh-ttl belong together.")
    if refresh_ttl is not None:
        parse_duration(refresh_ttl)  # before the value that is kept is gone
    with session.open_repo() as repo:
        opened = _vaults(repo).open(vault)
        is_new = not _may_have(opened, key)
        if not is_new and not session.confirm(f"Replace {_shown(vault, key)}?", yes=yes):
            session.show_cancelled()
            return
        opened.put(key, _read_value(_shown(vault, key), keep_newline))
        if labels:
            opened.annotate(key, labels=dict(labels))
        if refresh_from is not None and refresh_ttl is not None:
            opened.refresh_by(key, refresh_from, refresh_ttl)
    session.show(
        {"vault": vault, "key": key, "created": is_new},
        lambda: f"{'Saved' if is_new else 'Replaced'} {_shown(vault, key)}.",
    )


# Taken, so that whoever gives a value can be told better than by showing it.
put.allow_extra_args = True


def _shown(vault: str, key: str) -> str:
    return f"the secret {printable(key)} of the vault {printable(vault)}"


def _may_have(vault: Vault, key: str) -> bool:
    try:
        return vault.has(key)
    except VaultProviderError:  # which of its failures means that there is none, it did not tell
        return True


def _read_value(what: str, keep_newline: bool) -> str:
    if sys.stdin.isatty():
        asked: str = click.prompt(
            f"Value of {what}", hide_input=True, confirmation_prompt=True, err=True
        )
        return asked
    data = sys.stdin.buffer.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValidationError(
            f"the value is larger than {size_text(_LARGEST)}",
            hint="Save it as an artifact, encrypted, and keep the key to it as the secret.",
        )
    try:
        value = data.decode()
    except UnicodeDecodeError:
        raise ValidationError(
            "the value is not UTF-8 text", hint="Encode it first, in base64 say."
        ) from None
    return value if keep_newline else value.removesuffix("\n").removesuffix("\r")


@command(
    examples="""
    swampstore vault get ops db-password -y
    PGPASSWORD="$(swampstore vault get ops db-password)" psql
    swampstore vault get ops db-password --json
    """
)
@vault_argument
@key_argument
@yes_option
@pass_session
def get(session: Session, vault: str, key: str, yes: bool) -> None:
    """Print the value of a secret."""
    with session.open_repo() as repo:
        opened = _vaults(repo).open(vault)
        question = f"Show {_shown(vault, key)} on this terminal?"
        if sys.stdout.isatty() and not session.confirm(question, yes=yes):
            session.show_cancelled()
            return
        value = opened.get(key)
    if session.json:
        session.show({"vault": vault, "key": key, "value": value}, str)
    else:
        write_output(f"{value}\n".encode())


@command(
    examples="""
    swampstore vault list
    swampstore vault list ops
    swampstore vault list ops --json
    """
)
@click.argument("vault", required=False, help="The name of a vault.")
@rows_options
@pass_session
def list_(session: Session, vault: str | None) -> None:
    """List the vaults, or the keys of one of them."""
    with session.open_repo() as repo:
        vaults = _vaults(repo)
        if vault is not None:
            keys = vaults.open(vault).keys()
            text = "\n".join([*map(printable, keys), counted(len(keys), "secret")])
            session.show({"vault": vault, "keys": keys}, lambda: text)
            return
        known, broken = vaults.all()
    document = {
        "vaults": [_described(one) for one in known],
        "broken": [
            {"path": one.path, "error": one.error.message, "code": one.error.code} for one in broken
        ],
    }
    columns = (
        Column("name", lambda one: one.name),
        Column("type", lambda one: one.type),
        Column("auditReads", lambda one: one.audit_reads, heading="reads audited", rank=2),
        Column(
            "createdAt", lambda one: one.created_at, age_text, right=True, heading="age", rank=1
        ),
    )
    listing = Listing(columns, known, _described, lambda: counted(len(known), "vault"))
    session.show_rows(listing, lambda: document)
    if not session.json:
        for one in broken:
            session.note(f"warning: {one.path} is left out: {one.error.message}")


@command(
    examples="""
    swampstore vault inspect ops db-password
    swampstore vault inspect ops db-password --json
    """
)
@vault_argument
@key_argument
@pass_session
def inspect(session: Session, vault: str, key: str) -> None:
    """Show what is known about a secret, without its value."""
    with session.open_repo() as repo:
        opened = _vaults(repo).open(vault)
        details = opened.details(key)
    document = {
        "vault": vault,
        "type": opened.config.type,
        "key": key,
        "bytes": details.size,
        "annotation": details.annotation,
        "refresh": details.refresh,
    }
    annotation, refresh = details.annotation or {}, details.refresh or {}
    labels = annotation.get("labels")
    shown = {
        "vault": vault,
        "type": opened.config.type,
        "key": key,
        "size": size_text(details.size),
        "url": annotation.get("url"),
        "notes": annotation.get("notes"),
        "labels": ", ".join(f"{name}={text}" for name, text in labels.items()) if labels else None,
        "annotated": annotation.get("updatedAt"),
        "refresh from": refresh.get("command"),
        "refresh after": refresh.get("ttl"),
        "refreshed": refresh.get("lastRefreshedAt"),
    }
    session.show(document, lambda: fields(shown))


@command(
    examples="""
    swampstore vault annotate ops db-password --url https://db.example.com --label team=data
    swampstore vault annotate ops db-password --notes 'changed by hand every spring'
    swampstore vault annotate ops db-password --notes '' --label team= --json
    """
)
@vault_argument
@key_argument
@click.option("--url", metavar="URL", help="Where it is used, or made; empty: forget that.")
@click.option("--notes", metavar="TEXT", help="What people should know; empty: forget that.")
@label_option
@pass_session
def annotate(
    session: Session,
    vault: str,
    key: str,
    url: str | None,
    notes: str | None,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """Say what a secret is for; what is said is encrypted as well."""
    if url is None and notes is None and not labels:
        raise click.UsageError("Give --url, --notes or --label.")
    with session.open_repo() as repo:
        opened = _vaults(repo).open(vault)
        annotation = opened.annotate(key, url=url, notes=notes, labels=dict(labels))
    session.show(
        {"vault": vault, "key": key, "annotation": dict(annotation)},
        lambda: f"Annotated {_shown(vault, key)}.",
    )


@command(
    examples="""
    swampstore vault delete ops db-password
    swampstore vault delete ops db-password -y --json
    """
)
@vault_argument
@key_argument
@yes_option
@pass_session
def delete(session: Session, vault: str, key: str, yes: bool) -> None:
    """Forget a secret, with all that is known about it."""
    with session.open_repo() as repo:
        opened = _vaults(repo).open(vault)
        if not session.confirm(f"Delete {_shown(vault, key)} for good?", yes=yes):
            session.show_cancelled()
            return
        opened.delete(key)
    session.show(
        {"vault": vault, "key": key, "deleted": True}, lambda: f"Deleted {_shown(vault, key)}."
    )


@command(
    examples="""
    swampstore vault rotate ops
    swampstore vault rotate ops --json
    """
)
@vault_argument
@pass_session
def rotate(session: Session, vault: str) -> None:
    """Give a vault a new key, and encrypt every secret with it.

    Whoever is interrupted runs it again: each secret can be read at any time.
    """
    with session.open_repo() as repo:
        count = _vaults(repo).open(vault).rotate()
    session.show(
        {"vault": vault, "secrets": count},
        lambda: f"The vault {vault} has a new key; {counted(count, 'secret')} encrypted with it.",
    )


@command(
    examples="""
    swampstore vault migrate ops --to-type local_encryption --dry-run
    swampstore vault migrate ops --to-type command --config get='pass show ops/{key}'
    """
)
@vault_argument
@click.option("--to-type", required=True, metavar="TYPE", help="The type that it shall have.")
@config_option
@click.option("--overwrite", is_flag=True, help="Replace other values that the new place has.")
@click.option("--dry-run", is_flag=True, help="Only show what would be copied.")
@pass_session
def migrate(
    session: Session,
    vault: str,
    to_type: str,
    settings: tuple[tuple[str, str], ...],
    overwrite: bool,
    dry_run: bool,
) -> None:
    """Copy the secrets of a vault to another type, which it has from then on.

    They stay where they were, too, until somebody removes them there.
    """
    with session.open_repo() as repo:
        done = copy_secrets(
            _vaults(repo),
            vault,
            to_type,
            _settings(settings),
            overwrite=overwrite,
            dry_run=dry_run,
        )
    verb = "Would copy" if dry_run else "Copied"
    there = f" ({len(done.same)} are there already)" if done.same else ""
    session.show(
        done.to_json(),
        lambda: f"{verb} {counted(len(done.copied), 'secret')} of {vault} to {to_type}{there}.",
    )
    if done.without_annotation and not session.json:
        left = counted(len(done.without_annotation), "annotation")
        session.note(f"warning: {left} could not be copied")
    if done.without_hook and not session.json:
        hooks = counted(len(done.without_hook), "secret")
        session.note(f"warning: {hooks} will not be refreshed any more")


@command(
    examples="""
    swampstore vault audit
    swampstore vault audit --vault ops --since 7d
    swampstore vault audit --key db-password --action get --limit 10 --json
    """
)
@click.option("--vault", metavar="NAME", help="Only this vault.")
@click.option("--key", metavar="KEY", help="Only this secret.")
@click.option("--action", metavar="ACTION", help="Only get, put, delete, annotate and so on.")
@since_option
@click.option("--until", metavar="AGE|TIME", help="Not younger than 7d, or before a time.")
@limit_option
@rows_options
@pass_session
def audit(session: Session, /, limit: int | None, **filters: str | None) -> None:
    """Show what was done with secrets, when and by whom; the newest last."""
    with session.open_repo() as repo:
        since, until = (
            moment(repo, f"--{name}", text) if (text := filters[name]) is not None else None
            for name in ("since", "until")
        )
        found = [
            event
            for event in events(repo, since, until)
            if filters["vault"] in (None, event.vault)
            and filters["key"] in (None, event.key)
            and filters["action"] in (None, event.action)
        ]
    total = len(found)
    if limit is not None:
        found = found[max(0, total - limit) :]
    columns = (
        Column("timestamp", lambda one: one.timestamp, age_text, right=True, heading="age"),
        Column("action", lambda one: one.action),
        Column("vault", lambda one: one.vault),
        Column("key", lambda one: one.key),
        Column("actor", lambda one: one.actor, rank=1),
        Column("caller", lambda one: one.caller, rank=2),
    )
    listing = Listing(columns, found, lambda one: one.to_json(), lambda: counted(total, "event"))
    session.show_rows(
        listing, lambda: {"events": [event.to_json() for event in found], "total": total}
    )
