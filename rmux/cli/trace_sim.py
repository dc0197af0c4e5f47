"""The jobs of a store as a trace that `rmux sim` replays: rmux-trace(5)."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmux.errors import NotFoundError
from rmux.events import EventType, PhaseEvent
from rmux.job import Job, Phase

if TYPE_CHECKING:
    from rmux.estimate import JobProfile
    from rmux.store.engine import Conn, Store

_PAGE = 10_000
_LEAST_S = 0.001
"""The shortest phase that a trace can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    lines: tuple[str, ...]
    """One JSON object each, by arrival."""
    left_out: int
    """Jobs of which no phase times are known, or that ended without an iteration."""


def jobs_as_trace(store: Store, group: str | None = None) -> Exported:
    """Every job of the store, or of one group. NotFoundError without any that can be replayed."""
    from rmux.store import groups, jobs, profiles

    rows: list[dict[str, Any]] = []
    left_out = 0
    with store.read() as conn:
        only = None if group is None else groups.resolve(conn, group)
        for job in jobs.ls(conn, group=only):
            iterations = job.iteration if job.state.is_terminal else job.spec.iterations
            if job.profile_id is None or iterations < 1:
                left_out += 1
                continue
            rows.append(_row(conn, job, profiles.get(conn, job.profile_id), iterations))
    if not rows:
        raise NotFoundError("no job with known phase times", code="trace.empty")
    rows.sort(key=lambda row: row["arrival_s"])
    first_s = rows[0]["arrival_s"]
    for row in rows:
        row["arrival_s"] = round(row["arrival_s"] - first_s, 3)
    return Exported(lines=tuple(json.dumps(row) for row in rows), left_out=left_out)


def _row(conn: Conn, job: Job, profile: JobProfile, iterations: int) -> dict[str, Any]:
    """Phase times as measured, with their switches; as planned where none was measured."""
    events = _phases(conn, job)
    rollout_s = max(_LEAST_S, _measured_s(events, Phase.ROLLOUT) or profile.rollout.planned_s)
    train_s = max(_LEAST_S, _measured_s(events, Phase.TRAIN) or profile.train.planned_s)
    sync_s = (_measured_s(events, Phase.SYNC) or profile.sync_s) + profile.checkpoint_s
    return {
        "job": str(job.id),
        "name": job.spec.name,
        "arrival_s": job.created_at.timestamp(),
        "duration_s": iterations * (rollout_s + train_s + sync_s),
        "num_gpu": max(job.spec.rollout.devices, job.spec.train.devices),
        "tenant": job.spec.tenant,
        "slo": job.spec.slo,
        "rollout_s": rollout_s,
        "train_s": train_s,
        "sync_s": sync_s,
        "iterations": iterations,
        "priority": job.spec.priority,
    }


def _phases(conn: Conn, job: Job) -> list[PhaseEvent]:
    from rmux.store import events

    types = (EventType.PHASE_START, EventType.PHASE_END)
    found: list[PhaseEvent] = []
    while True:
        after = found[-1].seq if found else 0
        page = events.read(conn, job=job.id, types=types, after_seq=after, limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            return found


def _measured_s(events: list[PhaseEvent], phase: Phase) -> float | None:
    """Median of what a phase held its devices: wake, run and park."""
    own = [event for event in events if event.phase is phase]
    ends = [
        event.data
        for event in own
        if event.type is EventType.PHASE_END and event.data.get("whole") is not False
    ]
    wakes = [
        float(event.data.get("switch_s", 0.0))
        for event in own
        if event.type is EventType.PHASE_START
    ]
    runs = [float(data["run_s"]) + float(data.get("park_s", 0.0)) for data in ends]
    if not runs:
        return None
    return statistics.median(runs) + (statistics.median(wakes) if wakes else 0.0)
