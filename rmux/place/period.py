"""How long one round of a group takes: one number that all its members share.

In a strict cyclic order every member runs once per round, or k times where its spec allows it. With
rollout r, train t (both with the switch) and s off the devices, a job alone needs r+t+s, or
max(r, t+s) one step off-policy, and a device needs the sum of what it runs. The largest of these
terms is a lower bound in any order. It is exact, in every order of one turn each, where

* rollout device sets are pairwise equal or disjoint, and the train devices are the same for all;
* there is room for s: on a circle of that length the trains, each with a gap after it, fit, where
  the gap of an on-policy job that shares its rollout devices is what s plus their load exceed the
  circle by.

Proof: lay the trains on the circle in order, with their gaps. The rollout starts then obey bounds
on differences, and the only contradiction there could be is that a train, its s and the rollouts
from that job to another one of the same devices take longer than a circle and the time between the
two trains; the gap excludes it. One step off-policy two circles are there for these, and neither
t+s nor the load exceeds one; that t+s is over before the job's next train binds the circle alone.
Elsewhere the term is only a lower bound: sets that overlap in part, full devices and much sync
(1+1, 2+2 and 1+1+2 s on one pair take 4.5 s, not 4), several turns a round. There the period is
that of the event graph, of the given cyclic order or of the best one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter

from rmux.cluster import DeviceId
from rmux.errors import InternalError, NotFoundError
from rmux.group import Member, one_ahead_s
from rmux.ids import JobId
from rmux.place.event_graph import (
    CLOSE,
    EventGraph,
    Order,
    atoms,
    best_order,
    heaviest_clique,
    rings_of,
)

__all__ = ["CLOSE", "Loop", "Period", "Term", "best_round", "heaviest_clique_s", "is_closed_form"]
__all__ += ["is_saturated", "largest_load_s", "largest_term", "loop_of", "overlaps", "period"]
__all__ += ["period_of"]

MOST_TURNS = 12
"""Turns of a round in which jobs are repeated."""

MOST_ROUNDS = 24
"""Ways to repeat jobs whose orders are searched, most promising first."""

_Devices = frozenset[DeviceId]
_BY_NAME = attrgetter("node", "index")


class Term(StrEnum):
    """What binds a period."""

    CYCLE = "cycle"
    """One job's own loop."""
    ROLLOUT_LOAD = "rollout load"
    TRAIN_LOAD = "train load"
    ORDER = "order"
    """Jobs that wait for each other in their cyclic order, longer than any single term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    period_s: float
    binding: Term
    subject: str
    """The job of the binding cycle, the device of the binding load, or the jobs in order."""
    binding_s: float
    order: tuple[JobId, ...]
    """The cyclic order it holds for; a job with k iterations a round stands k times."""

    def iteration_s(self, job_id: JobId) -> float:
        """Seconds per iteration of a job, averaged over a round. NotFoundError when it has none."""
        turns = self.order.count(job_id)
        if not turns:
            raise NotFoundError(f"job {job_id} has no turn in the round")
        return self.period_s / turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What a period needs of one job; switch time is inside the phases."""

    job_id: JobId
    rollout_s: float
    train_s: float
    off_device_s: float
    """Sync and checkpoint: only the job itself waits for them."""
    rollout: frozenset[DeviceId]
    train: frozenset[DeviceId]
    max_staleness: int = 0
    """0: a rollout samples under the newest weights; 1: beside the train and sync before it."""
    max_repeats: int = 1
    """Most iterations in one round."""

    @property
    def solo_s(self) -> float:
        """Seconds per iteration alone."""
        if self.max_staleness:
            return one_ahead_s(
                rollout_s=self.rollout_s, train_s=self.train_s, off_device_s=self.off_device_s
            )
        return self.rollout_s + self.train_s + self.off_device_s


