"""What things are called on the page, and which colour they have throughout it."""

from __future__ import annotations

from swampstore.pipeline.report.summary import (
    Copy,
    Duplicate,
    Freed,
    ModelUsage,
    NameUsage,
    OwnerUsage,
    Source,
    StoredVersion,
    Summary,
)

COLOURED = 6
OTHERS = "c0"
_RULES = {
    "duration-expired": "Lifetime is over",
    "workflow-deleted": "Workflow run is gone",
    "job-deleted": "Job run is gone",
    "old-versions": "Beyond the version policy",
}


class Labels:
    """Names and colours for one summary.

    Stores are named only if there are several, namespaces only if there are any.
    """

    def __init__(self, summary: Summary) -> None:
        stores = {source.store for source in summary.sources}
        self._names_stores = len(stores) > 1
        self._names_namespaces = len(summary.sources) > 1 or any(
            source.namespace for source in summary.sources
        )
        self._sources = [Source(row.store, row.namespace) for row in summary.namespaces[:COLOURED]]
        self._models = {row.model_id: row.model_name for row in summary.models if row.model_name}
        self._types = [row.type_normalized for row in summary.types[:COLOURED]]

    def source(self, store: str, namespace: str) -> str:
        """Name a namespace."""
        name = namespace or "(no namespace)"
        return f"{name} in {store}" if self._names_stores else name

    def place(self, row: Copy | ModelUsage | NameUsage | StoredVersion) -> str:
        """Say in which namespace something is, and in which model."""
        model = f"{row.type_normalized}/{row.model_id}"
        named = f"{row.model_name} · {model}" if row.model_name else model
        if not self._names_namespaces:
            return named
        return f"{self.source(row.store, row.namespace)} · {named}"

    def garbage(self, row: Freed) -> tuple[str, str]:
        """Name a type, and say why something of it would go, and in which namespace that is."""
        why = rule_text(row.rule)
        if self._names_namespaces:
            why += f" · {self.source(row.store, row.namespace)}"
        return row.type_normalized, why

    def owner(self, row: OwnerUsage) -> tuple[str, str]:
        """Name an owner, which for methods is a model, and say of what kind it is."""
        if name := self._models.get(row.owner_ref):
            return name, f"{row.owner_type} · {row.owner_ref}"
        return row.owner_ref or "(none)", row.owner_type

    def copies(self, row: Duplicate) -> tuple[str, str, str]:
        """Name the first copy, say where it is, and where some others are."""
        first, *others = row.examples
        also = "; ".join(f"{_version(copy)} of {self.place(copy)}" for copy in others)
        more = " …" if row.copies > len(row.examples) else ""
        return _version(first), self.place(first), f"also {also}{more}"

    def source_colour(self, source: Source | None) -> str:
        """Return the class that colours a namespace."""
        return _colour(self._sources.index(source) if source in self._sources else None)

    def type_colour(self, model_type: str) -> str:
        """Return the class that colours a type."""
        return _colour(self._types.index(model_type) if model_type in self._types else None)


def rule_text(rule: str) -> str:
    """Say why garbage collection removes something."""
    return _RULES.get(rule, rule)


def _version(copy: Copy) -> str:
    return f"{copy.data_name}, version {copy.version}"


def _colour(rank: int | None) -> str:
    return OTHERS if rank is None else f"c{rank + 1}"
