"""Jobs of a replay: a trace says when and how long, Table 6 of RollMux how long their phases are.

Each row draws its kind, its two phase times and its SLO from one generator, seeded; a row with
phase times or an SLO of its own keeps them. Every job takes one rollout and one train node of 8
GPUs: the paper's simulation does not state GPU counts, and those of the traces are of other work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import overload

import numpy as np
from numpy.typing import NDArray

from rmux.errors import UserError
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.ids import JobId, ProfileId
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.trace import Trace
from rmux.place.sim.world import GPUS_PER_NODE, ROLLOUT_HARDWARE, TRAIN_HARDWARE

_GB = 10**9
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Mix(StrEnum):
    """Which rows of Table 6 jobs are drawn from, each kind and size as likely as the others."""

    MIXED = "mixed"
    BALANCED = "balanced"
    ROLLOUT_HEAVY = "rollout-heavy"
    TRAIN_HEAVY = "train-heavy"


Range = tuple[float, float]
TABLE_6: dict[tuple[Mix, str], tuple[Range, Range]] = {
    (Mix.BALANCED, "S"): ((50, 100), (50, 100)),
    (Mix.BALANCED, "M"): ((100, 200), (100, 200)),
    (Mix.BALANCED, "L"): ((200, 300), (200, 300)),
    (Mix.ROLLOUT_HEAVY, "S"): ((100, 200), (25, 50)),
    (Mix.ROLLOUT_HEAVY, "M"): ((200, 400), (50, 100)),
    (Mix.ROLLOUT_HEAVY, "L"): ((400, 600), (100, 200)),
    (Mix.TRAIN_HEAVY, "S"): ((25, 50), (100, 200)),
    (Mix.TRAIN_HEAVY, "M"): ((50, 100), (200, 400)),
    (Mix.TRAIN_HEAVY, "L"): ((100, 200), (400, 600)),
}
"""Seconds of rollout and train, uniform, drawn apart."""

_RESIDENT_BYTES = {
    "S": (round(275.7 * _GB), round(240.0 * _GB)),
    "M": (round(445.4 * _GB), round(456.1 * _GB)),
    "L": (round(490.3 * _GB), round(520.4 * _GB)),
}
"""Table 2: host memory per rollout and train node, of 7B, 14B and 32B."""
_COLD_S = {"S": (38.8, 32.7), "M": (60.4, 59.0), "L": (81.7, 81.2)}
"""Figure 4: cold starts of the same models; what a move costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How a trace becomes jobs."""

    mix: Mix = Mix.MIXED
    slo: Range = (1.0, 2.0)
    """SLOs are uniform between these."""
    seed: int = 0
    gpus_of_trace: bool = False
    """As many nodes on each side as the row's GPUs fill; else one and one."""
    with_memory: bool = False
    """Jobs keep host memory as Table 2 has it."""

    def __post_init__(self) -> None:
        low, high = self.slo
        if not 1 <= low <= high < math.inf:
            raise UserError(
                f"SLOs from {low:g} to {high:g}: a slowdown is at least 1, and LO is at most HI"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed {self.seed} is not between 0 and 2**63")


class Workload(Sequence[SimJob]):
    """The jobs by arrival. They are made when asked for, so a long trace stays small."""

    def __init__(self, trace: Trace, drawing: Drawing) -> None:
        self.trace, self.drawing = trace, drawing
        rng = np.random.default_rng(drawing.seed)
        count = len(trace)
        self._kinds = [
            kind for kind in TABLE_6 if drawing.mix is Mix.MIXED or kind[0] is drawing.mix
        ]
        self._drawn = rng.integers(len(self._kinds), size=count)
        low, high = _bounds(self._kinds)
        drawn_s = rng.uniform(low[self._drawn], high[self._drawn])
        slos = rng.uniform(*drawing.slo, size=count)
        self._own = ~np.isnan(trace["rollout_s"])
        self._rollout_s = np.where(self._own, trace["rollout_s"], drawn_s[:, 0])
        self._train_s = np.where(self._own, trace["train_s"], drawn_s[:, 1])
        self._sync_s = np.nan_to_num(trace["sync_s"])
        self._slo = np.where(np.isnan(trace["slo"]), slos, trace["slo"])
        gpus = np.nan_to_num(trace["num_gpu"], nan=GPUS_PER_NODE)
        nodes = np.ceil(gpus / GPUS_PER_NODE) if drawing.gpus_of_trace else np.ones(count)
        self._nodes = nodes.astype(np.int64)
        self._arrival_s = trace.arrival_s

    def __len__(self) -> int:
        return len(self.trace)

    def __iter__(self) -> Iterator[SimJob]:
        return (self._job(index) for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> SimJob: ...

    @overload
    def __getitem__(self, index: slice) -> list[SimJob]: ...

    def __getitem__(self, index: int | slice) -> SimJob | list[SimJob]:
        if isinstance(index, slice):
            return [self._job(place) for place in range(len(self))[index]]
        return self._job(range(len(self))[index])

    def _job(self, index: int) -> SimJob:
        trace = self.trace
        mix, size = self._kinds[self._drawn[index]]
        name = trace.jobs[index]
        iterations, priority = trace["iterations"][index], trace["priority"][index]
        nodes, duration_s = int(self._nodes[index]), float(trace["duration_s"][index])
        rollout_s, train_s = float(self._rollout_s[index]), float(self._train_s[index])
        sync_s = float(self._sync_s[index])
        if math.isnan(iterations):
            iterations = max(1, round(duration_s / (rollout_s + train_s + sync_s)))
        return SimJob(
            id=JobId(name),
            arrival_s=float(self._arrival_s[index]),
            duration_s=duration_s,
            spec=JobSpec(
                name=name,
                slo=float(self._slo[index]),
                tenant=trace.tenants[index],
                priority=0 if math.isnan(priority) else int(priority),
                iterations=int(iterations),
                rollout=RolloutSpec(devices=nodes),
                train=TrainSpec(devices=nodes),
            ),
            profile=profile_of(
                rollout_s,
                train_s,
                sync_s=sync_s,
                size=size,
                with_memory=self.drawing.with_memory,
            ),
            kind="trace" if self._own[index] else f"{mix}/{size}",
        )


def profile_of(
    rollout_s: float,
    train_s: float,
    *,
    sync_s: float = 0.0,
    size: str = "M",
    with_memory: bool = False,
) -> JobProfile:
    """Phase times that are exact: worst case and median alike. `size` S, M or L says how long a
    cold start takes and, with memory, what stays resident."""
    rollout_bytes, train_bytes = _RESIDENT_BYTES[size] if with_memory else (0, 0)
    rollout_cold_s, train_cold_s = _COLD_S[size]
    return JobProfile(
        id=ProfileId("p-replay"),
        spec_hash="x3:0",
        source=ProfileSource.ANALYTIC,
        rollout_hardware=ROLLOUT_HARDWARE,
        train_hardware=TRAIN_HARDWARE,
        rollout=PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s, cold_s=rollout_cold_s),
        train=PhaseEstimate(worst_s=train_s, expected_s=train_s, cold_s=train_cold_s),
        sync_s=sync_s,
        sync_bytes=0,
        rollout_resident_bytes=rollout_bytes,
        train_resident_bytes=train_bytes,
        created_at=_EPOCH,
    )


def _bounds(
    kinds: Sequence[tuple[Mix, str]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    low = np.array([[side[0] for side in TABLE_6[kind]] for kind in kinds], dtype=float)
    high = np.array([[side[1] for side in TABLE_6[kind]] for kind in kinds], dtype=float)
    return low, high
