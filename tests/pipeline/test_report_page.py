"""The page of a report: whatever is in a datastore, it is well-formed, complete and harmless."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.pipeline.report.charts import (
    Box,
    Size,
    Tile,
    byte_ticks,
    day_ticks,
    growth_chart,
    history_of,
    treemap,
    treemap_chart,
)
from swampstore.pipeline.report.page import page
from swampstore.pipeline.report.summary import (
    Addition,
    Copy,
    Duplicate,
    MethodRuns,
    ModelUsage,
    NameUsage,
    RunDay,
    Source,
    StoredVersion,
    Summary,
    Totals,
    Usage,
)
from swampstore.pipeline.report.text import Html, age_text, bytes_text, html, share_text, visible

NOW = datetime(2026, 5, 14, 20, 19, tzinfo=UTC)
TODAY = NOW.date()
STORE = "s3://bucket/swamp"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"onmouseover='x'",
    "invoice\u202egnp.exe",
    "</title></style></svg><img src=x>",
    "x" * 255,
    "ф" * 127,
    "line\nbreak\ttab\0null",
]


class Outline(HTMLParser):
    """Checks that every tag is closed where it should be, and remembers what there is."""

    VOID = frozenset({"meta", "col"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def summary(name: str = "state", size: int = 1 << 20, **members: Any) -> Summary:
    """A summary in which everything that can be named is called `name`."""
    version = StoredVersion(STORE, name, name, name, name, name, 3, name, size, NOW)
    copy = Copy(STORE, name, name, name, name, name, 1)
    given: dict[str, Any] = {
        "totals": Totals(2, 1, 1, 1, 3, 3 * size, size, 1, size, 1, 2, size, 1, 1, size, 1, 1),
        "additions": (
            Addition(Source(STORE, name), TODAY - timedelta(days=9), 1, size),
            Addition(None, TODAY, 2, size),
            Addition(None, None, 1, size),
        ),
        "namespaces": (
            Usage((STORE, name), 1, 2, 2 * size, size),
            Usage((STORE, "other"), 1, 1, size, size),
        ),
        "types": (Usage((name,), 1, 3, 3 * size, size),),
        "models": (ModelUsage(STORE, name, name, name, name, 1, 3, 3 * size, size),),
        "names": (NameUsage(STORE, name, name, name, name, name, "active", 3, 3 * size, size),),
        "content_types": (Usage((name,), 1, 3, 3 * size, size),),
        "owners": (Usage((name, name), 1, 3, 3 * size, size),),
        "workflows": (Usage((name,), 1, 3, 3 * size, size),),
        "lifecycles": (Usage(("deleted",), 1, 3, 3 * size, size),),
        "largest": (version,),
        "oldest": (version._replace(created_at=None),),
        "duplicates": (Duplicate("ab" * 32, 2, 1, 2 * size, size, (copy, copy)),),
        "rules": (Usage(("old-versions",), 1, 1, size),),
        "freed": (Usage(("old-versions", STORE, name, name), 1, 1, size),),
        "run_days": (RunDay(TODAY, 3, 1),),
        "methods": (MethodRuns(STORE, name, name, name, 3, 1, 1500, 9000),),
    }
    return Summary(NOW, (Source(STORE, name), Source(STORE, "other")), **(given | members))


# The page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state", *HOSTILE])
def test_a_page_is_well_formed_whatever_things_are_called(name: str) -> None:
    plain, found = Outline(page(summary())), Outline(page(summary(name)))
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in plain.elements]
    assert found.count("script") == 1
    told = "".join(found.text)
    assert visible(name) in told


@settings(max_examples=30, deadline=None)
@given(name=st.text(max_size=40), size=st.integers(0, 1 << 62))
def test_no_name_and_no_size_breaks_a_page(name: str, size: int) -> None:
    text = page(summary(name, size))
    text.encode()
    found = Outline(text)
    assert found.count("section") == 10
    allowed = {"class", "id", "title", "scope", "data-value", "aria-label", "role", "tabindex"}
    bodies = [attributes for tag, attributes in found.elements if tag in ("th", "td", "bdi", "div")]
    assert all(set(attributes) <= allowed | {"colspan"} for attributes in bodies)


def test_a_page_asks_for_nothing_from_anywhere() -> None:
    text = page(summary())
    found = Outline(text)
    for tag, attributes in found.elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form"), tag
        assert not {"src", "href", "action", "style", "srcset"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?:", text)
    policy = next(
        attributes["content"]
        for tag, attributes in found.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-\S{44}'; script-src 'sha256-\S{44}'", policy
    )


def test_pictures_and_tables_speak_to_those_who_do_not_see_them() -> None:
    found = Outline(page(summary()))
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = [attributes for _, attributes in found.elements if attributes.get("role") == "img"]
    assert len(pictures) == 6
    for attributes in pictures:
        named = (attributes["aria-labelledby"] or "").split()
        assert len(named) == 2
        assert set(named) <= set(ids)
    assert found.count("caption") == found.count("table") > 5
    assert all("scope" in attributes for tag, attributes in found.elements if tag == "th")


def test_an_empty_datastore_has_a_page_that_says_so() -> None:
    found = Outline(page(Summary(NOW, (Source("file:///srv/swamp", ""),))))
    told = " ".join(found.text)
    assert "Nothing is stored here yet" in told
    assert "file:///srv/swamp" in told
    assert found.count("svg") == 0


def test_a_datastore_of_empty_versions_has_a_page() -> None:
    found = Outline(page(summary(size=0)))
    assert "0\u00a0B" in "".join(found.text)


def test_sections_without_anything_to_tell_say_that() -> None:
    quiet = summary(
        totals=Totals(1, 1, 1, 1, 1, 5, 5), duplicates=(), rules=(), freed=(), oldest=()
    )
    told = " ".join(Outline(page(quiet)).text)
    assert "No content is stored twice." in told
    assert "Nothing: every version is within its lifetime and policy." in told
    assert "No name ends with a deletion marker." in told


def test_a_page_tells_what_matters() -> None:
    told = "".join(Outline(page(summary("web"))).text).replace("\u00a0", " ")
    assert "3.00 MiB" in told
    assert "2.00 MiB of what is there today, 67 %, were written in the last 30 days" in told
    assert "14 May 2026, 20:19 UTC" in told
    assert "Beyond the version policy" in told
    assert "Without a date, and counted as there from the start: 1 version." in told
    assert "web, version 1" in told


# Markup ---------------------------------------------------------------------------------------


def test_text_is_escaped_and_markup_is_not() -> None:
    filled = html('<b title="{}">{}{}</b>', '"', "<", Html("<i></i>"))
    assert filled == '<b title="&quot;">&lt;<i></i></b>'
    assert isinstance(filled, Html)


def test_parts_of_a_list_are_escaped_one_by_one_and_joined() -> None:
    assert html("<p>{}</p>", ["<", Html("<i></i>"), "{0}"]) == "<p>&lt;<i></i>{0}</p>"
    assert html('<td data-value="{}">{:.1f}</td>', 0, 1 / 3) == '<td data-value="0">0.3</td>'


@given(st.text())
def test_what_is_shown_has_nothing_invisible_in_it(text: str) -> None:
    assert all(one.isprintable() or one in "\u200c\u200d\u00a0" for one in visible(text))


def test_a_character_that_turns_text_around_is_spelled_out() -> None:
    assert visible("invoice\u202egnp.exe") == "invoice\\u202egnp.exe"
    assert visible("naïve ☃ שלום") == "naïve ☃ שלום"


# Words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (10_234, "9.99 KiB"),
        (10_240, "10.0 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (1536 * 1024**2, "1.50 GiB"),
        (1 << 62, "4.00 EiB"),
        (1 << 72, "4,096 EiB"),
    ],
)
def test_sizes_are_written_with_three_digits(size: int, text: str) -> None:
    assert bytes_text(size).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0 %"), (1, 1000, "< 1 %"), (999, 1000, "99 %"), (5, 5, "100 %"), (1, 3, "33 %")],
)
def test_a_share_is_all_only_if_it_is_all(part: int, whole: int, text: str) -> None:
    assert share_text(part, whole).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(hours=3), "today"),
        (timedelta(days=1), "1 day ago"),
        (timedelta(days=75), "2 months ago"),
        (timedelta(days=800), "2 years ago"),
        (timedelta(days=-2), "in the future"),
    ],
)
def test_an_age_is_told_roughly(ago: timedelta, text: str) -> None:
    assert age_text(NOW - ago, NOW).replace("\u00a0", " ") == text


# Axes -----------------------------------------------------------------------------------------


@given(highest=st.integers(0, 1 << 72), at_most=st.integers(2, 8))
def test_an_axis_of_bytes_is_short_even_and_high_enough(highest: int, at_most: int) -> None:
    ticks = byte_ticks(highest, at_most)
    assert ticks[0] == (0, "0")
    assert ticks[-1][0] >= highest
    assert len(ticks) == 2 or ticks[-2][0] < highest
    assert len(ticks) <= at_most + 2
    assert len({two[0] - one[0] for one, two in pairwise(ticks)}) == 1
    assert len({label for _, label in ticks}) == len(ticks)


@given(first=st.dates(), span=st.integers(0, 400_000), at_most=st.sampled_from([3, 4, 12]))
def test_an_axis_of_days_is_short_and_in_order(first: date, span: int, at_most: int) -> None:
    last = min(first.toordinal() + span, date.max.toordinal())
    ticks = day_ticks(first, date.fromordinal(last), at_most)
    days = [day for day, _ in ticks]
    assert days == sorted(set(days))
    assert len(days) <= at_most + 1
    assert all(first.toordinal() <= day.toordinal() <= last for day in days)


def test_months_are_named_and_januaries_have_their_year() -> None:
    labels = [label for _, label in day_ticks(date(2025, 10, 3), date(2026, 5, 14), 10)]
    assert labels == ["Nov", "Dec", "Jan 2026", "Feb", "Mar", "Apr", "May"]


# Growth ---------------------------------------------------------------------------------------

additions = st.lists(
    st.builds(
        Addition,
        st.sampled_from([Source(STORE, "a"), Source(STORE, "b"), None]),
        st.none() | st.dates(date(1970, 1, 1), date(2030, 1, 1)),
        st.integers(1, 5),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=12,
)


@given(additions)
def test_growth_ends_with_everything_and_never_falls(added: Sequence[Addition]) -> None:
    history = history_of(added, TODAY)
    assert history.days[-1] == TODAY
    assert 1 <= len(history.days) <= 120
    assert history.totals[-1] == sum(row.bytes for row in added)
    for totals in history.layers.values():
        assert list(totals) == sorted(totals)
    for day, total in zip(history.days, history.totals, strict=True):
        due = sum(row.bytes for row in added if min(row.day or date.min, TODAY) <= day)
        assert total == due


@given(additions)
def test_spans_follow_each_other_and_hold_what_was_written_in_them(
    added: Sequence[Addition],
) -> None:
    spans = history_of(added, TODAY).spans
    assert spans[-1].last == TODAY
    assert {(span.last - span.first).days for span in spans} == {
        (spans[0].last - spans[0].first).days
    }
    assert all((two.first - one.last).days == 1 for one, two in pairwise(spans))
    for span in spans:
        due = [row for row in added if row.day and span.first <= min(row.day, TODAY) <= span.last]
        assert span.bytes == sum(row.bytes for row in due)
        assert span.versions == sum(row.versions for row in due)


@pytest.mark.parametrize(("days", "length"), [(3, 1), (120, 1), (121, 7), (900, 30), (9000, 75)])
def test_the_longer_a_history_is_the_longer_are_its_spans(days: int, length: int) -> None:
    added = [Addition(None, TODAY - timedelta(days=days - 1), 1, 5)]
    first = history_of(added, TODAY).spans[0]
    assert (first.last - first.first).days + 1 == length


def test_a_clock_that_was_wrong_does_not_squeeze_the_picture() -> None:
    added = [
        Addition(None, date(1970, 1, 1), 1, 10),
        Addition(None, TODAY - timedelta(days=40), 1, 10**6),
    ]
    assert history_of(added, TODAY).days[0] == TODAY - timedelta(days=40)


# Pictures -------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1 << 50), min_size=1, max_size=41))
def test_boxes_share_the_room_by_their_weights_and_stay_inside(weights: list[int]) -> None:
    weights.sort(reverse=True)
    room = Box(0, 0, 1000, 400)
    boxes = treemap(weights, room)
    assert len(boxes) == len(weights)
    for weight, box in zip(weights, boxes, strict=True):
        due = room.width * room.height * weight / sum(weights)
        assert box.width * box.height == pytest.approx(due, rel=1e-3, abs=1e-2)
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= room.width + 1e-3
        assert box.y + box.height <= room.height + 1e-3


@pytest.mark.parametrize("room", [Box(0, 0, 1040, 420), Box(0, 0, 380, 480)])
def test_tiles_are_nearly_square(room: Box) -> None:
    weights = [int(10**6 / (rank + 1) ** 0.8) for rank in range(40)]
    longer = sorted(max(box[2:]) / min(box[2:]) for box in treemap(weights, room))
    assert longer[len(longer) // 2] < 1.25
    assert longer[-1] < 3


def test_a_tile_names_what_it_stands_for_and_cuts_what_is_long() -> None:
    tiles = [Tile("m" * 300, "m" * 300, 100, "c1"), Tile("<b>", "<b>", 1, "c2")]
    drawn = treemap_chart(tiles, Size("wide", 400, 200))
    Outline(drawn)
    assert f"<title>{'m' * 300}</title>" in drawn
    assert re.search(r">m{10,60}…</text>", drawn)
    assert "&lt;b&gt;" in drawn


def test_layers_of_growth_have_their_colours() -> None:
    history = history_of(
        [Addition(Source(STORE, "a"), TODAY, 1, 5), Addition(None, TODAY, 1, 9)], TODAY
    )
    drawn = growth_chart(history, ["c1", "c0"], Size("wide", 600, 200))
    assert drawn.index("area c1") < drawn.index("area c0")
    assert "to 14\u00a0B on 14\u00a0May\u00a02026" in drawn
