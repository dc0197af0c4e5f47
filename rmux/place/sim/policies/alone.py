"""Each job on one bundle of nodes of its own, from when it starts until it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmux.ids import JobId
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.policies.tally import Tally
from rmux.place.sim.resources import Bundle
from rmux.place.sim.world import World


class Alone:
    """`bundle_of` says what a job runs on. Where pools are fixed, jobs wait: the most urgent goes
    first, then who came first, and who does not fit does not hold up the rest."""

    def __init__(self, world: World, bundle_of: Callable[[SimJob], Bundle]) -> None:
        self._bundle_of = bundle_of
        self._tally = Tally(world)
        self._waiting: dict[JobId, SimJob] = {}

    def step(
        self, now_s: float, *, arrived: Sequence[SimJob], departed: Sequence[JobId]
    ) -> Standing:
        for job_id in departed:
            self._tally.drop(job_id)
        queue = [*self._waiting.values(), *arrived] if departed else list(arrived)
        placed: dict[JobId, str] = {}
        for job in sorted(queue, key=lambda one: -one.spec.priority):
            bundle = self._bundle_of(job)
            if self._tally.has_room(bundle.rollout, bundle.train):
                self._waiting.pop(job.id, None)
                self._tally.put_bundle(job.id, bundle)
                placed[job.id] = "isolated group"
            else:
                self._waiting[job.id] = job
        return self._tally.standing(placed=placed)
