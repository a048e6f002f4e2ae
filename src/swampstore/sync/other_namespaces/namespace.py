"""Lookups in the catalog of one other namespace, in the words of the repository."""

from __future__ import annotations

from swampstore.artifact import Artifact
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import Row
from swampstore.errors import ModelNotFoundError, NotFoundError, ValidationError
from swampstore.layout import DataRef, ModelRef, check_segment
from swampstore.sync.other_namespaces.content import ForeignContent

_LISTED = 12
_PULL = "Run `swampstore datastore catalog pull` to see what is new."


class ForeignNamespace:
    """What is known of one other namespace. Nothing here asks the remote; reading content does."""

    def __init__(self, catalog: Catalog, content: ForeignContent) -> None:
        self.name = catalog.namespace
        self._content = content
        self._catalog = catalog

    def has(self, model: str | ModelRef, name: str | None = None) -> bool:
        """Whether there is such a model, or if a name is given, such data of one."""
        models = self._models(model)
        if name is None:
            return bool(models)
        return any(self._catalog.versions(DataRef(one, name), 1) for one in models)

    def model(self, model: str | ModelRef) -> ModelRef:
        """Return the address that `TYPE/ID`, or the name of one known model, stands for."""
        found = self._models(model)
        if len(found) == 1:
            return found[0]
        if found:
            addresses = ", ".join(f"{self.name}:{one}" for one in found[:_LISTED])
            raise ValidationError(
                f"{self.name}:{model} is the name of {len(found)} models: {addresses}",
                hint="Give the address of the one you mean.",
            )
        if isinstance(model, str) and "/" in model:
            return ModelRef.parse(model)
        raise self._no_model(model)

    def _models(self, model: str | ModelRef) -> list[ModelRef]:
        if isinstance(model, ModelRef):
            return [model]
        if "/" in model and self._catalog.has_model(ref := ModelRef.parse(model)):
            return [ref]
        return self._catalog.models_named(model)

    def latest(self, model: str | ModelRef, name: str) -> Artifact | None:
        """Return the latest version of a data name."""
        return self._artifact(self._catalog.latest(self._ref(model, name)))

    def version(self, model: str | ModelRef, name: str, version: int) -> Artifact | None:
        """Return one version of a data name."""
        return self._artifact(self._catalog.version(self._ref(model, name), version))

    def list_versions(self, model: str | ModelRef, name: str) -> list[int]:
        """Return the versions of a data name, ascending."""
        return self._catalog.version_numbers(self._ref(model, name))

    def versions(
        self, model: str | ModelRef, name: str, limit: int | None = None
    ) -> list[Artifact]:
        """Return the versions of a data name, newest first."""
        rows = self._catalog.versions(self._ref(model, name), limit)
        return [Artifact(row, self._content) for row in rows]

    def list_data(self, model: str | ModelRef) -> list[Artifact]:
        """Return the latest of every data name of a model, sorted by name."""
        ref = self.model(model)
        rows = {row.data_name: row for row in reversed(self._catalog.latest_of(ref))}
        if not rows and not self._catalog.has_model(ref):
            raise self._no_model(model)
        return [Artifact(rows[name], self._content) for name in sorted(rows)]

    def not_found(
        self, model: str | ModelRef, name: str, version: int | None = None
    ) -> NotFoundError:
        """Return the error that says what there is instead."""
        ref = self._ref(model, name)
        if not self._catalog.has_model(ref.model):
            return self._no_model(model)
        numbers = self._catalog.version_numbers(ref)
        if numbers and version is not None:
            shown = ", ".join(map(str, numbers[-_LISTED:]))
            return NotFoundError(
                f"{self.name}:{ref} has no version {version}", hint=f"Versions: {shown}. {_PULL}"
            )
        if numbers:
            return NotFoundError(
                f"{self.name}:{ref} was deleted",
                hint=f"Its versions are kept: `swampstore data versions {self.name}:{ref}`.",
            )
        names = ", ".join(self._catalog.names(ref.model)[:_LISTED])
        return NotFoundError(
            f"{self.name}:{ref.model} has no data named {name!r}", hint=f"Names: {names}. {_PULL}"
        )

    def _no_model(self, model: str | ModelRef) -> ModelNotFoundError:
        named = self._catalog.known_model_names(_LISTED)
        known = named or [str(one) for one in self._catalog.models(_LISTED)]
        has = f"It has {', '.join(known)}. " if known else ""
        return ModelNotFoundError(
            f"the namespace {self.name} has no model {str(model)!r}", hint=f"{has}{_PULL}"
        )

    def _ref(self, model: str | ModelRef, name: str) -> DataRef:
        return DataRef(self.model(model), check_segment("data name", name))

    def _artifact(self, row: Row | None) -> Artifact | None:
        return None if row is None else Artifact(row, self._content)
