"""What the plan says of phases under way: how long they may last, what comes next on a device."""

from __future__ import annotations

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.job import Phase
from rmux.run.controller import members
from rmux.run.controller.state import Run
from rmux.run.controller.turn import Turn
from rmux.run.messages import Grant
from rmux.run.nexts import Next

_ALONE = 1.5
"""A rollout may run on one of its devices alone: the others' share, and half as much again."""


def planned_s(run: Run, phase: str) -> float:
    profile = run.view.member.profile
    if phase == Phase.ROLLOUT:
        return max(profile.rollout.planned_s, profile.rollout.cold_s)
    if phase == Phase.TRAIN:
        return max(train_s(run), profile.train.cold_s)
    return profile.init_s


def train_s(run: Run) -> float:
    """The worst case of a train phase, with a cold wake where its state was spilled."""
    train = run.view.member.profile.train
    is_cold = run.spilled_attempt == run.attempt
    return train.worst_s + (max(train.switch_s, train.cold_s) if is_cold else train.switch_s)


def bound_s(turn: Turn, run: Run, phase: str) -> float:
    """Longest the phase may hold a device."""
    expected_s = planned_s(run, phase)
    floor_s = turn.limits.fence_floor_s * (10 if phase == Phase.INIT else 1)
    factor = turn.limits.fence_factor
    if phase == Phase.ROLLOUT and run.view.job.spec.migrates:
        factor = max(factor, _ALONE * len(run.view.member.placement.rollout))
    return max(floor_s, factor * expected_s)


def ready_by_s(turn: Turn, run: Run, phase: str) -> float:
    """When the job should want its next phase at the latest, were this one to begin now."""
    off_device_s = run.view.member.profile.off_device_s if phase == Phase.TRAIN else 0.0
    needed_s = planned_s(run, phase) + off_device_s
    return turn.now_s + turn.limits.late_floor_s + turn.limits.late_factor * needed_s


def note_grant(turn: Turn, run: Run, grant: Grant) -> Run:
    """Remember when a phase has all of its devices; the grant is in `held` already."""
    if grant.phase not in (Phase.ROLLOUT, Phase.TRAIN):
        return run
    full_s = None
    if _is_full(turn, run, grant):
        full_s = turn.now_s
        turn.latest.begin(
            run.job_id,
            Phase(grant.phase),
            _pool(run, Phase(grant.phase)),
            profile=run.view.member.profile,
            now_s=turn.now_s,
            max_staleness=run.view.member.max_staleness,
        )
    name = "rolls_full_s" if grant.phase == Phase.ROLLOUT else "trains_full_s"
    return turn.change(run, trained_s=None, **{name: full_s})


def note_release(turn: Turn, grant: Grant) -> None:
    """Remember when a train is over; the grant is not in `held` any more."""
    run = turn.runs.get(JobId(grant.job))
    if run is None or grant.phase != Phase.TRAIN or grant.attempt != run.attempt:
        return
    if not any(held.job == grant.job and held.phase == Phase.TRAIN for held in turn.held.values()):
        turn.change(run, trains_full_s=None, trained_s=turn.now_s)


def nexts(turn: Turn, node: NodeId) -> tuple[Next, ...]:
    """What comes after the rollouts on the node that may give single devices back.

    Of grants of an earlier controller nothing is told: when they began is not known here.
    """
    found = []
    for device in sorted(turn.held):
        grant = turn.held[device]
        run = turn.runs.get(JobId(grant.job)) if device.node == node else None
        if run is None or grant.phase != Phase.ROLLOUT or grant.attempt != run.attempt:
            continue
        if run.rolls_full_s is not None and run.view.job.spec.migrates:
            found.append(_next(turn, run, device, grant, full_s=run.rolls_full_s))
    return tuple(found)


def _is_full(turn: Turn, run: Run, grant: Grant) -> bool:
    use = (grant.job, grant.attempt, grant.phase, grant.iteration)
    return all(
        (held := turn.held.get(device)) is not None
        and (held.job, held.attempt, held.phase, held.iteration) == use
        for device in _pool(run, Phase(grant.phase))
    )


def _pool(run: Run, phase: Phase) -> tuple[DeviceId, ...]:
    placement = run.placement or run.view.member.placement
    return placement.rollout if phase is Phase.ROLLOUT else placement.train


def _next(turn: Turn, run: Run, device: DeviceId, grant: Grant, *, full_s: float) -> Next:
    other = _follower(turn, run, device)
    start_s = _start_s(turn, run, other, full_s=full_s)
    ready_s = None if other is None else _ready_s(turn, other, device)
    return Next(
        device=str(device),
        epoch=grant.epoch,
        seq=grant.seq,
        job="" if other is None else other.job_id,
        waits=other is not None and _wants(other, device),
        ready_s=ready_s,
        start_s=max(0.0, start_s - turn.now_s),
    )


def _start_s(turn: Turn, run: Run, other: Run | None, *, full_s: float) -> float:
    """The planned start of what waits for the rollout: the next job's, and its own train. Never
    before the rollout's own worst case, which is all that is known once the plan was forgotten."""
    starts_s = [turn.latest.start_s(run.job_id, Phase.TRAIN, _pool(run, Phase.TRAIN))]
    if other is not None:
        theirs = _pool(other, Phase.ROLLOUT)
        starts_s.append(turn.latest.start_s(other.job_id, Phase.ROLLOUT, theirs))
    first_s = min((at_s for at_s in starts_s if at_s is not None), default=full_s)
    return max(first_s, full_s + run.view.member.profile.rollout.planned_s)


def _follower(turn: Turn, run: Run, device: DeviceId) -> Run | None:
    """Whose turn comes, those who are away left out; None when that is the job itself."""
    assert turn.rotation is not None
    for job_id in turn.rotation.next_jobs(device):
        if job_id == run.job_id:
            return None
        other = turn.runs.get(job_id)
        if other is not None and members.is_present(other):
            return other
    return None


def _wants(run: Run, device: DeviceId) -> bool:
    wants = run.status.wants if run.status else ()
    return any(want.phase == Phase.ROLLOUT and str(device) in want.devices for want in wants)


def _ready_s(turn: Turn, run: Run, device: DeviceId) -> float | None:
    """From now until the job wants the device, by the plan of what it does now; None while it
    waits for something else itself."""
    if _wants(run, device):
        return 0.0
    profile = run.view.member.profile
    if run.trains_full_s is not None:
        end_s = run.trains_full_s + train_s(run) + profile.off_device_s
    elif run.trained_s is not None:
        end_s = run.trained_s + profile.off_device_s
    else:
        return None
    return max(0.0, end_s - turn.now_s)
