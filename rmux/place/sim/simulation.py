"""The clock of a phase-level simulation and what it makes happen."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Mapping

from rmux.cluster import Cluster, DeviceId, Link, PoolKind
from rmux.errors import InternalError
from rmux.group import CoExecGroup
from rmux.ids import GroupId, JobId
from rmux.job import JobState, Phase
from rmux.place.sim import dispatch as dispatching
from rmux.place.sim import faults, tails
from rmux.place.sim.dispatch import Dispatch
from rmux.place.sim.durations import Durations
from rmux.place.sim.faults import Failures
from rmux.place.sim.floor import Floor
from rmux.place.sim.jobrun import Iteration, JobRun, Use
from rmux.place.sim.journal import Journal
from rmux.place.sim.tails import Migration, Progress
from rmux.place.sim.transfers import SharedLink


class Simulation:
    def __init__(
        self,
        *,
        seed: int,
        durations: Durations,
        cluster: Cluster | None,
        failures: Failures | None,
        init: bool,
        events: bool,
        migration: Migration | None = None,
    ) -> None:
        self.seed, self.durations, self.failures, self.init = seed, durations, failures, init
        self.journal = Journal(is_on=events)
        self.cluster, self.migration = cluster, migration
        self.now_ms = 0
        self.jobs: dict[JobId, JobRun] = {}
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self._floors: dict[GroupId, Floor] = {}
        self._stirred: dict[GroupId, Floor] = {}
        self._links: dict[Link, SharedLink] = {}
        self._link_checks: dict[int, int] = {}

    def add(
        self,
        group: CoExecGroup,
        *,
        dispatch: Dispatch,
        limit: int | None,
        arrivals_s: Mapping[JobId, float],
    ) -> None:
        floor = Floor(group.id, dispatching.make(dispatch), group.turns, self._link_of(group))
        self._floors[group.id] = floor
        for member in group.members:
            job = JobRun(member, group.id, seed=self.seed, limit=limit)
            self.jobs[job.id] = job
            join = functools.partial(self._join, job)
            self.at(round(1000 * arrivals_s.get(job.id, 0.0)), join)

    def run(self, *, until: int) -> None:
        """On until every job has finished that many iterations."""
        open_jobs = set(self.jobs)
        while open_jobs:
            if not self._heap:
                raise InternalError(f"nothing can go on; waiting: {', '.join(sorted(open_jobs))}")
            self.now_ms = self._heap[0][0]
            while self._heap and self._heap[0][0] == self.now_ms:
                heapq.heappop(self._heap)[2]()
            stirred, self._stirred = self._stirred, {}
            for floor in stirred.values():
                self._dispatch(floor)
                open_jobs -= {job.id for job in floor.jobs.values() if job.finished >= until}
                self._let_go(floor)

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_ms, self._pushed, action))

    # -- members

    def _join(self, job: JobRun) -> None:
        floor = self._floors[job.group_id]
        floor.jobs[job.id] = job
        self._set_members(floor)
        self.journal.state(job, JobState.RUNNING, at_ms=self.now_ms)
        self._wake_up(job)

    def _wake_up(self, job: JobRun) -> None:
        """A new attempt, at the begin or after a failure."""
        job.down = job.absent = False
        if self.init:
            job.to_init = set(PoolKind)
        job.note_ready(self.now_ms)
        if self.failures is not None:
            rng = job.fault_rng or faults.generator(self.seed, job.id)
            job.fault_rng = rng
            life = job.life
            self.at(self.now_ms + self.failures.next_ms(rng), lambda: self._fail(job, life))
        self._stir(job)

    def _let_go(self, floor: Floor) -> None:
        over = [job for job in floor.jobs.values() if job.finished == job.limit]
        for job in over:
            job.life += 1
            del floor.jobs[job.id]
            self.journal.state(job, JobState.SUCCEEDED, at_ms=self.now_ms)
        if over:
            self._set_members(floor)
            self._stirred[floor.id] = floor

    def _set_members(self, floor: Floor) -> None:
        here = [job.member for job in self.jobs.values() if job.id in floor.jobs]
        floor.latest.forget()
        floor.dispatcher.set_members(here, [job for job in floor.turns if job in floor.jobs])

    def _stir(self, job: JobRun) -> None:
        self._stirred[job.group_id] = self._floors[job.group_id]

    # -- phases on devices

    def _dispatch(self, floor: Floor) -> None:
        if self.migration is not None:
            self._make_room(floor)
        wants = {job.id: job.wants() for job in floor.jobs.values()}
        absent = {job.id for job in floor.jobs.values() if job.absent}
        turns = floor.dispatcher.next_turns(wants, busy=floor.busy, absent=absent)
        for turn in turns:
            job = floor.jobs[turn.job_id]
            kind = _kind(job, turn.device)
            use = job.use(turn.phase, kind)
            use.held[turn.device] = self.now_ms
            floor.busy.add(turn.device)
            self.journal.grant(job, use, turn.device, at_ms=self.now_ms)
            if use.phase is Phase.ROLLOUT and self._may_move(job):
                self._widen(job, use, turn.device)
            elif use.is_complete:
                self._begin(job, use)

    def _begin(self, job: JobRun, use: Use) -> None:
        use.ran_on, use.is_closed = tuple(use.held), True
        self._floors[job.group_id].begin(job, use, now_ms=self.now_ms)
        end_ms = self.now_ms + self._open(job, use)
        life = job.life
        self.at(end_ms, lambda: self._end(job, use, life))

    def _open(self, job: JobRun, use: Use) -> int:
        """The phase begins; milliseconds that it takes, with its switch."""
        seconds = self.durations.of(job.member, use.phase, use.iteration, job.rngs[use.phase])
        use.began_ms, use.switch_ms = self.now_ms, _switch_ms(job, use.phase)
        if use.phase is not Phase.INIT:
            job.wait_ms += self.now_ms - use.wanted_ms
            job.open.setdefault(use.iteration, []).append(self.now_ms)
        return use.switch_ms + round(1000 * seconds)

    def _end(self, job: JobRun, use: Use, life: int) -> None:
        if job.life != life:
            return
        self.journal.phase(job, use, at_ms=self.now_ms, ended=True)
        for device in list(use.held):
            self._release(job, use, device)
        if use.progress is not None:
            job.freed_device_ms += use.progress.freed_device_ms(self.now_ms)
        del job.uses[use.phase, use.kind]
        if use.phase is Phase.INIT:
            job.to_init.discard(use.kind)
            job.note_ready(self.now_ms)
            return
        job.open[use.iteration].append(self.now_ms)
        if use.phase is Phase.ROLLOUT:
            job.rolled += 1
        else:
            job.trained += 1
            assert use.began_ms is not None
            job.train_ms.append(self.now_ms - use.began_ms)
            self._begin_sync(job, use.iteration)
        job.note_ready(self.now_ms)

    def _release(self, job: JobRun, use: Use, device: DeviceId) -> None:
        self.journal.released(job, use, device, at_ms=self.now_ms)
        del use.held[device]
        self._floors[job.group_id].busy.discard(device)
        self._stir(job)

    # -- rollouts whose stragglers may move

    def _may_move(self, job: JobRun) -> bool:
        return self.migration is not None and job.id in self.migration.batches

    def _widen(self, job: JobRun, use: Use, device: DeviceId) -> None:
        """One more device works on it."""
        assert self.migration is not None
        if use.progress is None:
            batch = self.migration.batches[job.id]
            run_ms = self._open(job, use) - use.switch_ms
            use.progress = Progress(
                use.devices,
                batch,
                batch.shares(job.member, use.iteration),
                migration=self.migration,
                switch_ms=use.switch_ms,
                run_ms=run_ms,
                now_ms=self.now_ms,
            )
        if self.now_ms == use.began_ms:
            use.ran_on = tuple(use.held)
        if use.is_complete:
            use.is_closed, use.full_ms = True, self.now_ms
            self._floors[job.group_id].begin(job, use, now_ms=self.now_ms)
        use.progress.widen(device, now_ms=self.now_ms)
        self._foresee(job, use)

    def _foresee(self, job: JobRun, use: Use) -> None:
        """Come back when the next response is done: to ask about the tail, or for the end."""
        assert use.progress is not None
        assert self.migration is not None
        use.version += 1
        version, life, progress = use.version, job.life, use.progress
        step = max(1, progress.total // self.migration.checks)

        def one_done() -> None:
            if use.version != version or job.life != life:
                return
            done = progress.advance(self.now_ms)
            if done == progress.total:
                self._end(job, use, life)
                return
            if done // step > progress.asked // step and use.full_ms is not None:
                progress.asked = done
                self._consider(job, use)
            self._foresee(job, use)

        next_ms = progress.next_ms()
        if next_ms is not None:
            self.at(max(next_ms, self.now_ms), one_done)

    def _make_room(self, floor: Floor) -> None:
        """Ask the rollouts whose devices somebody waits for; they are asked as they go on, too."""
        for job in floor.jobs.values():
            use = job.uses.get((Phase.ROLLOUT, PoolKind.ROLLOUT))
            if use is None or use.progress is None or use.full_ms is None or job.down:
                continue
            others = [other for other in floor.jobs.values() if other is not job]
            if any(other.wants_any(use.held) for other in others):
                before = len(use.held)
                self._consider(job, use)
                if len(use.held) < before:
                    self._foresee(job, use)

    def _consider(self, job: JobRun, use: Use) -> None:
        assert use.progress is not None
        assert self.migration is not None
        assert use.began_ms is not None
        floor = self._floors[job.group_id]
        after = [floor.next_on(device, job, now_ms=self.now_ms) for device in use.held]
        found, homes = tails.ask(
            self.migration,
            job.id,
            use.progress,
            after,
            now_ms=self.now_ms,
            began_ms=use.began_ms,
        )
        if found.freed:
            use.progress.move(found.freed, homes, now_ms=self.now_ms)
            for device in found.freed:
                self._release(job, use, device)

    # -- off the devices

    def _begin_sync(self, job: JobRun, iteration: int) -> None:
        rng = job.rngs[Phase.SYNC]
        seconds = self.durations.of(job.member, Phase.SYNC, iteration, rng)
        alone_ms, size_bytes = round(1000 * seconds), job.member.profile.sync_bytes
        link = self._floors[job.group_id].link
        job.syncing[iteration] = self.now_ms
        if link is None or not alone_ms or not size_bytes:
            life = job.life
            self.at(self.now_ms + alone_ms, lambda: self._synced(job, iteration, life))
            return
        key = (job.id, iteration, job.life)
        link.start(key, now_ms=self.now_ms, alone_ms=alone_ms, size_bytes=size_bytes)
        self._watch(link)

    def _watch(self, link: SharedLink) -> None:
        """Come back when the first transfer is done; a change in between makes that void."""
        check = self._link_checks[id(link)] = self._link_checks.get(id(link), 0) + 1
        first = link.next_end()
        if first is None:
            return

        def arrive() -> None:
            if self._link_checks[id(link)] != check:
                return
            end_ms, (job_id, iteration, life) = first
            link.stop((job_id, iteration, life), now_ms=end_ms)
            self._watch(link)
            self._synced(self.jobs[job_id], iteration, life)

        self.at(first[0], arrive)

    def _synced(self, job: JobRun, iteration: int, life: int) -> None:
        if job.life != life:
            return
        self.journal.sync(job, iteration, begun_ms=job.syncing[iteration], at_ms=self.now_ms)
        save_ms = round(1000 * job.member.profile.checkpoint_s)
        self.at(self.now_ms + save_ms, lambda: self._saved(job, iteration, life, save_ms))

    def _saved(self, job: JobRun, iteration: int, life: int, save_ms: int) -> None:
        if job.life != life:
            return
        self.journal.checkpoint(job, iteration, at_ms=self.now_ms, save_ms=save_ms)
        job.off_ms.append(self.now_ms - job.syncing[iteration])
        job.synced.add(iteration)
        while job.finished in job.synced:  # one iteration is finished after the other
            self._finish(job, job.finished)
        job.note_ready(self.now_ms)
        self._stir(job)

    def _finish(self, job: JobRun, iteration: int) -> None:
        job.synced.discard(iteration)
        del job.syncing[iteration]
        times = Iteration._make([*job.open.pop(iteration), self.now_ms])
        job.iterations.append(times)
        job.finished += 1
        self.journal.iteration(job, iteration, times)

    def _link_of(self, group: CoExecGroup) -> SharedLink | None:
        if self.cluster is None or not group.members:
            return None
        pools = {node.id: pool.name for pool in self.cluster.pools for node in pool.nodes}
        placement = group.members[0].placement
        link = self.cluster.link(pools[placement.train[0].node], pools[placement.rollout[0].node])
        return None if link is None else self._links.setdefault(link, SharedLink(link))

    # -- failures

    def _fail(self, job: JobRun, life: int) -> None:
        """The job dies where it stands; its group finds out later, and waits for it until then."""
        if job.life != life or self.failures is None:
            return
        job.life += 1
        job.down = True
        link = self._floors[job.group_id].link
        if link is not None:
            for iteration in job.syncing:
                link.stop((job.id, iteration, life), now_ms=self.now_ms)
            self._watch(link)
        for use in job.uses.values():
            self.journal.phase(job, use, at_ms=self.now_ms, ended=False)
        detect_ms = round(1000 * self.failures.detect_s)
        self.at(self.now_ms + detect_ms, lambda: self._fence(job))

    def _fence(self, job: JobRun) -> None:
        assert self.failures is not None
        for use in list(job.uses.values()):
            for device in list(use.held):
                self._release(job, use, device)
        job.begin_again()
        job.absent = True
        self.journal.state(job, JobState.STARTING, at_ms=self.now_ms, error="failed")
        self._stir(job)
        restart_ms = round(1000 * self.failures.restart_s)
        self.at(self.now_ms + restart_ms, lambda: self._wake_up(job))


def _kind(job: JobRun, device: DeviceId) -> PoolKind:
    is_rollout = device in job.member.placement.rollout
    return PoolKind.ROLLOUT if is_rollout else PoolKind.TRAIN


def _switch_ms(job: JobRun, phase: Phase) -> int:
    if phase is Phase.INIT:
        return 0
    profile = job.member.profile
    estimate = profile.rollout if phase is Phase.ROLLOUT else profile.train
    return round(1000 * estimate.switch_s)
