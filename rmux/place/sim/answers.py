"""What is done in a phase-level trace when phase times leave the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, CoExecGroup, Member
from rmux.ids import GroupId, JobId
from rmux.place.index import Index
from rmux.place.period import CLOSE, largest_load_s, loop_of, period
from rmux.place.sim.phases import Answer
from rmux.place.sim.regroup import divided

if TYPE_CHECKING:
    from rmux.place.sim.phase_run import Group, PhaseRun


def react(run: PhaseRun, group: Group) -> None:
    """RESUBMIT or REPLACE, after a round of the group."""
    observed, tolerance = run.observed, run.options.tolerance
    grown = [m for m in group.members if observed.exceeds(m, tolerance=tolerance)]
    if not grown:
        return  # every phase within its plan: strict order keeps every promise
    seen = [replace(member, profile=observed.profile(member)) for member in group.members]
    if run.options.answer is Answer.RESUBMIT:
        loops = [loop_of(member) for member in seen]
        acts = largest_load_s(loops) >= max(loop.solo_s for loop in loops)
    else:
        planned = period(seen, order=group.round)
        acts = any(
            planned.iteration_s(member.job_id) > run.options.threshold * member.slo * member.solo_s
            for member in group.members
        )
    if acts:
        most = max(grown, key=lambda member: (observed.growth(member), member.job_id))
        admit_again(run, most, observed.profile(most, headroom=run.options.headroom))


def admit_again(run: PhaseRun, member: Member, profile: JobProfile) -> None:
    """The one job anew, with this profile: it moves where admission says so, else it stays and is
    promised what the profile says."""
    job_id, job = member.job_id, run.jobs[member.job_id]
    before = run.index.group_of(job_id)
    mates = _mates(before, job_id)
    job.profile = profile
    freed = run.index.remove(job_id)
    decision = run.index.decide(spec=job.sim.spec, profile=profile, job_id=job_id)
    assignment = decision.assignment
    if assignment is None:  # no room elsewhere: it stays
        target: GroupId | None = before.id if mates else None
        assignment = Assignment(
            job_id=job_id, group_id=target, placement=member.placement, added_nodes=freed
        )
    after_id = run.apply(job_id, assignment)
    after = run.index.group_of(job_id)
    stays = _mates(after, job_id) == mates and (
        not mates or after.member(job_id).placement == member.placement
    )
    if not stays:
        run.note_move(job_id)
    run.settle({before.id, after_id})


def regroup(run: PhaseRun) -> None:
    """Pack every job anew with what was observed, where that saves money or a promise no longer
    holds; whoever gets other company moves."""
    state = run.index.state()
    groups = tuple(
        replace(
            group,
            members=tuple(
                replace(member, profile=run.observed.profile(member), asked_profile=None)
                for member in group.members
            ),
        )
        for group in state.groups
    )
    for group in groups:
        for member in group.members:
            run.jobs[member.job_id].profile = member.profile
    members = [member for group in groups for member in group.members]
    index = divided(run.cluster, members, world=run.options.world) or packed(run, members)
    saves = index is not None and index.usd_per_h() < run.index.usd_per_h() * (1 - 1e-9)
    if index is None or not (saves or any(map(_is_broken, groups))):
        run.adopt(Index.of(replace(state, groups=groups)))
        return
    mates = {m.job_id: _mates(group, m.job_id) for group in groups for m in group.members}
    for group in index.groups():
        for member in group.members:
            if _mates(group, member.job_id) != mates[member.job_id]:
                run.note_move(member.job_id)
    run.adopt(index)


def _is_broken(group: CoExecGroup) -> bool:
    planned = period(group.members, order=group.round)
    return any(
        planned.iteration_s(member.job_id) > member.slo * member.solo_s * CLOSE
        for member in group.members
    )


def packed(run: PhaseRun, members: list[Member]) -> Index | None:
    """All jobs admitted from nothing, the longest first, for what is too much to divide exactly;
    None where one finds no place."""
    index = Index.of(ClusterState(revision=0, cluster=run.cluster, groups=()))
    for member in sorted(members, key=lambda one: (-one.solo_s, one.job_id)):
        spec = run.jobs[member.job_id].sim.spec
        decision = index.decide(spec=spec, profile=member.profile, job_id=member.job_id)
        if decision.assignment is None:
            return None
        index.apply(decision.assignment, spec=spec, profile=member.profile)
    return index


def _mates(group: CoExecGroup, job_id: JobId) -> frozenset[JobId]:
    return frozenset(member.job_id for member in group.members if member.job_id != job_id)
