"""Wait for jobs: one condition, decided as soon as it can be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmux.cli.documents_jobs import WaitDocument, WaitedJob
from rmux.clock import Clock, SystemClock
from rmux.errors import EndedError, UserError
from rmux.job import Job, JobState

if TYPE_CHECKING:
    from rmux.store.engine import Store

POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """'running', 'done' (succeeded), 'ended' (in any way) or 'iter=N' (N finished)."""

    text: str
    iteration: int | None = None

    @staticmethod
    def parse(text: str) -> Condition:
        match = re.fullmatch(r"iter=(\d+)", text)
        if match is not None:
            return Condition(text=text, iteration=int(match[1]))
        if text in ("running", "done", "succeeded", "ended"):
            return Condition(text=text)
        raise UserError(
            f"{text!r} is nothing to wait for", hint="--for running, done, ended or iter=5"
        )

    def verdict(self, job: Job) -> bool | None:
        """Met; None while that is open; False when it cannot come any more."""
        if self.iteration is not None:
            met = job.iteration >= self.iteration
        elif self.text == "ended":
            met = job.state.is_terminal
        elif self.text == "running":
            met = job.state in (JobState.RUNNING, JobState.SUCCEEDED)
        else:
            met = job.state is JobState.SUCCEEDED
        return met or (False if job.state.is_terminal else None)


def wait(
    store: Store,
    texts: Sequence[str],
    condition: Condition,
    *,
    any_: bool = False,
    clock: Clock | None = None,
) -> WaitDocument:
    """Return when one (`any_`) or all of the jobs meet it; EndedError when that cannot be."""
    from rmux.store import jobs

    clock = clock or SystemClock()
    with store.read() as conn:
        chosen = [jobs.resolve(conn, text) for text in texts]
    while True:
        with store.read() as conn:
            found = [jobs.get(conn, job_id) for job_id in chosen]
        verdicts = [condition.verdict(job) for job in found]
        if any(verdicts) if any_ else all(verdicts):
            return _document(found, verdicts, condition)
        lost = all if any_ else any
        if lost(verdict is False for verdict in verdicts):
            raise _ended([job for job, ok in zip(found, verdicts, strict=True) if ok is False])
        clock.sleep_s(POLL_S)


def _document(
    found: Sequence[Job], verdicts: Sequence[bool | None], condition: Condition
) -> WaitDocument:
    return WaitDocument(
        condition=condition.text,
        met=True,
        jobs=tuple(
            WaitedJob(
                id=job.id,
                name=job.spec.name,
                state=job.state.value,
                iteration=job.iteration,
                met=bool(verdict),
            )
            for job, verdict in zip(found, verdicts, strict=True)
        ),
    )


def _ended(lost: Sequence[Job]) -> EndedError:
    job = lost[0]
    reason = f": {job.reason.message}" if job.reason.message else ""
    return EndedError(
        f"{job.id} {job.spec.name} {job.state} at iteration {job.iteration}{reason}",
        hint=f"rmux job why {job.id}; rmux job logs {job.id} --tail 50",
        details={"jobs": [{"id": one.id, "state": one.state.value} for one in lost]},
    )
