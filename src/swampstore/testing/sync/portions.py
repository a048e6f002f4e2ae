"""Syncs of single models, and of metadata without content."""

# ruff: noqa: D102 - the names of the tests are the sentences

from __future__ import annotations

import pytest

from swampstore.layout import DataRef, ModelRef
from swampstore.testing.sync.ground import PLAIN, STATE, Ground, needs, settle, share
from swampstore.testing.sync.host import Host

EC2 = STATE.model
LOGS = DataRef(EC2, "logs")
OF_EC2 = ("outputs/aws/ec2/start/run-1.yaml", "definitions-evaluated/aws/ec2/web.yaml")
SIBLING = DataRef(ModelRef("aws/ec2", "i-2"), "state")
PROBE = DataRef(ModelRef("@acme/probe", "p"), "state")
OF_PROBE = ("outputs/@acme/probe/run/run-2.yaml", "definitions-evaluated/@acme/probe/p.yaml")


class Portions(Ground):
    """Less than everything is synced on request, and nothing is lost by it."""

    def test_a_scoped_pull_brings_everything_of_a_model_and_nothing_else(
        self, here: Host, there: Host
    ) -> None:
        needs(here, "scoped_sync")
        mine = _fill(here)
        here.push()
        there.service.pull([EC2])
        assert there.files() == mine
        there.pull()
        assert there.files() == here.files()

    def test_a_scoped_pull_brings_changes_and_deletions(self, here: Host, there: Host) -> None:
        needs(here, "scoped_sync")
        _fill(here)
        here.push()
        there.service.pull([EC2])
        here.save(STATE, b"newer")
        here.remove(LOGS.rel)
        here.remove(OF_EC2[0])
        here.save(SIBLING, b"newer")
        here.push()
        there.service.pull([EC2])
        assert there.versions(STATE) == here.versions(STATE)
        assert there.latest(STATE) == here.latest(STATE)
        assert there.versions(LOGS) == there.versions(SIBLING) == {}
        assert OF_EC2[0] not in there.files()
        there.pull()
        assert there.files() == here.files()

    def test_a_scoped_pull_of_an_unknown_model_hides_nothing(self, here: Host, there: Host) -> None:
        needs(here, "scoped_sync")
        here.save(PROBE, b"1")
        here.push()
        assert there.service.pull([ModelRef("no/such", "model")]).changes == 0
        here.save(PROBE, b"2")
        here.push()
        there.service.pull([ModelRef("no/such", "model")])
        there.pull()
        assert there.files() == here.files()

    def test_a_scoped_push_leaves_the_other_marks(self, here: Host, there: Host) -> None:
        needs(here, "scoped_sync")
        share(here, there, {PLAIN: b"1"})
        mine = _fill(here)
        here.remove(PLAIN)
        here.service.push([EC2])
        there.pull()
        assert there.files() == {PLAIN: b"1", **mine}
        here.machine.restart()
        here.push()
        there.pull()
        assert there.files() == here.files()

    # Content on demand -----------------------------------------------------------------------

    def test_a_pull_of_metadata_leaves_content_away(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        _fill(here)
        here.push()
        there.service.pull(metadata_only=True)
        without = {rel: data for rel, data in here.files().items() if not rel.endswith("/raw")}
        assert there.files() == without
        assert (there.push(), here.pull()) == (0, 0)

    def test_content_is_brought_on_demand(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        here.save(STATE, b"1")
        here.save(STATE, b"2")
        here.push()
        there.service.pull(metadata_only=True)
        raw = STATE.file_rel(2, "raw")
        assert there.service.hydrate(there.mark_of(raw))
        assert there.versions(STATE) == {1: None, 2: b"2"}
        assert there.service.hydrate(there.mark_of(raw))
        assert not there.service.hydrate(there.mark_of(STATE.file_rel(9, "raw")))
        there.machine.restart()
        assert there.service.hydrate(there.mark_of(STATE.file_rel(1, "raw")))
        assert there.versions(STATE) == here.versions(STATE)
        assert (there.push(), here.pull()) == (0, 0)

    @pytest.mark.parametrize("is_scoped", [True, False])
    def test_a_whole_pull_brings_the_content_that_was_left_away(
        self, here: Host, there: Host, is_scoped: bool
    ) -> None:
        needs(here, "lazy_hydration", "scoped_sync")
        here.save(STATE, b"1")
        here.save(PROBE, b"2")
        here.push()
        there.service.pull(metadata_only=True)
        there.machine.restart()
        there.service.pull([EC2] if is_scoped else None)
        assert there.versions(STATE) == {1: b"1"}
        assert there.versions(PROBE) == {1: None if is_scoped else b"2"}

    def test_content_that_was_left_away_is_not_deleted(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        here.save(STATE, b"1")
        here.push()
        there.service.pull(metadata_only=True)
        assert there.save(STATE, b"2") == 2
        there.service.mark_dirty()
        there.push()
        here.pull()
        assert here.versions(STATE) == {1: b"1", 2: b"2"}

    def test_a_version_without_its_content_can_be_deleted(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        here.save(STATE, b"1")
        here.save(STATE, b"2")
        here.push()
        there.service.pull(metadata_only=True)
        there.remove(STATE.version_rel(1))
        there.push()
        settle(here, there)
        assert here.versions(STATE) == there.versions(STATE) == {2: b"2"}


def _fill(host: Host) -> dict[str, bytes]:
    """Write files of several models, and others; return those of one model."""
    others = host.files().keys()
    for content in (b"1", b"2"):
        host.save(STATE, content)
    host.save(LOGS, b"log")
    for rel in OF_EC2:
        host.write(rel, b"of ec2")
    mine = {rel: data for rel, data in host.files().items() if rel not in others}
    host.save(SIBLING, b"sibling")
    host.save(PROBE, b"probe")
    for rel in (*OF_PROBE, "files/other.txt", "workflow-runs/w-1/workflow-run-r-1.yaml"):
        host.write(rel, b"of others")
    return mine
