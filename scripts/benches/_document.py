"""One document per bench: {schema, bench, host, rows}; printed, and kept in docs/results/."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rmux.sync.host import host

RESULTS = Path("docs/results")
SCHEMA = "rmux.bench/v1"

_MIN_FOR_P99 = 20
"""With fewer values the greatest says as much."""


def row(
    what: str,
    values: Sequence[float],
    *,
    unit: str,
    seconds: Mapping[str, float] | None = None,
    facts: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Median, spread (least and greatest) and count of `values`.

    A ratio carries the absolute `seconds` it was made from; `facts` are sizes and counts; `keys`
    stand beside `what` under their own names. A percentile lies between the two values nearest to
    it.
    """
    if not values:
        raise ValueError(f"{what}: nothing was measured")
    if unit == "ratio" and not seconds:
        raise ValueError(f"{what}: a ratio needs the seconds beside it")
    made: dict[str, Any] = {
        "what": what,
        "unit": unit,
        "median": statistics.median(values),
        "spread": [min(values), max(values)],
        "n": len(values),
    }
    if len(values) >= _MIN_FOR_P99:
        made["p99"] = percentile(values, 99)
    if seconds:
        made["seconds"] = dict(seconds)
    if facts:
        made["facts"] = dict(facts)
    return {**made, **(keys or {})}


def percentile(values: Sequence[float], percent: int) -> float:
    """Between the two values nearest to it."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def flags(about: str | None) -> argparse.ArgumentParser:
    """The flags every bench has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print the document")
    parser.add_argument(
        "--no-save", action="store_true", help="leave docs/results as it is; for a trial"
    )
    return parser


def finish(bench: str, rows: Sequence[Mapping[str, Any]], *, asked: argparse.Namespace) -> None:
    """Prints the rows and keeps the document."""
    text = _text(bench, rows) if asked.no_save else save(bench, rows)
    print(text if asked.json else "\n".join(line(each) for each in rows))


def save(bench: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Keeps the document, also of a bench that has more parts to run; returns its text."""
    text = _text(bench, rows)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{bench}.json").write_text(text + "\n")
    return text


def _text(bench: str, rows: Sequence[Mapping[str, Any]]) -> str:
    document = {"schema": SCHEMA, "bench": bench, "host": asdict(host()), "rows": list(rows)}
    return json.dumps(document, indent=2, allow_nan=False)


def line(made: Mapping[str, Any]) -> str:
    """'flat 2:2: 0.108 s (0.067 to 0.125, n 5)'."""
    low, high = made["spread"]
    unit = "" if made["unit"] == "ratio" else f" {made['unit']}"
    text = f"{made['what']}: {made['median']:.4g}{unit} ({low:.4g} to {high:.4g}, n {made['n']}"
    if "p99" in made:
        text += f", p99 {made['p99']:.4g}"
    text += ")"
    for name, value in made.get("seconds", {}).items():
        text += f"; {name} {value:.4g} s"
    return text
