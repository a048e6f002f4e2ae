"""What simulated fleets leave in their bucket is verified alike by Spark and without it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from swampstore.pipeline.places import places_of
from swampstore.pipeline.verify import Finding, verify
from swampstore.pipeline.verify.local_engine import verify_here
from tests.fleet.test_fleet import REGRESSIONS, fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Fleets that were killed, stopped or cut off, so that something was left; and one of a seed, with
# damage that nobody has repaired.
_LEFT_SOMETHING = (
    "a-deletion-beside-a-clash-on-a-full-disk",
    "a-first-push-is-killed-beside-another-of-the-same-number",
    "a-killed-deletion-of-a-marker-that-others-wrote-again-in-the-same-second",
    "a-namespace-is-left-with-a-version-that-others-numbered-the-same",
    "a-pull-is-killed-and-what-had-landed-is-deleted-elsewhere",
    "a-push-is-killed-after-the-monolith-and-a-setup-follows",
    "an-eviction-lets-content-be-sent-that-others-deleted",
    "content-is-lost-and-its-only-copy-deleted-and-the-marks-are-lost",
    "evicted-content-whose-version-got-another-number",
)
_SEED = "both-a"


def _buckets(directory: Path) -> list[Path]:
    """Return what each fleet has left, as directories."""
    script = directory / "script.json"
    script.write_text(fleet("--show", _SEED).stdout)
    scripts = [script, *(path for path in REGRESSIONS if path.stem in _LEFT_SOMETHING)]
    assert len(scripts) == 1 + len(_LEFT_SOMETHING)
    for one in scripts:
        ended = fleet("--replay", str(one), "--keep", str(directory / one.stem))
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr
    return [directory / one.stem for one in scripts]


def test_both_engines_find_the_same_in_what_fleets_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    places = [place for one in _buckets(tmp_path) for place in places_of(f"file://{one}")]
    here = verify_here(places, grace=timedelta(0))
    on_spark = verify(spark, places, grace=timedelta(0))
    found = sorted(Finding(*row) for row in on_spark.findings.collect())
    assert found == sorted(here.findings)
    assert (on_spark.objects, on_spark.bytes) == (here.objects, here.bytes)
    assert len(here.kinds) >= 5, here.kinds
