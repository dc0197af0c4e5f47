"""Random of RollMux: a random group, random nodes of it, no look at any SLO.

Named `random`, it draws one of the groups there are or a new one, all as likely, then nodes of it;
what does not fit there is given new nodes ("random feasible-capacity group or new"). Named
`random-packed`, it draws among the groups in which the job fits on the nodes drawn, and takes new
nodes only when there is none. The paper does not say which it plots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.fleet import Group, Nodes, Unplanned
from rmux.place.sim.world import World


class _Drawn:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def groups(self, groups: Sequence[Group]) -> Sequence[Group | None]:
        either = [*groups, None]
        return [either[index] for index in self._rng.permutation(len(either))]

    def nodes(self, group: Group, job: SimJob) -> tuple[Nodes, Nodes]:
        return (
            self._some(group.rollout, job.spec.rollout.devices),
            self._some(group.train, job.spec.train.devices),
        )

    def _some(self, nodes: Nodes, number: int) -> Nodes:
        drawn = self._rng.permutation(len(nodes))[:number]
        return tuple(nodes[index] for index in sorted(drawn))


class Random(Unplanned):
    def __init__(self, world: World, *, max_members: int, packed: bool, seed: int) -> None:
        super().__init__(world, _Drawn(seed), max_members=max_members, packed=packed)
