"""What a node that runs short of host memory asks of its jobs. Pure: numbers in, actions out.

The order is fixed: what can be made again goes first, then parked state to disk, one job at a time
and the one whose promise can best bear a cold wake first, and only then an attempt is ended. A step
waits until the one before it has been asked of everybody who could help, and for a pause in which
it can take effect and be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from rmux.run.host_memory import HostMemory


class Step(IntEnum):
    NONE = 0
    CACHES = 1
    SPILL = 2
    STOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Fractions of a limit at which each step begins."""

    caches: float
    spill: float
    stop: float
    room: float = 0.05
    """It is over once every fraction is so far below `caches`."""

    def step(self, fraction: float) -> Step:
        reached = [self.caches <= fraction, self.spill <= fraction, self.stop <= fraction]
        return Step(sum(reached))


NODE_MARKS = Marks(caches=0.95, spill=1.0, stop=1.05)
"""Of what the cluster file declares: a plan may fill it, and none exceeds it."""
HOST_MARKS = Marks(caches=0.90, spill=0.94, stop=0.97)
"""Of what the host or its cgroup has: past it the kernel ends processes of its own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    node: Marks = NODE_MARKS
    host: Marks = HOST_MARKS
    pause_s: float = 3.0
    """Between two steps."""
    again_s: float = 60.0
    """Before the same is asked of a job again: where what it gave up comes back with its next wake
    and the node is short again, the next step is due, not the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One job's host memory on the node."""

    job: str
    attempt: int
    used_bytes: int
    planned_bytes: int
    """What admission counted; 0 where no controller has told yet."""
    slack_s: float = 0.0
    """What one cold wake leaves of its promise in an iteration."""
    in_use: bool = False
    """It holds a device of the node now: it can spill at its next park only."""
    spilled: bool = False
    may_spill: bool = True
    """Whether it has parked state on this node that can be written to disk."""

    @property
    def excess_bytes(self) -> int:
        return self.used_bytes - self.planned_bytes if self.planned_bytes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One measurement of the node and its host."""

    used_bytes: int
    limit_bytes: int
    host: HostMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """The limit that is nearest, and how far on it is."""

    step: Step
    cause: str
    """'node', 'host' or 'cgroup'."""
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    step: Step
    """NONE: an attempt would have to end, and nobody here is above its plan."""
    short: Short
    holding: Holding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was asked so far."""

    is_short: bool = False
    """Since the first mark was reached, until there is room again: what was asked stands."""
    acted_s: float = float("-inf")
    asked: Mapping[tuple[str, int, Step], float] = field(default_factory=dict)
    """(job, attempt, step) to when, lately."""
    told_s: float = float("-inf")
    """When it was last said that nobody is above its plan."""


def shortage(reading: Reading, policy: Policy) -> Short:
    """The limit with the furthest step, of equal ones the fullest."""
    host = reading.host
    limits = [
        ("node", policy.node, reading.used_bytes, reading.limit_bytes),
        ("host", policy.host, host.total_bytes - host.available_bytes, host.total_bytes),
    ]
    if host.cgroup_limit_bytes is not None:
        limits.append(("cgroup", policy.host, host.cgroup_used_bytes, host.cgroup_limit_bytes))
    found = [
        (marks.step(used / max(1, limit)), used / max(1, limit), cause, used, limit)
        for cause, marks, used, limit in limits
    ]
    step, _, cause, used_bytes, limit_bytes = max(found)
    return Short(step=step, cause=cause, used_bytes=used_bytes, limit_bytes=limit_bytes)


def decide(
    reading: Reading, holdings: Sequence[Holding], past: Past, *, policy: Policy, now_s: float
) -> tuple[tuple[Action, ...], Past]:
    """What to ask now: caches of every job, one spill or one stop; and what is then the past."""
    short = shortage(reading, policy)
    if short.step is Step.NONE:
        return (), replace(past, is_short=past.is_short and _is_close(reading, policy))
    lately = {key: at_s for key, at_s in past.asked.items() if now_s - at_s < policy.again_s}
    past = replace(past, is_short=True, asked=lately)
    if now_s - past.acted_s < policy.pause_s:
        return (), past
    for chosen, step in (
        (_holders(holdings, past, Step.CACHES), Step.CACHES),
        (_spillable(holdings, past)[:1], Step.SPILL),
        (_offenders(holdings)[:1], Step.STOP),
    ):
        if short.step < step:
            return (), past
        if step is Step.STOP and any(_key(one, step) in past.asked for one in holdings):
            return (), past  # it is ending
        if chosen:
            asked = {_key(one, step): now_s for one in chosen}
            actions = tuple(Action(step=step, short=short, holding=one) for one in chosen)
            return actions, replace(past, acted_s=now_s, asked={**past.asked, **asked})
    if now_s - past.told_s < policy.again_s:
        return (), past
    return (Action(step=Step.NONE, short=short, holding=None),), replace(past, told_s=now_s)


def _is_close(reading: Reading, policy: Policy) -> bool:
    """Whether some limit has not got its room back."""
    nearer = replace(
        policy,
        node=replace(policy.node, caches=policy.node.caches - policy.node.room),
        host=replace(policy.host, caches=policy.host.caches - policy.host.room),
    )
    return shortage(reading, nearer).step is not Step.NONE


def _key(holding: Holding, step: Step) -> tuple[str, int, Step]:
    return (holding.job, holding.attempt, step)


def _holders(holdings: Sequence[Holding], past: Past, step: Step) -> list[Holding]:
    """Jobs of which this was not asked lately, the largest first."""
    due = [one for one in holdings if one.used_bytes and _key(one, step) not in past.asked]
    return sorted(due, key=lambda one: (-one.used_bytes, one.job))


def _spillable(holdings: Sequence[Holding], past: Past) -> list[Holding]:
    """Parked ones first, of these the one with most slack."""
    due = _holders(holdings, past, Step.SPILL)
    able = [one for one in due if one.may_spill and not one.spilled]
    return sorted(able, key=lambda one: (one.in_use, -one.slack_s, -one.used_bytes))


def _offenders(holdings: Sequence[Holding]) -> list[Holding]:
    """Those above their plan, the furthest first."""
    above = [one for one in holdings if one.excess_bytes > 0]
    return sorted(above, key=lambda one: (-one.excess_bytes, one.job))
