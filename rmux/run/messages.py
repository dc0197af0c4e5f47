"""What controller, runners and drivers tell each other.

Every message carries the sender's whole current position, not a change of it: one lost, doubled,
reordered or late costs a heartbeat, never a wrong grant. Each is sent when it changes and again on
every heartbeat. Events ride along until they are acknowledged. The sender of a message is known
from its stream (`streams` below), never from its text. A message of an unknown kind, of a newer
version or that cannot be read decodes to None, and unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rmux.run.nexts import Next

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permission to run one phase on one device. (epoch, seq) only grows on a device."""

    device: str
    epoch: int
    seq: int
    job: str
    attempt: int
    iteration: int
    phase: str
    bound_s: float
    """Longest the phase may hold the device, seconds; past it plus the grace it is fenced."""

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOrder:
    """What the controller wants of one job's driver on its home node."""

    job: str
    attempt: int
    desired: str
    """'run', 'cancel' (at the next iteration boundary), 'cancel-now', 'pause', 'stop'. An attempt
    that is not listed any more is over: its gates clear away what it left."""
    home: str
    """The node whose runner starts and stops the driver: the job's first train node."""
    fence: str = ""
    """Why the attempt is to be killed at once, where a gate found it past its bound."""
    planned_bytes: int = 0
    """Host memory it may hold on the node that is told, by the arithmetic of admission."""
    slack_s: float = 0.0
    """What is left of its promise in one iteration after one cold wake, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Controller to runner: everything outstanding on that node."""

    group: str
    epoch: int
    grants: tuple[Grant, ...] = ()
    drivers: tuple[DriverOrder, ...] = ()
    acks: tuple[tuple[str, int], ...] = ()
    """(event source, last source_n stored)."""
    nexts: tuple[Next, ...] = ()
    """What comes after rollouts that may give single devices back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """Where a device stands at its gate."""

    device: str
    epoch: int
    seq: int
    state: str
    """'idle' (nothing granted yet), 'granted', 'running', 'released' (proven parked)."""
    job: str = ""
    attempt: int = 0
    iteration: int = 0
    phase: str = ""
    proof_s: float = 0.0
    """How long the proof took, seconds."""
    overdue: str = ""
    """What it held for longer than its bound and the grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """The phase a driver is ready to run next, on these devices (those not yet granted to it)."""

    phase: str
    iteration: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    job: str
    attempt: int
    state: str
    """'starting', 'running', 'paused', 'succeeded', 'cancelled', 'failed'."""
    iteration: int = 0
    """Finished iterations."""
    wants: tuple[Want, ...] = ()
    """One per phase; one step off-policy the next rollout may stand beside a train."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Runner to controller: the whole node."""

    node: str
    runner: str
    """boot id:pid:start time of the runner."""
    epoch: int
    """Highest epoch seen from any controller."""
    devices: tuple[DeviceReport, ...] = ()
    drivers: tuple[DriverStatus, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    resident_bytes: int = 0
    """Host memory of what runs for the node; 0 until it was measured."""
    jobs_bytes: tuple[tuple[str, int], ...] = ()
    """(job, its part of `resident_bytes`)."""
    stops: tuple[tuple[str, int, str], ...] = ()
    """(job, attempt, why): attempts that must end for the host memory they hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permits:
    """Runner to driver: the grants it has passed on, and what is wanted of the driver."""

    grants: tuple[Grant, ...] = ()
    desired: str = "run"
    acks: tuple[tuple[str, int], ...] = ()
    shed: str = ""
    """Host memory to give up on the sender's node: '', 'caches' or 'spill'."""
    shed_n: int = 0
    """Number of that order: each is carried out once."""
    nexts: tuple[Next, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed:
    """What came of an order to give up host memory."""

    node: str
    shed_n: int
    what: str
    freed_bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What a driver does with a grant: 'running' it or 'parked' after it."""

    device: str
    epoch: int
    seq: int
    state: str
    pids: tuple[int, ...] = ()
    """Processes that must be idle for the device to count as parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """Driver to runner."""

    status: DriverStatus
    pid: int
    uses: tuple[DeviceUse, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    sheds: tuple[Shed, ...] = ()
    """The newest of each node."""
    spilled: tuple[str, ...] = ()
    """Nodes where its parked state lies on disk: the next wake there is a cold one."""


Message = Grants | NodeReport | Permits | DriverReport
_KINDS: dict[str, type[Any]] = {
    "grants": Grants,
    "node_report": NodeReport,
    "permits": Permits,
    "driver_report": DriverReport,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


def without(wants: Iterable[Want], devices: Sequence[str]) -> tuple[Want, ...]:
    """The wants with the devices they still lack; those that lack none are gone."""
    left = [
        dataclasses.replace(want, devices=tuple(d for d in want.devices if d not in devices))
        for want in wants
    ]
    return tuple(want for want in left if want.devices)


class streams:  # noqa: N801 - a namespace of names, read as streams.grants(...)
    """Name of each stream: one writer and one reader each."""

    @staticmethod
    def grants(group: str, node: str) -> str:
        return f"rmux:{group}:{node}:grants"

    @staticmethod
    def node_reports(group: str, node: str) -> str:
        return f"rmux:{group}:{node}:reports"

    @staticmethod
    def permits(job: str, node: str) -> str:
        return f"rmux:{job}:{node}:permits"

    @staticmethod
    def driver_reports(job: str, node: str) -> str:
        return f"rmux:{job}:{node}:reports"


def encode(message: Message) -> str:
    """JSON text with the kind and version of the message."""
    body = {"kind": _NAMES[type(message)], "v": VERSION, **_plain(message)}
    return json.dumps(body, allow_nan=False, default=_plain)


def decode(text: str) -> Message | None:
    """The message, or None for what this version cannot read."""
    try:
        body = json.loads(text)
        if not isinstance(body, dict) or int(body.get("v", 0)) > VERSION:
            return None
        cls = _KINDS[body["kind"]]
        return typing.cast("Message", _build(cls, body))
    except (ValueError, KeyError, TypeError):
        return None


def _plain(value: Any) -> dict[str, Any]:
    """One level of a dataclass; `asdict` copies every level and takes several times as long."""
    return {name: getattr(value, name) for name in _fields(typing.cast("Any", type(value)))}


@functools.cache
def _fields(cls: Any) -> dict[str, Any]:
    # Resolving hints costs more than the rest of a decode, and every grant waits for a few.
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _build(cls: type[Any], body: dict[str, Any]) -> Any:
    if cls is DriverStatus and "wants" not in body and body.get("want"):
        # As it was written while there could be only one.
        body = {**body, "wants": [body["want"]]}
    hints = _fields(typing.cast("Any", cls))
    return cls(**{key: _coerce(hints[key], value) for key, value in body.items() if key in hints})


def _coerce(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        inner = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return None if value is None else _coerce(inner[0], value)
    if origin is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_coerce(args[0], item) for item in value)
        return tuple(_coerce(arg, item) for arg, item in zip(args, value, strict=True))
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value)
    if hint is float:
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"expected an integer, got {value!r}")
        return value
    if hint is str and not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value
