"""What profiling hands to placement: phase times and resident bytes of one job on one hardware."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rmux.ids import ProfileId


class ProfileSource(StrEnum):
    ANALYTIC = "analytic"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEstimate:
    """Seconds of one phase on the devices the spec asks for.

    `worst_s` has every response at its token limit; `expected_s` is the median seen or modelled.
    Both exclude `switch_s`, the warm park and wake, which `period` adds; `cold_s` is a start from
    nothing.
    """

    worst_s: float
    expected_s: float
    switch_s: float = 0.0
    cold_s: float = 0.0
    num_samples: int = 0

    @property
    def planned_s(self) -> float:
        """What a plan counts: worst case plus the warm switch."""
        return self.worst_s + self.switch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    id: ProfileId
    spec_hash: str
    source: ProfileSource
    rollout_hardware: str
    train_hardware: str
    rollout: PhaseEstimate
    train: PhaseEstimate
    sync_s: float
    """The job waits for it; it holds no device."""
    sync_bytes: int
    """Bytes of one copy over the link between the pools."""
    checkpoint_s: float = 0.0
    """Seconds the job itself spends on a checkpoint; it holds no device."""
    init_s: float = 0.0
    """Device part of init, once, on each pool."""
    rollout_resident_bytes: int
    """Host memory held on each rollout node, parked; two weight versions included."""
    train_resident_bytes: int
    """Host memory held on each train node, parked."""
    switch_peak_bytes: int = 0
    """Extra host memory on a node while the job parks or wakes."""
    engines: tuple[tuple[str, str], ...] = ()
    """(name, version) of what was measured."""
    created_at: datetime

    @property
    def solo_s(self) -> float:
        """Planned period of the job alone, seconds: rollout + train + sync + checkpoint."""
        return self.rollout.planned_s + self.train.planned_s + self.off_device_s

    @property
    def off_device_s(self) -> float:
        """The part of the loop that holds no device."""
        return self.sync_s + self.checkpoint_s
