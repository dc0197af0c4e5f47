"""What a replay comes to: money, promises, waiting, fairness, idle hardware."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rmux.place.sim.replay import SLACK, Replay
from rmux.place.sim.segments import Segments
from rmux.place.sim.world import GPUS_PER_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one figure over all jobs."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Finish-time fairness: completion time over the time the job takes alone."""

    max: float
    jain: float
    """Jain's index of the same ratios: 1 when they are equal, 1/n when one job has it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """Of all iterations that were simulated phase by phase."""

    iterations: int
    failures: int
    within_slo: float
    """Share of iterations within SLO x worst-case solo time."""
    within_slo_relative: float
    """Share within SLO x what the phases of that iteration take alone."""
    slowest: float
    """Longest iteration ÷ worst-case solo time of its job."""
    measured_to_planned: float
    """Time of all iterations ÷ what was planned for them."""
    jobs_within_slo: float
    """Share of jobs none of whose iterations was late."""
    jobs_within_slo_relative: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Cost rates are means from the first arrival to the last departure."""

    jobs: int
    cost_usd_per_h: float
    cost_usd: float
    move_usd: float
    """The part of `cost_usd` that moves were charged."""
    moves: int
    lost_s: float
    slo_attainment_absolute: float
    """Share of jobs none of whose iterations was planned beyond SLO x worst-case solo time."""
    slo_attainment_relative: float
    """The same against solo time at the job's expected phase times."""
    jct_s: Spread
    wait_s: Spread
    finish_time_fairness: Fairness
    cost_by_tenant: Mapping[str, float]
    """USD; adds up to `cost_usd`. Jobs of no tenant stand under ''."""
    rollout_peak_gpus: int
    train_peak_gpus: int
    rollout_bubbles: float
    """Share of the GPU time held in which no phase runs."""
    train_bubbles: float
    placed: Mapping[str, int]
    nodes: Mapping[str, int]
    """Jobs by 'rollout+train' nodes."""
    span_s: float
    elapsed_s: float
    phases: PhaseFigures | None = None
    """None where phases were not simulated."""


def measure(replay: Replay, segments: Segments | None = None) -> Metrics:
    """The figures of a replay of at least one job; SLOs as simulated where phases were."""
    outcomes = replay.outcomes
    by_tenant: dict[str, float] = {}
    for one in sorted(outcomes, key=lambda one: one.tenant):
        by_tenant[one.tenant] = by_tenant.get(one.tenant, 0.0) + one.usd
    phases = None if segments is None else measure_phases(segments)
    absolute = _share([one.tightness <= SLACK for one in outcomes])
    relative = _share([one.tightness_expected <= SLACK for one in outcomes])
    ratios = [one.jct_s / one.duration_s for one in outcomes]
    return Metrics(
        jobs=len(outcomes),
        cost_usd_per_h=replay.usd_per_h,
        cost_usd=replay.cost_usd,
        move_usd=replay.move_usd,
        moves=replay.moves,
        lost_s=replay.lost_s,
        slo_attainment_absolute=absolute if phases is None else phases.jobs_within_slo,
        slo_attainment_relative=relative if phases is None else phases.jobs_within_slo_relative,
        jct_s=spread([one.jct_s for one in outcomes]),
        wait_s=spread([one.wait_s for one in outcomes]),
        finish_time_fairness=Fairness(max=max(ratios), jain=jain(ratios)),
        cost_by_tenant=by_tenant,
        rollout_peak_gpus=replay.rollout_peak * GPUS_PER_NODE,
        train_peak_gpus=replay.train_peak * GPUS_PER_NODE,
        rollout_bubbles=_idle(replay.rollout_busy, replay.rollout_held),
        train_bubbles=_idle(replay.train_busy, replay.train_held),
        placed=dict(sorted(replay.placed.items())),
        nodes=dict(Counter("{}+{}".format(*one.nodes) for one in outcomes).most_common()),
        span_s=replay.span_s,
        elapsed_s=replay.elapsed_s,
        phases=phases,
    )


def measure_phases(segments: Segments) -> PhaseFigures:
    """Jobs too short for a whole iteration have kept their SLO."""
    seen = segments.jobs.values()
    iterations = sum(one.iterations for one in seen)
    planned_s = sum(one.planned_s for one in seen)
    return PhaseFigures(
        iterations=iterations,
        failures=sum(one.failures for one in seen),
        within_slo=1 - sum(one.late for one in seen) / max(1, iterations),
        within_slo_relative=1 - sum(one.late_relative for one in seen) / max(1, iterations),
        slowest=max((one.slowest for one in seen), default=0.0),
        measured_to_planned=sum(one.seconds for one in seen) / planned_s if planned_s else 1.0,
        jobs_within_slo=_share([one.late == 0 for one in seen]),
        jobs_within_slo_relative=_share([one.late_relative == 0 for one in seen]),
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean, median and 95th percentile; a percentile is a value that occurs."""
    found = np.sort(np.asarray(values, dtype=float))
    p50, p95 = (float(found[math.ceil(q * len(found)) - 1]) for q in (0.5, 0.95))
    return Spread(mean=float(found.mean()), p50=p50, p95=p95)


def jain(values: Sequence[float]) -> float:
    """(sum x)² / (n sum x²), of Jain, Chiu and Hawe (1984)."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares)


def _share(kept: Sequence[bool]) -> float:
    return sum(kept) / len(kept) if kept else 1.0


def _idle(busy: float, held: float) -> float:
    return max(0.0, 1 - busy / held) if held > 0 else 0.0
