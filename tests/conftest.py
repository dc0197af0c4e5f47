"""Small real things to put into a store: one builder for every tier."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmux.clock import SystemClock, boot_id
from rmux.cluster import Cluster, DeviceId, Link, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.events import EventType, PhaseEvent
from rmux.group import Assignment, Placement
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.job import Engine, Job, JobSpec, JobState, Phase
from rmux.store import events, groups, jobs, leases, pools, profiles, requests
from rmux.store.engine import Conn, Store

# A run that a shell puts into the background ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty store to copy: one migration for the whole session."""
    path = tmp_path_factory.mktemp("empty") / "rmux.db"
    store = Store.create(f"sqlite:///{path}")
    store.close()
    return path


class Filled:
    """A store in the user's own place: two nodes of each kind, group g-000001 of two running jobs
    on r0 and t0 (`math`, `code`), and a pending one (`wide`)."""

    def __init__(self, store: Store, samples: Samples) -> None:
        self.store, self.samples = store, samples
        self.now_s = SystemClock().now_s()
        self.at = datetime.now(UTC)
        self._numbers = itertools.count(1)
        with store.write() as conn:
            pools.save(conn, samples.cluster())
            profiles.save(conn, samples.profile())
            for n, name in enumerate(("math", "code", "wide"), start=1):
                job = samples.job(f"j-00000{n}", name=name, profile="p-1")
                created = self.at - timedelta(hours=4 - n)
                jobs.insert(conn, dataclasses.replace(job, created_at=created))
            self.place(conn, samples.assignment("j-000001"))
            self.place(conn, samples.assignment("j-000002", group="g-000001"))
            for job_id in ("j-000001", "j-000002"):
                jobs.set_state(conn, job_id, JobState.RUNNING)

    def place(self, conn: Conn, assignment: Assignment) -> None:
        expected = groups.revision(conn)
        group_id = GroupId("g-000001")
        groups.apply(conn, assignment, expected_revision=expected, group_id=group_id)

    def serve(self) -> leases.Lease:
        """As a controller does: hold the group's lease."""
        name = requests.controller_lease("g-000001")
        how = {"owner": "here boot:1:2", "ttl_s": 600.0, "boot_id": boot_id()}
        with self.store.write() as conn:
            return leases.take(conn, name, now_s=SystemClock().now_s(), **how)

    def append(self, *told: PhaseEvent) -> None:
        with self.store.write() as conn:
            events.append(conn, told)

    def rounds(self, count: int, *, rollout_s: float = 6.0, train_s: float = 3.0) -> None:
        """Turns of both jobs that ended `count` rounds later, just now: each waits 1.5 s."""
        length_s = 2 * rollout_s
        begun_s = self.now_s - count * length_s - train_s - 1.0
        told = []
        for turn in range(count):
            for n, job in enumerate(("j-000001", "j-000002")):
                start_s = begun_s + turn * length_s + n * rollout_s
                told += self._turn(job, turn + 1, start_s, rollout_s, train_s)
        self.append(*sorted(told, key=lambda event: event.at_s))

    def _turn(
        self, job: str, iteration: int, start_s: float, rollout_s: float, train_s: float
    ) -> Iterator[PhaseEvent]:
        order = {"epoch": 1, "seq": iteration * 2 + int(job[-1]) - 1, "attempt": 1}
        for phase, device, from_s, run_s in (
            (Phase.ROLLOUT, "r0/0", start_s, rollout_s),
            (Phase.TRAIN, "t0/0", start_s + rollout_s, train_s),
        ):
            how = {"job": job, "iteration": iteration, "phase": phase, **order}
            end_s = from_s + run_s
            yield self.event(EventType.GRANT, from_s, device=device, **how)
            yield self.event(EventType.PHASE_START, from_s + 0.01, wait_s=1.5, switch_s=0.3, **how)
            yield self.event(EventType.PHASE_END, end_s - 0.1, run_s=run_s - 0.4, **how)
            yield self.event(EventType.RELEASED, end_s, device=device, proof_s=0.005, **how)
        how = {"job": job, "iteration": iteration, "phase": None}
        at_s = start_s + rollout_s + train_s + 0.5
        yield self.event(EventType.ITERATION_END, at_s, reward=0.5, attempt=1, **how)

    def event(self, type: EventType, at_s: float, **how: Any) -> PhaseEvent:
        number = next(self._numbers)
        made = self.samples.event(number, type, source="test", at_s=at_s, **how)
        return dataclasses.replace(made, at=self.at + timedelta(seconds=at_s - self.now_s))


@pytest.fixture
def filled(empty_sqlite: Path, samples: Samples, tmp_path: Path) -> Iterator[Filled]:
    path = tmp_path / ".local" / "state" / "rmux" / "rmux.db"
    path.parent.mkdir(parents=True)
    shutil.copy(empty_sqlite, path)
    store = Store.open(f"sqlite:///{path}")
    yield Filled(store, samples)
    store.close()
