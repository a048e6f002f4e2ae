"""Which models' data is left over from a definition that no longer exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from swampstore.artifacts.retention.doubts import Doubts

# The coordination records of a fleet have no definition by design; none of them is an orphan.
CONTROL_PLANE_TYPES = frozenset(
    {
        "swamp/enrollment-token",
        "swamp/worker",
        "swamp/step-lease",
        "swamp/pending-dispatch",
        "swamp/fleet-probe",
        "swamp/server-token",
        "swamp/grant",
        "swamp/group",
    }
)


class DataTotals(NamedTuple):
    """One data name of a model: how many versions it has and the bytes of their content."""

    data_name: str
    version_count: int
    size: int


class ModelFacts(NamedTuple):
    """One model that owns data, by normalised type; `model_name` is None where nobody knows it.

    `names` leaves out the names whose latest version is a deletion marker: they are never orphans.
    """

    model_type: str
    model_id: str
    model_name: str | None
    names: Sequence[DataTotals]

    @property
    def version_count(self) -> int:
        """How many versions the listed names have."""
        return sum(name.version_count for name in self.names)

    @property
    def size(self) -> int:
        """The bytes of content in the listed names."""
        return sum(name.size for name in self.names)


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The orphaned models, ordered by type and id. Preview and real run both report from it.

    Of each model exactly the listed names go. Someone who carries out only a part of it reports
    the part: `PrunePlan(models=done)`.
    """

    models: tuple[ModelFacts, ...]
    warnings: tuple[str, ...] = ()

    @property
    def name_count(self) -> int:
        """How many data names go."""
        return sum(len(model.names) for model in self.models)

    @property
    def version_count(self) -> int:
        """How many versions go."""
        return sum(model.version_count for model in self.models)

    @property
    def size(self) -> int:
        """The bytes of content that go."""
        return sum(model.size for model in self.models)

    def to_json(
        self, *, dry_run: bool, wal_pages_total: int = 0, wal_pages_checkpointed: int = 0
    ) -> dict[str, object]:
        """Return the result document of `data prune`; the page counts come from the checkpoint."""
        return {
            "modelsReclaimed": len(self.models),
            "dataEntriesReclaimed": self.name_count,
            "versionsDeleted": self.version_count,
            "bytesReclaimed": self.size,
            "dryRun": dry_run,
            "reclaimedModels": [_model_json(model) for model in self.models],
            "walPagesTotal": wal_pages_total,
            "walPagesCheckpointed": wal_pages_checkpointed,
        }


def plan_prune(models: Iterable[ModelFacts], is_live: Callable[[str, str], bool]) -> PrunePlan:
    """Decide which models' data is orphaned.

    `is_live(model_type, model_id)` says whether a definition exists, automatic ones included, or
    for the type `workflow` whether the workflow does; if it raises, the model stays. It is not
    asked about `CONTROL_PLANE_TYPES`, which are always live.
    """
    doubts = Doubts("model")
    orphans = [model for model in models if model.names and _is_orphan(model, is_live, doubts)]
    orphans.sort(key=lambda model: model[:2])
    return PrunePlan(tuple(orphans), doubts.warnings())


def _is_orphan(model: ModelFacts, is_live: Callable[[str, str], bool], doubts: Doubts) -> bool:
    if model.model_type.removeprefix("@") in CONTROL_PLANE_TYPES:
        return False
    try:
        return not is_live(model.model_type, model.model_id)
    except Exception as problem:  # noqa: BLE001 - whatever it was: unknown is not gone
        doubts.add(
            "its definition could not be looked up",
            f"{model.model_type} {model.model_id}: {problem}",
        )
        return False


def _model_json(model: ModelFacts) -> dict[str, object]:
    named = {} if model.model_name is None else {"modelName": model.model_name}
    return {
        "type": model.model_type,
        "modelId": model.model_id,
        **named,
        "dataNames": sorted(name.data_name for name in model.names),
        "versionCount": model.version_count,
        "bytesReclaimed": model.size,
    }
