"""The answer to a query: artifacts or projected values, and their way into data frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from swampstore.artifact import Artifact, html_table
from swampstore.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")
_SHOWN = 20


class Results(Sequence[T], Generic[T]):
    """A list of what a query found.

    `limited` says that a limit was given and reached, `unhydrated` how many rows were judged
    without their content because it is not on this machine.
    """

    def __init__(
        self,
        found: Sequence[T],
        *,
        predicate: str | None = None,
        limit: int | None = None,
        unhydrated: int = 0,
    ) -> None:
        self._found = found
        self.predicate = predicate
        self.limited = limit is not None and len(found) >= limit
        self.unhydrated = unhydrated

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[T]:
        return iter(self._found)

    def records(self, *, with_content: bool = False) -> list[Any]:
        """Return plain dictionaries of artifacts; projected values as they are."""
        return [
            item.record(with_content=with_content) if isinstance(item, Artifact) else item
            for item in self._found
        ]

    def to_arrow(self) -> pa.Table:
        """Return a pyarrow table, one row per result; needs the extra `arrow`."""
        return _extra("pyarrow", "arrow").Table.from_pylist(self._rows())

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas frame, one row per result; needs the extra `pandas`."""
        frame: pd.DataFrame = _extra("pandas", "pandas").DataFrame(self._rows())
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return a polars frame, one row per result; needs the extra `polars`."""
        frame: pl.DataFrame = _extra("polars", "polars").DataFrame(
            self._rows(), infer_schema_length=None
        )
        return frame

    def _rows(self) -> list[dict[str, Any]]:
        """Return rows of columns: tags become a JSON text, other values get the column `value`."""
        import json

        rows = []
        for item in self.records():
            row = dict(item) if isinstance(item, dict) else {"value": item}
            if isinstance(row.get("tags"), dict):
                row["tags"] = json.dumps(row["tags"], ensure_ascii=False, sort_keys=True)
            rows.append(row)
        return rows

    def __repr__(self) -> str:
        more = f" of {self.predicate!r}" if self.predicate else ""
        limited = ", limited" if self.limited else ""
        return f"<Results{more}: {len(self)}{limited}>"

    def _repr_html_(self) -> str:
        rows = self._rows()[:_SHOWN]
        shown = ("modelType", "modelId", "name", "version", "contentType", "size", "createdAt")
        header = [key for key in (rows[0] if rows else {}) if len(rows[0]) < 20 or key in shown]
        note = f"{len(self)} result(s)" + (f", {_SHOWN} shown" if len(self) > _SHOWN else "")
        return html_table(header, [[row.get(key, "") for key in header] for row in rows], note)


def _extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"{module} is not installed", hint=f"Run: pip install 'swampstore[{extra}]'"
        ) from None
