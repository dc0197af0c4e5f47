"""Opt of RollMux: the cheapest division of the jobs into groups that keep every SLO, re-packed at
every event for nothing.

Divisions are solved exactly (`rmux.place.packing`), to about 60 jobs at once; where that does not
end, the replay ends with an error instead of a division that may not be the best. Pools must be
elastic.

Named `optimal`, jobs change places as if that took no time, so moves are neither counted nor
charged: no policy is cheaper. Named `optimal-priced`, a job that changes its group pays a cold
start as rmux's own moves do, and all stay where they are when no division is cheaper; what moves
cost is not weighed against what they save. A new group takes over the nodes of the old one with
which it shares most jobs, and those jobs stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rmux.errors import InfeasibleError, InternalError
from rmux.ids import JobId
from rmux.place.nodes_needed import Item, on_fewest_nodes
from rmux.place.packing import MOST_COLUMNS, Column, Columns, Packing, Prices, shared_limit_s
from rmux.place.period import period_of
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.policies.tally import Holding, Tally
from rmux.place.sim.world import ROOMY_BYTES, World

SOLVE_S = 60.0
"""Longest time for the jobs of one event: hard sets of 60 take tens of seconds, most under 2."""
_EQUAL_USD = 1e-6


class Optimal:
    def __init__(
        self,
        world: World,
        *,
        max_members: int,
        margin: float = 0.0,
        priced: bool = False,
        solve_s: float = SOLVE_S,
        most_columns: int = MOST_COLUMNS,
    ) -> None:
        """InfeasibleError for pools of fixed size."""
        if not world.is_elastic:
            raise InfeasibleError(
                "the best packing is computed for pools that grow",
                hint="leave --pools out, or choose another policy",
            )
        self._tally, self.priced, self.solve_s = Tally(world), priced, solve_s
        self._columns = Columns(
            Prices(
                rollout_usd_per_h=world.rollout_usd_per_node_h,
                train_usd_per_h=world.train_usd_per_node_h,
                host_memory_bytes=None
                if world.host_memory_bytes == ROOMY_BYTES
                else world.host_memory_bytes,
            ),
            max_members=max_members,
            margin=margin,
            most=most_columns,
        )
        self._chosen: dict[Column, Holding] = {}
        self._cold_s: dict[JobId, float] = {}

    def step(
        self, now_s: float, *, arrived: Sequence[SimJob], departed: Sequence[JobId]
    ) -> Standing:
        for job_id in departed:
            self._columns.remove(job_id)
            del self._cold_s[job_id]
        for job in arrived:
            self._add(Item.of(job.id, job.spec, job.profile))
            self._cold_s[job.id] = job.profile.rollout.cold_s + job.profile.train.cold_s
        chosen: Sequence[Column] = self._solve().columns
        lost_s = {}
        if self.priced:
            chosen = self._unless_as_cheap(chosen)
            came = {job.id for job in arrived}
            changed = sorted(moved(self._chosen, chosen) - came)
            lost_s = {job: self._cold_s[job] for job in changed}
        holdings = {one: self._chosen.get(one) or self._holding(one) for one in chosen}
        for column in self._chosen:
            self._tally.drop(column)
        for column, holding in holdings.items():
            self._tally.put(column, holding)
        self._chosen = holdings
        return self._tally.standing(lost_s=lost_s, moves=len(lost_s))

    def _add(self, item: Item) -> None:
        known = self._columns
        if item.train_nodes not in known.degrees:
            # Groups of this degree are open to the jobs that are there, too.
            degrees = tuple(sorted({item.train_nodes, *known.degrees}))
            self._columns = Columns(
                known.prices,
                max_members=known.max_members,
                margin=known.margin,
                most=known.most,
                degrees=degrees,
            )
            for one in known.items().values():
                self._columns.add(one)
        self._columns.add(item)

    def _solve(self) -> Packing:
        count = len(self._columns.items())
        try:
            found = self._columns.solve(time_limit_s=self.solve_s)
        except InternalError as error:
            raise _too_many(count) from error
        if not found.proven:
            raise _too_many(count)
        return found

    def _unless_as_cheap(self, best: Sequence[Column]) -> Sequence[Column]:
        """The groups as they stand, newcomers apart, where that costs no more than the best."""
        known = {(one.train_nodes, frozenset(one.jobs)): one for one in self._columns}
        items = self._columns.items()
        stay, grouped = [], set[JobId]()
        for one in self._chosen:
            if left := frozenset(job for job in one.jobs if job in items):
                stay.append(known[one.train_nodes, left])
                grouped |= left
        stay += [
            known[item.train_nodes, frozenset({job})]
            for job, item in items.items()
            if job not in grouped
        ]
        cost, least = (sum(one.usd_per_h for one in some) for some in (stay, best))
        return stay if cost <= least + _EQUAL_USD else best

    def _holding(self, column: Column) -> Holding:
        members = [self._columns.on_degree(job, column.train_nodes) for job in column.jobs]
        limit_s = shared_limit_s(members, margin=self._columns.margin)
        memory = self._columns.prices.host_memory_bytes
        where = on_fewest_nodes(members, limit_s, memory_bytes=memory)
        if where is None:
            raise InternalError(f"no nodes for {', '.join(column.jobs)}")
        period_s = period_of([one.loop(where[one.job_id]) for one in members]).period_s
        rollout = {one.job_id: one.rollout_s * one.rollout_nodes for one in members}
        train = {one.job_id: one.train_s * column.train_nodes for one in members}
        return Holding(
            rollout=column.rollout_nodes,
            train=column.train_nodes,
            rollout_busy=sum(rollout.values()) / period_s,
            train_busy=sum(train.values()) / period_s,
            iteration_s=dict.fromkeys(column.jobs, period_s),
            used={job: rollout[job] + train[job] for job in column.jobs},
        )


def moved(old: Iterable[Column], new: Iterable[Column]) -> set[JobId]:
    """Jobs of the new groups that are not in the old group whose nodes theirs takes over."""
    after = list(new)
    group_of = {job: index for index, one in enumerate(old) for job in one.jobs}
    shared = Counter(
        (index, group_of[job])
        for index, one in enumerate(after)
        for job in one.jobs
        if job in group_of
    )
    heirs: dict[int, int] = {}
    for (index, source), _ in shared.most_common():
        if index not in heirs and source not in heirs.values():
            heirs[index] = source
    return {
        job
        for index, one in enumerate(after)
        for job in one.jobs
        if group_of.get(job, -1) != heirs.get(index, -2)
    }


def _too_many(count: int) -> InfeasibleError:
    return InfeasibleError(
        f"the best packing of {count} jobs at once was not found",
        hint="compare with the bound that rmux sim prints, or shorten the trace by --window",
    )
