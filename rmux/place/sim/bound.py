"""What the jobs of a replay would cost at best, re-packed for nothing at every event.

Between two events the same jobs run; dividing them into the cheapest feasible groups is set
partitioning (`rmux.place.packing`), solved exactly where that ends in time, with the bound of its
linear relaxation. Rates are weighed with the time they hold. Pools are taken as growing, and moves
as free, so no policy is cheaper, the promises kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

from rmux.errors import InternalError
from rmux.ids import JobId
from rmux.place.nodes_needed import Item
from rmux.place.packing import MOST_COLUMNS, Columns, Packing, Prices
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.catalogue import Setting
from rmux.place.sim.replay import Replay
from rmux.place.sim.world import ROOMY_BYTES

SOLVE_S = 2.0
"""Longest time for one set of jobs; beyond, its cheapest division counts as not known."""
BUDGET_S = 120.0
"""Most time of one core for all of a replay; what is left after that gets a bound by volume."""

_Event = tuple[float, bool, JobId]
"""When, whether the job starts or ends, and which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Means over the span of a replay, of the jobs that ran at each moment."""

    opt_usd_per_h: float | None
    """Of the cheapest feasible groups; None where they were not found for every moment."""
    proven: bool
    """Whether each of them was proven to be the cheapest."""
    lp_usd_per_h: float
    """Nothing is cheaper than this."""
    elapsed_s: float


class Bounder:
    """Bounds of the replays of one workload; what was solved for one policy serves the next."""

    def __init__(
        self,
        jobs: Iterable[SimJob],
        setting: Setting,
        *,
        solve_s: float = SOLVE_S,
        budget_s: float = BUDGET_S,
        most_columns: int = MOST_COLUMNS,
    ) -> None:
        self.setting, self.solve_s, self.budget_s = setting, solve_s, budget_s
        self.most_columns = most_columns
        self._items = {job.id: Item.of(job.id, job.spec, job.profile) for job in jobs}
        self._volumes = {job: self._volume_usd_per_h(item) for job, item in self._items.items()}
        self._bounds: dict[tuple[_Event, ...], Bound] = {}
        self._solved: dict[frozenset[JobId], Packing] = {}

    def of(self, replay: Replay) -> Bound:
        """Of jobs that come and go at the same instants as before: what was found before."""
        events: list[_Event] = [(one.started_s, True, one.job_id) for one in replay.outcomes]
        events += [(one.ended_s, False, one.job_id) for one in replay.outcomes]
        events.sort()
        known = tuple(events)
        if known not in self._bounds:
            self._bounds[known] = self._bound(known, replay.span_s)
        return self._bounds[known]

    def _bound(self, events: tuple[_Event, ...], span_s: float) -> Bound:
        began, spent_s = time.perf_counter(), time.process_time()
        columns: Columns | None = self._columns()
        running: set[JobId] = set()
        until_s = spent_s + self.budget_s
        opt_usd = lp_usd = since_s = 0.0
        proven = True
        for at_s, starts, job_id in events:
            if running and at_s > since_s:
                found = self._solve(columns, running)
                hours = (at_s - since_s) / 3600
                opt_usd += found.usd_per_h * hours
                lp_usd += found.lp_usd_per_h * hours
                proven = proven and found.proven
            since_s = at_s
            (running.add if starts else running.remove)(job_id)
            if columns is not None and time.process_time() > until_s:
                columns = None
            if columns is not None and starts:
                columns.add(self._items[job_id])
            elif columns is not None:
                columns.remove(job_id)
        hours = span_s / 3600
        return Bound(
            opt_usd_per_h=opt_usd / hours if math.isfinite(opt_usd) else None,
            proven=proven,
            lp_usd_per_h=lp_usd / hours,
            elapsed_s=time.perf_counter() - began,
        )

    def _columns(self) -> Columns:
        world = self.setting.world
        memory = world.host_memory_bytes
        return Columns(
            Prices(
                rollout_usd_per_h=world.rollout_usd_per_node_h,
                train_usd_per_h=world.train_usd_per_node_h,
                host_memory_bytes=None if memory == ROOMY_BYTES else memory,
            ),
            max_members=self.setting.max_members,
            margin=self.setting.margin,
            most=self.most_columns,
            degrees=tuple(sorted({item.train_nodes for item in self._items.values()})),
        )

    def _solve(self, columns: Columns | None, running: set[JobId]) -> Packing:
        """Without columns, or where they do not lead to a division in time: a bound by volume."""
        if columns is None:
            return self._by_volume(running)
        known = frozenset(running)
        if known not in self._solved:
            try:
                self._solved[known] = columns.solve(time_limit_s=self.solve_s)
            except InternalError:
                self._solved[known] = self._by_volume(running)
        return self._solved[known]

    def _by_volume(self, running: set[JobId]) -> Packing:
        usd_per_h = math.fsum(self._volumes[job_id] for job_id in running)
        return Packing(columns=(), usd_per_h=math.inf, lp_usd_per_h=usd_per_h, proven=False)

    def _volume_usd_per_h(self, item: Item) -> float:
        alone = self._columns()
        alone.add(item)
        return alone.volume_usd_per_h()
