"""What all groups of a policy hold and use, added up to a `Standing`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from rmux.ids import JobId
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.resources import Bundle
from rmux.place.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Nodes held and used together by the jobs of one group."""

    rollout: int
    train: int
    rollout_busy: float
    train_busy: float
    iteration_s: Mapping[JobId, float]
    used: Mapping[JobId, float]
    """What jobs share the price by: node-seconds per round, or any multiple."""


class Tally:
    """Holdings by any key, of nodes that this world sells."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rollout = self.train = 0
        """Nodes held."""
        self._held: dict[Hashable, Holding] = {}
        self._iteration_s: dict[JobId, float] = {}
        self._shares: dict[JobId, float] = {}

    def has_room(self, rollout: int, train: int) -> bool:
        """Whether the pools can give so many nodes more."""
        world = self.world
        return (world.rollout_nodes is None or self.rollout + rollout <= world.rollout_nodes) and (
            world.train_nodes is None or self.train + train <= world.train_nodes
        )

    def put(self, key: Hashable, holding: Holding) -> None:
        """Take the holding in, in the place of what stood under its key."""
        self.drop(key)
        self._held[key] = holding
        self.rollout += holding.rollout
        self.train += holding.train
        self._iteration_s.update(holding.iteration_s)
        usd_per_h = self._usd_per_h(holding.rollout, holding.train)
        usd_per_use = usd_per_h / sum(holding.used.values())
        self._shares.update((job_id, usd_per_use * used) for job_id, used in holding.used.items())

    def put_bundle(self, job_id: JobId, bundle: Bundle) -> None:
        """Take in a job on nodes of its own."""
        self.put(
            job_id,
            Holding(
                rollout=bundle.rollout,
                train=bundle.train,
                rollout_busy=bundle.rollout_busy,
                train_busy=bundle.train_busy,
                iteration_s={job_id: bundle.iteration_s},
                used={job_id: 1.0},
            ),
        )

    def drop(self, key: Hashable) -> None:
        """Give up the holding of the key, if there is one."""
        holding = self._held.pop(key, None)
        if holding is None:
            return
        self.rollout -= holding.rollout
        self.train -= holding.train
        for job_id in holding.iteration_s:
            del self._iteration_s[job_id], self._shares[job_id]

    def standing(
        self,
        *,
        placed: Mapping[JobId, str] | None = None,
        lost_s: Mapping[JobId, float] | None = None,
        moves: int = 0,
        next_s: float | None = None,
    ) -> Standing:
        held = self._held.values()
        return Standing(
            usd_per_h=self._usd_per_h(self.rollout, self.train),
            iteration_s=self._iteration_s,
            usd_per_h_by_job=self._shares,
            rollout_devices=self.rollout,
            train_devices=self.train,
            rollout_busy=sum([one.rollout_busy for one in held]),
            train_busy=sum([one.train_busy for one in held]),
            placed=placed or {},
            lost_s=lost_s or {},
            moves=moves,
            next_s=next_s,
        )

    def _usd_per_h(self, rollout: int, train: int) -> float:
        world = self.world
        return rollout * world.rollout_usd_per_node_h + train * world.train_usd_per_node_h
