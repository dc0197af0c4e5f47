"""The synthetic jobs of the two-week replay: 200 jobs of the marginals that RollMux states.

Stated: 200 jobs within 370.2 h, 3B to 32B, response limits 4k to 32k (mean 12.1k), mean duration
27.9 h, SLO U(1,2), rollout and train GPUs 1:1. Not stated, hence assumed here: how often each
model, whether single- or multi-turn, the distribution of durations, phase seconds of other models
than the ten published. Phase seconds are those of the published workloads scaled with the length
of responses; exponents are fitted to the same list (4k to 32k, multi-turn).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.ids import JobId, ProfileId
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place.sim.jobs import SimJob

NUM_JOBS = 200
SPAN_H = 370.2
"""First arrival to last departure."""
MEAN_DURATION_H = 27.9
SIGMA = 1.0
"""Of the logarithm of durations: a median of 17 h, a twentieth beyond 88 h."""
LONGEST_H = 240.0
SLO = (1.0, 2.0)

LENGTHS_K = (4, 8, 16, 32)
LENGTH_SHARES = (0.23, 0.385, 0.265, 0.12)
"""Mean 12.1k tokens."""
ROLLOUT_EXPONENT, TRAIN_EXPONENT = 0.85, 0.95
SPREAD = 0.1
"""Of the logarithm of phase seconds among jobs of one kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Phase seconds at 8k tokens, and nodes of 8 GPUs in each pool."""

    model: str
    turns: str
    share: float
    rollout_s: float
    train_s: float
    nodes: int


KINDS = (
    Kind("3B", "single", 0.10, 60, 50, 1),
    Kind("3B", "multi", 0.10, 240, 75, 1),
    Kind("7B", "single", 0.20, 134, 113, 1),
    Kind("8B", "multi", 0.20, 310, 121, 1),
    Kind("14B", "single", 0.15, 239, 197, 1),
    Kind("14B", "multi", 0.15, 553, 216, 1),
    Kind("32B", "single", 0.06, 268, 271, 2),
    Kind("32B", "multi", 0.04, 620, 296, 2),
)


def two_weeks(seed: int, *, num_jobs: int = NUM_JOBS) -> list[SimJob]:
    """Jobs sorted by arrival. One node of the world's pools stands for 8 GPUs."""
    rng = np.random.default_rng(seed)
    durations_s = 3600 * _durations_h(rng, num_jobs)
    arrivals_s = rng.uniform(0, 1, num_jobs) * (SPAN_H * 3600 - durations_s)
    order = np.argsort(arrivals_s)
    arrivals_s, durations_s = arrivals_s[order], durations_s[order]
    kinds = rng.choice(len(KINDS), num_jobs, p=[kind.share for kind in KINDS])
    lengths = rng.choice(LENGTHS_K, num_jobs, p=LENGTH_SHARES)
    return [
        _job(index, KINDS[kinds[index]], int(lengths[index]), arrivals_s, durations_s, rng)
        for index in range(num_jobs)
    ]


def _durations_h(rng: np.random.Generator, count: int) -> np.ndarray:
    """Log-normal, none too long for the span, scaled to the stated mean."""
    raw = rng.lognormal(0.0, SIGMA, count)
    for _ in range(20):
        hours = raw * (MEAN_DURATION_H / raw.mean())
        raw = np.minimum(hours, LONGEST_H)
    return raw


def _job(
    index: int,
    kind: Kind,
    length_k: int,
    arrivals_s: np.ndarray,
    durations_s: np.ndarray,
    rng: np.random.Generator,
) -> SimJob:
    rollout_s = _scaled_s(kind.rollout_s, length_k, ROLLOUT_EXPONENT, rng)
    train_s = _scaled_s(kind.train_s, length_k, TRAIN_EXPONENT, rng)
    return SimJob(
        id=JobId(f"j-{index:04d}"),
        arrival_s=float(arrivals_s[index]),
        duration_s=float(durations_s[index]),
        spec=JobSpec(
            name=f"{kind.model}-{length_k}k-{kind.turns}-{index}",
            slo=float(rng.uniform(*SLO)),
            rollout=RolloutSpec(devices=kind.nodes),
            train=TrainSpec(devices=kind.nodes, micro_batch=16, mini_batch=32),
        ),
        profile=profile_of(rollout_s, train_s),
        kind=f"{kind.model}/{length_k}k/{kind.turns}",
    )


def profile_of(rollout_s: float, train_s: float, *, sync_s: float = 0.0) -> JobProfile:
    """Phase times that are exact: worst case and median alike."""
    return JobProfile(
        id=ProfileId("p-synthetic"),
        spec_hash="x3:0",
        source=ProfileSource.ANALYTIC,
        rollout_hardware="H20",
        train_hardware="H800",
        rollout=PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s),
        train=PhaseEstimate(worst_s=train_s, expected_s=train_s),
        sync_s=sync_s,
        sync_bytes=0,
        rollout_resident_bytes=0,
        train_resident_bytes=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def _scaled_s(at_8k_s: float, length_k: int, exponent: float, rng: np.random.Generator) -> float:
    return at_8k_s * (length_k / 8) ** exponent * math.exp(rng.normal(0.0, SPREAD))
