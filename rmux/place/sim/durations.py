"""Where the phase times of a simulation come from: fixed, jittered, drawn from lengths, drifting.

A source answers with the seconds of one phase of one iteration, switch time excluded. Sources wrap
each other: `Drifting(Jittered(Fixed()))` jitters the planned time and lets it drift. Each is told a
random generator that belongs to the (job, phase) asked about, so that the order in which jobs are
asked changes nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rmux.errors import InternalError
from rmux.group import Member
from rmux.ids import JobId
from rmux.job import Phase


class Durations(Protocol):
    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        """Seconds of the phase; a sync has the link to itself."""


class Batches(Durations, Protocol):
    """Durations that know when each response of a rollout is done."""

    def shares(self, job: Member, iteration: int) -> Sequence[float]:
        """Of every response of the iteration, its length ÷ the token limit, 0..1, ascending."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every phase takes its worst case; `expected` takes the expected time instead."""

    expected: bool = False

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        profile = job.profile
        if phase is Phase.INIT:
            return profile.init_s
        if phase is Phase.SYNC:
            return profile.sync_s
        estimate = profile.rollout if phase is Phase.ROLLOUT else profile.train
        return estimate.expected_s if self.expected else estimate.worst_s


@dataclass(frozen=True, slots=True)
class Jittered:
    """Log-normal of mean 1 and coefficient of variation `cv` on rollout and train."""

    base: Durations
    cv: float

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        seconds = self.base.of(job, phase, iteration, rng)
        if phase not in (Phase.ROLLOUT, Phase.TRAIN):
            return seconds
        return seconds * _log_normal(self.cv, rng)


@dataclass(frozen=True, slots=True)
class LinkJitter:
    """Log-normal of mean 1 and coefficient of variation `cv` on sync."""

    base: Durations
    cv: float

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        seconds = self.base.of(job, phase, iteration, rng)
        return seconds * _log_normal(self.cv, rng) if phase is Phase.SYNC else seconds


@dataclass(slots=True)
class HeavyTailed:
    """Rollout and train as a batch of real response lengths makes them.

    `num_samples` lengths are drawn from `tokens` (cut at `limit_tokens`) for each iteration. Time
    goes with length, and the worst case has every response at the limit: a rollout lasts as long as
    its longest response, a train as long as the batch has tokens. Neither exceeds the worst case.
    Of a decoding step `crowding` goes with the responses still running, so that the last ones of a
    rollout are faster.
    """

    base: Durations
    tokens: Sequence[int]
    limit_tokens: int
    num_samples: int = 256
    seed: int = 0
    crowding: float = 0.0
    """Share of a step of all responses that is in proportion to them: reading their caches."""
    _last: dict[JobId, tuple[int, list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tokens or self.limit_tokens < 1 or self.num_samples < 1:
            raise InternalError("a batch of responses needs lengths, a limit and a size")
        if not 0 <= self.crowding < 1:
            raise InternalError(f"a step cannot have {self.crowding:g} of itself per response")
        limit = self.limit_tokens
        self._ratios = [min(length, limit) / limit for length in self.tokens]

    _ratios: list[float] = field(init=False)

    def shares(self, job: Member, iteration: int) -> Sequence[float]:
        known = self._last.get(job.job_id)
        if known is None or known[0] != iteration:
            # Seeded by what it is for: rollout and train of an iteration see the same batch.
            rng = random.Random(f"{self.seed}/{job.job_id}/{iteration}")
            known = (iteration, sorted(rng.choices(self._ratios, k=self.num_samples)))
            self._last[job.job_id] = known
        return known[1]

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        seconds = self.base.of(job, phase, iteration, rng)
        if phase not in (Phase.ROLLOUT, Phase.TRAIN):
            return seconds
        shares = self.shares(job, iteration)
        mean = sum(shares) / self.num_samples
        if phase is Phase.TRAIN:
            return seconds * mean
        return seconds * ((1.0 - self.crowding) * shares[-1] + self.crowding * mean)


class Template(StrEnum):
    """How lengths move over a job's life."""

    NONE = "none"
    INCREASING = "increasing"
    DECREASING = "decreasing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A template at one strength: 1.0 is the observed one, others scaled."""

    template: Template = Template.NONE
    scale: float = 1.0
    amplitude: float = 0.3
    """Relative change over the whole life at scale 1."""

    def factor(self, life: float) -> float:
        """What times are multiplied by at this part of the life, 0..1; 1 at its begin.

        Decreasing mirrors increasing: where one takes 1.3 times as long the other takes 1/1.3.
        """
        grown = 1.0 + self.scale * self.amplitude * min(1.0, max(0.0, life))
        if self.template is Template.INCREASING:
            return grown
        return 1.0 / grown if self.template is Template.DECREASING else 1.0


MIXED = (
    Drift(),
    *(Drift(template=Template.INCREASING, scale=scale) for scale in (0.5, 1.0, 1.5)),
    *(Drift(template=Template.DECREASING, scale=scale) for scale in (0.5, 1.0, 1.5)),
)
"""The templates of the drift study; a mixed workload draws one per job."""


@dataclass(frozen=True, slots=True)
class Drifting:
    """Rollout and train times that change over a job's life of `iterations`."""

    base: Durations
    drifts: Mapping[JobId, Drift]
    iterations: Mapping[JobId, int]

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        seconds = self.base.of(job, phase, iteration, rng)
        drift = self.drifts.get(job.job_id)
        if drift is None or phase not in (Phase.ROLLOUT, Phase.TRAIN):
            return seconds
        return seconds * drift.factor(iteration / max(1, self.iterations[job.job_id] - 1))


@dataclass(frozen=True, slots=True)
class SlowReward:
    """A reward service that has slow spells: its `share` of the rollout takes `factor` times as
    long in iterations that a spell of mean length `spell` covers, `probability` of all of them."""

    base: Durations
    share: float
    factor: float
    probability: float
    spell: int = 1
    seed: int = 0

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        seconds = self.base.of(job, phase, iteration, rng)
        if phase is not Phase.ROLLOUT:
            return seconds
        block = iteration // max(1, self.spell)
        drawn = random.Random(f"{self.seed}/reward/{job.job_id}/{block}").random()
        slow = drawn < self.probability
        return seconds * (1.0 + self.share * (self.factor - 1.0)) if slow else seconds


@dataclass(frozen=True, slots=True)
class Interference:
    """Rollout and train slowed by `factor` while another job is resident on the same devices.

    `residents` says how many jobs the job's group has now; who changes groups keeps it.
    """

    base: Durations
    factor: float
    residents: Mapping[JobId, int]

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        seconds = self.base.of(job, phase, iteration, rng)
        if phase in (Phase.ROLLOUT, Phase.TRAIN) and self.residents.get(job.job_id, 1) > 1:
            return seconds * self.factor
        return seconds


@dataclass(frozen=True, slots=True)
class PerJob:
    """A source of its own for some jobs, `base` for the others."""

    base: Durations
    sources: Mapping[JobId, Durations]

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        return self.sources.get(job.job_id, self.base).of(job, phase, iteration, rng)


def generator(seed: int, job_id: JobId, phase: Phase) -> random.Random:
    """The generator of one job's phase in a simulation of this seed."""
    return random.Random(f"{seed}/{job_id}/{phase}")


def _log_normal(cv: float, rng: random.Random) -> float:
    """One draw of mean 1."""
    if cv <= 0.0:
        return 1.0
    variance = math.log1p(cv * cv)
    return rng.lognormvariate(-variance / 2, math.sqrt(variance))
