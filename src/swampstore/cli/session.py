"""What every command is given: the global options, the repository, and a place for results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from swampstore.cli.rendering import printable_lines
from swampstore.cli.row_formats import Listing, RowOptions, write_rows
from swampstore.errors import SwampstoreError

if TYPE_CHECKING:
    from swampstore.layout import ModelRef
    from swampstore.repo import Repo


_TOGETHER = 200


class ConfirmationError(SwampstoreError):
    """A person should be asked now, but there is none."""

    code = "confirmation_required"


class Session:
    """One run of the command line.

    Results go to standard output, as text or with `--json` as one document; notes, questions
    and errors go to standard error.
    """

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.verbose = False
        self.repo_dir: str | None = None
        self.datastore: str | None = None
        self.rows = RowOptions()
        # Why what the command did is here and not on the remote, to be told after its result.
        self.unpushed: SwampstoreError | None = None
        # What the audit is told at the end, see `audit`.
        self.context: click.Context | None = None
        self.repo: Repo | None = None
        self.models: list[str] = []
        self.is_cancelled = False

    @property
    def is_bulk(self) -> bool:
        """Whether the command is one of those below `pipeline`."""
        above = self.context.parent if self.context else None
        return above is not None and above.info_name == "pipeline"

    def open_repo(self) -> Repo:
        """Open the repository that the options, the environment or the directory name."""
        from swampstore.repo import open_repo

        self.repo = open_repo(self.repo_dir, datastore=self.datastore)
        self.repo.is_audited = True  # one event for the command will do
        if self.datastore and (remote := self.repo.config.remote):
            # What only reads the cache would never ask the store whether there is such a thing.
            from swampstore.stores import store_config

            store_config(remote.target, remote.config)
        if self.verbose:
            config = self.repo.config
            self.note(f"repository {config.repo_dir}, {config.datastore_type} at {config.base}")
        return self.repo

    def tell_costs(self, seconds: float) -> None:
        """Say how long the command took, and what it asked of the remote."""
        requests = ""
        if self.repo is not None and "connection" in self.repo.__dict__:
            tally = self.repo.connection.counting.tally()
            requests = f", {sum(tally.requests.values())} requests"
        self.note(f"{seconds:.2f} s{requests}")

    def catch_up(self, repo: Repo) -> None:
        """Before something is planned for everything, have what others pushed, if possible."""
        if repo.config.remote is None:
            return
        from swampstore.sync.run import catch_up

        if error := catch_up(repo):
            self.note(f"planned without what others pushed: {error.message}")

    @contextmanager
    def working(self, repo: Repo, models: Iterable[str | ModelRef] | None = None) -> Iterator[None]:
        """Lock what the block changes (None: everything), and push it afterwards.

        That it could not be pushed is told at the end: the block has done what it should.
        """
        with ExitStack() as stack:
            work = stack.enter_context(repo.session(models))
            self.models += map(str, work.models or ())
            yield
            try:
                stack.close()
            except SwampstoreError as error:
                self.unpushed = error
                return
        self.unpushed = work.not_pushed
        for rel, outcome in work.pushed.conflicts if work.pushed else ():
            self.note(f"conflict: {rel}: {outcome}")

    def show(self, document: Any, text: Callable[[], str]) -> None:
        """Print the result: `document` with `--json`, else what `text` returns."""
        if self.json:
            write_output(json_bytes(document))
        else:
            write_output(f"{text()}\n")

    def show_rows(self, listing: Listing, document: Callable[[], Any]) -> None:
        """Print what is listed in the format that was asked for; `document` is for `--json`."""
        form = self.rows.format_for(as_json=self.json)
        if form == "json" and self.rows.fields is None:
            write_output(json_bytes(document()))
            return
        self._write_rows(listing, form)

    def _write_rows(self, listing: Listing, form: str) -> None:
        with _gathering() as write:
            write_rows(listing, self.rows, form, write)
        # Who reads the rows in a file should hear what they do not say.
        if form in {"tsv", "csv"} and listing.is_cut():
            self.note(listing.footer())

    def show_found(self, listing: Listing, found: RowsDocument) -> None:
        """Print rows that come one by one, however many there are.

        With `--json` they are the member `found.member` of a document that is written as they come.
        """
        form = self.rows.format_for(as_json=self.json)
        if form != "json" or self.rows.fields is not None:
            self._write_rows(listing, form)
            return
        with _gathering() as write:
            _write_found(found, map(listing.record, listing.items), write)

    @property
    def is_read_by_people(self) -> bool:
        """Whether rows go to a terminal, or are drawn as if they did."""
        return self.rows.format_for(as_json=self.json) == "table"

    def note(self, message: str) -> None:
        """Tell something that is not part of the result, after what was shown before it."""
        if self.quiet:
            return
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
        click.echo(printable_lines(message), err=True)

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask before something is lost; True without asking if `yes`, or with `--json`.

        Raises ConfirmationError if there is nobody to ask. After a no, `show_cancelled`.
        """
        if yes or self.json:
            return True
        if not sys.stdin.isatty():
            raise ConfirmationError(
                f"nobody is there to be asked: {question}",
                hint=f"Pass -y to go ahead{self._preview()}.",
            )
        try:
            return click.confirm(question, err=True)
        except click.Abort:
            self.note("")
            return False

    def _preview(self) -> str:
        """Say how to look first, if the command can."""
        context = click.get_current_context(silent=True)
        options = (one for param in context.command.params for one in param.opts) if context else ()
        return ", or --dry-run to see what would be deleted" if "--dry-run" in options else ""

    def show_cancelled(self) -> None:
        """Print the result of a command that was not confirmed."""
        self.is_cancelled = True
        self.show({"cancelled": True}, lambda: "Cancelled, nothing was changed.")


