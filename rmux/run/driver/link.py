"""A driver's side of the control channel: permits in, reports and events out.

Two threads own the channel, so that a slow server holds up neither the other direction nor the
user's code; the main thread waits on one condition. Every report carries the whole position.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rmux.clock import Clock, SystemClock
from rmux.events import EventType, PhaseEvent, to_document
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Phase
from rmux.run.channel import Channel
from rmux.run.driver.engines import DriverConfig
from rmux.run.driver.foreseen import Foreseen
from rmux.run.driver.silence import Silence
from rmux.run.messages import (
    DeviceUse,
    DriverReport,
    DriverStatus,
    Grant,
    Permits,
    Shed,
    Want,
    streams,
    without,
)
from rmux.run.processes import take_precedence

log = logging.getLogger(__name__)

_URGENCY = ("run", "pause", "cancel", "stop", "cancel-now")
_EVENTS_PER_REPORT = 200
_PROGRESS_ROOM = 1000
"""Unacknowledged events past which progress is dropped; nothing else ever is."""


class Link:
    """Thread-safe. `on_interrupt` is called from a thread when the job must end before its
    iteration does, or when one of the two threads fails."""

    def __init__(
        self,
        config: DriverConfig,
        *,
        channel: Channel,
        clock: Clock | None = None,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._channel = channel
        self._clock = clock or SystemClock()
        self._on_interrupt = on_interrupt
        self._gate_of = {streams.permits(config.job_id, gate): gate for gate in config.gates}
        self._changed = threading.Condition()
        self._status = DriverStatus(job=config.job_id, attempt=config.attempt, state="starting")
        self._grants: dict[str, tuple[Grant, float]] = {}
        self._uses: dict[str, DeviceUse] = {}
        self._permits: dict[str, Permits] = {}
        self._silence = Silence(since_s=self._clock.now_s(), heartbeat_s=config.heartbeat_s)
        self._outbox: deque[dict[str, Any]] = deque()
        self._source_n = 0
        self._version = 1
        self._sent_version = 0
        self._sent_source_n = 0
        self._wanted: dict[Phase, int] = {}
        """Newest iteration that each phase was wanted for."""
        self._ended = self._closed = False
        self.failure: Exception | None = None
        """Of one of the two threads: the job ends with it."""
        self.foreseen = Foreseen()
        """What comes next on the devices granted."""
        self.on_permits: Callable[[str, Permits], None] = lambda gate, permits: None
        """Told every gate's word, too; must not call back."""
        self.shed: Callable[[], tuple[Sequence[Shed], Sequence[str]]] = lambda: ((), ())
        """`sheds` and `spilled` of every report; must not call back."""
        self._threads = [
            threading.Thread(target=self._keep, args=(loop,), name=name, daemon=True)
            for name, loop in (("link-out", self._send_loop), ("link-in", self._receive_loop))
        ]

    def start(self) -> None:
        self._channel.subscribe(tuple(self._gate_of))
        for thread in self._threads:
            thread.start()

    def end(self, state: str, *, iteration: int, error: str, acks_within_s: float) -> None:
        """Report the end, with every device given back, then wait for acknowledgement and close."""
        with self._changed:
            self._ended = True
            for device, use in self._uses.items():
                if use.state == "running":
                    self._use(self._grants[device][0], "parked", (os.getpid(),))
            self._status = DriverStatus(
                job=self._config.job_id,
                attempt=self._config.attempt,
                state=state,
                iteration=iteration,
                error=error,
            )
            self._touch()
            self._changed.wait_for(lambda: not self._outbox, acks_within_s)
        self.close()

    def close(self) -> None:
        """Send what is not sent yet, stop both threads, close the channel."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=2 * self._config.heartbeat_s + 1.0)
        self._channel.close()

    @property
    def source(self) -> str:
        return f"{self._config.job_id}/{self._config.attempt}"

    @property
    def desired(self) -> str:
        """The most urgent order of any gate: only the home gate ever says more than 'run'."""
        with self._changed:
            orders = [p.desired for p in self._permits.values() if p.desired in _URGENCY]
            return max(orders, key=_URGENCY.index, default="run")

    def report_status(self, state: str, *, iteration: int, error: str = "") -> None:
        with self._changed:
            self._status = dataclasses.replace(
                self._status, state=state, iteration=iteration, error=error
            )
            self._touch()

    def want(self, phase: Phase, *, iteration: int, devices: Sequence[str]) -> None:
        """Announce that this phase could run now; `await_grants` then waits for its devices.

        It takes the place of an earlier want of the same phase; one of another phase stands beside
        it. From the first one after init on the job is 'running', which makes others wait for it.
        After `end` nothing is wanted any more, whichever thread is late.
        """
        with self._changed:
            if self._ended:
                return
            want = Want(phase=str(phase), iteration=iteration, devices=tuple(devices))
            state = self._status.state if phase is Phase.INIT else "running"
            self._wanted[phase] = iteration
            wants = (*self._wants_but(phase), want)
            self._status = dataclasses.replace(self._status, state=state, wants=wants)
            self._touch()

    def unwant(self, phase: Phase = Phase.ROLLOUT) -> None:
        """Take the want of this phase back; a grant that came, or is on its way, is declined."""
        with self._changed:
            for want in self._status.wants:
                for device in want.devices if want.phase == phase else ():
                    if self._is_granted(want, device):
                        self._use(self._grants[device][0], "parked")
            self._status = dataclasses.replace(self._status, wants=self._wants_but(phase))
            self._touch()

    def await_grants(
        self,
        choices: Sequence[tuple[str, ...]],
        *,
        timeout_s: float,
        unless: Callable[[str], bool] = lambda desired: False,
    ) -> tuple[tuple[Grant, ...], float] | None:
        """The grants of the first of these sets of devices that is wholly granted to an announced
        want of them, reported as running, and when the last one arrived (boot-time clock, seconds).
        None after the timeout, or as soon as an order suits `unless`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ready(choices) is not None or unless(self.desired), timeout_s
            )
            ready = self._ready(choices)
            if ready is None or unless(self.desired):
                return None
            found = [self._grants[device] for device in ready]
            wants = without(self._status.wants, ready)
            self._status = dataclasses.replace(self._status, wants=wants)
            for grant, _ in found:
                self._use(grant, "running")
            self._touch()
            return tuple(grant for grant, _ in found), max(at_s for _, at_s in found)

    def await_wanted(self, phase: Phase, *, iteration: int, timeout_s: float) -> bool:
        """Whether that phase was wanted for this iteration, or a later one, within the timeout."""
        with self._changed:
            wanted = self._wanted
            return self._changed.wait_for(lambda: wanted.get(phase, -1) >= iteration, timeout_s)

    def await_desired(self, wanted: Callable[[str], bool], *, timeout_s: float) -> bool:
        """Whether an order that suits `wanted` came within the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: wanted(self.desired), timeout_s)

    def parked(self, grants: Iterable[Grant], *, pids: Mapping[str, tuple[int, ...]]) -> None:
        """Report the devices parked, with the processes that must be idle on each."""
        with self._changed:
            for grant in grants:
                newest = self._grants[grant.device][0]
                self._use(newest, "parked", pids.get(grant.device, ()))
            self._touch()

    def emit(
        self,
        kind: EventType,
        *,
        iteration: int | None = None,
        phase: Phase | None = None,
        device: str | None = None,
        node: str | None = None,
        at_s: float | None = None,
        prompt: bool = True,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep an event until it is acknowledged. One that is not prompt rides with the next
        report."""
        with self._changed:
            if kind is EventType.PROGRESS and len(self._outbox) >= _PROGRESS_ROOM:
                return
            self._source_n += 1
            where = node or (device or "").rpartition("/")[0]
            event = PhaseEvent(
                type=kind,
                at=self._clock.utc_now(),
                at_s=self._clock.now_s() if at_s is None else at_s,
                source=self.source,
                source_n=self._source_n,
                group_id=GroupId(self._config.group_id),
                job_id=JobId(self._config.job_id),
                iteration=iteration,
                phase=phase,
                node=NodeId(where) if where else None,
                device=device,
                data={**(data or {}), "attempt": self._config.attempt},
            )
            self._outbox.append(to_document(event))
            if prompt:
                self._touch()

    def await_sent(self, *, timeout_s: float) -> bool:
        """Whether the position as it stands now has gone out within the timeout."""
        with self._changed:
            version = self._version
            return self._changed.wait_for(lambda: self._sent_version >= version, timeout_s)

    def await_withdrawn(self, grants: Sequence[Grant], *, timeout_s: float) -> bool:
        """Whether the gates stopped announcing these grants, which they do once they have proven
        the devices idle."""
        with self._changed:
            mine = {(grant.device, grant.order) for grant in grants}
            return self._changed.wait_for(lambda: not mine & self._announced(), timeout_s)

    # The rest runs under the condition, or is a thread's loop.

    def _announced(self) -> set[tuple[str, tuple[int, int]]]:
        return {(one.device, one.order) for p in self._permits.values() for one in p.grants}

    def _wants_but(self, phase: Phase) -> tuple[Want, ...]:
        return tuple(want for want in self._status.wants if want.phase != phase)

    def _touch(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _use(self, grant: Grant, state: str, pids: tuple[int, ...] = ()) -> None:
        self._uses[grant.device] = DeviceUse(
            device=grant.device, epoch=grant.epoch, seq=grant.seq, state=state, pids=pids
        )

    def _ready(self, choices: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
        free = [
            {device for device in want.devices if self._is_granted(want, device)}
            for want in self._status.wants
        ]
        return next((c for c in choices if c and any(some.issuperset(c) for some in free)), None)

    def _is_granted(self, want: Want, device: str) -> bool:
        if device not in self._grants:
            return False
        grant, _ = self._grants[device]
        if (grant.phase, grant.iteration) != (want.phase, want.iteration):
            return False
        use = self._uses.get(device)
        return use is None or (use.epoch, use.seq) < grant.order

    def _take(self, gate: str, permits: Permits, *, at_s: float) -> None:
        before = self.desired
        self._permits[gate] = permits
        self.foreseen.take(permits.nexts, at_s=at_s)
        self.on_permits(gate, permits)
        for grant in permits.grants:
            if (grant.job, grant.attempt) != (self._config.job_id, self._config.attempt):
                continue
            known = self._grants.get(grant.device)
            if known is None or grant.order > known[0].order:
                self._grants[grant.device] = (grant, at_s)
                self._decline_unwanted(grant)
                self._version += 1
        for source, stored_n in permits.acks:
            if source == self.source:
                while self._outbox and self._outbox[0]["source_n"] <= stored_n:
                    self._outbox.popleft()
        if self._outbox and self._outbox[0]["source_n"] > self._sent_source_n:
            self._version += 1
        self._changed.notify_all()
        if self.desired != before and self.desired in ("stop", "cancel-now"):
            self._on_interrupt()

    def _decline_unwanted(self, grant: Grant) -> None:
        """Answer 'parked' at once to a grant for a phase that is over, or it would never end."""
        use = self._uses.get(grant.device)
        if use is not None and use.state == "running":
            return
        if not any(
            grant.device in want.devices and self._is_granted(want, grant.device)
            for want in self._status.wants
        ):
            self._use(grant, "parked")

    def _report(self) -> DriverReport:
        granted = [
            device
            for want in self._status.wants
            for device in want.devices
            if self._is_granted(want, device)
        ]
        events = tuple(itertools.islice(self._outbox, _EVENTS_PER_REPORT))
        sheds, spilled = self.shed()
        return DriverReport(
            status=dataclasses.replace(self._status, wants=without(self._status.wants, granted)),
            pid=os.getpid(),
            uses=tuple(self._uses.values()),
            events=events,
            sheds=tuple(sheds),
            spilled=tuple(spilled),
        )

    def _keep(self, loop: Callable[[], None]) -> None:
        """A driver of which one thread died in silence would wait, or be waited for, for ever. So
        the job ends, and the loop goes on once more for its last words."""
        for _ in range(2):
            try:
                take_precedence()
                loop()
                return
            except Exception as error:
                log.exception("%s failed", threading.current_thread().name)
                with self._changed:
                    self.failure = self.failure or error
                    self.shed = lambda: ((), ())  # may be what failed
                self._on_interrupt()

    def _send_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._version > self._sent_version,
                    self._config.heartbeat_s,
                )
                if self._closed and self._version == self._sent_version:
                    return
                version, report = self._version, self._report()
            try:
                for gate in self._config.gates:
                    self._channel.send(streams.driver_reports(self._config.job_id, gate), report)
            except Exception:
                # A silent driver would be taken for dead; the next heartbeat tries again.
                log.exception("a report was not sent")
            with self._changed:
                self._sent_version = version
                if report.events:
                    self._sent_source_n = report.events[-1]["source_n"]
                self._changed.notify_all()

    def _receive_loop(self) -> None:
        while not self._closed:
            try:
                arrived = self._channel.receive(self._config.heartbeat_s)
            except Exception:
                # A deaf driver would never be granted anything again.
                log.exception("nothing could be received")
                arrived = []
                self._clock.sleep_s(self._config.heartbeat_s)
            at_s = self._clock.now_s()
            with self._changed:
                for stream, message in arrived:
                    if isinstance(message, Permits) and stream in self._gate_of:
                        self._take(self._gate_of[stream], message, at_s=at_s)
                        self._silence.heard(at_s=at_s)
            self._silence.note(now_s=at_s)
