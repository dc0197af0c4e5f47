"""The groups as a decision reads them, kept up to date in steps: what `admit` decides, in far less.

A decision bounds what each group could offer, judges the most promising groups exactly, with the
judge of `admit`, and stops where no bound is better than what was found. Each change costs what its
group costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rmux.cluster import PoolKind
from rmux.errors import NotFoundError, UserError
from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, CoExecGroup, member_of
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import JobSpec, Reason
from rmux.place import candidates as places
from rmux.place.candidates import Newcomer, Proposal
from rmux.place.decision import Candidate, Decision, Verdict, why_refused
from rmux.place.index_bounds import BELOW, Bounds, RowBounds, Sort
from rmux.place.index_explain import assignment_of, explained
from rmux.place.index_judge import Judge, Key, whole
from rmux.place.index_listing import alone, in_group, nothing_to_plan
from rmux.place.index_needs import Needs
from rmux.place.index_row import Row
from rmux.place.inventory import Inventory
from rmux.place.link import LinkBook

if TYPE_CHECKING:
    from rmux.place.index_columns import Columns

RULES = ("interval", "paper")

MANY = 96
"""Groups from which on their bounds are computed together."""

NEAREST = 3
"""Groups whose refusals are told when nothing fits."""

_Found = tuple[Key, float, int, Proposal]
"""(preference, rank of the group, place in it, proposal): the least is chosen."""

_LEAST_OVERLAPPING: Key = (0, 0, True, 0)
_ALONE = float("inf")
"""Rank of a new group."""


def founded_by(job_id: str) -> GroupId:
    """Name of a group that a decision makes, before it has an id."""
    return GroupId(f"new-{job_id}")


class Index:
    """Mutable. Make it with `Index.of`."""

    def __init__(self, known: Inventory, *, revision: int) -> None:
        self.known = known
        self.policy = known.cluster.policy
        self.links = LinkBook(known) if known.cluster.links else None
        self._revision = revision
        self._rows: dict[GroupId, Row] = {}
        self._where: dict[JobId, Row] = {}
        self._next_rank = 0
        self._empty: Inventory | None = None
        self._columns: Columns | None = None

    @staticmethod
    def of(state: ClusterState) -> Index:
        index = Index(Inventory.of(state), revision=state.revision)
        for group in state.groups:
            index._insert(group)
        if len(index._rows) > MANY:
            index._empty = index.known.emptied()
            index.bounds()
        return index

    def state(self) -> ClusterState:
        """What holds now, as one immutable view without pending jobs."""
        return ClusterState(
            revision=self._revision, cluster=self.known.cluster_now(), groups=self.groups()
        )

    def group(self, group_id: str) -> CoExecGroup:
        return self.row(group_id).group

    def groups(self) -> tuple[CoExecGroup, ...]:
        return tuple([row.group for row in self._rows.values()])

    def group_of(self, job_id: str) -> CoExecGroup:
        """NotFoundError when the job is in no group."""
        return self._row_of(job_id).group

    def usd_per_h(self) -> float:
        """Hourly price of all nodes that groups hold."""
        return sum(
            [stock.usd_per_device_h * stock.held_devices for stock in self.known.stocks.values()]
        )

    def planned_sync_s(self, job_id: str) -> float:
        """Longest sync of a job when all others on its link sync at the worst time, seconds.

        Without a declared link: the sync alone. NotFoundError when the job is in no group.
        """
        row = self._row_of(job_id)
        if self.links is not None and (link := self.links.link_of(row)) is not None:
            return self.links.lane(link).plan().of(JobId(job_id))
        return next(m.profile.sync_s for m in row.members if m.job_id == job_id)

    def row(self, group_id: str) -> Row:
        row = self._rows.get(GroupId(group_id))
        if row is None:
            raise NotFoundError(f"no group {group_id!r}", hint="rmux group ls")
        return row

    def rows(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def decide(
        self,
        *,
        spec: JobSpec,
        profile: JobProfile,
        job_id: JobId,
        rule: str | None = None,
        margin: float | None = None,
    ) -> Decision:
        """What `admit` decides. Of the candidates it has the chosen one, or the nearest refusals.

        Without `rule` or `margin` those of the cluster's policy hold. UserError as of `admit`.
        """
        judge = self.judge(spec=spec, profile=profile, job_id=job_id, rule=rule, margin=margin)
        if nothing := nothing_to_plan(judge):
            return self.decision(judge, [nothing], None)
        found = self.best(judge)
        if found is None:
            return self.decision(judge, self._nearest(judge), None)
        chosen = replace(explained(judge, found[3]), verdict=Verdict.CHOSEN)
        return self.decision(judge, [chosen], 0)

    def judge(
        self,
        *,
        spec: JobSpec,
        profile: JobProfile,
        job_id: JobId,
        rule: str | None = None,
        margin: float | None = None,
    ) -> Judge:
        rule = self.policy.rule if rule is None else rule
        margin = self.policy.margin if margin is None else margin
        if rule not in RULES:
            raise UserError(f"no rule {rule!r}", hint=f"one of {', '.join(RULES)}")
        if not 0 <= margin < float("inf"):
            raise UserError(f"margin is {margin:g}; write a fraction such as 0.05")
        job = Newcomer(spec, profile, job_id)
        return Judge(self.known, self.links, job, rule=rule, margin=margin)

    def decision(
        self,
        judge: Judge,
        judged: list[Candidate],
        chosen: int | None,
        *,
        everywhere: bool = True,
    ) -> Decision:
        """With the reason when nothing was chosen, and what the margin costs when it was."""
        never, reason, assignment, margin_usd = False, Reason(), None, 0.0
        if chosen is None:
            reason = why_refused(judged)
            if judge.job.needs.solo_s <= 0:
                never = True
            elif everywhere and (why_never := self._never(judge)):
                never, reason = True, why_never
        else:
            best = judged[chosen]
            assignment = assignment_of(best, judge.job.job_id)
            margin_usd = self._margin_usd_per_h(judge, best)
        return Decision(
            job_id=judge.job.job_id,
            assignment=assignment,
            candidates=tuple(judged),
            chosen=chosen,
            reason=reason,
            never_fits=never,
            revision=self._revision,
            rule="paper" if judge.paper else "interval",
            margin=judge.margin,
            margin_usd_per_h=margin_usd,
        )

    def best(self, judge: Judge) -> _Found | None:
        """The place that is preferred to all others, or nothing."""
        found: _Found | None = None
        bounds = self.bounds()
        found = self._search(judge, bounds, Sort.APART, None)
        if judge.paper or found is None or found[0] >= _LEAST_OVERLAPPING:
            found = self._search(judge, bounds, Sort.OVERLAPPING, found)
        if found is not None and found[0] < self._least_of_new_nodes(judge):
            return found
        for index, one in enumerate(judge.isolated()):
            key = judge.key(one)
            if key is not None and (found is None or (key, _ALONE, index) < found[:3]):
                found = (key, _ALONE, index, one)
        return self._search(judge, bounds, Sort.SCALED, found)

    def bounds(self) -> Bounds:
        """Group by group while there are few; numpy is loaded when there are many."""
        limit = self.policy.max_members
        if self._columns is None and len(self._rows) > MANY:
            from rmux.place.index_columns import Columns

            self._columns = Columns(self._rows.values(), max_members=limit)
        return self._columns or RowBounds(self._rows.values(), max_members=limit)

    def apply(self, assignment: Assignment, *, spec: JobSpec, profile: JobProfile) -> GroupId:
        """Put a job where a decision says; returns the group's id. A job that is in a group moves.

        NotFoundError when the group or a node is not known.
        """
        job_id, target = assignment.job_id, assignment.group_id
        self._leave(job_id, target)
        for known in (self.known, self._empty):
            if known is not None:
                known.gain([node for node in assignment.new_nodes if not known.is_listed(node)])
        member = member_of(spec, profile, job_id=job_id, placement=assignment.placement)
        if target is None:
            self.known.hold(assignment.added_nodes)
            founded = founded_by(job_id)
            while founded in self._rows:  # it founded one before, which others hold now
                founded = GroupId(f"{founded}+")
            self._insert(
                CoExecGroup(
                    id=founded,
                    members=(member,),
                    nodes=assignment.added_nodes,
                    turns=assignment.turns,
                )
            )
            return founded
        row = self.row(target)
        self.known.release(assignment.removed_nodes)
        self.known.hold(assignment.added_nodes)
        row.nodes = [node for node in row.nodes if node not in assignment.removed_nodes]
        row.nodes += assignment.added_nodes
        row.members.append(member)
        row.needs.append(Needs.of(member))
        row.turns = assignment.turns or row.turns
        row.rotation_version += 1
        self._where[job_id] = row
        self._changed(row)
        return row.id

    def remove(self, job_id: JobId) -> tuple[NodeId, ...]:
        """Take a job out; returns the nodes that nobody is placed on any more.

        NotFoundError when the job is in no group.
        """
        row = self._row_of(job_id)
        self._drop_member(row, job_id)
        return self._free_unused(row)

    def _leave(self, job_id: JobId, target: GroupId | None) -> None:
        row = self._where.get(job_id)
        if row is None:
            return
        self._drop_member(row, job_id)
        if row.id != target:
            self._free_unused(row)

    def _drop_member(self, row: Row, job_id: JobId) -> None:
        at = next(i for i, member in enumerate(row.members) if member.job_id == job_id)
        del row.members[at], row.needs[at], self._where[job_id]
        row.rotation_version += 1

    def _free_unused(self, row: Row) -> tuple[NodeId, ...]:
        used = {device.node for member in row.members for device in member.placement.devices}
        unused = tuple([node for node in row.nodes if node not in used])
        if unused:
            self.known.release(unused)
            row.nodes = [node for node in row.nodes if node in used]
        if row.members:
            self._changed(row)
        else:
            del self._rows[row.id]
            if self._columns is not None:
                self._columns.drop(row)
            if self.links is not None:
                self.links.drop(row)
        return unused

    def _changed(self, row: Row) -> None:
        row.changed(self.known)
        if self._columns is not None:
            self._columns.put(row)
        if self.links is not None:
            self.links.put(row)

    def _insert(self, group: CoExecGroup) -> None:
        row = Row(group, self.known, rank=self._next_rank)
        self._next_rank += 1
        self._rows[row.id] = row
        for member in row.members:
            self._where[member.job_id] = row
        if self._columns is not None:
            self._columns.put(row)
        if self.links is not None:
            self.links.put(row)

    def _row_of(self, job_id: str) -> Row:
        row = self._where.get(JobId(job_id))
        if row is None:
            raise NotFoundError(f"job {job_id} is in no group")
        return row

    def _search(
        self, judge: Judge, bounds: Bounds, sort: Sort, found: _Found | None
    ) -> _Found | None:
        for bound, rank, row in bounds.sorted(sort, judge):
            if found is not None and (bound, rank) > found[:2]:
                break
            if judge.links is not None and judge.links.shut(row):
                continue
            for index, one in _places(judge, row, sort):
                key = judge.key(one)
                if key is not None and (found is None or (key, rank, index) < found[:3]):
                    found = (key, rank, index, one)
        return found

    def _least_of_new_nodes(self, judge: Judge) -> Key:
        """No place that takes further nodes is preferred to this."""
        usd_per_h = min([s.usd_per_device_h for s in self.known.of_kind(PoolKind.ROLLOUT)])
        return (whole(usd_per_h * BELOW), 0 if judge.paper else 1, False, 0)

    def _nearest(self, judge: Judge) -> list[Candidate]:
        rows = self.bounds().nearest(judge, NEAREST)
        limit = self.policy.max_members
        joins = [one for row in rows for one in in_group(judge, row, max_members=limit)]
        return [*joins, *alone(judge)]

    def _never(self, judge: Judge) -> Reason | None:
        """Why not even the empty cluster takes the job; None when it would."""
        if self._empty is None:
            self._empty = self.known.emptied()
        links = LinkBook(self._empty) if self.links is not None else None
        rule = "paper" if judge.paper else "interval"
        job = judge.job
        fresh = Newcomer(job.spec, job.profile, job.job_id)
        judged = list(alone(Judge(self._empty, links, fresh, rule=rule, margin=judge.margin)))
        never = all(one.verdict is Verdict.REFUSED for one in judged)
        return why_refused(judged) if never else None

    def _margin_usd_per_h(self, judge: Judge, best: Candidate) -> float:
        if judge.paper or not judge.margin or not best.marginal_usd_per_h:
            return 0.0
        job = judge.job
        without = self.best(
            self.judge(
                spec=job.spec,
                profile=job.profile,
                job_id=job.job_id,
                rule="interval",
                margin=0.0,
            )
        )
        if without is None:
            return 0.0
        return best.marginal_usd_per_h - judge.usd_per_h(without[3])


def _places(judge: Judge, row: Row, sort: Sort) -> Iterator[tuple[int, Proposal]]:
    """The group's places of one sort with their place among all of the group."""
    if sort is Sort.SCALED:
        yield from enumerate(judge.scalings(row), start=len(row.packs(judge.job.count)))
        return
    needs = judge.job.needs_on(row.train)
    for index, pack in enumerate(row.packs(judge.job.count)):
        if pack.apart is (sort is Sort.APART):
            yield index, places.packing(row, pack, needs)
