"""Shares of time on bundles as Gavel's linear program gives them.

x[m, b] is the share of time of job m on bundle b, T[m, b] iterations per second. The program is
`ThroughputNormalizedByCostSumWithPerfSLOs` of Gavel (OSDI 2020): maximise the sum of T x / cost,
where the shares of a job add up to at most 1, each job's mean T keeps its SLO, and the bundles in
use fit the pools. Here T and cost are relative to the job on the nodes that it asks for, so that
jobs of long iterations or many nodes count like any other. A job that cannot be given its SLO falls
short of it by as little as possible, where Gavel drops all SLOs.

Where pools are elastic, jobs meet in no row: each has a program of two rows, whose best vertex is
one bundle, or two on which it has exactly its SLO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from rmux.errors import InternalError
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.resources import Bundle, choices, disaggregated
from rmux.place.sim.world import World

_SHORT = 1e3
"""What falling short of an SLO weighs beside value: more than any value can make up for."""
_EQUAL = 1e-9


class Objective(StrEnum):
    THROUGHPUT_PER_COST = "throughput per cost"
    """Gavel's: most iterations per dollar; a job may be given more nodes than it asks for."""
    COST = "cost"
    """Fewest dollars per hour of all mixes that keep the SLO; the job runs all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One job's part of the program; speeds are relative to the job alone on what it asks for."""

    bundles: tuple[Bundle, ...]
    speeds: tuple[float, ...]
    values: tuple[float, ...]
    """Of a share of 1; positive."""
    least_speed: float
    """1 / SLO."""


def wish_of(
    job: SimJob, world: World, *, objective: Objective = Objective.THROUGHPUT_PER_COST
) -> Wish:
    """What the job can run on, and what each is worth."""
    bundles, asked = choices(job, world), disaggregated(job, world)
    speeds = tuple(asked.iteration_s / one.iteration_s for one in bundles)
    costs = [one.usd_per_h / asked.usd_per_h for one in bundles]
    if objective is Objective.COST:
        values = tuple(2 * max(costs) - cost for cost in costs)
    else:
        values = tuple(speed / cost for speed, cost in zip(speeds, costs, strict=True))
    return Wish(bundles=bundles, speeds=speeds, values=values, least_speed=1 / job.spec.slo)


def best_mix(wish: Wish) -> tuple[float, ...]:
    """Shares by bundle of a job whose bundles are there whenever it wants them."""
    speeds, values, least = wish.speeds, wish.values, wish.least_speed
    best: dict[int, float] = {}
    most = 0.0
    for index, speed in enumerate(speeds):
        if speed * (1 + _EQUAL) >= least and values[index] > most * (1 + _EQUAL):
            best, most = {index: 1.0}, values[index]
    for one, other in combinations(range(len(speeds)), 2):
        slow, fast = sorted((one, other), key=speeds.__getitem__)
        if not speeds[slow] * (1 + _EQUAL) < least < speeds[fast]:
            continue
        share = (least - speeds[slow]) / (speeds[fast] - speeds[slow])
        value = share * values[fast] + (1 - share) * values[slow]
        if value > most * (1 + _EQUAL):
            best, most = {fast: share, slow: 1 - share}, value
    if not best:  # no bundle keeps the SLO
        best = {max(range(len(speeds)), key=speeds.__getitem__): 1.0}
    return tuple(best.get(index, 0.0) for index in range(len(speeds)))


def solve(wishes: Sequence[Wish], world: World) -> list[tuple[float, ...]]:
    """Shares by bundle of every job, by HiGHS, within the pools of `world`."""
    if not wishes:
        return []
    import highspy
    import numpy as np
    from highspy._core import _Highs

    solver = _Highs()  # its subclass prints a banner to stdout when it is made
    for option, value in (("output_flag", False), ("threads", 1)):
        solver.setOptionValue(option, value)
    cells = [(job, index) for job, wish in enumerate(wishes) for index in range(len(wish.bundles))]
    count = len(cells)
    worth = [-wishes[job].values[index] for job, index in cells] + [_SHORT] * len(wishes)
    for weight in worth:
        solver.addCol(weight, 0.0, 1.0, 0, np.empty(0, np.int32), np.empty(0))

    def row(low: float, high: float, entries: Sequence[tuple[int, float]]) -> None:
        columns = np.array([column for column, _ in entries], dtype=np.int32)
        weights = np.array([weight for _, weight in entries], dtype=float)
        solver.addRow(low, high, len(entries), columns, weights)

    first = 0
    for job, wish in enumerate(wishes):
        own = range(first, first + len(wish.bundles))
        first = own.stop
        row(-highspy.kHighsInf, 1.0, [(column, 1.0) for column in own])
        speeds = [*zip(own, wish.speeds, strict=True), (count + job, 1.0)]
        row(wish.least_speed, highspy.kHighsInf, speeds)
    for limit, nodes in (
        (world.rollout_nodes, [wishes[job].bundles[index].rollout for job, index in cells]),
        (world.train_nodes, [wishes[job].bundles[index].train for job, index in cells]),
    ):
        if limit is not None:
            used = [(column, float(some)) for column, some in enumerate(nodes) if some]
            row(-highspy.kHighsInf, float(limit), used)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise InternalError(f"no shares for {len(wishes)} jobs: {solver.getModelStatus()}")
    shares = iter([max(0.0, share) for share in solver.getSolution().col_value[:count]])
    return [tuple([next(shares) for _ in wish.bundles]) for wish in wishes]
