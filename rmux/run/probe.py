"""Measure a job alone on the real engines: a private store, a group of one, the real processes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rmux.cluster import Cluster, DeviceId, NodePool, PoolKind
from rmux.errors import ConflictError, InfeasibleError, UnavailableError, WorkerError
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.events import EventType, PhaseEvent
from rmux.group import Assignment, Placement, nodes_of
from rmux.ids import GroupId, JobId, NodeId, ProfileId
from rmux.job import Job, JobSpec, JobState, Phase
from rmux.profile.measure import OnProgress, Samples
from rmux.profile.service import pair_of
from rmux.run import parent, valkey
from rmux.run.lease import HeldLease
from rmux.run.resident import ResidentWatch
from rmux.store import events, groups, jobs, pools, profiles
from rmux.store.engine import Store

WARM_UP = 1
"""Iterations that are run first and not counted."""
_LEASE_S = 30.0
_GROUP, _JOB = GroupId("g-probe"), JobId("j-probe")
_BOUND_S = 3600.0
"""Nothing is known of the job yet: a phase that takes longer is taken for hung."""
_RUNS = (
    JobState.STARTING,
    JobState.RUNNING,
    JobState.PAUSED,
    JobState.STOPPING,
    JobState.LOST,
)


def holding_group(store: Store) -> dict[NodeId, GroupId]:
    """Nodes that a job is running on now, and its group."""
    with store.read() as conn:
        return {
            device.node: group.id
            for group in groups.ls(conn)
            for member in group.members
            if member.state in _RUNS
            for device in member.placement.devices
        }


def choose(
    spec: JobSpec, cluster: Cluster, *, host: str, busy: Mapping[NodeId, GroupId]
) -> tuple[Placement, Cluster]:
    """The idle devices of this host that the job needs, of the pair of pools that jobs are profiled
    for, and the cluster cut down to them.

    InfeasibleError when the host never has enough, UnavailableError when a group runs on them.
    """
    rollout_pool, train_pool = pair_of(cluster)
    placement = Placement(
        rollout=_devices(rollout_pool, spec.rollout.devices, host=host, busy=busy),
        train=_devices(train_pool, spec.train.devices, host=host, busy=busy),
    )
    needed = nodes_of(placement.devices)
    cut = tuple(
        replace(pool, nodes=kept)
        for pool in cluster.pools
        if (kept := tuple(node for node in pool.nodes if node.id in needed))
    )
    names = {pool.name for pool in cut}
    links = tuple(link for link in cluster.links if {link.source, link.target} <= names)
    return placement, Cluster(pools=cut, links=links)


class GroupProbe:
    """Implements profile.measure.Probe. `store` is the caller's, where the nodes may be in use."""

    def __init__(self, *, host: str, store: Store | None = None) -> None:
        self._host = host
        self._store = store
        self.recorded: tuple[PhaseEvent, ...] = ()
        """Every event of the last run, warm-up included."""

    def run(
        self,
        spec: JobSpec,
        *,
        cluster: Cluster,
        iterations: int = 4,
        on_progress: OnProgress | None = None,
    ) -> Samples:
        """Run the job alone for a warm-up and `iterations` iterations; call from the main thread.

        UnavailableError while a group runs on the devices, InfeasibleError without enough of them
        on this host, WorkerError with the driver's last lines when the job failed.
        """
        busy = {} if self._store is None else holding_group(self._store)
        placement, cut = choose(spec, cluster, host=self._host, busy=busy)
        folder = Path(tempfile.mkdtemp(prefix="rmux-probe-"))
        planned = replace(
            spec,
            iterations=WARM_UP + iterations,
            restart_limit=0,
            rollout=replace(spec.rollout, migrate=False),
        )
        try:
            with self._leased(placement):
                return self._measure(planned, cut, placement, folder, tell=on_progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _leased(self, placement: Placement) -> Iterator[None]:
        """Hold the nodes in the caller's store, so that two measurements do not meet."""
        with contextlib.ExitStack() as stack:
            for node in nodes_of(placement.devices) if self._store is not None else ():
                assert self._store is not None
                name = f"node:{node}"
                try:
                    lease = HeldLease.take(self._store, name, host=self._host, ttl_s=_LEASE_S)
                except ConflictError as error:
                    raise UnavailableError(
                        f"node {node} is being measured: {error.message}",
                        details={"node": node},
                        hint="try again when that is over",
                    ) from error
                stack.callback(lease.release)
            yield

    def _measure(
        self,
        spec: JobSpec,
        cluster: Cluster,
        placement: Placement,
        folder: Path,
        *,
        tell: OnProgress | None,
    ) -> Samples:
        url = f"sqlite:///{folder / 'rmux.db'}"
        store = Store.create(url)
        try:
            _enter(store, spec, cluster, placement)
            tag = parent.group_tag(url, _GROUP, host=self._host)

            def on_iteration(finished: int) -> None:
                if tell is not None:
                    tell(f"iteration {finished} of {spec.iterations}")

            watch = ResidentWatch(
                tag=f"{tag}-{_JOB}-a001",
                job_id=_JOB,
                placement=placement,
                channel_url=valkey.socket_url(tag),
                on_iteration=on_iteration,
            )
            watch.start()
            try:
                status = parent.run(
                    url, _GROUP, host=self._host, run_dir=folder / "runs", foreground=False
                )
            finally:
                watch.stop()
            _check_succeeded(store, status)
            with store.read() as conn:
                found = events.read(conn, group=_GROUP, limit=100_000)
            self.recorded = tuple(found)
        finally:
            store.close()
        return samples_of(found, placement, watch)


def samples_of(found: Sequence[PhaseEvent], placement: Placement, watch: ResidentWatch) -> Samples:
    """What the events of a finished run say, the warm-up left out."""
    counted = [e for e in found if e.iteration is not None and e.iteration >= WARM_UP]
    inits = {
        str(e.data["pool"]): float(e.data["run_s"])
        for e in _of(found, EventType.PHASE_END, Phase.INIT)
    }
    prepare_s = _prepare_s(found)
    rolls = _of(counted, EventType.PHASE_END, Phase.ROLLOUT)
    trains = _of(counted, EventType.PHASE_END, Phase.TRAIN)
    return Samples(
        rollout_s=_numbers(counted, EventType.PHASE_END, Phase.ROLLOUT, "run_s"),
        train_s=_numbers(counted, EventType.PHASE_END, Phase.TRAIN, "run_s"),
        sync_s=_numbers(counted, EventType.PHASE_END, Phase.SYNC, "run_s"),
        checkpoint_s=_numbers(counted, EventType.CHECKPOINT, None, "seconds"),
        rollout_switch_s=_switches_s(counted, Phase.ROLLOUT),
        train_switch_s=_switches_s(counted, Phase.TRAIN),
        longest_tokens=_tokens(rolls, "response_length_max"),
        rounds=_tokens(rolls, "rounds"),
        total_tokens=_tokens(trains, "sequence_tokens")
        or _tokens(rolls, "tokens", "prompt_tokens"),
        rollout_cold_s=prepare_s + inits.get(PoolKind.ROLLOUT, 0.0),
        train_cold_s=prepare_s + inits.get(PoolKind.TRAIN, 0.0),
        init_s=max(inits.values(), default=0.0),
        sync_bytes=int(
            max(_numbers(counted, EventType.PHASE_END, Phase.SYNC, "sent_bytes"), default=0)
        ),
        rollout_resident_bytes=_most(placement.rollout_nodes, watch),
        train_resident_bytes=_most(placement.train_nodes, watch),
        switch_peak_bytes=max(
            (
                watch.peak_bytes[node] - watch.parked_bytes.get(node, watch.peak_bytes[node])
                for node in watch.peak_bytes
            ),
            default=0,
        ),
        engines=_engines(found),
    )


def _of(found: Sequence[PhaseEvent], kind: EventType, phase: Phase | None) -> list[PhaseEvent]:
    return [event for event in found if event.type is kind and event.phase == phase]


def _numbers(
    found: Sequence[PhaseEvent], kind: EventType, phase: Phase | None, key: str
) -> tuple[float, ...]:
    return tuple(float(e.data[key]) for e in _of(found, kind, phase) if key in e.data)


def _switches_s(found: Sequence[PhaseEvent], phase: Phase) -> tuple[float, ...]:
    """The wake before and the park after each phase."""
    wakes = _numbers(found, EventType.PHASE_START, phase, "switch_s")
    parks = _numbers(found, EventType.PHASE_END, phase, "park_s")
    return tuple(wake_s + park_s for wake_s, park_s in zip(wakes, parks, strict=True))


def _tokens(rolls: Sequence[PhaseEvent], *keys: str) -> tuple[int, ...]:
    if not all(key in event.data for event in rolls for key in keys):
        return ()
    return tuple(int(sum(event.data[key] for key in keys)) for event in rolls)


def _prepare_s(found: Sequence[PhaseEvent]) -> float:
    """From the driver's start to its readiness for the devices: processes and imports."""
    started_s = [
        e.at_s
        for e in found
        if e.type is EventType.PROCESS
        and e.data.get("role") == "driver"
        and e.data.get("change") == "started"
    ]
    ready_s = [
        e.at_s - float(e.data["wait_s"])
        for e in found
        if e.type is EventType.PHASE_START and e.phase in (Phase.INIT, Phase.ROLLOUT)
    ]
    return max(0.0, min(ready_s) - min(started_s)) if started_s and ready_s else 0.0


def _most(nodes: Sequence[NodeId], watch: ResidentWatch) -> int:
    """Bytes of the fullest node while the job is parked there, or its peak if never seen parked."""
    return max(watch.parked_bytes.get(n, watch.peak_bytes.get(n, 0)) for n in nodes)


def _engines(found: Sequence[PhaseEvent]) -> tuple[tuple[str, str], ...]:
    versions: dict[str, str] = {}
    for event in _of(found, EventType.PHASE_END, Phase.INIT):
        versions |= event.data.get("versions", {})
    return tuple(sorted(versions.items()))


def _devices(
    pool: NodePool, count: int, *, host: str, busy: Mapping[NodeId, GroupId]
) -> tuple[DeviceId, ...]:
    nodes = [node for node in pool.nodes if node.host == host and not node.drained]
    there = sum(node.num_devices for node in nodes)
    if there < count:
        raise InfeasibleError(
            f"the job needs {count} devices of pool {pool.name} on one host, {host} has {there}",
            hint="measure on a host of the cluster that has them; --host names it",
        )
    idle = [device for node in nodes if node.id not in busy for device in node.devices]
    if len(idle) < count:
        holders = sorted({busy[node.id] for node in nodes if node.id in busy})
        raise UnavailableError(
            f"group {', '.join(holders)} runs on nodes of pool {pool.name} on {host}: "
            f"{len(idle)} of {count} devices are idle",
            details={"groups": holders},
            hint=f"wait, or rmux group down {holders[0]}",
        )
    return tuple(idle[:count])


def _enter(store: Store, spec: JobSpec, cluster: Cluster, placement: Placement) -> None:
    """One placed job in a group of its own."""
    profile = JobProfile(
        id=ProfileId("p-probe"),
        spec_hash="",
        source=ProfileSource.ANALYTIC,
        rollout_hardware="",
        train_hardware="",
        rollout=PhaseEstimate(worst_s=_BOUND_S, expected_s=_BOUND_S),
        train=PhaseEstimate(worst_s=_BOUND_S, expected_s=_BOUND_S),
        sync_s=0.0,
        sync_bytes=0,
        init_s=_BOUND_S,
        rollout_resident_bytes=0,
        train_resident_bytes=0,
        created_at=datetime.now(UTC),
    )
    job = Job(
        id=_JOB,
        spec=spec,
        spec_hash="",
        state=JobState.PENDING,
        created_at=datetime.now(UTC),
        profile_id=profile.id,
    )
    assignment = Assignment(
        job_id=_JOB,
        group_id=None,
        placement=placement,
        added_nodes=nodes_of(placement.devices),
    )
    with store.write() as conn:
        pools.save(conn, cluster)
        profiles.save(conn, profile)
        jobs.insert(conn, job)
        groups.apply(conn, assignment, expected_revision=groups.revision(conn), group_id=_GROUP)


def _check_succeeded(store: Store, status: int) -> None:
    with store.read() as conn:
        job = jobs.get(conn, _JOB)
    if status == 130:
        raise KeyboardInterrupt
    if job.state is not JobState.SUCCEEDED:
        raise WorkerError(
            f"the job did not get through its measurement: it is {job.state}",
            details={"stderr": job.error, "status": status},
            hint="run it alone with `rmux group up` and look at `rmux job logs`",
        )
