"""Host memory: what runners are told of the plan, and what they tell of the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmux.events import EventType, PhaseEvent
from rmux.group import Member
from rmux.ids import JobId, NodeId
from rmux.job import Phase
from rmux.place.period import period
from rmux.run.controller.state import Run
from rmux.run.controller.turn import Turn


def slacks_s(members: Sequence[Member], *, turns: Sequence[JobId]) -> Mapping[JobId, float]:
    """What one cold wake of its trainer leaves of each member's promise in an iteration, seconds.

    slo x alone - planned iteration - (cold - warm switch); negative when the promise would break.
    """
    if not members:
        return {}
    here = [member.job_id for member in members]
    kept = tuple(job for job in turns if job in here)
    order = kept + tuple(job for job in here if job not in kept)
    plan = period(members, order=order)
    found = {}
    for member in members:
        train = member.profile.train
        cold_s = max(0.0, train.cold_s - train.switch_s)
        promised_s = member.slo * member.solo_s
        found[member.job_id] = promised_s - plan.iteration_s(member.job_id) - cold_s
    return found


def note_spill(turn: Turn, run: Run, event: PhaseEvent) -> None:
    """From a spill to the end of the next train phase the job's wake is planned as a cold one."""
    if event.type is EventType.MEMORY_SHED and event.data.get("what") == "spill":
        if event.data.get("freed_bytes"):
            turn.change(run, spilled_attempt=run.attempt)
    elif event.type is EventType.PHASE_END and event.phase is Phase.TRAIN:
        turn.change(run, spilled_attempt=None)


def note_stop(turn: Turn, job_id: JobId, attempt: int, why: str) -> None:
    """A runner cannot kill a driver whose home is another node: its home is told."""
    run = turn.runs.get(job_id)
    if run is not None and run.attempt == attempt and not run.fence:
        turn.change(run, fence=why)


def note_memory(
    turn: Turn, node: NodeId, resident_bytes: int, jobs_bytes: Mapping[str, int]
) -> None:
    """Journal the host memory of a node when it is news."""
    limits = turn.limits
    told = turn.memory.get(node)
    if told is not None:
        before_bytes, at_s = told
        changed = abs(resident_bytes - before_bytes) > limits.memory_change * before_bytes
        if not changed or turn.now_s - at_s < limits.memory_every_s:
            return
    turn.memory[node] = (resident_bytes, turn.now_s)
    data = {"resident_bytes": resident_bytes, "jobs": dict(jobs_bytes)}
    turn.emit(EventType.MEMORY, node=node, data=data)
