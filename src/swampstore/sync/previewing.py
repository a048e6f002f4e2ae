"""What a sync would do, from the same looking and deciding that a sync does."""

from __future__ import annotations

from swampstore.index.report import Preview
from swampstore.sync.pull_plan import PullPlanner
from swampstore.sync.push import Push
from swampstore.sync.push_plan import Plan


def preview(push: Push, pull: PullPlanner) -> Preview:
    """Look at both sides and change neither."""
    plan = push.plan()
    work = pull.plan()
    conflicts = {one.rel for one in work.conflicts} | _conflicts(plan)
    return Preview(
        push=tuple(sorted(plan.uploads.keys() - conflicts)),
        delete_remote=tuple(sorted(plan.removals)),
        pull=tuple(sorted(work.downloads)),
        delete_local=tuple(sorted(work.removals)),
        conflicts=tuple(sorted(conflicts)),
        push_bytes=sum(plan.sizes.values()),
        pull_bytes=sum(one.entry.size for one in work.downloads.values()),
    )


def _conflicts(plan: Plan) -> set[str]:
    clashing = {
        f"{name}/{version}" for name, versions in plan.clashes.items() for version in versions
    }
    return clashing | plan.copies.keys() | plan.conflicts.keys()
