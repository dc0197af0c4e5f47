"""The gate of one node: which grant each of its devices honours. No I/O, no clock of its own.

A device goes idle → granted → running → parked → released, once per grant. (epoch, seq) only grows:
anything lower is refused, and a higher one waits until the one before it is proven released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rmux.events import EventType
from rmux.run.messages import (
    DeviceReport,
    DeviceUse,
    DriverOrder,
    DriverReport,
    Grant,
    Grants,
)
from rmux.run.nexts import Next

logger = logging.getLogger(__name__)

Emit = Callable[..., None]
Attempt = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where one device stands."""

    grant: Grant | None = None
    state: str = "idle"
    since_s: float = 0.0
    pids: tuple[int, ...] = ()
    """Processes that must be idle for 'parked' to become 'released'."""
    waiting: Grant | None = None
    """A higher grant that came before this one was released."""
    granted_s: float = 0.0
    proof_s: float = 0.0

    @property
    def is_free(self) -> bool:
        return self.state in ("idle", "released")


class Gate:
    def __init__(
        self,
        devices: Iterable[str],
        *,
        emit: Emit,
        fence_grace_s: float = 10.0,
        epoch: int = 0,
        positions: Mapping[str, Position] | None = None,
    ) -> None:
        self.epoch = epoch
        self.positions = {device: Position() for device in devices}
        self.positions |= {
            device: position
            for device, position in (positions or {}).items()
            if device in self.positions
        }
        self.orders: dict[str, DriverOrder] = {}
        self.acks: dict[str, int] = {}
        self._nexts: tuple[tuple[Next, ...], float] = ((), 0.0)
        """The controller's word, and when it came."""
        self.generation = 0
        """Counts accepted grants: what must be on disk before a driver may hear of it."""
        self._emit = emit
        self._fence_grace_s = fence_grace_s
        self._over: set[Attempt] = set()
        self._refused: set[tuple[str, tuple[int, int]]] = set()

    def take_grants(self, message: Grants, *, now_s: float) -> bool:
        """The controller's position; False when it is an old controller's and was refused."""
        if message.epoch < self.epoch:
            self._refuse("controller", (message.epoch, 0), reason=f"epoch {self.epoch} is known")
            return False
        self.epoch = message.epoch
        self.orders = {order.job: order for order in message.drivers}
        self.acks = dict(message.acks)
        self._nexts = (message.nexts, now_s)
        for grant in message.grants:
            if grant.device in self.positions:
                self._take_grant(grant, now_s=now_s)
        return True

    def _take_grant(self, grant: Grant, *, now_s: float) -> None:
        position = self.positions[grant.device]
        known = (0, 0) if position.grant is None else position.grant.order
        if grant.order == known:
            return
        if grant.order < known:
            self._refuse(grant.device, grant.order, reason=f"{known} is known", grant=grant)
        elif not position.is_free:
            self.positions[grant.device] = replace(position, waiting=grant)
        else:
            self._accept(grant, now_s=now_s)

    def _accept(self, grant: Grant, *, now_s: float) -> None:
        self.generation += 1
        over = (grant.job, grant.attempt) in self._over
        self.positions[grant.device] = Position(
            grant=grant, state="granted", since_s=now_s, granted_s=now_s
        )
        if over:
            self._release(grant.device, now_s=now_s)

    def take_report(self, report: DriverReport, *, now_s: float) -> None:
        """A driver's position: only what it says about its own grants counts."""
        job, attempt = report.status.job, report.status.attempt
        if (job, attempt) in self._over:
            return
        for use in report.uses:
            position = self.positions.get(use.device)
            if position is None:
                continue
            if position.grant is None or (use.epoch, use.seq) > position.grant.order:
                position = self._learn(report, use)
            if position.grant is None or position.grant.order != (use.epoch, use.seq):
                continue
            if (position.grant.job, position.grant.attempt) == (job, attempt):
                self._use(position, use, now_s=now_s)

    def _learn(self, report: DriverReport, use: DeviceUse) -> Position:
        """A grant of before this gate's start that left no other trace than its driver's word."""
        before = self.positions[use.device]
        self.epoch = max(self.epoch, use.epoch)
        grant = Grant(
            device=use.device,
            epoch=use.epoch,
            seq=use.seq,
            job=report.status.job,
            attempt=report.status.attempt,
            iteration=report.status.iteration,
            phase="",
            bound_s=float("inf"),
        )
        return replace(before, grant=grant, state="granted")

    def _use(self, position: Position, use: DeviceUse, *, now_s: float) -> None:
        if use.state == "running" and position.state == "granted":
            position = replace(position, state="running")
        elif use.state == "parked" and position.state in ("granted", "running"):
            position = replace(position, state="parked", pids=use.pids, since_s=now_s)
        self.positions[use.device] = position

    def to_prove(self) -> dict[str, Position]:
        """Devices said to be parked that are not proven idle yet."""
        return {d: p for d, p in self.positions.items() if p.state == "parked"}

    def prove(self, device: str, *, order: tuple[int, int], now_s: float) -> None:
        """The device is idle indeed; what waited for it is honoured now."""
        position = self.positions[device]
        if position.grant is not None and position.grant.order == order:
            self._release(device, now_s=now_s)

    def _release(self, device: str, *, now_s: float) -> None:
        position = self.positions[device]
        proof_s = now_s - position.since_s if position.state == "parked" else 0.0
        self.positions[device] = replace(
            position, state="released", pids=(), waiting=None, proof_s=proof_s
        )
        if position.grant is not None:
            self._tell(
                EventType.RELEASED,
                position.grant,
                proof_s=proof_s,
                granted_s=position.granted_s,
            )
        if position.waiting is not None:
            self._accept(position.waiting, now_s=now_s)

    def end_attempt(self, attempt: Attempt, *, now_s: float) -> None:
        """Every process of the attempt is gone from this node: its devices are free."""
        self._over.add(attempt)
        for device, position in list(self.positions.items()):
            held = position.grant
            if held is not None and (held.job, held.attempt) == attempt and not position.is_free:
                self._release(device, now_s=now_s)

    def strays(self) -> set[Attempt]:
        """Attempts that hold a device here and that the controller does not list any more."""
        listed = {(order.job, order.attempt) for order in self.orders.values()}
        held = {
            (position.grant.job, position.grant.attempt)
            for position in self.positions.values()
            if position.grant is not None and not position.is_free
        }
        return held - listed - self._over

    def overdue(self, *, now_s: float, graces: int = 1) -> dict[Attempt, str]:
        """What attempts hold for longer than their bound and so many graces, in words."""
        found = {}
        for position in self.positions.values():
            grant = position.grant
            if grant is None or position.is_free:
                continue
            if now_s - position.since_s > grant.bound_s + graces * self._fence_grace_s:
                held = f"{grant.phase} held {grant.device} for more than {grant.bound_s:g} s"
                found[grant.job, grant.attempt] = held
        return found

    def passed_on(self, job: str, attempt: int) -> tuple[Grant, ...]:
        """The grants that the attempt may use or is using."""
        return tuple(
            position.grant
            for _, position in sorted(self.positions.items())
            if position.grant is not None
            and not position.is_free
            and (position.grant.job, position.grant.attempt) == (job, attempt)
        )

    def nexts(self, grants: Iterable[Grant], *, now_s: float) -> tuple[Next, ...]:
        """What comes after these grants, counted from now."""
        known, came_s = self._nexts
        orders = {(grant.device, *grant.order) for grant in grants}
        return tuple(
            one.aged(now_s - came_s) for one in known if (one.device, one.epoch, one.seq) in orders
        )

    def reports(self, *, now_s: float) -> tuple[DeviceReport, ...]:
        overdue = self.overdue(now_s=now_s)
        return tuple(
            _report(device, self.positions[device], overdue) for device in sorted(self.positions)
        )

    def _refuse(
        self, what: str, order: tuple[int, int], *, reason: str, grant: Grant | None = None
    ) -> None:
        """Told once: the same stale message may come many times."""
        if (what, order) in self._refused:
            return
        self._refused.add((what, order))
        logger.warning("refused %s of %s: %s", order, what, reason)
        if grant is not None:
            self._tell(EventType.GATE_REFUSED, grant, reason=reason)
        else:
            self._emit(EventType.GATE_REFUSED, data={"epoch": order[0], "reason": reason})

    def _tell(self, kind: EventType, grant: Grant, **data: Any) -> None:
        self._emit(
            kind,
            job=grant.job,
            device=grant.device,
            iteration=grant.iteration,
            phase=grant.phase,
            data={"epoch": grant.epoch, "seq": grant.seq, "attempt": grant.attempt, **data},
        )


def _report(device: str, position: Position, overdue: Mapping[Attempt, str]) -> DeviceReport:
    grant = position.grant
    if grant is None:
        return DeviceReport(device=device, epoch=0, seq=0, state="idle")
    state = "running" if position.state == "parked" else position.state
    return DeviceReport(
        device=device,
        epoch=grant.epoch,
        seq=grant.seq,
        state=state,
        job=grant.job,
        attempt=grant.attempt,
        iteration=grant.iteration,
        phase=grant.phase,
        proof_s=position.proof_s,
        overdue="" if position.is_free else overdue.get((grant.job, grant.attempt), ""),
    )
