"""A small world for the controller: real gates, drivers of a few lines, no clock."""

from __future__ import annotations

import dataclasses

from rmux.clock import ManualClock
from rmux.cluster import DeviceId
from rmux.events import EventType, PhaseEvent, to_document
from rmux.group import Member, Placement
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import JobState, Phase
from rmux.run.channel import MemoryChannel, MemoryHub
from rmux.run.controller.state import (
    AppendEvents,
    Finish,
    GroupView,
    Inputs,
    MemberView,
    RemoveMember,
    Send,
    SetState,
    State,
    UpdateJob,
    Write,
)
from rmux.run.controller.step import step
from rmux.run.messages import (
    DeviceUse,
    DriverReport,
    DriverStatus,
    Grant,
    Grants,
    NodeReport,
    Want,
    streams,
)
from rmux.run.runner.gate import Gate
from rmux.run.runner.outbox import Outbox

GROUP = GroupId("g-1")
NODES = (NodeId("r0"), NodeId("t0"))
CYCLE = {Phase.INIT: "init", Phase.ROLLOUT: "roll", Phase.TRAIN: "train"}
TICK_S = 0.02


class SimDriver:
    """Wants, runs for a while and parks; stands for driver process and home runner at once."""

    def __init__(self, world: World, job: str, attempt: int, *, finished: int) -> None:
        self.world, self.job, self.attempt, self.finished = world, job, attempt, finished
        self.phase = Phase.INIT
        self.todo = ["r0/0", "t0/0"]
        self.using: dict[str, tuple[tuple[int, int], float]] = {}
        self.uses: dict[str, DeviceUse] = {}
        self.state = "running"
        self.error = ""
        self.events: list[dict] = []
        self.event_n = 0
        self.desired = "run"
        self.sleeps = False
        """It stays for ever in what comes after train and holds no device."""
        self.hangs = False
        """It never gives back what it holds."""

    def emit(self, kind: EventType, *, device: str | None = None, **data) -> None:
        phase = None if kind is EventType.ITERATION_END else self.phase
        self.tell(kind, phase, self.finished, device=device, **data)

    def tell(self, kind: EventType, phase: Phase | None, iteration: int, *, device, **data) -> None:
        self.event_n += 1
        event = PhaseEvent(
            type=kind,
            at=self.world.clock.utc_now(),
            at_s=self.world.clock.now_s(),
            source=f"{self.job}/{self.attempt}",
            source_n=self.event_n,
            group_id=GROUP,
            job_id=JobId(self.job),
            iteration=iteration,
            phase=phase,
            device=device,
            data={"attempt": self.attempt, **data},
        )
        self.events.append(to_document(event))

    def tick(self) -> None:
        if self.state not in ("running", "paused"):
            return
        acked = self.world.gates["t0"].acks.get(f"{self.job}/{self.attempt}", 0)
        self.events = [event for event in self.events if event["source_n"] > acked]
        idle = self.is_idle
        if self.desired in ("stop", "cancel-now") or (self.desired == "cancel" and idle):
            self.state = "cancelled"
        elif idle and self.desired == "pause":
            self.state = "paused"
            self._decline()
        else:
            self.state = "running"
            self._work()

    @property
    def is_idle(self) -> bool:
        return not self.using and self.phase is Phase.ROLLOUT and bool(self.todo)

    def _work(self) -> None:
        now_s = self.world.clock.now_s()
        for gate in self.world.gates.values():
            for grant in gate.passed_on(self.job, self.attempt):
                fits = (grant.phase, grant.iteration) == (self.phase, self.finished)
                if grant.device in self.todo and fits:
                    self.todo.remove(grant.device)
                    lasts_s = self.world.phase_s
                    if self.phase is Phase.ROLLOUT:
                        lasts_s = self.world.rollouts_s.get(self.job, lasts_s)
                    self.using[grant.device] = (grant.order, now_s + lasts_s)
                    self._use(grant.device, grant.order, "running")
                    self.emit(
                        EventType.PHASE_START,
                        device=grant.device,
                        epoch=grant.epoch,
                        seq=grant.seq,
                    )
        for device, (order, until_s) in list(self.using.items()):
            if now_s >= until_s and not self.hangs:
                del self.using[device]
                self._use(device, order, "parked")
        if not self.using and not self.todo:
            self._next()

    def _decline(self) -> None:
        """Give back what was granted a moment too late."""
        for gate in self.world.gates.values():
            for grant in gate.passed_on(self.job, self.attempt):
                self._use(grant.device, grant.order, "parked")

    def _use(self, device: str, order: tuple[int, int], state: str) -> None:
        self.uses[device] = DeviceUse(device=device, epoch=order[0], seq=order[1], state=state)

    def _next(self) -> None:
        if self.sleeps and self.phase is Phase.TRAIN:
            return
        if self.phase is Phase.TRAIN:
            self.emit(EventType.ITERATION_END, finished=self.finished + 1, reward=0.5)
            self.finished += 1
            if self.finished == self.world.iterations:
                self.state = "succeeded"
                return
        self.phase = Phase.TRAIN if self.phase is Phase.ROLLOUT else Phase.ROLLOUT
        self.todo = ["t0/0" if self.phase is Phase.TRAIN else "r0/0"]

    @property
    def status(self) -> DriverStatus:
        wants: tuple[Want, ...] = ()
        if self.todo and self.state == "running":
            wants = (Want(phase=self.phase, iteration=self.finished, devices=tuple(self.todo)),)
        return DriverStatus(
            job=self.job,
            attempt=self.attempt,
            state=self.state,
            iteration=self.finished,
            wants=wants,
            error=self.error,
        )


