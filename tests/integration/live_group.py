"""A group of emulated jobs in a store of its own, brought up through the real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rmux.cluster import Cluster, DeviceId, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.events import EventType, PhaseEvent
from rmux.group import Assignment, Placement
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.job import EmulatedSpec, Engine, Job, JobSpec, JobState, RolloutSpec
from rmux.run import parent, processes, valkey
from rmux.store import events, groups, jobs, pools, profiles
from rmux.store.engine import Store

HOST = "test-host"
GROUP = GroupId("g-0001")


@dataclass
class LiveGroup:
    store: Store
    url: str
    run_dir: Path
    heartbeat_s: float = 0.2
    parents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    commands: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def tag(self) -> str:
        return parent.group_tag(self.url, GROUP, host=HOST)

    def add_nodes(
        self, *, rollout: int = 1, train: int = 1, devices: int = 1, memory_bytes: int = 2**34
    ) -> None:
        def pool(name: str, kind: PoolKind, count: int) -> NodePool:
            nodes = tuple(
                Node(
                    id=NodeId(f"{name}{index}"),
                    pool=PoolName(name),
                    host=HOST,
                    device_kind="cpu",
                    num_devices=devices,
                    host_memory_bytes=memory_bytes,
                )
                for index in range(count)
            )
            return NodePool(
                name=PoolName(name), kind=kind, hardware="cpu", usd_per_device_h=1.0, nodes=nodes
            )

        cluster = Cluster(
            pools=(
                pool("roll", PoolKind.ROLLOUT, rollout),
                pool("train", PoolKind.TRAIN, train),
            )
        )
        with self.store.write() as conn:
            pools.save(conn, cluster)

    def add_job(
        self,
        name: str,
        *,
        rollout: Iterable[str] = ("roll0/0",),
        train: Iterable[str] = ("train0/0",),
        iterations: int = 5,
        rollout_s: float = 0.2,
        train_s: float = 0.2,
        sync_s: float = 0.01,
        restart_limit: int = 3,
        slo: float = 2.0,
        engine: Engine = Engine.EMULATED,
        placed: bool = True,
        turns: Iterable[str] = (),
        group: GroupId = GROUP,
        planned_bytes: int = 0,
        responses: RolloutSpec | None = None,
        max_staleness: int = 0,
        **emulated: Any,
    ) -> JobId:
        job_id = JobId(f"j-{name}")
        spec = JobSpec(
            name=name,
            engine=engine,
            iterations=iterations,
            restart_limit=restart_limit,
            slo=slo,
            max_staleness=max_staleness,
            rollout=responses or RolloutSpec(),
            emulated=EmulatedSpec(
                **{
                    "init_s": 0.05,
                    "rollout_s": rollout_s,
                    "train_s": train_s,
                    "sync_s": sync_s,
                    "switch_s": 0.0,
                    **emulated,
                }
            ),
        )
        profile = JobProfile(
            id=ProfileId(f"p-{name}"),
            spec_hash=f"x3:{name}",
            source=ProfileSource.ANALYTIC,
            rollout_hardware="cpu",
            train_hardware="cpu",
            rollout=PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s),
            train=PhaseEstimate(worst_s=train_s, expected_s=train_s),
            sync_s=sync_s,
            sync_bytes=0,
            init_s=0.05,
            rollout_resident_bytes=0,
            train_resident_bytes=planned_bytes,
            created_at=datetime.now(UTC),
        )
        placement = Placement(
            rollout=tuple(map(DeviceId.parse, rollout)), train=tuple(map(DeviceId.parse, train))
        )
        with self.store.write() as conn:
            profiles.save(conn, profile)
            job = Job(
                id=job_id,
                spec=spec,
                spec_hash=profile.spec_hash,
                state=JobState.PENDING,
                created_at=datetime.now(UTC),
                profile_id=profile.id,
            )
            jobs.insert(conn, job)
            if not placed:
                return job_id
            known = {group.id: group for group in groups.ls(conn, all=True)}.get(group)
            held = known.nodes if known else ()
            groups.apply(
                conn,
                Assignment(
                    job_id=job_id,
                    group_id=group if known else None,
                    placement=placement,
                    turns=tuple(JobId(f"j-{one}") for one in turns),
                    added_nodes=tuple(
                        node
                        for node in placement.rollout_nodes + placement.train_nodes
                        if node not in held
                    ),
                ),
                expected_revision=groups.revision(conn),
                group_id=group,
            )
        return job_id

    def up(self, *args: str) -> subprocess.Popen[bytes]:
        argv = processes.module_argv(
            "rmux.run.parent",
            *("--store", self.url, "--group", GROUP, "--host", HOST),
            *("--run-dir", str(self.run_dir), "--heartbeat-s", str(self.heartbeat_s)),
            *args,
        )
        child = processes.spawn(argv, environ=os.environ, log=self.run_dir / "up.log")
        self.parents.append(child)
        return child

    def rmux(self, *args: str, **environ: str) -> subprocess.Popen[str]:
        """`rmux …` on this store, in a process of its own."""
        env = {**os.environ, "HOME": str(self.run_dir.parent), "RMUX_RUN_DIR": str(self.run_dir)}
        env |= {"RMUX_STORE": self.url, "RMUX_HOST": HOST, "RMUX_HEARTBEAT": "200ms", **environ}
        argv = [sys.executable, "-m", "rmux", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen(argv, text=True, env=env, **pipes)
        self.commands.append(child)
        return child

    def job(self, job_id: JobId) -> Job:
        with self.store.read() as conn:
            return jobs.get(conn, job_id)

    def states(self) -> dict[str, JobState]:
        with self.store.read() as conn:
            return {job.id: job.state for job in jobs.ls(conn)}

    def events(self, *types: EventType) -> list[PhaseEvent]:
        with self.store.read() as conn:
            return events.read(conn, group=GROUP, types=types or None, limit=100_000)

    def changes(self, role: str, change: str) -> list[PhaseEvent]:
        return [
            event
            for event in self.events(EventType.PROCESS)
            if event.data["role"].startswith(role) and event.data["change"].startswith(change)
        ]

    def pid(self, role: str, *, job: str | None = None) -> int:
        """The newest living process of a role."""
        found = [
            event.data["pid"]
            for event in self.events(EventType.PROCESS)
            if event.data["role"].startswith(role)
            and event.data["change"] in ("started", "restarted")
            and (job is None or event.job_id == job)
        ]
        assert found, f"no {role} has started"
        return int(found[-1])

    def wait(self, condition: Callable[[], Any], *, timeout_s: float = 20.0, what: str = "") -> Any:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            found = condition()
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"not within {timeout_s:g} s: {what}\n{self.logs()}")

    def wait_iteration(self, job_id: JobId, iteration: int) -> None:
        self.wait(
            lambda: self.job(job_id).iteration >= iteration, what=f"{job_id} iteration {iteration}"
        )

    def logs(self) -> str:
        paths = [self.run_dir / "up.log", *sorted(self.run_dir.glob("*/*.log"))]
        paths += sorted(self.run_dir.glob("*/attempt-*/driver.log"))
        return "\n".join(f"--- {path.name}\n{processes.last_lines(path)}" for path in paths)

    def leftovers(self, group: str = GROUP) -> Mapping[str, Any]:
        """What the group's processes left on this host; all empty when they ended in order."""
        tag = parent.group_tag(self.url, group, host=HOST)
        base = valkey.temp_folder(tag)
        sockets = [str(path) for path in base.rglob("*")]
        base.rmdir() if not sockets else None
        return {
            "processes": processes.tagged(tag),
            "files": sockets,
            "shm": [p.name for p in Path("/dev/shm").iterdir() if tag in p.name],
        }

    def close(self) -> None:
        for child in (*self.parents, *self.commands):
            if child.poll() is None:
                child.kill()
            child.wait()
        for command in self.commands:
            for pipe in (command.stdout, command.stderr):
                assert pipe is not None
                pipe.close()
        with self.store.read() as conn:
            known = {GROUP, *(group.id for group in groups.ls(conn, all=True))}
        for group in known:
            parent.sweep(self.url, group, host=HOST)
        self.store.close()


def open_group(tmp_path: Path) -> LiveGroup:
    url = f"sqlite:///{tmp_path}/rmux.db"
    return LiveGroup(store=Store.create(url), url=url, run_dir=tmp_path / "runs")
