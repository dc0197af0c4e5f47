"""MostIdle of RollMux: the most idle group, its most idle nodes, no look at any SLO.

Idle is the share of its node time that a group does not use at its true period; a node is the more
idle the fewer seconds of a round it is in use. Named `most-idle`, it takes the most idle group, and
what does not fit there is given new nodes. Named `most-idle-packed`, it takes the most idle of the
groups in which the job fits, and new nodes only when there is none. The paper does not say which.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.fleet import Group, Nodes, Unplanned
from rmux.place.sim.world import World


class Idlest:
    def groups(self, groups: Sequence[Group]) -> Sequence[Group]:
        return sorted(groups, key=attrgetter("busy"))

    def nodes(self, group: Group, job: SimJob) -> tuple[Nodes, Nodes]:
        rollout = sorted(group.rollout, key=group.rollout_load_s)
        train = sorted(group.train, key=group.train_load_s)
        return tuple(rollout[: job.spec.rollout.devices]), tuple(train[: job.spec.train.devices])


class MostIdle(Unplanned):
    def __init__(self, world: World, *, max_members: int, packed: bool) -> None:
        super().__init__(world, Idlest(), max_members=max_members, packed=packed)