def write_output(data: str | bytes) -> None:
    """Write to standard output, all of it."""
    stream = sys.stdout
    if stream is None:  # closed by whoever started us
        return
    if isinstance(data, str):
        data = data.encode(stream.encoding, "backslashreplace")
    stream.flush()
    rest = memoryview(data)
    while rest:
        # Without a buffer (PYTHONUNBUFFERED) a stream may take less than it is given.
        rest = rest[stream.buffer.write(rest) :]


class RowsDocument(NamedTuple):
    """A document around rows that come one by one; `after` is asked when all have come."""

    before: dict[str, Any]
    member: str
    after: Callable[[], dict[str, Any]]


@contextmanager
def _gathering() -> Iterator[Callable[[str], None]]:
    """Yield what writes text to standard output, much of it at once."""
    parts: list[str] = []

    def write(text: str) -> None:
        parts.append(text)
        if len(parts) >= _TOGETHER:
            write_output("".join(parts))
            parts.clear()

    yield write
    write_output("".join(parts))


def _write_found(
    found: RowsDocument, records: Iterable[dict[str, Any]], write: Callable[[str], None]
) -> None:
    rest = iter(records)
    first = list(islice(rest, _TOGETHER))
    if len(first) < _TOGETHER:
        whole = {**found.before, found.member: first, **found.after()}
        write_output(json_bytes(whole))
        return
    # The same document, written as it comes: by another library, as this one takes long to indent.
    head = json_bytes(found.before).decode().rstrip("}\n ") if found.before else "{"
    write(f"{head}{',' if found.before else ''}\n  {json.dumps(found.member)}: [")
    comma = ""
    for record in chain(first, rest):
        write(f"{comma}\n    {_indented(record)}")
        comma = ","
    tail = json_bytes(found.after()).decode()
    write(f"\n  ],{tail[1:]}")


def _indented(record: Any) -> str:
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
    except (TypeError, ValueError):  # of no UTF-8, or of a number that is none
        text = json_bytes(record).decode("utf-8", "surrogatepass").rstrip("\n")
    return text.replace("\n", "\n    ")


def json_bytes(document: Any) -> bytes:
    """Return a JSON document as UTF-8, whatever the locale says, with a newline."""
    try:
        text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(document), ensure_ascii=False, indent=2)
    # A lone surrogate, left of bytes that were not UTF-8, becomes the JSON escape of itself.
    return f"{text}\n".encode("utf-8", "backslashreplace")


def _without_nan(value: Any) -> Any:
    """Replace the numbers that JSON cannot hold, though Python reads them, by null."""
    match value:
        case dict():
            return {key: _without_nan(item) for key, item in value.items()}
        case list():
            return [_without_nan(item) for item in value]
        case float() if value - value != 0:
            return None
    return value
