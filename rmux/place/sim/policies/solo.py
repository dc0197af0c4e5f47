"""Solo-D of RollMux: every job has rollout and train nodes of its own, as many as it asks for.

An iteration takes rollout + train + sync, and each pool idles while the other works. It is what
every SLO is held against, so each is kept.
"""

from __future__ import annotations

from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.alone import Alone
from rmux.place.sim.resources import Bundle, disaggregated
from rmux.place.sim.world import World


class Solo(Alone):
    def __init__(self, world: World) -> None:
        def asked(job: SimJob) -> Bundle:
            return disaggregated(job, world)

        super().__init__(world, asked)
