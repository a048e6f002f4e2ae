"""Parts of uploads that nobody finished: they cost space, and no listing shows them."""

from __future__ import annotations

from datetime import datetime, timedelta

from swampstore.clock import to_iso
from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.stores.s3 import UnfinishedUploads

# Nobody takes that long for one object.
ABANDONED = timedelta(days=1)


def unfinished_uploads(uploads: UnfinishedUploads, now: datetime, *, repair: bool) -> Finding:
    """Name the uploads that nobody will finish any more; a repair aborts them."""
    problems = Problems(checks.UNFINISHED_UPLOADS)
    for one in uploads.list():
        if one.begun < now - ABANDONED:
            if repair:
                uploads.abort(one)
            problems.add(f"{one.key}, begun {to_iso(one.begun)}", repaired=repair)
    return problems.finding(repair=repair)
