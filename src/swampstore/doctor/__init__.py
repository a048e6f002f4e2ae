"""Examining a repository: what is wrong with it, what to do about it, and safe repairs.

An examination that is not asked to repair changes nothing: it neither heals nor fills the
catalog, and leaves interrupted changes as they are.

Start with `examine`. There is a file for each subject, with its repairs: `data`, `catalog`,
`namespaces`, and of what others see too `cache`, `remote`, `index` and `contamination`. `checks`
has the words of all checks, `findings` what is told. It may import `runs`, `repo` and what is
below them.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from swampstore.artifacts.claims import DEFAULT_AGE
from swampstore.artifacts.recovery import sweep
from swampstore.config import Config
from swampstore.doctor import checks
from swampstore.doctor.catalog import Comparison, look_at_catalog, set_catalog_aside
from swampstore.doctor.data import ContentChecks, DataWalk, Walked, examine_name, repoint
from swampstore.doctor.findings import Check, Completeness, Finding, Problems, Report
from swampstore.doctor.namespaces import local_only_files, migration, misplaced_files
from swampstore.errors import DiskError, SwampstoreError
from swampstore.files import try_writing
from swampstore.layout import MARKER, METADATA, RUN_TRACKER, DataRef, why_no_key
from swampstore.marker import read_marker
from swampstore.notices import escaped, notice
from swampstore.repo.open import CATALOG

if TYPE_CHECKING:
    from swampstore.catalog.catalog import Catalog
    from swampstore.doctor.data import ContentProgress
    from swampstore.repo import Repo

# A change that is still announced after so many looks is not being made by a living process.
_LOOKS = 4
_PAUSE = 0.1


def _no_progress(_versions: int, _bytes: int) -> None:
    """Compare in silence."""


def examine(
    repo: Repo,
    *,
    repair: bool = False,
    deep: bool = False,
    progress: ContentProgress = _no_progress,
) -> Report:
    """Check a repository; with `repair`, also mend what can be mended without losing anything.

    That is: finish or undo interrupted changes, point `latest` at the newest version, sweep up
    what was abandoned, rebuild the catalog, release locks of processes that are gone. Costs one
    pass over the data; content is not read. `deep` also reads all content that is here, telling how
    far it is, and compares it with what was saved; and it compares all objects of a remote with its
    index, which takes a listing of them.
    """
    examination = _Examination(repo, repair=repair)
    if deep:
        examination.contents = ContentChecks(repo, repair=repair, progress=progress)
    return examination.report(deep=deep)


def unusable(error: SwampstoreError) -> Report:
    """Return the report on a repository that cannot even be opened."""
    return Report((_configuration(error),))


def _configuration(error: SwampstoreError | None) -> Finding:
    if error is None:
        return Finding("configuration", passed=True, message=f"{MARKER} can be read")
    return Finding("configuration", passed=False, message=error.message, remedy=error.hint)


def _absence(repo: Repo) -> Finding | None:
    """Return the finding that the datastore is not there, None if it is."""
    base = repo.config.base
    if not os.path.isdir(base):
        message = f"the datastore {base} is not there, so its data was not looked at"
        remedy = "Run `swampstore sync`." if repo.config.remote else "Mount or create it."
        return Finding("datastore", passed=False, message=message, remedy=remedy)
    try:
        repo.require_mounted()
    except SwampstoreError as error:
        message = f"its data was not looked at: {error.message}"
        return Finding("datastore", passed=False, message=message, remedy=error.hint)
    return None


def _datastore(config: Config) -> Finding:
    base = config.base
    # The directory of a namespace is made by the first save.
    base = config.datastore_dir if os.path.isdir(config.datastore_dir) else base
    try:
        try_writing(base)
    except OSError as error:
        message = f"{base} cannot be written: {error.strerror}"
        return Finding("datastore", passed=False, message=message, remedy="Check its permissions.")
    return Finding("datastore", passed=True, message=f"{base} can be written")


class _Examination:
    def __init__(self, repo: Repo, *, repair: bool) -> None:
        self._repo = repo
        self._tree = repo.tree
        self._has_remote = repo.config.remote is not None
        self._elsewhere = repo.config.may_be_elsewhere
        self._repair = repair
        self._problems = {check: Problems(check) for check in checks.FILE_CHECKS}
        self.contents: ContentChecks | None = None

    def report(self, *, deep: bool) -> Report:
        absence = _absence(self._repo)
        datastore = absence or _datastore(self._repo.config)
        findings = [self._look_at_configuration(), datastore]
        completeness = None
        # Without the directory everything would look deleted; a repair would make the catalog
        # believe it.
        if absence is None:
            self._repair = self._repair and datastore.passed
            completeness = self._look_at_everything(findings)
        if absence is None or self._has_remote:
            findings += self._look_at_what_is_shared(deep=deep)
        return Report(tuple(findings), completeness, self._repo.config.datastore_type)

    def _look_at_what_is_shared(self, *, deep: bool) -> list[Finding]:
        """Look at what others can see too; without any of that, nothing is even imported."""
        config = self._repo.config
        findings: list[Finding] = []
        if self._has_remote:
            from swampstore.doctor.remote import examine_remote

            findings += examine_remote(self._repo, repair=self._repair, deep=deep)
        elif config.base != config.local_dir and os.path.isdir(config.base):
            from swampstore.doctor.remote import examine_in_place

            findings += examine_in_place(self._repo, repair=self._repair)
        if config.namespace:
            findings.append(migration(config))
        return findings

    def _look_at_everything(self, findings: list[Finding]) -> Completeness:
        catalog, view = self._look_at_catalog()
        comparison = Comparison(self._tree, view)
        try:
            findings += [catalog, self._look_at_unfinished(view), *self._look_at_runs()]
            self._look_at_data(comparison)
        finally:
            if view is not None:
                view.close()
        self._look_at_tiers()
        self._sweep_leftovers()
        findings += [
            problems.finding(repair=self._repair and check in checks.REPAIRABLE)
            for check, problems in self._problems.items()
        ]
        if self.contents:
            findings.append(self.contents.finding())
        findings.append(self._completeness(comparison))
        return comparison.completeness

    def _look_at_configuration(self) -> Finding:
        try:
            read_marker(self._repo.config.repo_dir)
        except SwampstoreError as error:
            return _configuration(error)
        return _configuration(None)

    def _complain(self, check: Check, detail: str) -> None:
        self._problems[check].add(detail)

    # The catalog ---------------------------------------------------------------------------

    def _look_at_catalog(self) -> tuple[Finding, Catalog | None]:
        path = f"{self._repo.config.local_dir}/{CATALOG}"
        try:
            finding, view = look_at_catalog(path, self._repo.config.namespace)
        except DiskError as error:
            # Nothing shows damage, and whatever a repair begins here might not come to its end.
            self._repair = False
            message = f"{error.message}; nothing is repaired as long as that is so"
            return Finding("catalog", passed=False, message=message, remedy=error.hint), None
        if self._repair and not finding.passed:
            self._repo.catalog.close()
            set_catalog_aside(path)
            finding = replace(finding, remedy=None, repaired=True)
        return finding, view

    def _look_at_unfinished(self, view: Catalog | None) -> Finding:
        problems = Problems(checks.UNFINISHED)
        left = _left_by_the_dead(view) if view else []
        still = left
        if left and self._repair:
            self._repo.mutations.recover()
            still = self._repo.catalog.pending()
        for change in left:
            path, action = change
            problems.add(f"{path}: {json.loads(action)['op']}", repaired=change not in still)
        return problems.finding(repair=self._repair)

    def _look_at_runs(self) -> list[Finding]:
        """Look for runs that died, if anything ever ran here."""
        if not os.path.exists(f"{self._repo.config.local_dir}/{RUN_TRACKER}"):
            return []
        from swampstore.runs.tracker import Tracker

        tracker, problems = Tracker(self._repo), Problems(checks.DEAD_RUNS)
        try:
            dead = tracker.dead()
            reaped = {run.id for run in tracker.reap()} if self._repair else set()
        except (SwampstoreError, OSError) as error:
            notice("what ran could not be looked at: %s", error)
            return []
        finally:
            tracker.close()
        for run in dead:
            problems.add(f"{run.id}: {run.model or run.workflow}", repaired=run.id in reaped)
        return [problems.finding(repair=self._repair)]

    def _completeness(self, comparison: Comparison) -> Finding:
        problems = comparison.problems()
        if self._repair and problems.count:
            rebuilt = self._repo.rebuild_catalog()
            problems.repaired = 0 if rebuilt.unreadable else problems.count
        return problems.finding(repair=self._repair)

    # The files -----------------------------------------------------------------------------

    def _look_at_data(self, comparison: Comparison) -> None:
        before = self._repo.clock().timestamp() - DEFAULT_AGE
        prefix = self._repo.config.key_prefix
        for walked in DataWalk(self._tree, before, self._complain).names():
            ref = walked.ref
            if reason := why_no_key(f"{prefix}{ref.file_rel(1, METADATA)}"):
                self._complain(checks.NAMES, f"{escaped(ref)}: {reason}")
            self._look_at_name(walked, comparison)
        for ref in comparison.candidates_for_excess():
            with self._held(ref):
                comparison.add_excess(ref)

    def _look_at_name(self, walked: Walked, comparison: Comparison) -> None:
        ref = walked.ref
        health = examine_name(self._tree, ref, may_be_elsewhere=self._elsewhere, walked=walked)
        known = comparison.known(ref)
        if health.problems or (known and not known.agrees_with(health)):
            # It may have been looked at in the middle of a change. Now nobody makes one.
            with self._held(ref):
                health = examine_name(self._tree, ref, may_be_elsewhere=self._elsewhere)
                known = comparison.known(ref, anew=True)
        comparison.add(ref, health, known)
        if self.contents:
            self.contents.look_at(ref, health.versions)
        for check, detail in health.problems:
            repaired = self._repair and check is checks.MARKERS and self._repoint(ref)
            self._problems[check].add(detail, repaired=repaired)

    @contextlib.contextmanager
    def _held(self, ref: DataRef) -> Iterator[None]:
        """Hold a name if that is possible: on media that cannot be written, nobody changes it."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(SwampstoreError, OSError):
                stack.enter_context(self._repo.mutations.holding(ref))
            yield

    def _repoint(self, ref: DataRef) -> bool:
        try:
            return repoint(self._repo.mutations, ref)
        except SwampstoreError as error:
            notice("the marker of %s stays as it is: %s", ref, error.message)
            return False

    def _look_at_tiers(self) -> None:
        for path in misplaced_files(self._tree):
            self._complain(checks.TIERS, path)
        for path in local_only_files(self._tree):
            self._complain(checks.LOCAL_ONLY, path)

    def _sweep_leftovers(self) -> None:
        problems = self._problems[checks.LEFTOVERS]
        if not self._repair or not problems.count:
            return
        try:
            sweep(self._repo.store)
            problems.repaired = problems.count
        except SwampstoreError as error:
            notice("leftovers of interrupted writes stay for now: %s", error.message)


def _left_by_the_dead(view: Catalog) -> list[tuple[str, str]]:
    """Return the changes that nobody finishes while we look."""
    left = view.pending()
    for _ in range(_LOOKS):
        if not left:
            break
        time.sleep(_PAUSE)
        pending = view.pending()
        left = [change for change in left if change in pending]
    return left


__all__ = ["Completeness", "Finding", "Report", "examine", "unusable"]
