"""What a replay asks of a policy: who runs where after each event, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rmux.ids import JobId
from rmux.place.sim.jobs import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What holds from one event to the next. A job without an entry in `iteration_s` waits."""

    usd_per_h: float
    iteration_s: Mapping[JobId, float]
    """Planned seconds per iteration of every job that runs."""
    usd_per_h_by_job: Mapping[JobId, float]
    """Its share of `usd_per_h`; the shares add up to it."""
    rollout_devices: int = 0
    """Held, used or not."""
    train_devices: int = 0
    rollout_busy: float = 0.0
    """Devices in use on average."""
    train_busy: float = 0.0
    placed: Mapping[JobId, str] = field(default_factory=dict)
    """How the jobs that came were placed: 'direct packing', 'rollout scaling', 'isolated group'."""
    moves: int = 0
    """Jobs moved by this step."""
    lost_s: Mapping[JobId, float] = field(default_factory=dict)
    """Seconds of its run that a move or a cold start takes from a job."""
    next_s: float | None = None
    """When the policy wants to be asked again though nothing happened."""


class Policy(Protocol):
    """A policy with the state of one replay."""

    def step(
        self, now_s: float, *, arrived: Sequence[SimJob], departed: Sequence[JobId]
    ) -> Standing: ...