class AheadDriver(SimDriver):
    """One step off-policy: it wants a train and the rollout after it at once."""

    def __init__(self, world: World, job: str, attempt: int, *, finished: int) -> None:
        super().__init__(world, job, attempt, finished=finished)
        self.rolled = finished
        self.most_wants = 0
        """At any time."""

    @property
    def is_idle(self) -> bool:
        resting = not self.using and self.rolled == self.finished
        return self.phase is not Phase.INIT and resting

    def _due(self) -> list[tuple[Phase, int, str]]:
        """What it could run now: phase, iteration, device."""
        found = []
        if self.finished < self.rolled and "t0/0" not in self.using:
            found.append((Phase.TRAIN, self.finished, "t0/0"))
        ahead = self.rolled - self.finished <= 1 and self.rolled < self.world.iterations
        if ahead and self.desired == "run" and "r0/0" not in self.using:
            found.append((Phase.ROLLOUT, self.rolled, "r0/0"))
        return found

    def _work(self) -> None:
        if self.phase is Phase.INIT:
            super()._work()
            return
        now_s = self.world.clock.now_s()
        for device, (order, until_s) in list(self.using.items()):
            if now_s >= until_s and not self.hangs:
                del self.using[device]
                self._use(device, order, "parked")
                self._end(device)
        granted = {
            (grant.phase, grant.iteration, grant.device): grant
            for gate in self.world.gates.values()
            for grant in gate.passed_on(self.job, self.attempt)
        }
        for phase, iteration, device in self._due():
            grant = granted.get((phase, iteration, device))
            known = self.uses.get(device)
            if grant is None or (known and (known.epoch, known.seq) >= grant.order):
                continue
            lasts_s = self.world.train_s
            if phase is Phase.ROLLOUT:
                lasts_s = self.world.rollouts_s.get(self.job, self.world.phase_s)
            self.using[device] = (grant.order, now_s + lasts_s)
            self._use(device, grant.order, "running")
            facts = {"epoch": grant.epoch, "seq": grant.seq, "max_staleness": 1}
            self.tell(EventType.PHASE_START, phase, iteration, device=device, **facts)

    def _end(self, device: str) -> None:
        if device == "r0/0":
            self.tell(EventType.PHASE_END, Phase.ROLLOUT, self.rolled, device=device)
            self.rolled += 1
            return
        self.tell(EventType.PHASE_END, Phase.TRAIN, self.finished, device=device)
        for kind in (EventType.PHASE_START, EventType.PHASE_END):
            self.tell(kind, Phase.SYNC, self.finished, device=None)
        self.emit(EventType.ITERATION_END, finished=self.finished + 1, reward=0.5)
        self.finished += 1
        if self.finished == self.world.iterations:
            self.state = "succeeded"

    @property
    def status(self) -> DriverStatus:
        if self.phase is Phase.INIT:
            return super().status
        due = self._due() if self.state == "running" else []
        self.most_wants = max(self.most_wants, len(due))
        return dataclasses.replace(
            super().status,
            wants=tuple(
                Want(phase=phase, iteration=iteration, devices=(device,))
                for phase, iteration, device in due
            ),
        )


