"""Build `rmux.demo/v1` from what the store recorded."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from story import figures
from story.sampler import Sampler

from rmux import timeline
from rmux.events import EventType, PhaseEvent, from_document
from rmux.ids import JobId
from rmux.job import Job, JobState, Phase
from rmux.store import events as stored_events
from rmux.store import jobs as stored_jobs
from rmux.store.engine import Store

_CELLS = 72


def build(
    *,
    store_url: str,
    group_id: str,
    alone: dict[str, Path],
    profiles: dict[str, Any],
    sampler: Sampler,
) -> dict[str, Any]:
    store = Store.open(store_url)
    with store.read() as conn:
        jobs = [stored_jobs.by_name(conn, name) for name in alone]
        together = _all_events(conn, group_id)
    store.close()
    members = [job for job in jobs if job is not None]
    solo_events = {job.id: read_events(alone[job.spec.name]) for job in members}
    solo = {job: figures.loop_of(recorded) for job, recorded in solo_events.items()}
    periods_s = figures.steady_periods_s(together)
    gain = figures.gain_of(list(solo.values()), [periods_s[job.id] for job in members])
    held = timeline.holds(together)
    on_device = [event for event in together if event.phase in (Phase.ROLLOUT, Phase.TRAIN)]
    samples = {
        "grant_latency_s": timeline.grant_latencies_s(on_device),
        "overhead_s": _values(on_device, "overhead_s", EventType.PHASE_END),
        "sync_s": _values(together, "run_s", EventType.PHASE_END, Phase.SYNC),
    }
    latency = timeline.spread(samples["grant_latency_s"])
    planned_s = _planned_period_s(together, profiles)
    since_s, until_s = figures.steady_window_s(together)
    cpu = sampler.cpu(since_s=since_s, until_s=until_s)
    return {
        "schema": "rmux.demo/v1",
        "jobs": [_job(job, solo[job.id], periods_s[job.id], planned_s) for job in members],
        "gain_per_device_hour": gain.gain,
        "gain_cap": gain.cap,
        "rollout": _start(solo_events, together, Phase.ROLLOUT, profiles),
        "train": _start(solo_events, together, Phase.TRAIN, profiles),
        "grant_latency_s": {"p50": latency.p50, "p99": latency.p99, "n": latency.n},
        "overhead_per_phase_s": statistics.median(samples["overhead_s"]),
        "sync": {
            "p50_s": statistics.median(samples["sync_s"]),
            "bytes": int(_median(together, "sent_bytes", EventType.PHASE_END, Phase.SYNC)),
        },
        "engines": {
            row["name"]: row["version"] for row in next(iter(profiles.values()))["engines"]
        },
        "parked_cpu": sampler.parked_cpu(held, since_s=since_s, until_s=until_s),
        "peak_memory_bytes": sampler.peak_bytes,
        "foreign_cpu": cpu.pop("foreign"),
        "stolen_cpu": cpu.pop("stolen"),
        "role_cpu": cpu,
        "weights_equal": [_weights_equal(job, solo_events[job.id], together) for job in members],
        "losses": figures.lost_gain(solo, together),
        "gantt": _gantt(held, members, together),
        "samples": samples | {"iteration_s": _iterations_s(together, members)},
    }


def verdict(doc: dict[str, Any]) -> int:
    """0 when both jobs learned and kept their SLO; 7 otherwise, with the reason on stderr."""
    failed = [
        f"{job['name']} did not learn: reward {job['reward_first']:.3f} → {job['reward_last']:.3f}"
        for job in doc["jobs"]
        if not job["reward_last"] > job["reward_first"]
    ]
    failed += [
        f"{job['name']} was slowed down {job['slowdown']:.2f}×, its SLO is {job['slo']:.2f}×"
        for job in doc["jobs"]
        if job["slowdown"] > job["slo"]
    ]
    for line in failed:
        sys.stderr.write(f"demo: {line}\n")
    return 7 if failed else 0


def read_events(path: Path) -> list[PhaseEvent]:
    """Events that `rmux profile --keep-events` left, one JSON object per line."""
    return [from_document(json.loads(line)) for line in path.read_text().splitlines() if line]


def _all_events(conn: Any, group_id: str) -> list[PhaseEvent]:
    found: list[PhaseEvent] = []
    while True:
        after = found[-1].seq if found else 0
        more = stored_events.read(conn, group=group_id, after_seq=after, limit=5000)
        if not more:
            return found
        found += more


def _job(job: Job, solo: figures.SoloLoop, period_s: float, planned_s: float) -> dict[str, Any]:
    if job.state is not JobState.SUCCEEDED:
        raise SystemExit(f"{job.spec.name} ended {job.state}: {job.error or job.reason.message}")
    return {
        "name": job.spec.name,
        "iterations": job.iteration,
        "reward_first": job.reward_first,
        "reward_last": job.reward_last,
        "solo_iteration_s": solo.period_s,
        "coexec_iteration_s": period_s,
        "slowdown": period_s / solo.period_s,
        "planned_slowdown": planned_s / solo.period_s,
        "slo": job.spec.slo,
    }


def _start(
    solo_events: dict[JobId, list[PhaseEvent]],
    together: Sequence[PhaseEvent],
    phase: Phase,
    profiles: dict[str, Any],
) -> dict[str, float]:
    """Cold: process start to ready on the device, measured alone. Warm: median wake plus park."""
    cold_s = [
        row["cold_s"]
        for profile in profiles.values()
        for row in profile["phases"]
        if row["name"] == phase
    ]
    wake_s = _median(together, "switch_s", EventType.PHASE_START, phase)
    park_s = _median(together, "park_s", EventType.PHASE_END, phase)
    return {"cold_start_s": statistics.median(cold_s), "warm_switch_s": wake_s + park_s}


def _values(
    events: Sequence[PhaseEvent], key: str, type: EventType, phase: Phase | None = None
) -> list[float]:
    by_job = timeline.phase_data(events, key, type=type, phase=phase)
    return [value for values in by_job.values() for value in values]


def _median(
    events: Sequence[PhaseEvent], key: str, type: EventType, phase: Phase | None = None
) -> float:
    return statistics.median(_values(events, key, type, phase))


def _iterations_s(events: Sequence[PhaseEvent], jobs: Sequence[Job]) -> dict[str, list[float]]:
    """By job, of the stretch that all jobs share."""
    since_s, until_s = figures.steady_window_s(events)
    shared = [event for event in events if since_s <= event.at_s <= until_s]
    found = timeline.iteration_seconds(shared)
    return {job.spec.name: found.get(job.id, []) for job in jobs}


def _planned_period_s(events: Sequence[PhaseEvent], profiles: dict[str, Any]) -> float:
    """Period of one round from the measured profiles, as the admission counted it."""
    loops = [
        figures.SoloLoop(
            period_s=profile["solo_s"],
            rollout_s=_planned(profile, "rollout"),
            train_s=_planned(profile, "train"),
        )
        for profile in profiles.values()
    ]
    return max(
        max(loop.period_s for loop in loops),
        sum(loop.rollout_s for loop in loops),
        sum(loop.train_s for loop in loops),
    )


def _planned(profile: dict[str, Any], name: str) -> float:
    row = next(row for row in profile["phases"] if row["name"] == name)
    return float(row["worst_case_s"]) + float(row["switch_s"])


def _weights_equal(
    job: Job, alone: Sequence[PhaseEvent], together: Sequence[PhaseEvent]
) -> dict[str, Any]:
    """Checksums of the synced weights, iteration by iteration, alone against together."""

    def checksums(events: Sequence[PhaseEvent], wanted: JobId | None) -> dict[int, str]:
        return {
            event.iteration or 0: str(event.data["checksum"])
            for event in events
            if event.type is EventType.PHASE_END
            and event.phase is Phase.SYNC
            and wanted in (None, event.job_id)
        }

    first, second = checksums(alone, None), checksums(together, job.id)
    common = sorted(first.keys() & second.keys())
    return {
        "name": job.spec.name,
        "compared": len(common),
        "equal": sum(first[iteration] == second[iteration] for iteration in common),
    }


def _gantt(
    held: Sequence[timeline.Hold], jobs: Sequence[Job], events: Sequence[PhaseEvent]
) -> dict[str, Any]:
    labels = {job.id: chr(ord("A") + index) for index, job in enumerate(jobs)}
    ends = {
        job.id: [
            event.at_s
            for event in events
            if event.type is EventType.ITERATION_END and event.job_id == job.id
        ]
        for job in jobs
    }
    # the last stretch that all jobs share, two rounds long
    until_s = min(at[-1] for at in ends.values())
    shared = [instant for instant in ends[jobs[0].id] if instant <= until_s]
    since_s = shared[-3] if len(shared) > 2 else shared[0]
    return {
        "labels": {
            letter: job.spec.name for job, letter in zip(jobs, labels.values(), strict=True)
        },
        "cell_s": (until_s - since_s) / _CELLS,
        "lanes": timeline.lanes(held, labels, since_s=since_s, until_s=until_s, width=_CELLS),
    }
