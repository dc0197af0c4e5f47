"""Moves that lower the hourly price of standing groups by more than they cost.

A move takes a cold start from the job and holds both places meanwhile: `move_s` seconds at the
price of the job's nodes. Moves are proposed only where what they save within the payback time
exceeds that, which is the hysteresis. Few jobs: the division with the least price and move costs
together, exact, by set partitioning; each group may be the home of one part, whose members stay
where they are. Many jobs, or jobs on parts of nodes: groups are dissolved into others, one by one.

Every move is judged as an admission is, in an order in which each is possible. Where none is left
that is, as when two jobs are to change places, those jobs leave first, together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from rmux.cluster import Node
from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, CoExecGroup, Member, nodes_of
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place import candidates as places
from rmux.place.candidates import Kind, Proposal
from rmux.place.index import Index
from rmux.place.index_bounds import Sort
from rmux.place.index_explain import assignment_of, explained
from rmux.place.index_judge import Judge
from rmux.place.index_row import Row
from rmux.place.target import Target, Targets, rollout_nodes

MOVE_S = 120.0
"""Of a job whose cold start was not profiled; the paper has 58 to 163 s for 7B to 32B."""
EXACT_UP_TO = 40
"""Jobs that are divided exactly."""

MoveTime = Callable[[Member], float]


def cold_start_s(member: Member) -> float:
    """Both engines of the job started anew, one after the other."""
    profile = member.profile
    return profile.rollout.cold_s + profile.train.cold_s or MOVE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One job from its group to another; `assignment` is applied after those of earlier moves."""

    job_id: JobId
    name: str
    source: GroupId
    target: GroupId
    """A group that an earlier move founds is named by `founded_by` of that job."""
    assignment: Assignment
    price_s: float
    price_usd: float
    leaves_first: bool = False
    """Before it or any other such job comes to its new place; these moves are the last."""


