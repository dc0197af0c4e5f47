"""Which column of a trace file means what, and in which unit: rmux-trace(5).

Times are seconds; a suffix `_ms`, `_min` or `_h` of a header says otherwise. Headers of known
public traces are understood; other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmux.errors import UserError

UNITS_S = {"_ms": 1e-3, "_s": 1.0, "_min": 60.0, "_h": 3600.0}
"""Seconds of what a header with this suffix counts."""

_TIMES = {
    "arrival_s": (
        *("arrival", "arrival_time", "submit_time", "submit", "submission_time", "submitted_time"),
        *("submitted", "arrive_time"),
    ),
    "duration_s": ("duration", "run_time", "runtime", "service_time", "job_duration"),
    "rollout_s": ("rollout",),
    "train_s": ("train",),
    "sync_s": ("sync",),
}
_OTHERS = {
    "job": ("job", "job_id", "jobid", "job_name", "id", "name"),
    "num_gpu": ("num_gpu", "num_gpus", "gpu_num", "gpus", "gpu", "num_devices"),
    "tenant": ("tenant", "vc", "queue"),
    "source": ("source",),
    "slo": ("slo",),
    "iterations": ("iterations",),
    "priority": ("priority",),
}
KEYS = (
    *("job", "arrival_s", "duration_s", "num_gpu", "tenant", "source", "slo"),
    *("rollout_s", "train_s", "sync_s", "iterations", "priority"),
)
"""The columns, by the names that rmux writes."""

_MURI = {"job_id", "submit_time", "duration", "iteration_time", "resource_time_0"}
"""Headers that only Muri's traces have together: milliseconds without a suffix, and iterations and
priorities of jobs of another kind."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value stands in a row: an index, or a key of JSON; `factor` makes it seconds."""

    header: str
    factor: float = 1.0


def find(headers: Sequence[str], *, mapping: Mapping[str, Source], where: str) -> dict[str, Source]:
    """The column of each key that the file has. `mapping` comes from `parse_mapping`.

    UserError when a mapped header is not there, or arrivals or durations are nowhere.
    """
    folded = {_fold(header): header for header in reversed(headers)}
    is_muri = folded.keys() >= _MURI
    found: dict[str, Source] = {}
    for key in KEYS:
        wanted = mapping.get(key)
        if wanted is not None:
            header = wanted.header if wanted.header in headers else folded.get(_fold(wanted.header))
            if header is None:
                raise UserError(
                    f"{where}: {key}: no column {wanted.header!r}; there is {_listed(headers)}",
                    code="trace.column",
                )
            found[key] = Source(header, wanted.factor)
        elif is_muri and key in ("iterations", "priority"):
            continue
        elif (known := _known(key, folded, unit_s=1e-3 if is_muri else 1.0)) is not None:
            found[key] = known
    missing = [key for key in ("arrival_s",) if key not in found]
    if "duration_s" not in found and not {"iterations", "rollout_s", "train_s"} <= found.keys():
        missing.append("duration_s")
    if missing:
        raise UserError(
            f"{where}: no column for {' and '.join(missing)}; there is {_listed(headers)}",
            code="trace.column",
            hint=f"--columns {missing[0]}=HEADER; see rmux-trace(5)",
        )
    return found


def parse_mapping(text: str) -> dict[str, Source]:
    """'arrival_s=submit_time,duration_ms=length': for each key the header, with its unit.

    UserError for anything else.
    """
    mapping: dict[str, Source] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, header = (piece.strip() for piece in part.partition("="))
        key, factor = _unit_of(name)
        if not equals or not header or key is None:
            raise UserError(
                f"--columns: {part!r} does not name a column",
                hint=f"write KEY=HEADER, KEY one of {', '.join(KEYS)}; "
                "times also as _ms, _min or _h",
            )
        if key in mapping:
            raise UserError(f"--columns: {key} is given twice")
        mapping[key] = Source(header, factor)
    return mapping


def other_headers(key: str) -> tuple[str, ...]:
    """Headers that are understood as this column, without their units."""
    return _TIMES.get(key) or _OTHERS[key]


def _known(key: str, folded: Mapping[str, str], *, unit_s: float) -> Source | None:
    if key not in _TIMES:
        name = next((name for name in _OTHERS[key] if name in folded), None)
        return None if name is None else Source(folded[name])
    if key in folded:
        return Source(folded[key])
    for base in _TIMES[key]:
        for suffix, factor in UNITS_S.items():
            if base + suffix in folded:
                return Source(folded[base + suffix], factor)
        if base in folded:
            return Source(folded[base], unit_s)
    return None


def _unit_of(name: str) -> tuple[str | None, float]:
    if name in KEYS:
        return name, 1.0
    for suffix, factor in UNITS_S.items():
        key = f"{name.removesuffix(suffix)}_s"
        if name.endswith(suffix) and key in _TIMES:
            return key, factor
    return None, 1.0


def _fold(header: str) -> str:
    return header.strip().lower().replace(" ", "_").replace("-", "_")


def _listed(headers: Sequence[str]) -> str:
    shown = ", ".join(repr(header[:40]) for header in headers[:12])
    return f"{shown}, …" if len(headers) > 12 else shown or "none"