def loop_of(member: Member) -> Loop:
    return Loop(
        job_id=member.job_id,
        rollout_s=member.profile.rollout.planned_s,
        train_s=member.profile.train.planned_s,
        off_device_s=member.profile.off_device_s,
        rollout=_devices(member.placement.rollout),
        train=_devices(member.placement.train),
        max_staleness=member.max_staleness,
        max_repeats=member.max_repeats,
    )


@lru_cache(maxsize=2**14)
def _devices(held: tuple[DeviceId, ...]) -> _Devices:
    """One object for equal devices: comparing it with itself costs nothing."""
    return frozenset(held)


def period(members: Iterable[Member], *, order: Sequence[JobId] | None = None) -> Period:
    """The group's period, seconds: in `order` if given, else in the best cyclic order."""
    return period_of([loop_of(member) for member in members], order=order)


def period_of(loops: Sequence[Loop], *, order: Sequence[JobId] | None = None) -> Period:
    """`period` of bare loops. `order` names every one of them, k times for k turns a round."""
    if not loops:
        raise InternalError("a group without members has no period")
    if order is not None:
        here = {loop.job_id: index for index, loop in enumerate(loops)}
        turns = tuple([here[job] for job in order if job in here])
        if len(set(turns)) < len(loops):
            raise InternalError("an order must have a turn for every member")
        if len(turns) > len(loops):
            return _Round.of(loops, turns).as_given()
        loops = [loops[index] for index in turns]
    terms = _Terms(loops)
    if terms.is_exact():
        return terms.bound
    once = _Round.of(loops, tuple(range(len(loops))), bound=terms.bound)
    return once.as_given() if order is not None else once.period(*once.best())


def best_round(loops: Sequence[Loop], *, caps_s: Mapping[JobId, float] | None = None) -> Period:
    """The best cyclic order, with jobs repeated up to their `max_repeats` where that helps.

    `caps_s` are the longest iterations the jobs accept, seconds; without it none may get slower
    than with one turn each. A round with repeats has a job that runs once, and at most `MOST_TURNS`
    turns. It is taken when it keeps every cap and one turn each would break some, or would use
    fewer device-seconds per second; of several the one that uses most, then of fewest turns.
    """
    plain = period_of(loops)
    if plain.period_s == 0 or all(loop.max_repeats == 1 for loop in loops):
        return plain
    if caps_s is None:
        caps_s = dict.fromkeys((loop.job_id for loop in loops), plain.period_s)
    caps = [caps_s.get(loop.job_id, float("inf")) * CLOSE for loop in loops]
    best, best_use = plain, 0.0
    if plain.period_s <= min(caps):
        best_use = _work_s(loops, [1] * len(loops)) / plain.period_s
    for promised, counts in _promising(loops, caps)[:MOST_ROUNDS]:
        if promised <= best_use * CLOSE:
            break  # the others promise less still
        work_s = _work_s(loops, counts)
        limit_s = min(count * cap for count, cap in zip(counts, caps, strict=True))
        if best_use:
            limit_s = min(limit_s, work_s / (best_use * CLOSE))
        some = _Round.of(loops, _spread(counts))
        found_s, order = some.best(cutoff_s=limit_s * CLOSE)
        if found_s <= limit_s:
            best, best_use = some.period(found_s, order), work_s / found_s
    return best


def largest_term(loops: Sequence[Loop]) -> Period:
    """The largest job loop or device load: a lower bound, and often exact."""
    return _Terms(loops).bound


def largest_load_s(loops: Sequence[Loop]) -> float:
    """Seconds per round on the busiest device of either pool."""
    terms = _Terms(loops)
    return max(_busiest(terms.rollout)[0], _busiest(terms.train)[0])


def is_saturated(loops: Sequence[Loop]) -> bool:
    """Whether the busiest device has no idle time beside the longest loop: load >= cycle."""
    return largest_load_s(loops) * CLOSE >= max(loop.solo_s for loop in loops)


def is_closed_form(loops: Sequence[Loop]) -> bool:
    """Whether the largest term is known to be the period, in every order of one turn each."""
    return _Terms(loops).is_exact()


