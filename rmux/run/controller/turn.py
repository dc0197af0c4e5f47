"""Scratch of one turn of the controller: the state being changed and the commands it gives."""

from __future__ import annotations

import dataclasses
from typing import Any

from rmux.cluster import DeviceId
from rmux.events import EventType, PhaseEvent
from rmux.ids import JobId, NodeId
from rmux.job import JobState, Phase, Reason
from rmux.run.controller.state import (
    AppendEvents,
    Command,
    Finish,
    Inputs,
    RemoveMember,
    Run,
    Send,
    SetState,
    State,
    UpdateJob,
    Write,
)
from rmux.run.messages import Grant, Grants

Operation = AppendEvents | SetState | UpdateJob | RemoveMember


class Turn:
    """Mappings of the state are copied once, so that the caller's state stays as it was."""

    def __init__(self, state: State, inputs: Inputs) -> None:
        self.state = state
        self.inputs = inputs
        self.now_s = inputs.now_s
        self.limits = state.limits
        self.runs = dict(state.runs)
        self.gates = dict(state.gates)
        self.memory = dict(state.memory)
        self.held = dict(state.held)
        self.seqs = dict(state.seqs)
        self.granted = dict(state.granted)
        self.seen = dict(state.seen)
        self.acks = dict(state.acks)
        self.unstored = list(state.unstored)
        self.sent = dict(state.sent)
        self.rotation = state.rotation
        self.latest = state.latest.copy()
        self.event_n = state.event_n
        self._operations: list[Operation] = []
        self._commands: list[Command] = []
        self.batch_n = state.batch_n + 1
        """Number of the batch that this turn's writes go into, if there are any."""

    def set(self, **changes: Any) -> None:
        self.state = dataclasses.replace(self.state, **changes)

    def change(self, run: Run, **changes: Any) -> Run:
        changed = dataclasses.replace(run, **changes)
        self.runs[run.job_id] = changed
        return changed

    def holds(self, job_id: JobId) -> list[DeviceId]:
        return [device for device, grant in self.held.items() if grant.job == job_id]

    def write(self, operation: Operation) -> None:
        self._operations.append(operation)

    def append(self, event: PhaseEvent) -> None:
        """Journal an event of another process, in the order it was announced."""
        self.write(AppendEvents(events=(event,)))
        self.unstored.append((self.batch_n, event.source, event.source_n))

    def emit(self, kind: EventType, *, data: dict[str, Any], **fields: Any) -> None:
        """Journal an event of the controller itself."""
        self.event_n += 1
        event = PhaseEvent(
            type=kind,
            at=self.inputs.utc,
            at_s=self.now_s,
            source=self.state.source,
            source_n=self.event_n,
            group_id=self.state.group_id,
            data=data,
            **fields,
        )
        self.write(AppendEvents(events=(event,)))

    def emit_grant(self, kind: EventType, grant: Grant, **data: Any) -> None:
        device = DeviceId.parse(grant.device)
        self.emit(
            kind,
            job_id=JobId(grant.job),
            iteration=grant.iteration,
            phase=Phase(grant.phase) if grant.phase else None,
            node=device.node,
            device=grant.device,
            data={"epoch": grant.epoch, "seq": grant.seq, "attempt": grant.attempt, **data},
        )

    def set_job_state(
        self, run: Run, state: JobState, *, reason: Reason | None = None, error: str = ""
    ) -> Run:
        """Move a job on: in the store, in the journal and here."""
        told = reason or Reason()
        self.write(
            SetState(
                job_id=run.job_id,
                state=state,
                reason=told,
                error=error if error or state is JobState.STARTING else None,
                ended_at=self.inputs.utc if state.is_terminal else None,
            )
        )
        self.emit(
            EventType.JOB_STATE,
            job_id=run.job_id,
            data={
                "state": str(state),
                "reason": told.message,
                "code": told.code,
                "error": error,
                "attempt": run.attempt,
            },
        )
        return self.change(run, state=state)

    def send(self, node: NodeId, grants: Grants) -> None:
        self.sent[node] = (grants, self.now_s)
        self._commands.append(Send(node=node, grants=grants))

    def finish(self, why: str) -> None:
        self._commands.append(Finish(why=why))

    @property
    def has_writes(self) -> bool:
        return bool(self._operations)

    def close(self) -> tuple[State, tuple[Command, ...]]:
        commands = list(self._commands)
        if self._operations:
            commands.append(Write(batch_n=self.batch_n, operations=_merged(self._operations)))
        state = dataclasses.replace(
            self.state,
            runs=self.runs,
            gates=self.gates,
            memory=self.memory,
            held=self.held,
            seqs=self.seqs,
            granted=self.granted,
            seen=self.seen,
            acks=self.acks,
            unstored=tuple(self.unstored),
            sent=self.sent,
            rotation=self.rotation,
            latest=self.latest,
            event_n=self.event_n,
            batch_n=self.batch_n if self._operations else self.state.batch_n,
        )
        return state, tuple(commands)


def _merged(operations: list[Operation]) -> tuple[Operation, ...]:
    """Neighbouring events become one append."""
    merged: list[Operation] = []
    for operation in operations:
        last = merged[-1] if merged else None
        if isinstance(operation, AppendEvents) and isinstance(last, AppendEvents):
            merged[-1] = AppendEvents(events=last.events + operation.events)
        else:
            merged.append(operation)
    return tuple(merged)