def steps(moves: Sequence[Move]) -> Iterator[tuple[bool, Move]]:
    """(whether the job only leaves, its move): what is done, in order."""
    last = [move for move in moves if move.leaves_first]
    yield from ((False, move) for move in moves if not move.leaves_first)
    yield from ((True, move) for move in last)
    yield from ((False, move) for move in last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """What is worth moving; no moves where nothing is."""

    moves: tuple[Move, ...] = ()
    usd_per_h_before: float
    usd_per_h_after: float
    payback_s: float

    @property
    def saves_usd_per_h(self) -> float:
        return self.usd_per_h_before - self.usd_per_h_after

    @property
    def price_usd(self) -> float:
        return sum(move.price_usd for move in self.moves)

    @property
    def price_s(self) -> float:
        """Job-seconds that the moves take."""
        return sum(move.price_s for move in self.moves)


def propose(
    state: ClusterState | Index,
    *,
    payback_s: float | None = None,
    move_s: MoveTime = cold_start_s,
    staying: Set[JobId] = frozenset(),
    targets: Targets | None = None,
) -> Rebalance:
    """The moves that pay back in time; jobs in `staying`, and those that say so, stay. Pure.

    Without `payback_s` that of the cluster's policy holds. `targets` keeps what it knows of jobs
    from one call to the next.
    """
    index = Index.of(state) if isinstance(state, ClusterState) else state
    payback_s = index.policy.payback_s if payback_s is None else payback_s
    plan = _Plan(index, payback_s=payback_s, move_s=move_s, staying=staying)
    if len(index.groups()) > 1:
        known = targets or Targets(index, most_jobs=EXACT_UP_TO)
        wanted = known.cheapest(index, price_usd=plan.price_usd, payback_s=payback_s)
        if wanted is None:
            plan.dissolve()
        else:
            plan.realise(wanted)
    return plan.result()


class _Plan:
    """A scratch copy of the groups on which moves are tried."""

    def __init__(
        self, index: Index, *, payback_s: float, move_s: MoveTime, staying: Set[JobId]
    ) -> None:
        self.before_usd_per_h = index.usd_per_h()
        self.payback_s, self.move_s = payback_s, move_s
        self.staying = staying
        self.original = index
        self._scratch: Index | None = None
        self.moves: list[Move] = []
        self._nodes: dict[Target, dict[int, NodeId]] = {}
        """Of each part, the rollout nodes by their numbers, as far as they are known."""
        self._leaving: dict[JobId, CoExecGroup] = {}
        """Who has left already, and which group."""

    @property
    def scratch(self) -> Index:
        if self._scratch is None:
            self._scratch = Index.of(self.original.state())
        return self._scratch

    def price_usd(self, member: Member) -> float | None:
        """What a move of the job costs; None for one that stays."""
        if not member.movable or member.job_id in self.staying:
            return None
        nodes = (*member.placement.rollout_nodes, *member.placement.train_nodes)
        return self.move_s(member) / 3600 * self.original.known.usd_per_h(nodes)

    def result(self) -> Rebalance:
        after = self.before_usd_per_h if self._scratch is None else self._scratch.usd_per_h()
        saved_usd = (self.before_usd_per_h - after) * self.payback_s / 3600
        pays = bool(self.moves) and saved_usd >= sum(move.price_usd for move in self.moves)
        return Rebalance(
            moves=tuple(self.moves) if pays else (),
            usd_per_h_before=self.before_usd_per_h,
            usd_per_h_after=after if pays else self.before_usd_per_h,
            payback_s=self.payback_s,
        )

    def realise(self, wanted: tuple[Target, ...]) -> None:
        """Move who is not where the division wants him, as far as an order can be found."""
        left = [
            (target, job)
            for target in wanted
            for job in target.jobs
            if self.original.group_of(job).id != target.home
        ]
        founded: dict[Target, GroupId] = {}
        self._nodes = {
            target: dict(enumerate(rollout_nodes(self.original.group(target.home))))
            for target in wanted
            if target.home is not None
        }
        left = self._in_turn(left, founded)
        if left:
            kept, before = len(self.moves), self.scratch.state()
            self._leaving = {job: self.scratch.group_of(job) for _, job in left}
            for _, job in left:
                self.scratch.remove(job)
            if self._in_turn(left, founded):
                del self.moves[kept:]
                self._scratch = Index.of(before)

    def _in_turn(
        self, left: list[tuple[Target, JobId]], founded: dict[Target, GroupId]
    ) -> list[tuple[Target, JobId]]:
        """Make every move that can be made; who is left."""
        progress = True
        while left and progress:
            progress = False
            for target, job in tuple(left):
                group_id = target.home or founded.get(target)
                if self._try(job, group_id, target.rollout_nodes, target.train_nodes, target):
                    founded.setdefault(target, self.scratch.group_of(job).id)
                    left.remove((target, job))
                    progress = True
        return left

    def dissolve(self) -> None:
        """Empty the groups whose members all find room elsewhere, the dearest per member first."""
        rows = sorted(self.original.rows(), key=lambda row: (len(row.members), row.rank))
        for row in rows:
            usd_per_h = self.original.known.usd_per_h(row.nodes)
            prices = [self.price_usd(member) for member in row.members]
            if None in prices or usd_per_h * self.payback_s / 3600 < sum(filter(None, prices)):
                continue
            self._dissolve(GroupId(row.id))

    def _dissolve(self, group_id: GroupId) -> None:
        if not any(group.id == group_id for group in self.scratch.groups()):
            return
        members = self.scratch.group(group_id).members
        if any(move.target == group_id for move in self.moves):
            return
        kept, before = len(self.moves), self.scratch.state()
        for member in members:
            if not self._into_another(member, group_id):
                del self.moves[kept:]
                self._scratch = Index.of(before)
                return

    def _into_another(self, member: Member, group_id: GroupId) -> bool:
        judge = self._judge(member)
        for bound, _, row in self.scratch.bounds().sorted(Sort.APART, judge):
            if bound[0] > 0:
                return False
            if row.id == group_id:
                continue
            num_train = len(row.train_nodes)
            if self._try(member.job_id, row.id, len(row.nodes) - num_train, num_train):
                return True
        return False

    def _try(
        self,
        job_id: JobId,
        group_id: GroupId | None,
        most_rollout: int,
        num_train: int,
        target: Target | None = None,
    ) -> bool:
        """Move the job there, if that keeps every promise on so many train nodes and on no more
        rollout nodes."""
        gone = self._leaving.get(job_id)
        source = self.scratch.group_of(job_id) if gone is None else gone
        member = source.member(job_id)
        if group_id is not None and not any(g.id == group_id for g in self.scratch.groups()):
            return False
        judge = self._judge(member)
        row = None if group_id is None else self.scratch.row(group_id)
        best = self._as_wanted(judge, row, target)
        if best is None:
            best = _best(judge, row, max_members=self.scratch.policy.max_members)
        if best is None or len(nodes_of(best.train)) != num_train:
            return False
        if len(best.added) + (0 if row is None else len(row.nodes)) > most_rollout + num_train:
            return False
        assignment = assignment_of(explained(judge, best), job_id)
        if assignment is None:
            return False
        reached = self.scratch.apply(
            assignment, spec=judge.job.spec, profile=asked_profile_of(member)
        )
        if target is not None:
            numbers = target.where.get(job_id, ())
            self._nodes.setdefault(target, {}).update(zip(numbers, best.nodes, strict=False))
        self.moves.append(
            Move(
                job_id=job_id,
                name=member.name,
                source=source.id,
                target=reached,
                assignment=replace(assignment, group_id=group_id),
                price_s=self.move_s(member),
                price_usd=self.price_usd(member) or 0.0,
                leaves_first=gone is not None,
            )
        )
        return True

    def _as_wanted(self, judge: Judge, row: Row | None, target: Target | None) -> Proposal | None:
        """The very nodes of the division; None where they are not to be had. An admission looks at
        fewer places: none that has some nodes of the group and some new ones."""
        if target is None or row is None or judge.job.job_id not in target.where:
            return None
        job, nodes = judge.job, self._nodes.get(target, {})
        if places.refusal_of(row, job) or places.members_refusal(
            row, self.scratch.policy.max_members
        ):
            return None
        known = [nodes[one] for one in target.where[job.job_id] if one in nodes]
        held = [self.scratch.known.node(node) for node in known if node in row.nodes]
        missing = len(target.where[job.job_id]) - len(held)
        added: tuple[Node, ...] | None = ()
        if missing:
            count = missing * row.stock.largest
            added = job.pick(self.scratch.known, row.stock, count, need_bytes=job.rollout_bytes)
        if added is None or len(added) != missing:
            return None
        rollout = tuple(device for node in (*held, *added) for device in node.devices)
        if len(rollout) != job.count:
            return None
        one = Proposal(
            Kind.SCALE if added else Kind.PACK,
            row,
            rollout=rollout,
            nodes=nodes_of(rollout),
            train=row.train,
            needs=job.needs_on(row.train),
            apart=False,
            added=added,
        )
        return one if judge.key(one) is not None else None

    def _judge(self, member: Member) -> Judge:
        return self.scratch.judge(
            spec=spec_of(member), profile=asked_profile_of(member), job_id=member.job_id
        )


def _best(judge: Judge, row: Row | None, *, max_members: int) -> Proposal | None:
    """The preferred place in the group, or in a new one."""
    if row is None:
        found: Iterator[Proposal] = judge.isolated()
    else:
        if places.refusal_of(row, judge.job) or places.members_refusal(row, max_members):
            return None
        found = iter((*judge.packings(row), *judge.scalings(row)))
    keys = [(key, index, one) for index, one in enumerate(found) if (key := judge.key(one))]
    return min(keys, key=lambda item: item[:2])[2] if keys else None


def spec_of(member: Member) -> JobSpec:
    """What placement asks of a spec, of a job that has a place; goes with `asked_profile_of`."""
    placement = member.placement
    degree = member.asked_train_devices or len(placement.train)
    mini, micro = member.batches or (degree, 1)
    return JobSpec(
        name=member.name,
        slo=member.slo,
        max_staleness=member.max_staleness,
        max_repeats=member.max_repeats,
        tenant=member.tenant,
        priority=member.priority,
        movable=member.movable,
        rollout=RolloutSpec(devices=len(placement.rollout)),
        train=TrainSpec(devices=degree, mini_batch=mini, micro_batch=micro),
    )


def asked_profile_of(member: Member) -> JobProfile:
    """On the train devices that the job asked for."""
    return member.asked_profile or member.profile
