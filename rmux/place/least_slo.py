"""The least slowdown that a refused job would have to accept to be admitted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rmux.group import ClusterState, PendingJob
from rmux.place.decision import Decision
from rmux.place.index import Index
from rmux.place.period import CLOSE

_BROKEN = ("slo", "residency", "link", "data_parallel", "hardware", "saturated", "members")
"""Codes of bounds that a candidate breaks."""


def smallest_slo(state: ClusterState, job: PendingJob, decision: Decision) -> float | None:
    """The least SLO, in hundredths, with which the job would be admitted; None when none would do,
    because other members accept no longer iterations or another bound is broken."""
    index = Index.of(state)

    def admitted(hundredths: int) -> bool:
        spec = replace(job.spec, slo=hundredths / 100)
        return index.decide(spec=spec, profile=job.profile, job_id=job.job.id).admitted

    wanted = sorted({_hundredths(one) for one in _slos(decision)})
    high = next((one for one in wanted if admitted(one)), None)
    if high is None:
        return None
    low = math.floor(job.spec.slo * 100)  # which is refused
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if admitted(middle) else (middle, high)
    return high / 100


def _slos(decision: Decision) -> Iterator[float]:
    """What the job would have to accept at each place where only its own SLO is in the way."""
    for one in decision.candidates:
        broken = {bound.code for bound in one.bounds if bound.code in _BROKEN}
        if one.period is None or broken != {"slo"}:
            continue
        factor = 1 + decision.margin if len(one.slowdowns) > 1 else 1.0
        needs = {each.job_id: each.slowdown * factor for each in one.slowdowns}
        others = [each for each in one.slowdowns if each.job_id != decision.job_id]
        if all(needs[each.job_id] <= each.limit * CLOSE for each in others):
            yield needs[decision.job_id]


def _hundredths(slo: float) -> int:
    return math.ceil(slo * 100 / CLOSE)
