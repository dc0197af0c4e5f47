"""One line of a reproduced table: the paper's figure, ours over all seeds, what differs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, float]
"""What one seed gave: name of the line to value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    what: str
    unit: str = "ratio"
    paper: str = "–"
    """As printed there; a dash where it has no such figure."""
    differs: str = ""
    """From the paper's setting, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """`figures(seed)` has a value for every line, by its key."""

    name: str
    title: str
    lines: Mapping[str, Line]
    figures: Callable[[int], Figures]
    drawn: bool = True
    """Whether seeds change anything."""


def rows(study: Study, found: Sequence[Figures]) -> list[dict[str, Any]]:
    """One row per line with median, least and greatest of the seeds that have it."""
    made = []
    for key, line in study.lines.items():
        values = [figures[key] for figures in found if key in figures]
        if not values:
            raise ValueError(f"{study.name}: no seed gave {key!r}")
        made.append(
            {
                "study": study.name,
                "title": study.title,
                "what": line.what,
                "unit": line.unit,
                "paper": line.paper,
                "median": statistics.median(values),
                "spread": [min(values), max(values)],
                "n": len(values),
                "differs": line.differs,
            }
        )
    return made
