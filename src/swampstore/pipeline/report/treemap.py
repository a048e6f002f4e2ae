"""Rectangles whose areas are in proportion to some weights, each as square as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def side(self) -> float:
        """The shorter side."""
        return min(self.width, self.height)


def treemap(weights: Sequence[int], room: Box) -> list[Box]:
    """Divide a room by weights above zero, in descending order; return a box for each.

    Bruls, Huizing and van Wijk: a row along the shorter side takes boxes as long as that makes
    its worst box less elongated, then the rest of the room is divided.
    """
    boxes: list[Box] = []
    while weights:
        # Anew for each row, so that rounding does not add up.
        scale = room.width * room.height / sum(weights)
        row = _row([weight * scale for weight in weights], room.side)
        thickness = sum(row) / room.side
        boxes += _laid_out(row, room, thickness)
        room = _rest(room, thickness)
        weights = weights[len(row) :]
    return boxes


def _row(areas: Sequence[float], side: float) -> Sequence[float]:
    count = 1
    while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
        count += 1
    return areas[:count]


def _worst(row: Sequence[float], side: float) -> float:
    """Return how elongated the worst box of a row is; 1 is a square."""
    thickness = sum(row) / side
    return max(row[0] / thickness**2, thickness**2 / row[-1])


def _laid_out(row: Sequence[float], room: Box, thickness: float) -> Iterator[Box]:
    x, y = room.x, room.y
    for area in row:
        length = area / thickness
        if room.width >= room.height:
            yield Box(x, y, thickness, length)
            y += length
        else:
            yield Box(x, y, length, thickness)
            x += length


def _rest(room: Box, thickness: float) -> Box:
    # Rounding must not leave a room without any width: the last boxes would divide by it.
    left = max(max(room.width, room.height) - thickness, 1e-9)
    if room.width >= room.height:
        return Box(room.x + thickness, room.y, left, room.height)
    return Box(room.x, room.y + thickness, room.width, left)
