"""Replays as documents, and as people read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmux.cli.documents_sim import (
    ComparedPolicy,
    FairnessPart,
    PeakPart,
    PerPoolPart,
    PhasesPart,
    PoolSizesPart,
    RangePart,
    SettingsPart,
    SimCompare,
    SimDocument,
    SimPoint,
    SpreadPart,
)
from rmux.cli.output import Column, Table
from rmux.events import PhaseEvent, to_document
from rmux.units import format_duration, format_usd_per_h

if TYPE_CHECKING:
    from rmux.cli.sim_request import Request
    from rmux.place.sim.metrics import PhaseFigures, Spread
    from rmux.place.sim.replay import Point
    from rmux.place.sim.study import Result, Study


def settings_part(request: Request, study: Study) -> SettingsPart:
    world, drawing = study.world, study.drawing
    return SettingsPart(
        workload=str(drawing.mix),
        slo_low=drawing.slo[0],
        slo_high=drawing.slo[1],
        durations=str(study.durations),
        gpus=request.gpus,
        pools=PoolSizesPart(rollout=world.rollout_nodes, train=world.train_nodes),
        max_members=study.max_members,
        margin=study.margin,
        payback_s=study.payback_s,
        rollout_usd_per_gpu_h=world.rollout_usd_per_gpu_h,
        train_usd_per_gpu_h=world.train_usd_per_gpu_h,
        host_memory_bytes=world.host_memory_bytes if drawing.with_memory else None,
        source=request.source,
        window=request.window,
    )


def sim_document(
    result: Result, *, request: Request, study: Study, settings: SettingsPart
) -> SimDocument:
    found, bound = result.metrics, result.bound
    return SimDocument(
        trace=request.trace,
        policy=result.policy,
        seed=result.seed,
        settings=settings,
        jobs=found.jobs,
        cost_usd_per_h=found.cost_usd_per_h,
        cost_usd=found.cost_usd,
        opt_usd_per_h=None if bound is None else bound.opt_usd_per_h,
        opt_proven=None if bound is None else bound.proven,
        lp_bound_usd_per_h=None if bound is None else bound.lp_usd_per_h,
        slo_attainment=found.slo_attainment_absolute,
        slo_attainment_absolute=found.slo_attainment_absolute,
        slo_attainment_relative=found.slo_attainment_relative,
        moves=found.moves,
        move_usd=found.move_usd,
        lost_s=found.lost_s,
        jct_s=_spread(found.jct_s),
        wait_s=_spread(found.wait_s),
        finish_time_fairness=FairnessPart(
            max=found.finish_time_fairness.max, jain=found.finish_time_fairness.jain
        ),
        cost_by_tenant=dict(found.cost_by_tenant),
        peak_gpus=PeakPart(rollout=found.rollout_peak_gpus, train=found.train_peak_gpus),
        bubbles=PerPoolPart(rollout=found.rollout_bubbles, train=found.train_bubbles),
        placements=dict(found.placed),
        nodes_per_job=dict(found.nodes),
        span_s=found.span_s,
        elapsed_s=found.elapsed_s,
        bounds_elapsed_s=None if bound is None else bound.elapsed_s,
        phases=_phases(found.phases, study),
    )


def _phases(found: PhaseFigures | None, study: Study) -> PhasesPart | None:
    if found is None or study.phases is None:
        return None
    return PhasesPart(
        dispatch=str(study.phases.dispatch),
        iterations=found.iterations,
        failures=found.failures,
        within_slo=found.within_slo,
        within_slo_relative=found.within_slo_relative,
        slowest=found.slowest,
        measured_to_planned=found.measured_to_planned,
    )


def point_line(point: Point) -> str:
    """One line of the time line, JSON."""
    from rmux.place.sim.world import GPUS_PER_NODE

    return SimPoint(
        at_s=point.at_s,
        usd_per_h=point.usd_per_h,
        rollout_gpus=point.rollout_devices * GPUS_PER_NODE,
        train_gpus=point.train_devices * GPUS_PER_NODE,
        running=point.running,
        waiting=point.waiting,
    ).to_json()


def event_line(event: PhaseEvent) -> str:
    """An event as `group watch -o jsonl` prints it."""
    return json.dumps(to_document(event))


def compare_document(
    results: Sequence[Result],
    *,
    policies: Sequence[str],
    request: Request,
    settings: SettingsPart,
) -> SimCompare:
    """`results` has every policy for every seed; the bounds are those of the first policy."""
    first = [one for one in results if one.policy == policies[0]]
    return SimCompare(
        trace=request.trace,
        seeds=tuple(one.seed for one in first),
        settings=settings,
        jobs=first[0].metrics.jobs,
        opt_usd_per_h=_range_of(first, _opt),
        lp_bound_usd_per_h=_range_of(first, _lp),
        items=tuple(
            _compared(name, [one for one in results if one.policy == name]) for name in policies
        ),
    )


def _compared(name: str, runs: Sequence[Result]) -> ComparedPolicy:
    metrics = [run.metrics for run in runs]

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return ComparedPolicy(
        policy=name,
        cost_usd_per_h=_range([one.cost_usd_per_h for one in metrics]),
        ratio_opt=_range_of(runs, lambda run: _ratio(run, _opt(run))),
        ratio_lp_bound=_range_of(runs, lambda run: _ratio(run, _lp(run))),
        slo_attainment=_range([one.slo_attainment_absolute for one in metrics]),
        slo_attainment_relative=_range([one.slo_attainment_relative for one in metrics]),
        moves=_range([float(one.moves) for one in metrics]),
        jct_mean_s=_range([one.jct_s.mean for one in metrics]),
        wait_mean_s=_range([one.wait_s.mean for one in metrics]),
        peak_gpus=PeakPart(
            rollout=max(one.rollout_peak_gpus for one in metrics),
            train=max(one.train_peak_gpus for one in metrics),
        ),
        bubbles=PerPoolPart(
            rollout=mean([one.rollout_bubbles for one in metrics]),
            train=mean([one.train_bubbles for one in metrics]),
        ),
        elapsed_s=_range([one.elapsed_s for one in metrics]),
    )


def summary(found: SimDocument) -> str:
    """A replay in a few lines."""
    span, wait, jct = format_duration(found.span_s), found.wait_s, found.jct_s
    opt = _against(found.cost_usd_per_h, found.opt_usd_per_h, "best packing")
    bound = _against(found.cost_usd_per_h, found.lp_bound_usd_per_h, "LP bound")
    times = [format_duration(s) for s in (wait.mean, wait.p95, jct.p50, jct.p95)]
    lines = [
        f"{found.policy}: {format_usd_per_h(found.cost_usd_per_h)}, {found.jobs} jobs over {span}",
        f"  bounds    {opt}, {bound}",
        f"  SLO       {found.slo_attainment:.1%} of the jobs kept theirs",
        f"  placed    {_counts(found.placements)}",
        f"  moves     {found.moves}, charged {found.move_usd:.2f} USD",
        "  peak      {} rollout and {} train GPUs".format(*_pair(found.peak_gpus)),
        "  bubbles   rollout {:.1%}, train {:.1%}".format(*_pair(found.bubbles)),
        "  waiting   mean {}, p95 {}; completion p50 {}, p95 {}".format(*times),
    ]
    if (phases := found.phases) is not None:
        lines.append(
            f"  phases    {phases.iterations} iterations, {phases.within_slo:.2%} within their "
            f"SLO, {phases.measured_to_planned:.3f} x planned, {phases.failures} failures"
        )
    tenants = found.cost_by_tenant
    if set(tenants) != {""}:
        shown = sorted(tenants.items(), key=lambda item: -item[1])[:8]
        lines.append("  tenants   " + ", ".join(f"{n or '-'} {usd:.0f} USD" for n, usd in shown))
    return "\n".join(lines)


def compare_table(found: SimCompare) -> Table:
    columns = [
        Column("POLICY"),
        Column("USD/H", right=True),
        Column("RANGE", right=True),
        Column("/OPT", right=True),
        Column("/LP", right=True),
        Column("SLO", right=True),
        Column("MOVES", right=True),
        Column("ROLLOUT GPUS", right=True, wide=True),
        Column("TRAIN GPUS", right=True, wide=True),
        Column("MEAN WAIT", right=True, wide=True),
    ]
    return Table(
        columns,
        [
            (
                one.policy,
                f"{one.cost_usd_per_h.mean:.1f}",
                f"{one.cost_usd_per_h.min:.1f}–{one.cost_usd_per_h.max:.1f}",
                _times(one.ratio_opt),
                _times(one.ratio_lp_bound),
                f"{one.slo_attainment.mean:.1%}",
                f"{one.moves.mean:.1f}",
                f"{one.peak_gpus.rollout}",
                f"{one.peak_gpus.train}",
                format_duration(one.wait_mean_s.mean),
            )
            for one in found.items
        ],
    )


def _pair(part: PerPoolPart | PeakPart) -> tuple[float, float]:
    return part.rollout, part.train


def _times(ratio: RangePart | None) -> str | None:
    return None if ratio is None else f"{ratio.mean:.3f}"


def _against(cost: float, bound: float | None, name: str) -> str:
    return f"no {name}" if bound is None else f"{cost / bound:.3f} x {name} ({bound:.2f})"


def _counts(counts: dict[str, int]) -> str:
    whole = sum(counts.values())
    told = (f"{name} {count} ({count / whole:.0%})" for name, count in counts.items())
    return ", ".join(told) or "not told"


def _opt(run: Result) -> float | None:
    return None if run.bound is None else run.bound.opt_usd_per_h


def _lp(run: Result) -> float | None:
    return None if run.bound is None else run.bound.lp_usd_per_h


def _ratio(run: Result, bound: float | None) -> float | None:
    return None if bound is None else run.metrics.cost_usd_per_h / bound


def _range_of(runs: Sequence[Result], value: Callable[[Result], float | None]) -> RangePart | None:
    values = [found for run in runs if (found := value(run)) is not None]
    return _range(values) if len(values) == len(runs) else None


def _range(values: Sequence[float]) -> RangePart:
    return RangePart(mean=sum(values) / len(values), min=min(values), max=max(values))


def _spread(found: Spread) -> SpreadPart:
    return SpreadPart(mean=found.mean, p50=found.p50, p95=found.p95)
