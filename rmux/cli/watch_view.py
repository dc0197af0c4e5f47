"""The picture of `rmux group watch`: lines of text from one look at a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rmux import timeline, units
from rmux.cli import group_views
from rmux.cli.documents_groups import GroupDocument, MemberPart
from rmux.cli.group_views import Look
from rmux.cli.job_views import slowdown_text, state_text
from rmux.cli.output import Column, Table
from rmux.events import EventType, PhaseEvent

LANES_S = 120.0
"""Time that the lanes show."""
_MIN_EVENTS = 3
_ROUTINE = {
    EventType.GRANT,
    EventType.RELEASED,
    EventType.PHASE_START,
    EventType.PROGRESS,
    EventType.CHECKPOINT,
    EventType.DEVICE_JOINED,
    EventType.DEVICE_LEFT,
}
"""What the lanes and rows show already."""
_RISK = 0.95
"""Share of the accepted slowdown from which on a job is marked."""


def render(seen: Look, *, width: int, height: int) -> list[str]:
    """At most `height` lines of at most `width` columns."""
    group = group_views.document(seen)
    top = [*_head(seen, group, width), "", *_pools(seen, group), "", *_jobs(seen, group)]
    room = max(0, height - len(top) - _MIN_EVENTS - 3)
    drawn = ["", *lanes(seen, width=width, limit=room)] if room else []
    room = max(0, height - len(top) - len(drawn) - 1)
    telling = [event for event in seen.events if event.type not in _ROUTINE]
    told = [event_text(event, seen) for event in reversed(telling[-room:])] if room else []
    whole = [*top, *drawn, *(["", *told] if told else [])]
    return [line[:width].rstrip() for line in whole[:height]]


def receipt(seen: Look, *, watched_s: float) -> str:
    """The one line that stays behind when the picture is gone."""
    return (
        f"{seen.group.id} {seen.status.upper()} {_members(len(seen.group.members))}, "
        f"watched {units.format_duration(watched_s)}"
    )


def lanes(seen: Look, *, width: int, limit: int, window_s: float = LANES_S) -> list[str]:
    """Who held each device lately: a letter per job, '·' for a bubble; with a legend."""
    labels = seen.labels
    devices = [item["device"] for item in group_views.devices(seen)]
    if not devices or limit < 2:
        return []
    shown = devices[: limit - 1]
    gutter = max(map(len, shown)) + 2
    cells = max(10, width - gutter)
    drawn = timeline.lanes(
        (hold for hold in seen.held if (hold.end_s or seen.now_s) > seen.now_s - window_s),
        labels,
        since_s=seen.now_s - window_s,
        until_s=seen.now_s,
        width=cells,
    )
    rows = [f"{device:<{gutter}}{drawn.get(device, '·' * cells)}" for device in shown]
    more = f", {len(devices) - len(shown)} more devices" if len(shown) < len(devices) else ""
    cell = f"one cell = {units.format_duration(window_s / cells)}   · bubble{more}"
    return [*rows, f"{'':<{gutter}}{cell}"]


def event_text(event: PhaseEvent, seen: Look | None = None, *, name: str = "") -> str:
    """'23:40:12 phase.end A math it=96 train 8.1 s'."""
    words = [f"{event.at.astimezone():%H:%M:%S%z}", str(event.type)]
    if event.job_id is not None:
        words.append(_job_name(event, seen) if seen is not None else name or event.job_id)
    if event.iteration is not None:
        words.append(f"it={event.iteration}")
    if event.phase is not None:
        words.append(event.phase.value)
    if event.device is not None or event.node is not None:
        words.append(event.device or str(event.node))
    return " ".join([*words, *_details(event)])


def _details(event: PhaseEvent) -> Iterable[str]:
    data = event.data
    if event.type is EventType.PHASE_START:
        yield from _seconds(data, ("wait_s", "waited"), ("switch_s", "switch"))
    elif event.type is EventType.PHASE_END:
        yield from _seconds(data, ("run_s", "ran"), ("park_s", "park"))
    elif event.type is EventType.RELEASED:
        yield from _seconds(data, ("proof_s", "proof"))
    else:
        if event.type is EventType.TAIL_MOVED:
            yield f"{data.get('requests')} requests moved, freed {' '.join(data.get('freed', ()))}"
        for key in ("state", "code", "role", "change", "pid", "reward", "reason", "error", "bytes"):
            value = data.get(key)
            if value not in (None, ""):
                lines = str(value).splitlines()
                yield f"{key}={lines[-1][:80]}"


def _seconds(data: Any, *keys: tuple[str, str]) -> Iterable[str]:
    for key, label in keys:
        value = data.get(key)
        if isinstance(value, int | float):
            yield f"{label} {units.format_duration(value)}"


def _job_name(event: PhaseEvent, seen: Look) -> str:
    job = event.job_id
    if job is None:
        return ""
    known = seen.jobs.get(job)
    return f"{seen.labels.get(job, '?')} {known.spec.name if known else job}"


def _head(seen: Look, group: GroupDocument, width: int) -> list[str]:
    clock = f"{seen.at.astimezone():%H:%M:%S %z}   [q]uit"
    title = f"rmux group watch {group.id}"
    period = "-" if group.period_s is None else units.format_duration(group.period_s)
    bound = f" ({group.binding})" if group.binding else ""
    epoch = f"  epoch {group.controller.epoch}" if group.controller else ""
    standing = [
        f"{group.id} {group.status.upper()}",
        _members(len(group.members)),
        f"period {period}{bound}",
        f"{units.format_usd_per_h(group.usd_per_h)}{epoch}",
    ]
    return [f"{title}{clock:>{max(0, width - len(title))}}", "  ".join(standing)]


def _pools(seen: Look, group: GroupDocument) -> list[str]:
    rows = []
    for pool in dict.fromkeys(device.pool for device in group.devices):
        devices = [device for device in group.devices if device.pool == pool]
        nodes = dict.fromkeys(device.device.rpartition("/")[0] for device in devices)
        running = {device.job: device for device in devices if device.job is not None}
        now = ", ".join(_holding(seen, job, device.iteration) for job, device in running.items())
        longest_s = max((device.since_s or 0.0 for device in running.values()), default=None)
        busy = [device.busy for device in devices if device.busy is not None]
        share = sum(busy) / len(busy) if busy else None
        rows.append(
            (
                pool,
                ",".join(nodes),
                now or None,
                units.format_duration(longest_s),
                _percent(share),
                _percent(None if share is None else 1 - share),
            )
        )
    return list(
        Table(
            (
                "POOL",
                "NODES",
                "NOW",
                Column("FOR", right=True),
                Column("BUSY", right=True),
                Column("BUBBLE", right=True),
            ),
            rows,
        ).lines()
    )


def _holding(seen: Look, job: str | None, iteration: int | None) -> str:
    found = next((one for key, one in seen.jobs.items() if key == job), None)
    letter = next((letter for key, letter in seen.labels.items() if key == job), "?")
    return f"{letter} {found.spec.name if found else job} it {iteration}"


def _jobs(seen: Look, group: GroupDocument) -> list[str]:
    letters = list(seen.labels.values())
    columns = (
        "",
        "JOB",
        "STATE",
        "PHASE",
        Column("ITER", right=True),
        Column("WAIT", right=True),
        Column("SWITCH", right=True),
        Column("SLOWDOWN", right=True),
        Column("PERIOD", right=True),
        "NOTE",
    )
    rows = [_job_row(letters[n], member) for n, member in enumerate(group.members)]
    return list(Table(columns, rows).lines())


def _job_row(letter: str, member: MemberPart) -> Sequence[object]:
    phase = member.phase
    waits = phase is not None and phase.state == "waiting"
    slowdown = member.slowdown
    risky = slowdown.now is not None and slowdown.now > _RISK * member.slo.max_slowdown
    return (
        letter,
        member.name,
        state_text(member.state),
        "-" if phase is None else f"{'wait:' if waits else ''}{phase.name}",
        member.iteration,
        units.format_duration(member.last_wait_s),
        units.format_duration(member.last_switch_s),
        slowdown_text(slowdown.now, member.slo.max_slowdown) + ("!" if risky else " "),
        units.format_duration(slowdown.period_s),
        "slo-risk" if risky else "",
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _members(count: int) -> str:
    return f"{count} member{'' if count == 1 else 's'}"
