"""The journal of a group as a trace: read back from a file, or drawn for Perfetto.

A process is a pool, a thread a device: one device is held by one phase at a time, so its slices
never overlap. A job's iterations are an async track each; jobs overlap there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmux import __version__, timeline
from rmux.clock import to_rfc3339
from rmux.cluster import Cluster
from rmux.errors import UserError
from rmux.events import EventType, PhaseEvent, from_document

if TYPE_CHECKING:
    from rmux.store.engine import Store

_PAGE = 10_000
_INSTANTS = {
    EventType.SLO_RISK,
    EventType.JOB_STATE,
    EventType.PROCESS,
    EventType.CONTROLLER,
    EventType.CHANNEL,
    EventType.MEMORY,
    EventType.GATE_REFUSED,
}


def of_group(store: Store, text: str) -> list[PhaseEvent]:
    """Every event of a group. NotFoundError when there is no such group."""
    from rmux.store import events, groups

    found: list[PhaseEvent] = []
    with store.read() as conn:
        group = groups.resolve(conn, text)
        while True:
            after = found[-1].seq if found else 0
            page = events.read(conn, group=group, after_seq=after, limit=_PAGE)
            found += page
            if len(page) < _PAGE:
                return found


def from_file(path: Path) -> list[PhaseEvent]:
    """The events of a file of JSON lines; a watch's own lines are passed over.

    UserError names the line that is none.
    """
    known = set(EventType)
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
            if document["type"] in known:
                found.append(from_document(document))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}:{number}: not an event ({error})",
                code="trace.unreadable",
                hint="rmux group watch GROUP --since-seq 0 -o jsonl writes such a file",
            ) from error
    return found


def chrome_json(store: Store, text: str) -> str:
    """Chrome trace JSON of a whole group; times in µs from its first event."""
    from rmux.store import groups, jobs, pools

    events = of_group(store, text)
    with store.read() as conn:
        cluster = pools.load(conn)
        revision = groups.revision(conn)
        names = {
            str(event.job_id): jobs.get(conn, event.job_id).spec.name
            for event in events
            if event.job_id is not None
        }
    drawn = chrome_events(events, cluster, names)
    start = min((event.at for event in events), default=None)
    other = {
        "rmux": __version__,
        "store_revision": revision,
        "start": None if start is None else to_rfc3339(start),
    }
    return json.dumps({"traceEvents": drawn, "displayTimeUnit": "ms", "otherData": other})


def chrome_events(
    events: Sequence[PhaseEvent], cluster: Cluster, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Slices of devices, async iterations of jobs, instants of what else happened."""
    if not events:
        return []
    start_s = min(event.at_s for event in events)
    end_s = max(event.at_s for event in events)
    threads = _threads(cluster, events)
    drawn = list(_names(threads))

    def us(at_s: float) -> int:
        return round((at_s - start_s) * 1e6)

    for hold in timeline.holds(events):
        pid, tid, *_ = threads[hold.device]
        drawn.append(
            {
                "ph": "X",
                "cat": hold.phase.value,
                "name": f"{names.get(hold.job_id, hold.job_id)} {hold.phase.value} "
                f"{hold.iteration}",
                "pid": pid,
                "tid": tid,
                "ts": us(hold.start_s),
                "dur": us(hold.end_s if hold.end_s is not None else end_s) - us(hold.start_s),
                "args": {"job": hold.job_id, "iteration": hold.iteration},
            }
        )
    drawn += _iterations(events, names, us)
    drawn += [
        {
            "ph": "i",
            "s": "g",
            "cat": "event",
            "name": str(event.type),
            "pid": 0,
            "tid": 0,
            "ts": us(event.at_s),
            "args": {"job": event.job_id, **event.data},
        }
        for event in events
        if event.type in _INSTANTS
    ]
    return drawn


def _iterations(
    events: Sequence[PhaseEvent], names: Mapping[str, str], us: Any
) -> list[dict[str, Any]]:
    drawn = []
    begun: dict[str, int] = {}
    for event in events:
        job = str(event.job_id)
        if event.type is EventType.PHASE_START:
            begun.setdefault(job, us(event.at_s))
        elif event.type is EventType.ITERATION_END and job in begun:
            base = {"cat": "iteration", "id": job, "pid": 0, "tid": 0}
            name = f"{names.get(job, job)} iteration {event.iteration}"
            drawn.append({**base, "ph": "b", "name": name, "ts": begun.pop(job)})
            drawn.append(
                {**base, "ph": "e", "name": name, "ts": us(event.at_s), "args": dict(event.data)}
            )
    return drawn


def _threads(
    cluster: Cluster, events: Sequence[PhaseEvent]
) -> dict[str, tuple[int, int, str, str]]:
    """Device to (pid, tid, pool, device); a device of no pool any more has a process of its own."""
    found = {}
    for pid, pool in enumerate(cluster.pools, start=1):
        devices = [str(device) for node in pool.nodes for device in node.devices]
        for tid, device in enumerate(devices, start=1):
            found[device] = (pid, tid, f"{pool.name} {pool.hardware}", device)
    known = set(found)
    used = dict.fromkeys(event.device for event in events if event.device is not None)
    for tid, device in enumerate((name for name in used if name not in known), start=1):
        found[device] = (len(cluster.pools) + 1, tid, "removed", device)
    return found


def _names(threads: Mapping[str, tuple[int, int, str, str]]) -> list[dict[str, Any]]:
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "jobs"}}
    ]
    for pid, name in dict.fromkeys((pid, pool) for pid, _, pool, _ in threads.values()):
        named.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
    for pid, tid, _, device in threads.values():
        args = {"name": device}
        named.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args})
    return named
