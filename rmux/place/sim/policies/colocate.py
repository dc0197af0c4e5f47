"""veRL as RollMux compares with it: both phases of a job on its train nodes, and no others.

`resources.colocated` states the model: rollout takes longer by the ratio of memory bandwidths, an
assumption, as the paper gives no rollout times on H800; no sync, as weights stay where they are.
SLOs are held against the disaggregated solo time, so tight ones are broken.
"""

from __future__ import annotations

from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.alone import Alone
from rmux.place.sim.resources import ROLLOUT_STRETCH, Bundle, colocated
from rmux.place.sim.world import World


class Colocate(Alone):
    def __init__(self, world: World, *, rollout_stretch: float = ROLLOUT_STRETCH) -> None:
        def on_train_nodes(job: SimJob) -> Bundle:
            return colocated(job, world, rollout_stretch=rollout_stretch)

        super().__init__(world, on_train_nodes)
