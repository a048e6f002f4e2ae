"""The report as one HTML page: no other file, no request, and readable without its script."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from swampstore import __version__
from swampstore.clock import to_iso
from swampstore.pipeline.report.labels import Labels
from swampstore.pipeline.report.markup import Html, element
from swampstore.pipeline.report.sections import sections
from swampstore.pipeline.report.summary import Summary
from swampstore.pipeline.report.wording import (
    bytes_text,
    count_text,
    counted,
    moment_text,
    share_text,
)

_TITLE = "Datastore report"


def page(summary: Summary) -> str:
    """Return the page of a summary."""
    style, script = _asset("page.css"), _asset("sorting.js")
    body = [_header(summary), _main(summary), _footer(summary), element("script", script)]
    head = [
        element("meta", charset="utf-8"),
        _policy(style, script),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{_TITLE}: {_subject(summary)}"),
        element("style", style),
    ]
    document = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!doctype html>\n{document}\n"


def _asset(name: str) -> Html:
    return Html(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> Html:
    """Forbid everything but our own style and script: names in the datastore are not ours."""
    hashes = {
        kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for kind, text in (("style", style), ("script", script))
    }
    rules = "; ".join(f"{kind}-src 'sha256-{value}'" for kind, value in hashes.items())
    return element(
        "meta", http_equiv="Content-Security-Policy", content=f"default-src 'none'; {rules}"
    )


def _subject(summary: Summary) -> str:
    stores = list(dict.fromkeys(source.store for source in summary.sources))
    return stores[0] if len(stores) == 1 else counted(len(stores), "store")


def _header(summary: Summary) -> Html:
    when = element("time", moment_text(summary.generated_at), datetime=to_iso(summary.generated_at))
    subject = element("bdi", _subject(summary), class_="subject")
    about = element("p", subject, " as of ", when, class_="about")
    return element("header", element("h1", _TITLE), about, *_tiles(summary))


def _tiles(summary: Summary) -> list[Html]:
    totals = summary.totals
    if not totals.versions:
        return []
    tiles = [
        ("Stored", bytes_text(totals.bytes), f"in {counted(totals.versions, 'version')}"),
        ("In latest versions", *_part(totals.latest_bytes, totals.bytes)),
        ("Names", count_text(totals.names), f"in {counted(totals.models, 'model')}"),
        ("Namespaces", count_text(totals.namespaces), f"and {counted(totals.types, 'type')}"),
        ("In duplicates", *_part(totals.duplicate_bytes, totals.bytes)),
        ("Garbage", *_part(totals.freed_bytes, totals.bytes)),
    ]
    drawn = [
        element("div", element("dt", name), element("dd", value, element("small", note)))
        for name, value, note in tiles
    ]
    return [element("dl", *drawn, class_="tiles")]


def _part(size: int, whole: int) -> tuple[str, str]:
    return bytes_text(size), f"{share_text(size, whole)} of all"


def _main(summary: Summary) -> Html:
    if not summary.totals.versions:
        return element("main", _nothing())
    return element("main", *sections(summary))


def _nothing() -> Html:
    return element(
        "section",
        element("h2", "Nothing is stored here yet"),
        element(
            "p",
            "Everything was read, and there is not a single version. Save the first one: ",
            element("code", "swampstore data put MODEL NAME FILE"),
        ),
        class_="nothing",
    )


def _footer(summary: Summary) -> Html:
    labels = Labels(summary)
    read = [
        element("li", element("bdi", labels.source(source.store, source.namespace)))
        for source in summary.sources
    ]
    return element(
        "footer",
        element(
            "p",
            "Bytes are those of content, as its metadata states them; metadata and indexes come on"
            " top. Days are days in UTC.",
        ),
        element(
            "details",
            element("summary", f"What was read: {counted(len(read), 'namespace')}"),
            element("ul", *read),
        ),
        element("p", f"swampstore {__version__}"),
    )
