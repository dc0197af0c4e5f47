"""The life of a member under one controller: ordered, running, lost and tried again, ended."""

from __future__ import annotations

from typing import Any

from rmux.job import JobState, Phase, Reason
from rmux.run.controller.state import RemoveMember, Run, UpdateJob
from rmux.run.controller.turn import Turn
from rmux.run.messages import DriverStatus

_CANCELS = ("cancel", "cancel-now")
_NEVER_RAN = (JobState.PENDING, JobState.PLACED)
_ERROR_LINES = 20
_NEW_ATTEMPT: dict[str, Any] = {
    "due_s": float("inf"),
    "in_init": False,
    "fence": "",
    "rolls_full_s": None,
    "trains_full_s": None,
    "trained_s": None,
}
"""What is forgotten of an attempt that is over."""


def adopt(turn: Turn, run: Run) -> None:
    """Go on with the attempt that runs already, or make sure the next one has a fresh number."""
    gate = turn.gates.get(run.home)
    statuses = gate.report.drivers if gate else ()
    for status in statuses:
        if status.job == run.job_id and status.attempt >= run.attempt:
            turn.change(
                run,
                attempt=status.attempt,
                ordered=True,
                status=status,
                placement=run.view.member.placement,
                in_init=any(turn.held[d].phase == Phase.INIT for d in turn.holds(run.job_id)),
            )
            return
    if run.state not in _NEVER_RAN:
        # Its journal numbers start again, so the attempt must be another one.
        turn.change(run, attempt=run.attempt + 1)


def is_running(run: Run) -> bool:
    """Whether this attempt has a driver, or one is on its way."""
    return run.ordered and run.ending is None and not run.ended


def is_present(run: Run) -> bool:
    """Whether the rotation waits for it: not while it starts, initialises, pauses or is gone."""
    if not is_running(run) or run.status is None or run.in_init:
        return False
    return run.status.state == "running" and run.state is JobState.RUNNING


def desired(turn: Turn, run: Run) -> str:
    """What its driver should do now."""
    if turn.state.stop_by_s < float("inf") or _is_moved(run):
        return "stop"
    return run.view.job.desired


def note_want(turn: Turn, run: Run, status: DriverStatus) -> None:
    """A first want means that the driver is up; each one shows what the job waits for."""
    if not status.wants:
        return
    if run.state in (JobState.STARTING, JobState.PLACED, JobState.LOST):
        turn.set_job_state(run, JobState.RUNNING)
    known = {(want.phase, want.iteration) for want in (run.status.wants if run.status else ())}
    for want in status.wants:
        if (want.phase, want.iteration) in known:
            continue
        columns = (("phase", want.phase), ("phase_state", "waiting"))
        turn.write(UpdateJob(job_id=run.job_id, columns=columns))


def move_on(turn: Turn) -> None:
    """Order, restart and end members as their drivers and users say."""
    for run in list(turn.runs.values()):
        if run.ended:
            continue
        if run.ending is not None:
            _end(turn, run)
        elif run.ordered:
            _follow_driver(turn, run)
        else:
            _start(turn, run)


def _start(turn: Turn, run: Run) -> None:
    job = run.view.job
    if job.desired in _CANCELS:
        turn.change(run, ending=(JobState.CANCELLED, Reason(code="job.cancelled"), ""))
        _end(turn, turn.runs[run.job_id])
    elif turn.state.stop_by_s < float("inf"):
        if run.state is not JobState.PLACED:
            _put_back(turn, run)
    elif job.desired == "pause":
        if run.state is not JobState.PAUSED:
            turn.set_job_state(run, JobState.PAUSED)
    elif _may_start(turn, run):
        run = turn.change(run, ordered=True, status=None, placement=run.view.member.placement)
        run = turn.set_job_state(run, JobState.STARTING)
        run_dir = job.run_dir or f"{turn.state.run_dir}/{job.id}"
        columns = (("attempt", run.attempt), ("run_dir", run_dir))
        turn.write(UpdateJob(job_id=run.job_id, columns=columns))


