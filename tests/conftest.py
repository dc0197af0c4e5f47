"""Small real things to put into a store: one builder for every tier."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from rmux.cluster import Cluster, DeviceId, Link, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.events import EventType, PhaseEvent
from rmux.group import Assignment, Placement
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.job import Engine, Job, JobSpec, JobState, Phase

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Samples:
    """Rollout nodes r0, r1 … and train nodes t0, t1 … of one CPU device each; jobs to run there."""

    now = NOW

    def cluster(self, *, rollout: int = 2, train: int = 2) -> Cluster:
        return Cluster(
            pools=(
                self.pool("rollout", PoolKind.ROLLOUT, "r", rollout, usd_per_device_h=1.85),
                self.pool("train", PoolKind.TRAIN, "t", train, usd_per_device_h=5.28),
            ),
            links=(Link(source=PoolName("train"), target=PoolName("rollout"), rate_bps=20e9),),
        )

    def pool(
        self, name: str, kind: PoolKind, letter: str, count: int, *, usd_per_device_h: float
    ) -> NodePool:
        nodes = tuple(self.node(f"{letter}{index}", name, core=index) for index in range(count))
        return NodePool(
            name=PoolName(name),
            kind=kind,
            hardware="cpu",
            usd_per_device_h=usd_per_device_h,
            nodes=nodes,
        )

    def node(self, node_id: str, pool: str, *, core: int = 0) -> Node:
        return Node(
            id=NodeId(node_id),
            pool=PoolName(pool),
            host="here",
            device_kind="cpu",
            num_devices=1,
            cores=((core,),),
            host_memory_bytes=8 * 2**30,
            reserved_memory_bytes=2**30,
        )

    def profile(self, profile_id: str = "p-1", *, spec_hash: str = "x3:1") -> JobProfile:
        return JobProfile(
            id=ProfileId(profile_id),
            spec_hash=spec_hash,
            source=ProfileSource.MEASURED,
            rollout_hardware="cpu",
            train_hardware="cpu",
            rollout=PhaseEstimate(worst_s=6.0, expected_s=4.0, switch_s=0.1, num_samples=5),
            train=PhaseEstimate(worst_s=3.0, expected_s=2.5, switch_s=0.2),
            sync_s=0.5,
            sync_bytes=10**8,
            rollout_resident_bytes=2**28,
            train_resident_bytes=2**29,
            engines=(("vllm", "0.32"), ("torch", "2.13")),
            created_at=NOW,
        )

    def job(
        self,
        job_id: str = "j-000001",
        *,
        name: str = "math",
        state: JobState = JobState.PENDING,
        age_s: float = 0.0,
        slo: float = 1.3,
        profile: str | None = None,
    ) -> Job:
        spec = JobSpec(
            name=name, engine=Engine.EMULATED, slo=slo, labels=(("team", "math"), ("env", "ci"))
        )
        return Job(
            id=JobId(job_id),
            spec=spec,
            spec_hash="x3:1",
            state=state,
            created_at=NOW - timedelta(seconds=age_s),
            user="ling",
            profile_id=None if profile is None else ProfileId(profile),
        )

    def assignment(
        self,
        job_id: str = "j-000001",
        *,
        group: str | None = None,
        rollout: Sequence[str] = ("r0",),
        train: Sequence[str] = ("t0",),
        added: Sequence[str] | None = None,
    ) -> Assignment:
        """One device on each named node; a new group gains them all."""
        if added is None:
            added = () if group else (*rollout, *train)
        return Assignment(
            job_id=JobId(job_id),
            group_id=None if group is None else GroupId(group),
            placement=Placement(
                rollout=tuple(DeviceId(NodeId(node), 0) for node in rollout),
                train=tuple(DeviceId(NodeId(node), 0) for node in train),
            ),
            added_nodes=tuple(NodeId(node) for node in added),
        )

    def event(
        self,
        source_n: int = 1,
        type: EventType = EventType.PHASE_START,
        *,
        source: str = "j-000001/1",
        group: str | None = "g-000001",
        job: str | None = "j-000001",
        at_s: float = 0.0,
        iteration: int | None = 1,
        phase: Phase | None = Phase.ROLLOUT,
        device: str | None = None,
        **data: object,
    ) -> PhaseEvent:
        return PhaseEvent(
            type=type,
            at=NOW + timedelta(seconds=at_s),
            at_s=at_s,
            source=source,
            source_n=source_n,
            group_id=None if group is None else GroupId(group),
            job_id=None if job is None else JobId(job),
            iteration=iteration,
            phase=phase,
            device=device,
            data=data,
        )


@pytest.fixture
def samples() -> Samples:
    return Samples()
