"""From timed runs to a profile: the seam to whatever runs them, and the pure fit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from rmux.cluster import Cluster
from rmux.errors import CheckError
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.ids import ProfileId
from rmux.job import JobSpec
from rmux.profile.tokens import environment_s, reward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What a probe saw, one entry per measured iteration; warm-up iterations are left out.

    Run seconds are of the user's function, switch seconds are park and wake of one turn. Resident
    bytes are host memory per node while the job is parked, after its first optimizer step.
    """

    rollout_s: tuple[float, ...]
    train_s: tuple[float, ...]
    sync_s: tuple[float, ...] = ()
    checkpoint_s: tuple[float, ...] = ()
    """One per checkpoint."""
    rollout_switch_s: tuple[float, ...] = ()
    train_switch_s: tuple[float, ...] = ()
    longest_tokens: tuple[int, ...] = ()
    """Tokens of the longest response of each iteration; empty when not known."""
    rounds: tuple[int, ...] = ()
    """How often each iteration sampled, refills included; empty for once."""
    total_tokens: tuple[int, ...] = ()
    """Prompt and response tokens trained on in each iteration; empty when not known."""
    rollout_cold_s: float = 0.0
    train_cold_s: float = 0.0
    init_s: float = 0.0
    sync_bytes: int = 0
    rollout_resident_bytes: int = 0
    train_resident_bytes: int = 0
    switch_peak_bytes: int = 0
    engines: tuple[tuple[str, str], ...] = ()


OnProgress = Callable[[str], None]
"""Told one line about what the probe does now."""


class Probe(Protocol):
    """Runs a job alone on the real engines, on free nodes of the cluster."""

    def run(
        self,
        spec: JobSpec,
        *,
        cluster: Cluster,
        iterations: int,
        on_progress: OnProgress | None = None,
    ) -> Samples:
        """UnavailableError when devices are taken, WorkerError when a process of the job fails."""


def fit(
    samples: Samples,
    spec: JobSpec,
    *,
    profile_id: ProfileId,
    spec_hash: str,
    rollout_hardware: str,
    train_hardware: str,
    created_at: datetime,
) -> JobProfile:
    """A profile whose worst case is the longest run seen, scaled to the token limit.

    A rollout is scaled by its longest response, and to as many refills as there may be, a train
    phase by the tokens it trained on; where lengths are not known nothing is scaled. Rewards run
    outside the phases that are timed, so the worst rollout gets their stated time on top, and that
    of environments. CheckError when there are no runs.
    """
    if not samples.rollout_s or not samples.train_s:
        raise CheckError(
            f"nothing was measured of {spec.name}: no iteration after the warm-up",
            hint="measure more --iterations",
        )
    rollout = spec.rollout
    most_tokens = rollout.num_samples * (rollout.max_prompt_tokens + rollout.max_tokens)
    return JobProfile(
        id=profile_id,
        spec_hash=spec_hash,
        source=ProfileSource.MEASURED,
        rollout_hardware=rollout_hardware,
        train_hardware=train_hardware,
        rollout=_phase(
            samples.rollout_s,
            [
                run_s + reward_s(spec) + environment_s(spec)
                for run_s in _scaled(
                    _scaled(samples.rollout_s, samples.longest_tokens, rollout.max_tokens),
                    samples.rounds,
                    1 + rollout.refills,
                )
            ],
            switch_s=_most(samples.rollout_switch_s),
            cold_s=samples.rollout_cold_s,
        ),
        train=_phase(
            samples.train_s,
            _scaled(samples.train_s, samples.total_tokens, most_tokens),
            switch_s=_most(samples.train_switch_s),
            cold_s=samples.train_cold_s,
        ),
        sync_s=_most(samples.sync_s),
        sync_bytes=samples.sync_bytes,
        checkpoint_s=_most(samples.checkpoint_s) / spec.checkpoint.every,
        init_s=samples.init_s,
        rollout_resident_bytes=samples.rollout_resident_bytes,
        train_resident_bytes=samples.train_resident_bytes,
        switch_peak_bytes=samples.switch_peak_bytes,
        engines=samples.engines,
        created_at=created_at,
    )


def _phase(
    runs_s: Sequence[float], scaled_s: Sequence[float], *, switch_s: float, cold_s: float
) -> PhaseEstimate:
    return PhaseEstimate(
        worst_s=max(scaled_s),
        expected_s=statistics.median(runs_s),
        switch_s=switch_s,
        cold_s=cold_s,
        num_samples=len(runs_s),
    )


def _scaled(runs_s: Sequence[float], seen: Sequence[int], limit: int) -> list[float]:
    if not seen:
        return list(runs_s)
    return [
        run_s * max(1.0, limit / tokens) if tokens > 0 else run_s
        for run_s, tokens in zip(runs_s, seen, strict=True)
    ]


def _most(values: Sequence[float]) -> float:
    return max(values, default=0.0)