class World:
    """One controller at a time, two gates, a store that is a few dictionaries."""

    def __init__(
        self,
        samples,
        jobs="ab",
        *,
        iterations=3,
        phase_s=0.1,
        train_s=None,
        rollouts_s=None,
        ahead="",
        **limits,
    ) -> None:
        """The jobs named in `ahead` are one step off-policy, and their trains take `train_s`.
        `rollouts_s` are the rollouts of jobs that differ."""
        self.samples, self.iterations, self.phase_s = samples, iterations, phase_s
        self.train_s = phase_s if train_s is None else train_s
        self.rollouts_s = {f"j-{name}": one_s for name, one_s in (rollouts_s or {}).items()}
        self.ahead = {f"j-{name}" for name in ahead}
        self.clock = ManualClock()
        self.hub = MemoryHub()
        self.members = {f"j-{name}": self._member(f"j-{name}") for name in jobs}
        self.desired = "run"
        self.turns: tuple[JobId, ...] = ()
        self.events: list[PhaseEvent] = []
        self.log: list[tuple[str, JobState]] = []
        self.errors: dict[str, str] = {}
        self.drivers: dict[str, SimDriver] = {}
        self.outboxes = {
            node: Outbox(source=f"runner-{node}", group=GROUP, node=node, clock=self.clock)
            for node in NODES
        }
        self.start_gates()
        self.open_grants: tuple[Grant, ...] = ()
        self.silent: set[str] = set()
        self.may_grant, self.stores, self.stop = True, True, False
        self.unstored: list[Write] = []
        self.stored: set[tuple[str, int]] = set()
        self.finish = ""
        self.limits = limits
        self.start_controller(epoch=1)

    def start_controller(self, *, epoch: int, stay: bool = False) -> None:
        self.channel = MemoryChannel(self.hub)
        self.channel.subscribe([streams.node_reports(GROUP, node) for node in NODES])
        state = State(group_id=GROUP, epoch=epoch, started_s=self.clock.now_s(), stay=stay)
        limits = {"heartbeat_s": 0.05, "silent_s": 0.3, "retry_s": 0.2, **self.limits}
        self.state = dataclasses.replace(state, limits=dataclasses.replace(state.limits, **limits))

    def start_gates(self) -> None:
        """Without memory, and deaf to what was said before."""
        self.gate_channel = MemoryChannel(self.hub)
        self.gate_channel.subscribe([streams.grants(GROUP, node) for node in NODES])
        self.gates = {
            node: Gate([f"{node}/0"], emit=outbox.emit) for node, outbox in self.outboxes.items()
        }

    def _member(self, job_id: str) -> MemberView:
        job = self.samples.job(job_id, name=job_id, state=JobState.PLACED, profile="p-1")
        phase = dataclasses.replace(
            self.samples.profile().rollout, worst_s=self.phase_s, switch_s=0.0, cold_s=0.0
        )
        profile = dataclasses.replace(
            self.samples.profile(), rollout=phase, train=phase, sync_s=0.0, init_s=self.phase_s
        )
        placement = Placement(
            rollout=(DeviceId(NodeId("r0"), 0),), train=(DeviceId(NodeId("t0"), 0),)
        )
        if job_id in self.rollouts_s:
            rollout = dataclasses.replace(phase, worst_s=self.rollouts_s[job_id])
            profile = dataclasses.replace(profile, rollout=rollout)
        if job_id in self.ahead:
            train = dataclasses.replace(phase, worst_s=self.train_s)
            profile = dataclasses.replace(profile, train=train)
        member = Member(
            job_id=job.id,
            name=job_id,
            slo=2.0,
            profile=profile,
            placement=placement,
            max_staleness=int(job_id in self.ahead),
        )
        return MemberView(job=job, member=member)

    def want(self, job_id: str, desired: str) -> None:
        self.change(job_id, desired=desired)

    def change(self, job_id: str, **changes) -> None:
        view = self.members[job_id]
        job = dataclasses.replace(view.job, **changes)
        self.members[job_id] = dataclasses.replace(view, job=job)

    def tick(self) -> None:
        self.clock.sleep_s(TICK_S)
        now_s = self.clock.now_s()
        for _, message in self.gate_channel.receive(0):
            assert isinstance(message, Grants)
            for node, gate in self.gates.items():
                if node not in self.silent and f":{node}:" in _:
                    gate.take_grants(message, now_s=now_s)
        self._run_drivers(now_s)
        for node in NODES:
            if node not in self.silent:
                self.channel.send(streams.node_reports(GROUP, node), self._report(node))
        self.control()

    def _run_drivers(self, now_s: float) -> None:
        for order in self.gates["t0"].orders.values():
            known = self.drivers.get(order.job)
            if known is None or known.attempt < order.attempt:
                finished = self.members[order.job].job.iteration
                kind = AheadDriver if order.job in self.ahead else SimDriver
                known = kind(self, order.job, order.attempt, finished=finished)
                self.drivers[order.job] = known
            known.desired = order.desired
            if order.fence:
                known.state, known.error = "failed", order.fence
        for driver in self.drivers.values():
            driver.tick()
            report = DriverReport(
                status=driver.status, pid=1, uses=tuple(driver.uses.values()), events=()
            )
            for gate in self.gates.values():
                gate.take_report(report, now_s=now_s)
                for device, position in gate.to_prove().items():
                    gate.prove(device, order=position.grant.order, now_s=now_s)
                if driver.state not in ("running", "paused"):
                    gate.end_attempt((driver.job, driver.attempt), now_s=now_s)

    def _report(self, node: str) -> NodeReport:
        drivers = self.drivers.values() if node == "t0" else ()
        outbox = self.outboxes[node]
        outbox.drop(stored_n=self.gates[node].acks.get(outbox.source, 0))
        return NodeReport(
            node=node,
            runner=outbox.source,
            epoch=self.gates[node].epoch,
            devices=self.gates[node].reports(now_s=self.clock.now_s()),
            drivers=tuple(driver.status for driver in self.drivers.values()),
            events=(*outbox.events, *(event for driver in drivers for event in driver.events)),
        )

    def control(self) -> None:
        view = GroupView(
            members=tuple(self.members.values()),
            nodes=NODES,
            desired=self.desired,
            turns=self.turns,
            open_grants=self.open_grants,
        )
        stored_n = self._write() if self.stores else None
        self.state, commands = step(
            self.state,
            Inputs(
                now_s=self.clock.now_s(),
                utc=self.clock.utc_now(),
                reports=tuple(message for _, message in self.channel.receive(0)),
                view=view,
                stored_n=stored_n,
                may_grant=self.may_grant,
                stop=self.stop,
            ),
        )
        for command in commands:
            if isinstance(command, Send):
                self.channel.send(streams.grants(GROUP, command.node), command.grants)
            elif isinstance(command, Write):
                self.unstored.append(command)
            elif isinstance(command, Finish):
                self.finish = command.why

    def _write(self) -> int | None:
        number = self.unstored[-1].batch_n if self.unstored else None
        for operation in [op for batch in self.unstored for op in batch.operations]:
            if isinstance(operation, AppendEvents):
                for event in operation.events:
                    if (event.source, event.source_n) not in self.stored:
                        self.stored.add((event.source, event.source_n))
                        self.events.append(event)
            elif isinstance(operation, SetState):
                self.members[operation.job_id].job.state.check_next(operation.state)
                self.change(operation.job_id, state=operation.state)
                self.log.append((operation.job_id, operation.state))
                self.errors[operation.job_id] = operation.error or ""
            elif isinstance(operation, UpdateJob):
                columns = dict(operation.columns)
                self.change(operation.job_id, **columns)
            elif isinstance(operation, RemoveMember):
                del self.members[operation.job_id]
        self.unstored = []
        return number

    def run(self, seconds: float, *, until=lambda: False) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.tick()
            if self.finish or until():
                return

    def count(self, kind: EventType, **fields) -> int:
        return sum(
            event.type is kind
            and all(getattr(event, name) == value for name, value in fields.items())
            for event in self.events
        )

    def states(self, job_id: str) -> list[JobState]:
        return [state for job, state in self.log if job == job_id]
