"""The cheapest way to divide jobs into groups, exact: set partitioning over feasible groups.

A feasible group is a column: jobs at one train degree whose train time, longest loop and host
memory keep every member's limit, on the fewest rollout nodes that do. The degree is one that some
member asks for; the others take it where their batches can be dealt to it, as at admission.
Feasibility is hereditary (a subset of a feasible group is feasible), so columns grow one job at a
time, and those of the jobs that stay are kept when a job comes or goes. A column that costs no less
than the same jobs with one of them apart is never needed.

Jobs take whole nodes here: a job of k rollout nodes is pinned to k of its group's nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rmux.errors import InternalError
from rmux.ids import JobId
from rmux.place.nodes_needed import Item, fewest_nodes
from rmux.place.period import CLOSE

MOST_COLUMNS = 60_000
"""Beyond, only a bound by volume is given."""
_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of one node, USD/h, and its host memory for resident jobs; None: not looked at."""

    rollout_usd_per_h: float
    train_usd_per_h: float
    host_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A feasible group at its cheapest."""

    jobs: tuple[JobId, ...]
    rollout_nodes: int
    train_nodes: int
    usd_per_h: float
    needed: bool
    """Whether some division may want it: it costs less than with one job apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A division of all jobs into groups."""

    columns: tuple[Column, ...]
    usd_per_h: float
    lp_usd_per_h: float
    """No division is cheaper: the linear relaxation, or a bound by volume."""
    proven: bool
    """Whether `columns` is the cheapest division."""


@dataclass(slots=True)
class Columns:
    """All feasible groups of the jobs that are there, kept up as they come and go."""

    prices: Prices
    max_members: int = 5
    margin: float = 0.0
    most: int = MOST_COLUMNS
    """Feasible groups that are listed; beyond, none are."""
    degrees: tuple[int, ...] = ()
    """Train nodes that groups may have, for jobs that can take another degree than they ask for."""
    _items: dict[JobId, Item] = field(default_factory=dict)
    _columns: dict[tuple[int, tuple[JobId, ...]], Column] = field(default_factory=dict)
    """By train nodes and jobs."""
    _overflown: bool = False

    def add(self, item: Item) -> None:
        """A job that came. InternalError when it is there already."""
        if item.job_id in self._items:
            raise InternalError(f"job {item.job_id} is packed already")
        self._items[item.job_id] = item
        if self._overflown:
            return
        for degree in sorted({item.train_nodes, *self.degrees}):
            self._add_at(item, degree)
        if len(self._columns) > self.most:
            self._overflown = True
            self._columns.clear()

    def _add_at(self, item: Item, degree: int) -> None:
        fitted = item.on_degree(degree)
        if fitted is None:
            return
        grown = [(), *[jobs for there, jobs in self._columns if there == degree]]
        for jobs in grown:
            column = self._grown(jobs, fitted)
            if column is not None:
                self._columns[degree, column.jobs] = column

    def remove(self, job_id: JobId) -> None:
        """A job that left."""
        del self._items[job_id]
        if self._overflown:
            self._refill()
            return
        self._columns = {
            key: column for key, column in self._columns.items() if job_id not in column.jobs
        }

    def items(self) -> Mapping[JobId, Item]:
        return self._items

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def overflown(self) -> bool:
        """Whether there are too many to be listed."""
        return self._overflown

    def on_degree(self, job_id: JobId, train_nodes: int) -> Item:
        """The job as it is in a column of so many train nodes."""
        fitted = self._items[job_id].on_degree(train_nodes)
        if fitted is None:
            raise InternalError(f"job {job_id} is in no group of {train_nodes} train nodes")
        return fitted

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns.values())

    def solve(self, *, time_limit_s: float = 10.0) -> Packing:
        """The cheapest division of the jobs that are there, and the bound of its relaxation."""
        if self._overflown:
            return Packing(
                columns=(),
                usd_per_h=float("inf"),
                lp_usd_per_h=self.volume_usd_per_h(),
                proven=False,
            )
        chosen: list[Column] = []
        lp_usd_per_h, proven = 0.0, True
        for jobs in self._components():
            wanted = [c for c in self._columns.values() if c.needed and c.jobs[0] in jobs]
            if len(wanted) == len(jobs):  # nothing but each job alone
                chosen += wanted
                lp_usd_per_h += sum(column.usd_per_h for column in wanted)
                continue
            costs = [column.usd_per_h for column in wanted]
            found = partition([column.jobs for column in wanted], costs, time_limit_s=time_limit_s)
            chosen += [wanted[index] for index in found.chosen]
            lp_usd_per_h += found.bound
            proven = proven and found.proven
        return Packing(
            columns=tuple(chosen),
            usd_per_h=sum(column.usd_per_h for column in chosen),
            lp_usd_per_h=lp_usd_per_h,
            proven=proven,
        )

    def volume_usd_per_h(self) -> float:
        """A bound without columns: a job uses its nodes for its phases once per period, which is
        at most what it accepts; and a train node is shared by at most `max_members`."""
        total = 0.0
        for item in self._items.values():
            share = item.train_s / item.cap_s
            if self.max_members:
                share = max(share, 1 / self.max_members)
            total += item.train_nodes * self.prices.train_usd_per_h * min(1.0, share)
            rollout = min(1.0, item.rollout_s / item.cap_s)
            total += item.rollout_nodes * self.prices.rollout_usd_per_h * rollout
        return total

    def _grown(self, jobs: tuple[JobId, ...], item: Item) -> Column | None:
        if self.max_members and len(jobs) >= self.max_members:
            return None
        degree = item.train_nodes
        others = [self._items[job].on_degree(degree) for job in jobs]
        members = [*(one for one in others if one is not None), item]
        limit_s = shared_limit_s(members, margin=self.margin)
        if not may_share(members, limit_s, memory_bytes=self.prices.host_memory_bytes):
            return None
        nodes = fewest_nodes(members, limit_s, memory_bytes=self.prices.host_memory_bytes)
        if nodes is None:
            return None
        usd_per_h = (
            nodes * self.prices.rollout_usd_per_h + item.train_nodes * self.prices.train_usd_per_h
        )
        named = (*jobs, item.job_id)
        needed = self._is_needed(degree, named, usd_per_h)
        return Column(named, nodes, degree, usd_per_h, needed)

    def _is_needed(self, degree: int, jobs: tuple[JobId, ...], usd_per_h: float) -> bool:
        if not self._is_founded(degree, jobs):
            return False
        if len(jobs) == 1:
            return True
        for index, job in enumerate(jobs):
            others = jobs[:index] + jobs[index + 1 :]
            rest = self._columns.get((degree, others))
            alone = self._columns.get((self._items[job].train_nodes, (job,)))
            if rest is None or alone is None or not self._is_founded(degree, others):
                continue
            if rest.usd_per_h + alone.usd_per_h <= usd_per_h + _TOLERANCE:
                return False
        return True

    def _is_founded(self, degree: int, jobs: tuple[JobId, ...]) -> bool:
        return any(self._items[job].train_nodes == degree for job in jobs)

    def _refill(self) -> None:
        items = list(self._items.values())
        self._items, self._columns, self._overflown = {}, {}, False
        for index, item in enumerate(items):
            self.add(item)
            if self._overflown:
                self._items.update((rest.job_id, rest) for rest in items[index + 1 :])
                return

    def _components(self) -> Iterator[set[JobId]]:
        """Jobs that may share a group, directly or through others."""
        root = {job: job for job in self._items}

        def find(job: JobId) -> JobId:
            while root[job] != job:
                root[job] = root[root[job]]
                job = root[job]
            return job

        for column in self._columns.values():
            if column.needed:
                for job in column.jobs[1:]:
                    root[find(job)] = find(column.jobs[0])
        parts: dict[JobId, set[JobId]] = {}
        for job in self._items:
            parts.setdefault(find(job), set()).add(job)
        yield from parts.values()


def shared_limit_s(members: Sequence[Item], *, margin: float) -> float:
    """Longest period that all of them accept, with the margin of a shared group taken off."""
    cap_s = min(member.cap_s for member in members)
    return cap_s / (1 + margin) if len(members) > 1 else cap_s


def may_share(members: Sequence[Item], limit_s: float, *, memory_bytes: int | None) -> bool:
    """Whether the train nodes and every loop keep the limit, however many rollout nodes."""
    longest_s = max(member.solo_s for member in members)
    train_s = sum(member.train_s for member in members)
    if max(longest_s, train_s) > limit_s * CLOSE:
        return False
    resident_bytes = sum(member.train_bytes for member in members)
    return memory_bytes is None or resident_bytes <= memory_bytes


@dataclass(frozen=True, slots=True)
class Partition:
    chosen: tuple[int, ...]
    cost: float
    bound: float
    proven: bool


def partition(
    sets: Sequence[Sequence[str]],
    costs: Sequence[float],
    *,
    at_most_once: Sequence[str | None] = (),
    time_limit_s: float = 10.0,
    gap: float = 0.0,
) -> Partition:
    """The cheapest sets that hold every element exactly once, by HiGHS.

    `at_most_once` may label sets; of those with the same label at most one is chosen. The bound is
    that of the linear relaxation. A choice within `gap` of the cheapest, as a fraction, will do.
    InternalError when there is no such choice, or none was found in time.
    """
    import highspy
    import numpy as np
    from highspy._core import _Highs

    rows: dict[str, int] = {}
    for members in sets:
        for element in members:
            rows.setdefault(element, len(rows))
    labels: dict[str, int] = {}
    for label in at_most_once:
        if label is not None:
            labels.setdefault(label, len(rows) + len(labels))
    entries = [[rows[element] for element in members] for members in sets]
    for index, label in enumerate(at_most_once):
        if label is not None:
            entries[index].append(labels[label])
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(sets), len(rows) + len(labels)
    model.col_cost_ = np.asarray(costs, dtype=float)
    model.col_lower_ = np.zeros(len(sets))
    model.col_upper_ = np.ones(len(sets))
    model.row_lower_ = np.concatenate([np.ones(len(rows)), np.zeros(len(labels))])
    model.row_upper_ = np.ones(model.num_row_)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(one) for one in entries])])
    model.a_matrix_.index_ = np.fromiter(itertools.chain.from_iterable(entries), dtype=np.int32)
    model.a_matrix_.value_ = np.ones(len(model.a_matrix_.index_))
    solver = _Highs()  # its subclass prints a banner to stdout when it is made
    for option, value in (("output_flag", False), ("threads", 1), ("time_limit", time_limit_s)):
        solver.setOptionValue(option, value)
    solver.passModel(model)
    solver.run()
    values = np.asarray(solver.getSolution().col_value)
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise InternalError(f"no division of {len(rows)} jobs: {solver.getModelStatus()}")
    bound = float(solver.getInfo().objective_function_value)
    if np.all(np.minimum(values, 1 - values) < _TOLERANCE):
        chosen = tuple(int(index) for index in np.nonzero(values > 0.5)[0])
        return Partition(chosen, sum(costs[index] for index in chosen), bound, True)
    solver.changeColsIntegrality(
        len(sets),
        np.arange(len(sets), dtype=np.int32),
        np.full(len(sets), int(highspy.HighsVarType.kInteger), dtype=np.uint8),
    )
    solver.setOptionValue("mip_rel_gap", gap)
    solver.run()
    values = np.asarray(solver.getSolution().col_value)
    chosen = tuple(int(index) for index in np.nonzero(values > 0.5)[0])
    if sum(len(sets[index]) for index in chosen) != len(rows):
        raise InternalError(f"no division of {len(rows)} jobs within {time_limit_s} s")
    proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return Partition(chosen, sum(costs[index] for index in chosen), bound, proven)


def pack(
    items: Iterable[Item], prices: Prices, *, max_members: int = 5, margin: float = 0.0
) -> Packing:
    """`Columns.solve` of these jobs at once."""
    columns = Columns(prices, max_members=max_members, margin=margin)
    for item in items:
        columns.add(item)
    return columns.solve()
