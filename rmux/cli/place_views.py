"""Profiles and placement decisions, as documents and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rmux.cli.documents_jobs import ReasonPart
from rmux.cli.documents_place import (
    BoundPart,
    CandidatePart,
    EnginePart,
    HardwarePart,
    LinkPart,
    MemoryPart,
    PeriodPart,
    PhaseTimesPart,
    PlacementDocument,
    PlannedSlowdownPart,
    ProfileRecord,
    WorkingSetPart,
)
from rmux.cli.output import Column, Table
from rmux.estimate import JobProfile, PhaseEstimate
from rmux.job import JobSpec
from rmux.place.decision import Candidate, Decision, Verdict, place_name
from rmux.units import format_bytes, format_duration

SHOWN_REFUSALS = 5
"""Refused candidates in the table before only their reasons are counted."""


def profile_fields(profile: JobProfile) -> dict[str, object]:
    """What `rmux.profile/v1` says of a profile."""

    def phase(name: str, estimate: PhaseEstimate) -> PhaseTimesPart:
        return PhaseTimesPart(
            name=name,
            runs=estimate.num_samples,
            expected_s=estimate.expected_s,
            worst_case_s=estimate.worst_s,
            switch_s=estimate.switch_s,
            cold_s=estimate.cold_s,
        )

    return {
        "id": profile.id,
        "spec_hash": profile.spec_hash,
        "source": profile.source.value,
        "hardware": HardwarePart(rollout=profile.rollout_hardware, train=profile.train_hardware),
        "phases": (phase("rollout", profile.rollout), phase("train", profile.train)),
        "sync_s": profile.sync_s,
        "sync_bytes": profile.sync_bytes,
        "checkpoint_s": profile.checkpoint_s,
        "init_s": profile.init_s,
        "solo_s": profile.solo_s,
        "working_set": WorkingSetPart(
            rollout_bytes=profile.rollout_resident_bytes,
            train_bytes=profile.train_resident_bytes,
            switch_peak_bytes=profile.switch_peak_bytes,
        ),
        "engines": tuple(EnginePart(name=name, version=text) for name, text in profile.engines),
        "created_at": profile.created_at,
    }


def profile_record(profile: JobProfile) -> ProfileRecord:
    return ProfileRecord.model_validate(profile_fields(profile))


def profile_line(profile: JobProfile) -> str:
    """One line of what a placement was decided on."""
    return (
        f"profile {profile.id} ({profile.source})   "
        f"rollout worst {format_duration(profile.rollout.worst_s)} · "
        f"train worst {format_duration(profile.train.worst_s)} · "
        f"sync {format_duration(profile.sync_s)} · "
        f"warm switch {format_duration(profile.rollout.switch_s)} / "
        f"{format_duration(profile.train.switch_s)} · "
        f"alone {format_duration(profile.solo_s)}"
    )


def profile_table(profile: JobProfile) -> Table:
    head = (
        "PHASE",
        Column("RUNS", right=True),
        Column("EXPECTED", right=True),
        Column("WORST CASE", right=True),
        Column("SWITCH", right=True),
        Column("COLD", right=True),
        Column("RESIDENT", right=True),
    )
    rows: list[tuple[object, ...]] = [
        (
            name,
            phase.num_samples or None,
            format_duration(phase.expected_s),
            format_duration(phase.worst_s),
            format_duration(phase.switch_s),
            format_duration(phase.cold_s),
            format_bytes(resident),
        )
        for name, phase, resident in (
            ("rollout", profile.rollout, profile.rollout_resident_bytes),
            ("train", profile.train, profile.train_resident_bytes),
        )
    ]
    sync = format_duration(profile.sync_s)
    rows.append(("sync", None, sync, sync, None, None, None))
    if profile.checkpoint_s:
        checkpoint = format_duration(profile.checkpoint_s)
        rows.append(("checkpoint", None, checkpoint, checkpoint, None, None, None))
    return Table(head, rows)


def placement_document(
    decision: Decision,
    *,
    spec: JobSpec,
    profile: JobProfile,
    elapsed_s: float,
) -> PlacementDocument:
    """The whole decision; a plan reserves nothing, hence always `dry_run`."""
    return PlacementDocument(
        dry_run=True,
        name=spec.name,
        feasible=decision.admitted,
        never_fits=decision.never_fits,
        chosen=decision.chosen,
        rule=decision.rule,
        margin=decision.margin,
        margin_usd_per_h=decision.margin_usd_per_h,
        objective="marginal_usd_per_h",
        revision=decision.revision,
        spec_hash=profile.spec_hash,
        slo=spec.slo,
        profile=profile_record(profile),
        reason=ReasonPart(code=decision.reason.code, message=decision.reason.message),
        candidates=tuple(_candidate(one, decision.margin) for one in decision.candidates),
        explored=len(decision.candidates),
        pruned=sum(not one.memory for one in decision.candidates),
        elapsed_s=elapsed_s,
    )


def _candidate(one: Candidate, margin: float) -> CandidatePart:
    placement = one.placement
    period, link = one.period, one.link
    shared = 1 + (margin if len(one.slowdowns) > 1 else 0.0)
    return CandidatePart(
        kind=one.kind.value,
        group=one.group_id,
        verdict=one.verdict.value,
        reasons=tuple(_reasons(one)),
        marginal_usd_per_h=one.marginal_usd_per_h,
        rollout=() if placement is None else tuple(map(str, placement.rollout)),
        train=() if placement is None else tuple(map(str, placement.train)),
        added_nodes=one.added_nodes,
        new_nodes=tuple(node.id for node in one.new_nodes),
        turns=one.turns,
        overlapping=one.overlapping,
        period=None
        if period is None
        else PeriodPart(
            period_s=period.period_s,
            binding=period.binding.value,
            subject=period.subject,
            order=period.order,
            cap_s=one.cap_s,
            cap_job=one.cap_job or None,
        ),
        slo=tuple(
            PlannedSlowdownPart(
                job=slow.job_id,
                name=slow.name,
                worst_slowdown=slow.slowdown,
                limit=slow.limit,
                ok=slow.slowdown * shared <= slow.limit * (1 + 1e-9),
            )
            for slow in one.slowdowns
        ),
        host_mem=tuple(
            MemoryPart(
                node=plan.node,
                need_bytes=plan.resident_bytes + plan.switch_bytes,
                limit_bytes=plan.limit_bytes,
                free_bytes=plan.free_bytes,
            )
            for plan in one.memory
        ),
        link=None
        if link is None
        else LinkPart(
            source=link.link.source,
            target=link.link.target,
            load_bps=link.load_bps,
            rate_bps=link.link.rate_bps,
            sync_s=link.sync_s,
        ),
    )


def _reasons(one: Candidate) -> Iterator[BoundPart]:
    reason = one.reason
    if reason.code != "none" and reason.message not in {bound.message for bound in one.bounds}:
        yield BoundPart(code=reason.code, message=reason.message, subject=None, numbers={})
    for bound in one.bounds:
        yield BoundPart(
            code=bound.code,
            message=bound.message,
            subject=bound.subject or None,
            numbers=dict(bound.numbers),
        )


def summary(decision: Decision) -> str:
    """What a plan or a submission comes to, in two or three lines."""
    best = decision.best
    if best is None or best.placement is None or best.period is None:
        return f"no place: {decision.reason.message}"
    rollout, train = (" ".join(map(str, d)) for d in (best.placement.rollout, best.placement.train))
    lines = [
        f"{_title(best)} ({best.kind}), +{best.marginal_usd_per_h or 0:.2f} USD/h",
        f"  period    {format_duration(best.period.period_s)}, bound by {best.bound_by}",
        f"  slowdown  {', '.join(_slowdowns(best))}",
        f"  devices   rollout {rollout}  train {train}",
    ]
    if best.turns:
        names = {one.job_id: one.name for one in best.slowdowns}
        lines.append(f"  round     {', '.join(names[job] for job in best.turns)}")
    if best.new_nodes:
        lines.append(f"  new nodes {' '.join(node.id for node in best.new_nodes)}")
    if decision.margin_usd_per_h:
        lines.append(f"  margin    {decision.margin_usd_per_h:+.2f} USD/h of that")
    return "\n".join(lines)


def explain_table(decision: Decision, *, wide: bool) -> Table:
    """Every candidate, the chosen one first; one line per member of the chosen and of wide."""
    head = (
        "",
        "CANDIDATE",
        Column("+USD/H", right=True),
        Column("PERIOD", right=True),
        "BOUND BY",
        "SLOWDOWN (LIMIT)",
        "HOST MEM FREE AFTER",
        "VERDICT",
    )
    rows: list[tuple[object, ...]] = []
    refused = 0
    for one in sorted(decision.candidates, key=_rank):
        refused += one.verdict is Verdict.REFUSED
        if refused <= SHOWN_REFUSALS or wide:
            rows += _rows(one, wide=wide)
    return Table(head, rows)


def left_out(decision: Decision) -> str:
    """'9 more refused: slo 6, residency 3 (-o wide)'; empty when the table shows all."""
    refused = [one for one in sorted(decision.candidates, key=_rank) if _is_refused(one)]
    rest = refused[SHOWN_REFUSALS:]
    if not rest:
        return ""
    counts = Counter(one.reason.code for one in rest)
    told = ", ".join(f"{code} {count}" for code, count in counts.most_common())
    return f"{len(rest)} more refused: {told} (-o wide)"


def _is_refused(one: Candidate) -> bool:
    return one.verdict is Verdict.REFUSED


def _rank(one: Candidate) -> tuple[int, float, float]:
    order = (Verdict.CHOSEN, Verdict.FEASIBLE, Verdict.REFUSED)
    return (order.index(one.verdict), one.marginal_usd_per_h or 0.0, one.miss)


def _rows(one: Candidate, *, wide: bool) -> Iterator[tuple[object, ...]]:
    slow = list(_slowdowns(one))
    memory = list(_memory(one))
    if one.verdict is not Verdict.CHOSEN and not wide:
        tight = one.tightest
        slow = [] if tight is None else [f"{tight.name} {tight.slowdown:.2f} ({tight.limit:.2f})"]
        memory = memory[:1]
    yield (
        "*" if one.verdict is Verdict.CHOSEN else "",
        _title(one),
        "-" if one.marginal_usd_per_h is None else f"{one.marginal_usd_per_h:.2f}",
        "-" if one.period is None else format_duration(one.period.period_s),
        one.bound_by or "-",
        slow[0] if slow else "-",
        memory[0] if memory else "-",
        _verdict(one),
    )
    for index in range(1, max(len(slow), len(memory))):
        more_slow = slow[index] if index < len(slow) else ""
        more_memory = memory[index] if index < len(memory) else ""
        yield ("", "", "", "", "", more_slow, more_memory, "")


def _title(one: Candidate) -> str:
    return "new group" if one.group_id is None else f"join {place_name(one).split()[-1]}"


def _slowdowns(one: Candidate) -> Iterator[str]:
    return (f"{slow.name} {slow.slowdown:.2f} ({slow.limit:.2f})" for slow in one.slowdowns)


def _memory(one: Candidate) -> Iterator[str]:
    for plan in sorted(one.memory, key=lambda plan: plan.free_bytes):
        free = format_bytes(plan.free_bytes) if plan.fits else ""
        yield f"{free or 'short ' + format_bytes(-plan.free_bytes)} {plan.node}"


def _verdict(one: Candidate) -> str:
    if one.verdict is Verdict.CHOSEN:
        return "chosen: cheapest feasible"
    if one.verdict is Verdict.FEASIBLE:
        return f"feasible: {one.reason.message}"
    return f"refused: {one.reason.code}: {one.reason.message}"


def target(decision: Decision) -> str:
    """The group of `-o name`: its id, 'new' for a new one, '-' for none."""
    best = decision.best
    if best is None:
        return "-"
    return "new" if best.group_id is None else str(best.group_id)