def _may_start(turn: Turn, run: Run) -> bool:
    if turn.now_s < run.retry_at_s or turn.state.stored_n < run.after_write:
        return False
    return not turn.holds(run.job_id)


def _follow_driver(turn: Turn, run: Run) -> None:
    status = run.status
    planned = turn.state.stop_by_s < float("inf") or _is_moved(run)
    if status is None:
        if turn.now_s > turn.state.stop_by_s or (planned and _is_silent(turn, run)):
            _put_back(turn, run)
        return
    if status.state == "succeeded":
        turn.change(run, ending=(JobState.SUCCEEDED, Reason(), ""))
    elif status.state in ("cancelled", "failed") and planned:
        _put_back(turn, run)
    elif status.state in ("cancelled", "failed") and run.view.job.desired in _CANCELS:
        turn.change(run, ending=(JobState.CANCELLED, Reason(code="job.cancelled"), ""))
    elif status.state in ("cancelled", "failed"):
        _fail(turn, run, status.error or "the driver ended before its job did")
    elif turn.now_s > turn.state.stop_by_s or (planned and _is_silent(turn, run)):
        _put_back(turn, run)
    elif status.state == "paused" and run.state is not JobState.PAUSED:
        turn.set_job_state(run, JobState.PAUSED)
    elif status.state == "running" and run.state in (JobState.PAUSED, JobState.LOST):
        turn.set_job_state(run, JobState.RUNNING)
    run = turn.runs[run.job_id]
    if run.ending is not None:
        _end(turn, run)


def _put_back(turn: Turn, run: Run) -> None:
    """Placed again, to be resumed at its last finished iteration by whoever comes next."""
    run = turn.change(run, ordered=False, status=None, attempt=run.attempt + int(run.ordered))
    run = turn.change(run, after_write=turn.batch_n, **_NEW_ATTEMPT)
    turn.set_job_state(run, JobState.PLACED)
    columns = (("attempt", run.attempt), ("phase", None), ("phase_state", ""))
    turn.write(UpdateJob(job_id=run.job_id, columns=columns))


def _fail(turn: Turn, run: Run, error: str) -> None:
    error = "\n".join(error.splitlines()[-_ERROR_LINES:])
    failures = run.failures + 1
    limit = run.view.job.spec.restart_limit
    if failures > limit:
        reason = Reason(
            code="job.failed", message=f"failed {failures} times, {limit} restarts allowed"
        )
        turn.change(run, failures=failures, ending=(JobState.FAILED, reason, error))
        return
    delay_s = min(turn.limits.retry_s * 2 ** (failures - 1), turn.limits.max_retry_s)
    reason = Reason(
        code="job.restarting",
        message=f"attempt {run.attempt} failed; next in {delay_s:g} s ({failures} of {limit})",
    )
    run = turn.set_job_state(run, JobState.LOST, reason=reason, error=error)
    run = turn.change(
        run,
        attempt=run.attempt + 1,
        ordered=False,
        status=None,
        failures=failures,
        retry_at_s=turn.now_s + delay_s,
        # The next attempt reads its last finished iteration from the store.
        after_write=turn.batch_n,
        **_NEW_ATTEMPT,
    )
    columns = (("attempt", run.attempt), ("phase", None), ("phase_state", ""))
    turn.write(UpdateJob(job_id=run.job_id, columns=columns))


def _end(turn: Turn, run: Run) -> None:
    """Write the end once no device is out: leaving the group may give its nodes to others."""
    assert run.ending is not None
    if turn.holds(run.job_id):
        return
    state, reason, error = run.ending
    run = turn.set_job_state(run, state, reason=reason, error=error)
    turn.write(RemoveMember(job_id=run.job_id))
    turn.change(run, ended=True)


def _is_silent(turn: Turn, run: Run) -> bool:
    """Whether its home has no runner that speaks: one that stops ends its drivers first."""
    gate = turn.gates.get(run.home)
    return gate is None or turn.now_s - gate.heard_s > turn.limits.silent_s


def _is_moved(run: Run) -> bool:
    return run.placement is not None and run.placement != run.view.member.placement
