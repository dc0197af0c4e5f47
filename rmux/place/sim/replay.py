"""A replay: arrivals, departures and a policy's own wake-ups; between them nothing changes.

Under `Durations.HOLD` a job keeps its place for the trace's duration, however fast it runs: the
paper's replay, in which sharing costs nobody time. Under `WORK` the duration is what the job takes
alone, and it progresses at solo ÷ planned iteration time.

What a move takes from a job (`Standing.lost_s`) delays it under WORK. Under HOLD it is charged: the
job holds its new place and as many nodes as it has alone for that time.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from rmux.errors import InfeasibleError, InternalError
from rmux.ids import JobId
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.base import Policy, Standing
from rmux.place.sim.world import World

SLACK = 1 + 1e-9
"""Seconds that differ by less than this factor are equal."""
_MOST_WAKES = 100_000
"""Wake-ups in a row without a job that runs: the policy leads nowhere."""


class Durations(StrEnum):
    HOLD = "hold"
    WORK = "work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What holds from `at_s` to the next point; devices are nodes of the world."""

    at_s: float
    usd_per_h: float
    rollout_devices: int
    train_devices: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one job."""

    job_id: JobId
    tenant: str
    arrival_s: float
    duration_s: float
    started_s: float
    ended_s: float
    usd: float
    """Its share of the bill, moves included."""
    tightness: float
    """Longest planned iteration ÷ (SLO x solo at worst case); above 1 the promise was broken."""
    tightness_expected: float
    """The same against solo at expected phase times."""
    nodes: tuple[int, int]
    """Of rollout and train."""

    @property
    def jct_s(self) -> float:
        return self.ended_s - self.arrival_s

    @property
    def wait_s(self) -> float:
        return self.started_s - self.arrival_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Of a whole trace; seconds count from the first arrival."""

    outcomes: tuple[Outcome, ...]
    """In order of departure."""
    span_s: float
    """First arrival to last departure."""
    cost_usd: float
    """Everything held, and what moves were charged."""
    move_usd: float
    lost_s: float
    """What moves and restarts took from all jobs together."""
    moves: int
    placed: Mapping[str, int]
    """Arrivals by how they were placed."""
    rollout_held: float
    """Device-seconds, as the next three."""
    rollout_busy: float
    train_held: float
    train_busy: float
    rollout_peak: int
    train_peak: int
    elapsed_s: float
    """What computing it took."""

    @property
    def usd_per_h(self) -> float:
        """Mean over the span."""
        return self.cost_usd / (self.span_s / 3600)


def replay(
    jobs: Iterable[SimJob],
    policy: Policy,
    *,
    world: World,
    durations: Durations = Durations.HOLD,
    watch: Callable[[Point], None] | None = None,
) -> Replay:
    """Drive `policy` through the jobs, which come by arrival; `watch` sees every point.

    InfeasibleError when a job waits and nothing will ever change.
    """
    began = time.perf_counter()
    run = _Run(policy, world, durations, watch)
    stream = iter(jobs)
    coming = next(stream, None)
    if coming is None:
        raise InternalError("a replay needs a job")
    while coming is not None or run.present:
        now_s = run.next_s(coming)
        arrived = []
        while coming is not None and coming.arrival_s <= now_s:
            arrived.append(coming)
            coming = next(stream, None)
        run.step(now_s, arrived)
    return run.result(time.perf_counter() - began)


@dataclass(slots=True)
class _Present:
    """A job that has come and not gone; what it has done is settled up to `since_s`."""

    job: SimJob
    left_s: float
    since_s: float
    rate: float = 0.0
    resumes_s: float = 0.0
    """No progress before this."""
    finish_s: float = math.inf
    iteration_s: float = 0.0
    usd_per_h: float = 0.0
    usd: float = 0.0
    started_s: float | None = None
    longest_s: float = 0.0

    def settle(self, now_s: float) -> None:
        """Account for the time since it was last settled."""
        self.left_s -= max(0.0, now_s - max(self.since_s, self.resumes_s)) * self.rate
        self.usd += self.usd_per_h * (now_s - self.since_s) / 3600
        self.since_s = now_s


