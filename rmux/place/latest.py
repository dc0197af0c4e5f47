"""When each phase of a group has to be over by its plan, in which every phase takes its worst case.

Strict cyclic order is max-plus: while no phase ends later than in that plan, no later one begins
later. The plan is followed along with what begins: a phase starts there when the ones before it on
its devices and in its job's own loop are over there. A group whose phases were shorter than their
worst case is ahead of its plan, and what it is ahead may be spent on a move of stragglers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rmux.cluster import DeviceId
from rmux.estimate import JobProfile
from rmux.ids import JobId
from rmux.job import Phase


@dataclass(slots=True)
class Latest:
    """Instants are seconds on any clock. Not for several threads."""

    _devices: dict[DeviceId, float] = field(default_factory=dict)
    """Planned end of the last phase that began on it."""
    _loops: dict[tuple[JobId, Phase], float] = field(default_factory=dict)
    """When the job's next phase of this kind may begin by the plan."""
    _synced: dict[JobId, float] = field(default_factory=dict)
    """When its last train that began is synced by the plan, one step off-policy."""

    def copy(self) -> Latest:
        return Latest(dict(self._devices), dict(self._loops), dict(self._synced))

    def begin(
        self,
        job_id: JobId,
        phase: Phase,
        devices: Sequence[DeviceId],
        *,
        profile: JobProfile,
        now_s: float,
        max_staleness: int = 0,
    ) -> float:
        """The phase has all its devices now; when it has to be over.

        What it is ahead of its plan counts up to once the phase itself, so that one iteration is
        late by no more than that after many that were early.
        """
        estimate = profile.rollout if phase is Phase.ROLLOUT else profile.train
        planned_s = self.start_s(job_id, phase, devices)
        start_s = now_s if planned_s is None else max(now_s, planned_s)
        end_s = min(start_s, now_s + estimate.planned_s) + estimate.planned_s
        self._devices |= dict.fromkeys(devices, end_s)
        if phase is Phase.ROLLOUT:
            self._loops[job_id, Phase.TRAIN] = end_s
            return end_s
        synced_s = end_s + profile.off_device_s
        if not max_staleness:
            self._loops[job_id, Phase.ROLLOUT] = synced_s
            return end_s
        # The next rollout may not have begun yet: it waits for the train before this one only.
        if job_id in self._synced:
            self._loops[job_id, Phase.ROLLOUT] = self._synced[job_id]
        self._synced[job_id] = synced_s
        return end_s

    def start_s(self, job_id: JobId, phase: Phase, devices: Iterable[DeviceId]) -> float | None:
        """The planned start of a phase that comes next on these devices; None where none of what
        it waits for has begun."""
        known = [self._devices[device] for device in devices if device in self._devices]
        if (job_id, phase) in self._loops:
            known.append(self._loops[job_id, phase])
        return max(known, default=None)

    def forget(self) -> None:
        """The members change, and their plan with them: nobody is ahead of the new one."""
        self._devices.clear()
        self._loops.clear()
        self._synced.clear()
