"""One group of a simulation: who may go next on its devices, and what is planned there."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmux.cluster import DeviceId, PoolKind
from rmux.ids import GroupId, JobId
from rmux.job import Phase
from rmux.place.latest import Latest
from rmux.place.sim.dispatch import Dispatcher
from rmux.place.sim.jobrun import JobRun, Use
from rmux.place.sim.tails import Next
from rmux.place.sim.transfers import SharedLink


@dataclass(slots=True)
class Floor:
    """Its jobs, who may go next, and which devices are out."""

    id: GroupId
    dispatcher: Dispatcher
    turns: tuple[JobId, ...]
    link: SharedLink | None
    jobs: dict[JobId, JobRun] = field(default_factory=dict)
    latest: Latest = field(default_factory=Latest)
    busy: set[DeviceId] = field(default_factory=set)

    def begin(self, job: JobRun, use: Use, *, now_ms: int) -> None:
        """The phase has all its devices: the plan follows."""
        if use.phase is not Phase.INIT:
            self.latest.begin(
                job.id,
                use.phase,
                use.devices,
                profile=job.member.profile,
                now_s=now_ms / 1000,
                max_staleness=job.member.max_staleness,
            )

    def next_on(self, device: DeviceId, job: JobRun, *, now_ms: int) -> Next:
        """What comes there after the job's rollout; its own train may not be late either. Once the
        plan was forgotten, the rollout's own worst case is what is known."""
        starts_s = [self.latest.start_s(job.id, Phase.TRAIN, job.member.placement.train)]
        other = self.jobs.get(self.dispatcher.next_job(device) or job.id)
        ready_ms = None
        if other is not None and other is not job:
            theirs = other.member.placement.rollout
            starts_s.append(self.latest.start_s(other.id, Phase.ROLLOUT, theirs))
            ready_ms = other.ready_in_ms(device, now_ms=now_ms)
        use = job.uses[Phase.ROLLOUT, PoolKind.ROLLOUT]
        assert use.full_ms is not None
        full_s = use.full_ms / 1000
        first_s = min((at_s for at_s in starts_s if at_s is not None), default=full_s)
        start_s = max(first_s, full_s + job.member.profile.rollout.planned_s)
        return Next(
            device=device,
            ready_s=None if ready_ms is None else ready_ms / 1000,
            start_s=start_s - now_ms / 1000,
        )
