"""Groups for people: rows and lines."""

from __future__ import annotations

from collections.abc import Iterable

from rmux import units
from rmux.cli import memory_views
from rmux.cli.documents_groups import GroupDocument, Timeline
from rmux.cli.job_views import slowdown_text, state_text
from rmux.cli.output import Column, Table


def groups(items: Iterable[GroupDocument]) -> Table:
    return Table(
        (
            "ID",
            "STATUS",
            Column("MEMBERS", right=True),
            Column("NODES", right=True),
            Column("PERIOD", right=True),
            Column("USD/H", right=True),
            "JOBS",
            Column("BOUND BY", wide=True),
            Column("NODE NAMES", wide=True),
            Column("CONTROLLER", wide=True),
        ),
        [
            (
                item.id,
                item.status.upper(),
                len(item.members),
                len(item.nodes),
                units.format_duration(item.period_s),
                f"{item.usd_per_h:.2f}",
                ",".join(member.name for member in item.members) or None,
                item.binding,
                ",".join(item.nodes) or None,
                None if item.controller is None else item.controller.owner,
            )
            for item in items
        ],
    )


def text(group: GroupDocument) -> str:
    """The group in a few lines; its members follow as a table."""
    period = units.format_duration(group.period_s)
    bound = f", bound by {group.binding}" if group.binding else ""
    owner = group.controller
    served = "nobody" if owner is None else f"{owner.owner}, epoch {owner.epoch}"
    lines = [
        f"group       {group.id} {group.status.upper()}",
        f"period      {period}{bound}",
        f"price       {units.format_usd_per_h(group.usd_per_h)}, charged as {group.charged_by}",
        f"nodes       {', '.join(group.nodes) or '-'}",
        f"controller  {served}",
    ]
    lines += memory_views.node_lines(group.memory)
    for device in group.devices:
        doing = "idle"
        if device.job is not None:
            since = units.format_duration(device.since_s)
            doing = f"{device.job} {device.phase} it {device.iteration}, for {since}"
        busy = "" if device.busy is None else f", busy {100 * device.busy:.1f} %"
        lines.append(f"device      {device.device} ({device.pool})  {doing}{busy}")
    return "\n".join([*lines, ""])


def members(group: GroupDocument) -> Table:
    return Table(
        (
            "JOB",
            "NAME",
            "STATE",
            "PHASE",
            Column("ITER", right=True),
            Column("SLOWDOWN", right=True),
            Column("ALONE", right=True),
            Column("USD/H", right=True),
            Column("TENANT", wide=True),
            "LAST ITERATIONS",
            "DEVICES",
        ),
        [
            (
                member.id,
                member.name,
                state_text(member.state),
                None
                if member.phase is None
                else f"{'wait:' if member.phase.state == 'waiting' else ''}{member.phase.name}",
                f"{member.iteration}/{member.iterations}",
                slowdown_text(member.slowdown.now, member.slo.max_slowdown),
                units.format_duration(member.solo_s),
                f"{member.usd_per_h:.2f}",
                member.tenant or None,
                " ".join(units.format_duration(s) for s in member.last_iterations_s) or None,
                ",".join((*member.rollout, *member.train)),
            )
            for member in group.members
        ],
    )


def timeline(found: Timeline, *, width: int) -> str:
    """One lane per device, its share of busy time, and what the letters mean."""
    if not found.lanes:
        return f"{found.group}: no device was held in this time"
    gutter = max(map(len, found.lanes)) + 2
    cell_s = (found.until_s - found.since_s) / width
    lines = [
        f"{device:<{gutter}}{lane}  {100 * found.busy.get(device, 0.0):5.1f} %"
        for device, lane in found.lanes.items()
    ]
    meaning = "  ".join(f"{letter} {job}" for job, letter in found.labels.items())
    legend = f"one cell = {units.format_duration(cell_s)}   · bubble   {meaning}"
    return "\n".join([*lines, f"{'':<{gutter}}{legend}"])