def overlaps(loops: Sequence[Loop]) -> bool:
    """Whether rollout device sets overlap in part, or train device sets differ."""
    terms = _Terms(loops)
    return len(terms.train) > 1 or not _are_disjoint(terms.rollout)


def heaviest_clique_s(loops: Sequence[Loop]) -> float:
    """Largest sum of rollouts that pairwise share a device and so run one after the other."""
    rings = rings_of(loop.rollout for loop in loops)
    return heaviest_clique(rings, [loop.rollout_s for loop in loops])


class _Terms:
    """The terms of loops with one turn each. Seconds by device set, as sets are few."""

    __slots__ = ("bound", "loops", "rollout", "train")

    def __init__(self, loops: Sequence[Loop]) -> None:
        self.loops = loops
        self.rollout: dict[_Devices, float] = {}
        self.train: dict[_Devices, float] = {}
        rollout, train = self.rollout, self.train
        longest, value_s = loops[0], -1.0
        for loop in loops:
            rollout[loop.rollout] = rollout.get(loop.rollout, 0.0) + loop.rollout_s
            train[loop.train] = train.get(loop.train, 0.0) + loop.train_s
            solo_s = loop.solo_s
            if solo_s > value_s:
                longest, value_s = loop, solo_s
        term, subject = Term.CYCLE, str(longest.job_id)
        for pool, sets in ((Term.ROLLOUT_LOAD, rollout), (Term.TRAIN_LOAD, train)):
            load_s, devices = _busiest(sets)
            if load_s > value_s:
                term, value_s = pool, load_s
                subject = str(min(devices, key=_BY_NAME))
        self.bound = Period(
            period_s=value_s,
            binding=term,
            subject=subject,
            binding_s=value_s,
            order=tuple([loop.job_id for loop in loops]),
        )

    def is_exact(self) -> bool:
        """The condition of the module's text; no load exceeds the bound."""
        if len(self.train) > 1 or not _are_disjoint(self.rollout):
            return False
        circle_s = self.bound.period_s
        gaps_s = 0.0
        for loop in self.loops:
            if loop.off_device_s > 0 and not loop.max_staleness:
                excess_s = loop.off_device_s + self.rollout[loop.rollout] - circle_s
                if excess_s > 0 and self._is_shared(loop):
                    gaps_s += excess_s
        return sum(self.train.values()) + gaps_s <= circle_s * CLOSE

    def _is_shared(self, loop: Loop) -> bool:
        return any(one is not loop and one.rollout == loop.rollout for one in self.loops)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """Loops, and the turns each has in a round."""

    loops: Sequence[Loop]
    turns: Order
    graph: EventGraph
    bound: Period
    """The largest term of such a round."""

    @staticmethod
    def of(loops: Sequence[Loop], turns: Order, *, bound: Period | None = None) -> _Round:
        if bound is None:
            bound = largest_term(_times(loops, [turns.count(job) for job in range(len(loops))]))
        graph = EventGraph(
            rollout_s=tuple([loop.rollout_s for loop in loops]),
            train_s=tuple([loop.train_s for loop in loops]),
            off_device_s=tuple([loop.off_device_s for loop in loops]),
            max_staleness=tuple([loop.max_staleness for loop in loops]),
            rollout_rings=rings_of(loop.rollout for loop in loops),
            train_rings=rings_of(loop.train for loop in loops),
        )
        return _Round(loops=loops, turns=turns, graph=graph, bound=bound)

    def best(self, *, cutoff_s: float = float("inf")) -> tuple[float, Order]:
        """(period, order) of the best order; stops at the heaviest clique, as no order is better.

        Seconds from `cutoff_s` on are only a lower bound.
        """
        graph, counts = self.graph, [self.turns.count(job) for job in range(len(self.loops))]
        goal_s = self.bound.period_s
        for rings, once_s in (
            (graph.rollout_rings, graph.rollout_s),
            (graph.train_rings, graph.train_s),
        ):
            seconds = [count * one_s for count, one_s in zip(counts, once_s, strict=True)]
            goal_s = max(goal_s, heaviest_clique(rings, seconds))
        return best_order(graph, self.turns, goal_s=goal_s, cutoff_s=cutoff_s)

    def as_given(self) -> Period:
        found_s = self.graph.cycle_mean_s(self.turns, floor_s=self.bound.period_s)
        return self.period(found_s, self.turns)

    def period(self, period_s: float, order: Order) -> Period:
        jobs = tuple([self.loops[index].job_id for index in order])
        if period_s <= self.bound.period_s * CLOSE:
            return replace(self.bound, order=jobs)
        return Period(
            period_s=period_s,
            binding=Term.ORDER,
            subject=", ".join(jobs),
            binding_s=period_s,
            order=jobs,
        )


