"""Spans and metrics of OpenTelemetry, for programs that have it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swampstore import init_repo
from swampstore.marker import update_marker

WORK = """
import sys, swampstore
with swampstore.open_repo(sys.argv[1]) as repo:
    with repo.session(["aws/ec2/i-1"]):
        repo.artifacts.save("aws/ec2/i-1", "secret-name", b"12345")
    repo.query("true")
    try:
        with repo.session(["aws/ec2/i-1"]):
            repo.latest("aws/ec2/i-1", "nothing")
    except swampstore.SwampstoreError:
        pass
"""
TOLD = """
import json
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
"""
PRINTED = """
names = {one.context.span_id: one.name for one in spans.get_finished_spans()}
found = [
    [one.name, names.get(one.parent.span_id) if one.parent else None, dict(one.attributes)]
    for one in spans.get_finished_spans()
]
points = [
    [metric.name, dict(point.attributes), getattr(point, "value", None)]
    for resource in reader.get_metrics_data().resource_metrics
    for scope in resource.scope_metrics for metric in scope.metrics
    for point in metric.data.data_points
]
print(json.dumps([found, points]))
"""


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    init_repo(tmp_path / "repo").close()
    (tmp_path / "bucket").mkdir()
    update_marker(str(tmp_path / "repo"), {"datastore": {"url": f"file://{tmp_path}/bucket"}})
    return tmp_path / "repo"


def _run(program: str, repo: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, str(repo)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_a_program_does_is_told_as_spans_and_metrics(remote: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    spans, points = json.loads(_run(TOLD + WORK + PRINTED, remote))
    parents = {name: parent for name, parent, _ in spans}
    assert parents == {
        "swampstore.lock": "swampstore.session",
        "swampstore.pull": "swampstore.session",
        "swampstore.push": "swampstore.session",
        "swampstore.save": "swampstore.session",
        "swampstore.session": None,
        "swampstore.query": None,
    }
    sessions: list[dict[str, Any]] = [told for name, _, told in spans if name.endswith("session")]
    assert sessions == [
        {"swampstore.models": 1},
        {"swampstore.models": 1, "error.type": "not_found"},
    ]
    carried = {
        labels["operation"]: count for name, labels, count in points if name.endswith("files")
    }
    assert carried["push"] == 3
    timed = {labels["operation"] for name, labels, _ in points if name.endswith("duration")}
    assert timed == {name.removeprefix("swampstore.") for name in parents}
    assert "secret-name" not in json.dumps([spans, points])


def test_nothing_is_imported_for_who_does_not_ask(remote: Path) -> None:
    loaded = _run(WORK + "\nprint(*sys.modules)", remote)
    assert "swampstore.telemetry" in loaded
    assert "opentelemetry" not in loaded


def test_who_asks_without_having_it_is_told_once(
    remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMPSTORE_TELEMETRY", "on")
    without = "import sys; sys.modules['opentelemetry'] = None\n"
    assert _run(without + WORK, remote).count("pip install 'swampstore[otel]'") == 1
    pytest.importorskip("opentelemetry")
    assert "opentelemetry.trace" in _run(WORK + "\nprint(*sys.modules)", remote)
