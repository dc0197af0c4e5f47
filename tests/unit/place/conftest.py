"""Builders of small clusters, groups and jobs, told by (rollout_s, train_s) pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rmux.cluster import Cluster, DeviceId, Link, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.group import ClusterState, CoExecGroup, Member, PendingJob, Placement
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.job import Job, JobSpec, JobState, RolloutSpec, TrainSpec
from rmux.place.admit import admit
from rmux.place.decision import Decision

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Lab:
    """One rollout pool r0, r1 … and one train pool t0, t1 … of one device per node."""

    rollout_usd: float = 1.0
    train_usd: float = 4.0

    def node(self, name: str, *, devices: int = 1, memory: int = 1000, drained: str = "") -> Node:
        pool = "rollout" if name.startswith("r") else "train"
        return Node(
            id=NodeId(name),
            pool=PoolName(pool),
            host="here",
            device_kind="cpu",
            num_devices=devices,
            host_memory_bytes=memory,
            drained=drained,
        )

    def cluster(
        self,
        rollout: int = 2,
        train: int = 2,
        *,
        devices: int = 1,
        memory: int = 1000,
        drained: tuple[str, ...] = (),
        link_bps: float | None = None,
    ) -> Cluster:
        pools = []
        for kind, count, price in (
            (PoolKind.ROLLOUT, rollout, self.rollout_usd),
            (PoolKind.TRAIN, train, self.train_usd),
        ):
            names = [f"{kind[0]}{index}" for index in range(count)]
            nodes = tuple(
                self.node(
                    name,
                    devices=devices,
                    memory=memory,
                    drained="ecc" if name in drained else "",
                )
                for name in names
            )
            pools.append(
                NodePool(
                    name=PoolName(str(kind)),
                    kind=kind,
                    hardware="cpu",
                    usd_per_device_h=price,
                    nodes=nodes,
                )
            )
        links = ()
        if link_bps is not None:
            links = (Link(source=pools[1].name, target=pools[0].name, rate_bps=link_bps),)
        return Cluster(pools=tuple(pools), links=links)

    def profile(self, rollout_s: float, train_s: float, **changes: Any) -> JobProfile:
        values: dict[str, Any] = {
            "id": ProfileId("p-1"),
            "spec_hash": "x3:0",
            "source": ProfileSource.ANALYTIC,
            "rollout_hardware": "cpu",
            "train_hardware": "cpu",
            "rollout": PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s),
            "train": PhaseEstimate(worst_s=train_s, expected_s=train_s),
            "sync_s": 0.0,
            "sync_bytes": 0,
            "rollout_resident_bytes": 100,
            "train_resident_bytes": 100,
            "created_at": EPOCH,
        }
        return JobProfile(**{**values, **changes})

    def spec(self, name: str, *, slo: float = 2.0, rollout: int = 1, train: int = 1) -> JobSpec:
        return JobSpec(
            name=name,
            slo=slo,
            rollout=RolloutSpec(devices=rollout),
            train=TrainSpec(devices=train),
        )

    def devices(self, *names: str) -> tuple[DeviceId, ...]:
        parsed = [name if "/" in name else f"{name}/0" for name in names]
        return tuple(DeviceId.parse(name) for name in parsed)

    def member(
        self,
        name: str,
        rollout_s: float,
        train_s: float,
        rollout: tuple[str, ...] = ("r0",),
        train: tuple[str, ...] = ("t0",),
        *,
        slo: float = 2.0,
        **changes: Any,
    ) -> Member:
        return Member(
            job_id=JobId(f"j-{name}"),
            name=name,
            slo=slo,
            profile=self.profile(rollout_s, train_s, **changes),
            placement=Placement(rollout=self.devices(*rollout), train=self.devices(*train)),
        )

    def group(self, *members: Member, name: str = "g-1", **changes: Any) -> CoExecGroup:
        nodes = {node: None for m in members for node in m.placement.rollout_nodes}
        nodes |= {node: None for m in members for node in m.placement.train_nodes}
        return CoExecGroup(id=GroupId(name), members=members, nodes=tuple(nodes), **changes)

    def state(self, *groups: CoExecGroup, cluster: Cluster | None = None) -> ClusterState:
        return ClusterState(revision=7, cluster=cluster or self.cluster(), groups=groups)

    def waiting(self, state: ClusterState, *jobs: tuple[JobSpec, JobProfile]) -> ClusterState:
        pending = tuple(
            PendingJob(
                job=Job(
                    id=JobId(f"j-{spec.name}"),
                    spec=spec,
                    spec_hash="x3:0",
                    state=JobState.PENDING,
                    created_at=EPOCH + timedelta(minutes=index),
                ),
                spec=spec,
                profile=profile,
            )
            for index, (spec, profile) in enumerate(jobs)
        )
        return replace(state, pending=pending)

    def admit(
        self,
        state: ClusterState,
        times: tuple[float, float],
        *,
        spec: JobSpec | None = None,
        profile: JobProfile | None = None,
        **options: Any,
    ) -> Decision:
        return admit(
            state,
            spec=spec or self.spec("new"),
            profile=profile or self.profile(*times),
            job_id=JobId("j-new"),
            **options,
        )


@pytest.fixture
def lab() -> Lab:
    return Lab()