@dataclass(slots=True)
class _Totals:
    cost_usd: float = 0.0
    move_usd: float = 0.0
    lost_s: float = 0.0
    moves: int = 0
    placed: Counter[str] = field(default_factory=Counter)
    rollout_held: float = 0.0
    rollout_busy: float = 0.0
    train_held: float = 0.0
    train_busy: float = 0.0
    rollout_peak: int = 0
    train_peak: int = 0

    def add(self, standing: Standing, seconds: float) -> None:
        self.cost_usd += standing.usd_per_h * seconds / 3600
        self.rollout_held += standing.rollout_devices * seconds
        self.rollout_busy += standing.rollout_busy * seconds
        self.train_held += standing.train_devices * seconds
        self.train_busy += standing.train_busy * seconds
        if seconds > 0:
            self.rollout_peak = max(self.rollout_peak, standing.rollout_devices)
            self.train_peak = max(self.train_peak, standing.train_devices)


class _Run:
    def __init__(
        self,
        policy: Policy,
        world: World,
        durations: Durations,
        watch: Callable[[Point], None] | None,
    ) -> None:
        self.policy, self.world, self.durations, self.watch = policy, world, durations, watch
        self.present: dict[JobId, _Present] = {}
        self._running = 0
        self._standing = Standing(usd_per_h=0.0, iteration_s={}, usd_per_h_by_job={})
        self._now_s = 0.0
        self._finishes: list[tuple[float, int, JobId]] = []
        self._tickets = count()
        self._outcomes: list[Outcome] = []
        self._totals = _Totals()
        self._wakes = 0

    def next_s(self, coming: SimJob | None) -> float:
        """The next instant at which anything happens. InfeasibleError when nothing will."""
        finishes = self._finishes
        while finishes and not self._holds(finishes[0]):
            heapq.heappop(finishes)
        wake_s = self._standing.next_s
        at_s = min(
            coming.arrival_s if coming is not None else math.inf,
            finishes[0][0] if finishes else math.inf,
            wake_s if wake_s is not None else math.inf,
        )
        if at_s == wake_s and not self._running:
            self._wakes += 1
        else:
            self._wakes = 0
        if at_s == math.inf or self._wakes > _MOST_WAKES:
            stuck = next(iter(self.present.values())).job
            raise InfeasibleError(
                f"job {stuck.spec.name} waits, and nothing will change for it",
                hint="give --pools more nodes, or leave it out for pools that grow",
            )
        return max(at_s, self._now_s)

    def step(self, now_s: float, arrived: list[SimJob]) -> None:
        """Let the time pass, then ask the policy what holds from now on."""
        self._totals.add(self._standing, now_s - self._now_s)
        self._now_s = now_s
        departed = tuple(self._depart(now_s))
        for job in arrived:
            if job.id in self.present:
                raise InternalError(f"job {job.id} came twice")
            self.present[job.id] = _Present(job, left_s=job.duration_s, since_s=now_s)
        standing = self.policy.step(now_s, arrived=arrived, departed=departed)
        if standing.next_s is not None and standing.next_s <= now_s:
            raise InternalError(f"a policy wants to be woken at {standing.next_s} s, now {now_s} s")
        self._take(standing, now_s)
        if self.watch is not None:
            self.watch(
                Point(
                    at_s=now_s,
                    usd_per_h=standing.usd_per_h,
                    rollout_devices=standing.rollout_devices,
                    train_devices=standing.train_devices,
                    running=self._running,
                    waiting=len(self.present) - self._running,
                )
            )

    def result(self, elapsed_s: float) -> Replay:
        totals = self._totals
        return Replay(
            outcomes=tuple(self._outcomes),
            span_s=self._now_s,
            cost_usd=totals.cost_usd + totals.move_usd,
            move_usd=totals.move_usd,
            lost_s=totals.lost_s,
            moves=totals.moves,
            placed=dict(totals.placed),
            rollout_held=totals.rollout_held,
            rollout_busy=totals.rollout_busy,
            train_held=totals.train_held,
            train_busy=totals.train_busy,
            rollout_peak=totals.rollout_peak,
            train_peak=totals.train_peak,
            elapsed_s=elapsed_s,
        )

    def _holds(self, finish: tuple[float, int, JobId]) -> bool:
        found = self.present.get(finish[2])
        return found is not None and found.finish_s == finish[0]

    def _depart(self, now_s: float) -> Iterator[JobId]:
        finishes = self._finishes
        while finishes and finishes[0][0] <= now_s * SLACK:
            finish = heapq.heappop(finishes)
            if not self._holds(finish):
                continue
            found = self.present.pop(finish[2])
            found.settle(now_s)
            self._running -= 1
            self._outcomes.append(_outcome(found, now_s))
            yield found.job.id

    def _take(self, standing: Standing, now_s: float) -> None:
        self._standing = standing
        self._totals.moves += standing.moves
        self._totals.placed.update(standing.placed.values())
        for job_id, lost_s in standing.lost_s.items():
            self._lose(self.present[job_id], lost_s, now_s)
        shares, iterations = standing.usd_per_h_by_job, standing.iteration_s
        for job_id, found in self.present.items():
            iteration_s = iterations.get(job_id, 0.0)
            share = shares.get(job_id, 0.0)
            if iteration_s == found.iteration_s and share == found.usd_per_h:
                continue
            found.settle(now_s)
            found.usd_per_h = share
            if iteration_s != found.iteration_s:
                self._pace(found, iteration_s, now_s)

    def _pace(self, found: _Present, iteration_s: float, now_s: float) -> None:
        """The job runs at this many seconds an iteration from now on; 0: it waits."""
        self._running += (iteration_s > 0) - (found.iteration_s > 0)
        found.iteration_s = iteration_s
        found.longest_s = max(found.longest_s, iteration_s)
        if found.started_s is None and iteration_s > 0:
            found.started_s = now_s
        if iteration_s <= 0:
            found.rate = 0.0
        elif self.durations is Durations.WORK:
            found.rate = found.job.solo_s / iteration_s
        else:
            found.rate = 1.0
        self._plan_finish(found, now_s)

    def _plan_finish(self, found: _Present, now_s: float) -> None:
        found.finish_s = math.inf
        if found.rate > 0:
            left_s = max(0.0, found.left_s) / found.rate
            found.finish_s = max(now_s, found.resumes_s) + left_s
            heapq.heappush(self._finishes, (found.finish_s, next(self._tickets), found.job.id))

    def _lose(self, found: _Present, lost_s: float, now_s: float) -> None:
        self._totals.lost_s += lost_s
        if self.durations is Durations.WORK:
            found.settle(now_s)
            found.resumes_s = max(now_s, found.resumes_s) + lost_s
            self._plan_finish(found, now_s)
            return
        usd = lost_s / 3600 * self.world.solo_usd_per_h(found.job)
        self._totals.move_usd += usd
        found.usd += usd


def _outcome(found: _Present, now_s: float) -> Outcome:
    job = found.job
    expected_s = job.solo_s - job.profile.rollout.worst_s - job.profile.train.worst_s
    expected_s += job.profile.rollout.expected_s + job.profile.train.expected_s
    return Outcome(
        job_id=job.id,
        tenant=job.spec.tenant,
        arrival_s=job.arrival_s,
        duration_s=job.duration_s,
        started_s=now_s if found.started_s is None else found.started_s,
        ended_s=now_s,
        usd=found.usd,
        tightness=found.longest_s / (job.spec.slo * job.solo_s),
        tightness_expected=found.longest_s / (job.spec.slo * expected_s),
        nodes=(job.spec.rollout.devices, job.spec.train.devices),
    )