def _promising(loops: Sequence[Loop], caps: Sequence[float]) -> list[tuple[float, tuple[int, ...]]]:
    """(most device-seconds per second, turns of each job) of repeats that may keep every cap."""
    # Some job runs once, so no round is longer than the longest cap.
    longest_s = max(caps)
    most = [loop.max_repeats for loop in loops]
    if longest_s < float("inf"):
        most = [
            min(count, max(1, int(longest_s / max(loop.solo_s, 1e-9))))
            for count, loop in zip(most, loops, strict=True)
        ]
    found = []
    for counts in _counts(most, MOST_TURNS):
        if min(counts) > 1 or max(counts) == 1:
            continue
        bound_s = largest_term(_times(loops, counts)).period_s
        if bound_s <= min(count * cap for count, cap in zip(counts, caps, strict=True)):
            found.append((_work_s(loops, counts) / bound_s, counts))
    return sorted(found, key=lambda item: (-round(item[0], 9), sum(item[1]), item[1]))


def _counts(most: Sequence[int], turns: int) -> Iterator[tuple[int, ...]]:
    """Every choice of 1 to `most` turns of each job, with at most `turns` together."""
    if not most:
        yield ()
        return
    first, *rest = most
    for count in range(1, min(first, turns - len(rest)) + 1):
        yield from ((count, *others) for others in _counts(rest, turns - count))


def _spread(counts: Sequence[int]) -> Order:
    """The turns of a round, those of one job far apart."""
    turns = [(nth / count, job) for job, count in enumerate(counts) for nth in range(count)]
    return tuple(job for _, job in sorted(turns))


def _times(loops: Sequence[Loop], counts: Sequence[int]) -> list[Loop]:
    """Loops whose terms are those of so many turns."""
    return [
        loop
        if count == 1
        else replace(
            loop,
            rollout_s=count * loop.rollout_s,
            train_s=count * loop.train_s,
            off_device_s=count * loop.off_device_s,
        )
        for loop, count in zip(loops, counts, strict=True)
    ]


def _work_s(loops: Sequence[Loop], counts: Sequence[int]) -> float:
    """Device-seconds of a round."""
    return sum(
        count * (loop.rollout_s * len(loop.rollout) + loop.train_s * len(loop.train))
        for loop, count in zip(loops, counts, strict=True)
    )


def _are_disjoint(sets: Iterable[_Devices]) -> bool:
    sets = tuple(sets)
    return len(sets) == 1 or sum(map(len, sets)) == len(frozenset().union(*sets))


def _busiest(sets: Mapping[_Devices, float]) -> tuple[float, _Devices]:
    """Seconds on the busiest devices, and those devices; (0, none) without any."""
    if _are_disjoint(sets):
        devices = max([some for some in sets if some], key=sets.__getitem__, default=frozenset())
        return sets[devices] if devices else 0.0, devices
    seconds = list(sets.values())
    loads = [
        (sum(some_s for index, some_s in enumerate(seconds) if users >> index & 1), devices)
        for users, devices in atoms(sets)
    ]
    return max(loads, key=lambda load: load[0])
