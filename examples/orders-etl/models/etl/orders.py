"""The code of the type `etl/orders`: read orders from a file, and add them up by day and item."""

from __future__ import annotations

import csv
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any

import swampstore


@swampstore.model("etl/orders")
class Orders:
    """What was ordered in one region."""

    rows = swampstore.Resource(lifetime="7d")
    totals = swampstore.Resource()

    def extract(self, context: swampstore.MethodContext, path: str) -> None:
        """Keep what the file says, as it says it."""
        with open(path, newline="", encoding="utf-8") as file:
            rows = [*csv.DictReader(file)]
        context.write_resource("rows", "rows", {"source": path, "rows": rows})

    def transform(
        self, context: swampstore.MethodContext, rows: list[dict[str, Any]], region: str
    ) -> None:
        """Add up what can be added up; what cannot is counted, and told."""
        sums: Counter[tuple[str, str]] = Counter()
        rejected = 0
        for row in rows:
            try:
                cents = int(Decimal(row["amount"]) * 100)
            except InvalidOperation:
                rejected += 1
                context.logger.warning("%s: %s is no amount", region, row["amount"])
                continue
            sums[row["day"], row["item"]] += cents
        totals = [
            {"day": day, "item": item, "cents": cents}
            for (day, item), cents in sorted(sums.items())
        ]
        context.write_resource(
            "totals", "totals", {"region": region, "totals": totals, "rejected": rejected}
        )
