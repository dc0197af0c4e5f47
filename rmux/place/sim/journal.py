"""The events of a simulation, as a live run would have recorded them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rmux.cluster import DeviceId
from rmux.events import EventType, PhaseEvent
from rmux.job import JobState, Phase
from rmux.place.sim.jobrun import Iteration, JobRun, Use

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""The instant of a simulation's zero."""


class Journal:
    """Collects events in any order; `events` gives them in time. Told nothing where `is_on` is
    False, which is what long studies want."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self._events: list[PhaseEvent] = []
        self._numbers: dict[str, int] = {}
        self._seqs: dict[DeviceId, int] = {}

    def events(self) -> tuple[PhaseEvent, ...]:
        """In order of time, then of record."""
        return tuple(sorted(self._events, key=lambda event: event.at_s))

    def grant(self, job: JobRun, use: Use, device: DeviceId, *, at_ms: int) -> None:
        if self.is_on:
            self._seqs[device] = self._seqs.get(device, 0) + 1
            self._of_device(EventType.GRANT, job, use, device, at_ms=at_ms)

    def released(self, job: JobRun, use: Use, device: DeviceId, *, at_ms: int) -> None:
        if self.is_on:
            data = {"proof_s": 0.0, "granted_s": use.held[device] / 1000}
            self._of_device(EventType.RELEASED, job, use, device, at_ms=at_ms, **data)

    def phase(self, job: JobRun, use: Use, *, at_ms: int, ended: bool) -> None:
        """A phase that held devices, told when it is over: its begin, and its end if it ended."""
        if not self.is_on or use.began_ms is None:
            return
        devices = list(use.ran_on)
        facts: dict[str, Any] = {
            "devices": [str(device) for device in devices],
            "epoch": 1,
            "seq": max(self._seqs[device] for device in devices),
        }
        if use.phase is Phase.INIT:
            facts["pool"] = str(use.kind)
        about: dict[str, Any] = {
            "iteration": use.iteration,
            "phase": use.phase,
            "device": str(devices[0]),
            "node": devices[0].node,
        }
        start_ms = use.began_ms + use.switch_ms
        if start_ms <= at_ms:
            start = {
                "wait_s": (use.began_ms - use.wanted_ms) / 1000,
                "switch_s": use.switch_ms / 1000,
                "overhead_s": 0.0,
            }
            self._of_job(
                EventType.PHASE_START, job, at_ms=start_ms, data={**facts, **start}, **about
            )
        if ended:
            end = {"run_s": (at_ms - start_ms) / 1000, "park_s": 0.0, "overhead_s": 0.0}
            self._of_job(EventType.PHASE_END, job, at_ms=at_ms, data={**facts, **end}, **about)

    def sync(self, job: JobRun, iteration: int, *, begun_ms: int, at_ms: int) -> None:
        if self.is_on:
            about: dict[str, Any] = {"iteration": iteration, "phase": Phase.SYNC}
            end = {
                "run_s": (at_ms - begun_ms) / 1000,
                "overhead_s": 0.0,
                "sent_bytes": job.member.profile.sync_bytes,
            }
            self._of_job(EventType.PHASE_START, job, at_ms=begun_ms, data={}, **about)
            self._of_job(EventType.PHASE_END, job, at_ms=at_ms, data=end, **about)

    def checkpoint(self, job: JobRun, iteration: int, *, at_ms: int, save_ms: int) -> None:
        if self.is_on and save_ms:
            data = {"seconds": save_ms / 1000}
            self._of_job(EventType.CHECKPOINT, job, at_ms=at_ms, data=data, iteration=iteration)

    def iteration(self, job: JobRun, iteration: int, times: Iteration) -> None:
        if self.is_on:
            data = {
                "finished": iteration + 1,
                "weight_version": iteration + 1,
                "iteration_s": (times.end_ms - times.rollout_ms) / 1000,
            }
            self._of_job(
                EventType.ITERATION_END,
                job,
                at_ms=times.end_ms,
                data=data,
                iteration=iteration,
            )

    def state(self, job: JobRun, state: JobState, *, at_ms: int, error: str = "") -> None:
        if self.is_on:
            data = {"state": str(state), "reason": "", "code": "none", "error": error}
            self._of_job(EventType.JOB_STATE, job, at_ms=at_ms, data=data)

    def _of_device(
        self,
        kind: EventType,
        job: JobRun,
        use: Use,
        device: DeviceId,
        *,
        at_ms: int,
        **data: float,
    ) -> None:
        order = {"epoch": 1, "seq": self._seqs[device], "attempt": job.attempt}
        self._append(
            kind,
            job,
            f"{job.group_id}@1",
            at_ms=at_ms,
            data={**order, **data},
            iteration=use.iteration,
            phase=use.phase,
            node=device.node,
            device=str(device),
        )

    def _of_job(
        self, kind: EventType, job: JobRun, *, at_ms: int, data: dict[str, Any], **about: Any
    ) -> None:
        told = {"attempt": job.attempt, **data}
        self._append(kind, job, str(job.id), at_ms=at_ms, data=told, **about)

    def _append(
        self, kind: EventType, job: JobRun, source: str, *, at_ms: int, **about: Any
    ) -> None:
        number = self._numbers[source] = self._numbers.get(source, 0) + 1
        self._events.append(
            PhaseEvent(
                type=kind,
                at=BEGIN + timedelta(milliseconds=at_ms),
                at_s=at_ms / 1000,
                source=source,
                source_n=number,
                group_id=job.group_id,
                job_id=job.id,
                **about,
            )
        )
