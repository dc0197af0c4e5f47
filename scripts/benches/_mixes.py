"""Groups of emulated jobs for the co-execution bench: who shares which devices, how long.

Durations are seconds per phase; devices are numbers of rollout and of train nodes with one device
each. Emulated engines sleep, so several groups run side by side without disturbing each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from rmux.cluster import Cluster, DeviceId, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.group import CoExecGroup, Member, Placement
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.place.period import period

HOST = "bench"
SYNC_S = 0.02
_GROUP = GroupId("g-bench")


@dataclass(frozen=True, slots=True)
class Shape:
    """One job's loop and the nodes it is pinned to."""

    name: str
    rollout_s: float
    train_s: float
    rollout: tuple[int, ...] = (0,)
    train: tuple[int, ...] = (0,)

    @property
    def num_devices(self) -> int:
        return len(self.rollout) + len(self.train)


@dataclass(frozen=True, slots=True)
class Mix:
    name: str
    jobs: tuple[Shape, ...]

    @property
    def num_devices(self) -> int:
        """Of the group: every node once."""
        rollout = {node for job in self.jobs for node in job.rollout}
        train = {node for job in self.jobs for node in job.train}
        return len(rollout) + len(train)

    def alone(self) -> tuple[Mix, ...]:
        """Each job by itself on its own devices."""
        return tuple(Mix(f"{self.name}: {job.name} alone", (job,)) for job in self.jobs)


MIXES = (
    Mix("2 jobs, equal phases", (Shape("a", 3.0, 3.0), Shape("b", 3.0, 3.0))),
    Mix("2 jobs, rollout-heavy and train-heavy", (Shape("a", 4.0, 2.0), Shape("b", 2.0, 4.0))),
    Mix("3 jobs, rollout-heavy", tuple(Shape(n, 4.0, 2.0) for n in "abc")),
    Mix("4 jobs, mixed", tuple(Shape(n, 2.0 + i, 5.0 - i) for i, n in enumerate("abcd"))),
    Mix("5 jobs, short and long", tuple(Shape(n, 2.0 + i % 2, 2.5) for i, n in enumerate("abcde"))),
    Mix(
        "4 jobs on 2 rollout nodes, disjoint pairs",
        tuple(Shape(n, 5.0, 2.5, rollout=(i % 2,)) for i, n in enumerate("abcd")),
    ),
    Mix(
        "4 jobs on 4 rollout nodes, disjoint",
        tuple(Shape(n, 5.0, 2.0, rollout=(i,)) for i, n in enumerate("abcd")),
    ),
    Mix(
        "3 jobs of 2 rollout nodes, overlapping in a chain",
        tuple(Shape(n, 3.0, 2.0, rollout=(i, i + 1)) for i, n in enumerate("abc")),
    ),
    Mix(
        "3 jobs of 2 rollout nodes, overlapping in a ring",
        tuple(
            Shape(n, 2.5, 2.0, rollout=tuple(sorted((i, (i + 1) % 3)))) for i, n in enumerate("abc")
        ),
    ),
    Mix(
        "3 jobs, one on both rollout nodes",
        (
            Shape("wide", 2.5, 3.0, rollout=(0, 1)),
            Shape("left", 3.5, 2.0, rollout=(0,)),
            Shape("right", 3.5, 2.0, rollout=(1,)),
        ),
    ),
    # Figure 10 of RollMux, phase times read off it and divided by 40, 100 and 90.
    Mix("Figure 10 (a), temporal", (Shape("A1", 3.375, 2.6), Shape("A2", 3.375, 2.6))),
    Mix(
        "Figure 10 (b), train multiplexed",
        (
            Shape("D1", 3.16, 1.21, rollout=(0,)),
            Shape("D2", 3.16, 1.21, rollout=(1,)),
            Shape("E", 7.57, 1.25, rollout=(2,)),
        ),
    ),
    Mix(
        "Figure 10 (c), spatial",
        (
            Shape("C", 2.97, 4.01, rollout=(0, 1), train=(0, 1)),
            Shape("D1", 3.11, 1.29, rollout=(0,), train=(0, 1)),
            Shape("D2", 3.11, 1.29, rollout=(1,), train=(0, 1)),
        ),
    ),
)


def cluster_of(mix: Mix) -> Cluster:
    def pool(kind: PoolKind, numbers: Iterable[int]) -> NodePool:
        name = PoolName(str(kind))
        nodes = tuple(
            Node(
                id=NodeId(f"{kind}{number}"),
                pool=name,
                host=HOST,
                device_kind="cpu",
                num_devices=1,
                host_memory_bytes=2**34,
            )
            for number in numbers
        )
        return NodePool(name=name, kind=kind, hardware="cpu", usd_per_device_h=1.0, nodes=nodes)

    rollout = sorted({node for job in mix.jobs for node in job.rollout})
    train = sorted({node for job in mix.jobs for node in job.train})
    return Cluster(pools=(pool(PoolKind.ROLLOUT, rollout), pool(PoolKind.TRAIN, train)))


def group_of(mix: Mix) -> CoExecGroup:
    """The jobs in their best cyclic order, as `place` would have them."""
    members = tuple(_member(job) for job in mix.jobs)
    nodes = tuple(node.id for pool in cluster_of(mix).pools for node in pool.nodes)
    turns = period(members).order
    return CoExecGroup(id=_GROUP, members=members, nodes=nodes, turns=turns)


def _member(job: Shape) -> Member:
    return Member(
        job_id=JobId(f"j-{job.name}"),
        name=job.name,
        slo=1000.0,
        profile=JobProfile(
            id=ProfileId(f"p-{job.name}"),
            spec_hash=job.name,
            source=ProfileSource.ANALYTIC,
            rollout_hardware="cpu",
            train_hardware="cpu",
            rollout=PhaseEstimate(worst_s=job.rollout_s, expected_s=job.rollout_s),
            train=PhaseEstimate(worst_s=job.train_s, expected_s=job.train_s),
            sync_s=SYNC_S,
            sync_bytes=0,
            init_s=0.0,
            rollout_resident_bytes=0,
            train_resident_bytes=0,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        ),
        placement=Placement(
            rollout=_devices(PoolKind.ROLLOUT, job.rollout),
            train=_devices(PoolKind.TRAIN, job.train),
        ),
    )


def _devices(kind: PoolKind, nodes: Iterable[int]) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(NodeId(f"{kind}{node}"), 0) for node in nodes)
