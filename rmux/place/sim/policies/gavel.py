"""Gavel+ of RollMux: Gavel choosing how many nodes of which kind each job has, and no more.

A job runs on one of the bundles of `resources.choices` at a time, alone on it: nothing fills the
idle time inside its iterations. Shares of time on bundles come from the linear program of
`mixes`, solved when jobs come or go. Rounds realise them as in Gavel (OSDI 2020): at the begin of
each, bundles go to jobs by what they are owed, share x time less time received; what then is free
goes to whoever fits. A job that starts on another bundle, or after it was set aside, starts cold.

A job whose share is spread over two bundles keeps its SLO on average, as in Gavel, not in each
iteration, which is what a replay counts. Jobs that come or find room start at once, not with the
next round. Priorities of jobs are not looked at. Gavel+ is not described further by the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rmux.ids import JobId
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.mixes import Objective, Wish, best_mix, solve, wish_of
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.policies.tally import Tally
from rmux.place.sim.resources import Bundle
from rmux.place.sim.world import World

ROUND_S = 600.0
"""A cold start takes up to a quarter of it; Gavel's own 360 s would lose more."""
_EQUAL_S = 1e-6


@dataclass(slots=True)
class _Share:
    job: SimJob
    wish: Wish
    shares: tuple[float, ...] = ()
    owed_s: list[float] = field(default_factory=list)
    running: int | None = None
    """The bundle it has."""
    started: bool = False

    def claim_s(self, index: int, round_s: float) -> float:
        """What it is owed of the bundle by the end of a round."""
        return self.owed_s[index] + self.shares[index] * round_s

    @property
    def bundle(self) -> Bundle | None:
        return None if self.running is None else self.wish.bundles[self.running]


class Gavel:
    def __init__(
        self,
        world: World,
        *,
        round_s: float = ROUND_S,
        objective: Objective = Objective.THROUGHPUT_PER_COST,
    ) -> None:
        self.world, self.round_s, self.objective = world, round_s, objective
        self._tally = Tally(world)
        self._jobs: dict[JobId, _Share] = {}
        self._since_s = 0.0
        self._wake_s: float | None = None

    def step(
        self, now_s: float, *, arrived: Sequence[SimJob], departed: Sequence[JobId]
    ) -> Standing:
        self._accrue(now_s)
        for job_id in departed:
            self._tally.drop(job_id)
            del self._jobs[job_id]
        for job in arrived:
            wish = wish_of(job, self.world, objective=self.objective)
            found = _Share(job=job, wish=wish, owed_s=[0.0] * len(wish.bundles))
            self._jobs[job.id] = found
            if self.world.is_elastic:
                found.shares = best_mix(wish)
        if (arrived or departed) and not self.world.is_elastic:
            self._solve()
        is_round = self._wake_s is not None and now_s >= self._wake_s
        lost_s = self._start(self._jobs.values(), is_round=is_round)
        self._wake_s = self._next_s(now_s)
        return self._tally.standing(
            placed={job.id: "isolated group" for job in arrived},
            lost_s=lost_s,
            moves=len(lost_s),
            next_s=self._wake_s,
        )

    def _accrue(self, now_s: float) -> None:
        passed_s, self._since_s = now_s - self._since_s, now_s
        for found in self._jobs.values():
            if found.running is not None and found.shares[found.running] == 1:
                continue  # has what it is owed
            for index, share in enumerate(found.shares):
                found.owed_s[index] += passed_s * (share - (index == found.running))

    def _solve(self) -> None:
        jobs = list(self._jobs.values())
        for found, shares in zip(jobs, solve([one.wish for one in jobs], self.world), strict=True):
            found.shares = shares

    def _start(self, jobs: Iterable[_Share], *, is_round: bool) -> dict[JobId, float]:
        """Give out bundles: to everybody when a round begins, else to who has none. The seconds
        that cold starts take from jobs that ran before."""
        lost_s: dict[JobId, float] = {}
        chosen = self._chosen([one for one in jobs if is_round or one.running is None], is_round)
        for found, index in chosen:
            if index == found.running:
                continue
            self._tally.drop(found.job.id)
            found.running = index
            bundle = found.bundle
            if bundle is None:
                continue
            if found.started:
                lost_s[found.job.id] = bundle.cold_s
            found.started = True
        for found, _ in chosen:
            if found.bundle is not None:
                self._tally.put_bundle(found.job.id, found.bundle)
        return lost_s

    def _chosen(self, jobs: Sequence[_Share], is_round: bool) -> list[tuple[_Share, int | None]]:
        """A bundle, or none, for each of the jobs, in order of what they are owed."""
        claims = [
            (
                round(found.claim_s(index, self.round_s), 6),
                index == found.running,
                found.wish.values[index],
                place,
                index,
            )
            for place, found in enumerate(jobs)
            for index in range(len(found.shares))
        ]
        claims.sort(key=lambda claim: (-claim[0], -claim[1], -claim[2], claim[3], claim[4]))
        rollout = train = 0
        if is_round:  # what the jobs have is given out anew
            held = [found.bundle for found in jobs if found.bundle is not None]
            rollout -= sum(one.rollout for one in held)
            train -= sum(one.train for one in held)
        given: dict[int, int] = {}
        for _, _, _, place, index in claims:
            bundle = jobs[place].wish.bundles[index]
            if place not in given and self._tally.has_room(
                rollout + bundle.rollout, train + bundle.train
            ):
                given[place] = index
                rollout, train = rollout + bundle.rollout, train + bundle.train
        return [(found, given.get(place)) for place, found in enumerate(jobs)]

    def _next_s(self, now_s: float) -> float | None:
        """The begin of the next round that may change anything; None when none will."""
        changes_s = min((self._change_s(one) for one in self._jobs.values()), default=math.inf)
        if changes_s == math.inf:
            return None
        rounds = math.ceil((now_s + changes_s - _EQUAL_S) / self.round_s)
        return max(rounds, math.floor(now_s / self.round_s) + 1) * self.round_s

    def _change_s(self, found: _Share) -> float:
        """Seconds from now after which the job may be given another bundle."""
        running = found.running
        if running is not None and found.shares[running] == 1:
            return math.inf
        if running is None or not self.world.is_elastic:
            return 0.0
        claim_s = found.claim_s(running, self.round_s)
        return min(
            (claim_s - found.claim_s(index, self.round_s)) / (share + 1 - found.shares[running])
            for index, share in enumerate(found.shares)
            if share and index != running
        )
