"""What one job of a replay can run on by itself, how long an iteration then takes, what it costs.

Assumptions, which are those of the paper's baselines where it states any: a phase takes time in
inverse proportion to its nodes; rollout is bound by memory bandwidth, so on train hardware it takes
longer by the ratio of the bandwidths (H20 4.0, H800 3.35 TB/s, Table 1 of RollMux); two phases on
the same nodes hand weights over in place, so no sync is paid, and they cannot run side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmux.group import one_ahead_s
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.world import World

ROLLOUT_STRETCH = 4.0 / 3.35
"""Rollout on as many H800 as it had H20 takes so many times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Nodes of one job's own. Without rollout nodes both phases run on the train nodes."""

    name: str
    rollout: int
    train: int
    usd_per_h: float
    rollout_s: float
    train_s: float
    iteration_s: float
    cold_s: float
    """From nothing to the first iteration; pools start side by side."""

    @property
    def rollout_busy(self) -> float:
        """Rollout nodes in use on average."""
        return self.rollout * self.rollout_s / self.iteration_s

    @property
    def train_busy(self) -> float:
        held_s = self.train_s if self.rollout else self.rollout_s + self.train_s
        return self.train * held_s / self.iteration_s


def disaggregated(job: SimJob, world: World, *, rollout: int = 1, train: int = 1) -> Bundle:
    """`rollout` and `train` times as many nodes as the job asks for on each side."""
    profile = job.profile
    rollout_s = profile.rollout.worst_s / rollout + profile.rollout.switch_s
    train_s = profile.train.worst_s / train + profile.train.switch_s
    iteration_s = rollout_s + train_s + profile.off_device_s
    if job.spec.max_staleness:
        iteration_s = one_ahead_s(
            rollout_s=rollout_s, train_s=train_s, off_device_s=profile.off_device_s
        )
    rollout_nodes, train_nodes = rollout * job.spec.rollout.devices, train * job.spec.train.devices
    return Bundle(
        name=f"{rollout}:{train}",
        rollout=rollout_nodes,
        train=train_nodes,
        usd_per_h=rollout_nodes * world.rollout_usd_per_node_h
        + train_nodes * world.train_usd_per_node_h,
        rollout_s=rollout_s,
        train_s=train_s,
        iteration_s=iteration_s,
        cold_s=max(profile.rollout.cold_s, profile.train.cold_s),
    )


def colocated(job: SimJob, world: World, *, rollout_stretch: float = ROLLOUT_STRETCH) -> Bundle:
    """Both phases on the train nodes that the job asks for."""
    profile, nodes = job.profile, job.spec.train.devices
    scale = rollout_stretch * job.spec.rollout.devices / nodes
    rollout_s = profile.rollout.worst_s * scale + profile.rollout.switch_s
    train_s = profile.train.planned_s
    return Bundle(
        name="co-located",
        rollout=0,
        train=nodes,
        usd_per_h=nodes * world.train_usd_per_node_h,
        rollout_s=rollout_s,
        train_s=train_s,
        iteration_s=rollout_s + train_s + profile.checkpoint_s,
        cold_s=profile.rollout.cold_s + profile.train.cold_s,
    )


def choices(
    job: SimJob, world: World, *, rollout_stretch: float = ROLLOUT_STRETCH
) -> tuple[Bundle, ...]:
    """Co-located, and rollout to train nodes at 1:2, 1:1 and 2:1 of what the job asks for; without
    those that a fixed pool can never hold."""
    offered = (
        colocated(job, world, rollout_stretch=rollout_stretch),
        disaggregated(job, world, train=2),
        disaggregated(job, world),
        disaggregated(job, world, rollout=2),
    )
    return tuple(
        one
        for one in offered
        if one.rollout <= (world.rollout_nodes or one.rollout)
        and one.train <= (world.train_nodes or one.train)
    )
