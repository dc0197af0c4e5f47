"""`rmux place`: where a job would go now. It reserves nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rmux.cli.exit_codes import ExitCode
from rmux.cli.options import FlatVerbGroup, SpecPath, session
from rmux.cli.wiring import ids, open_store
from rmux.errors import UserError

if TYPE_CHECKING:
    from rmux.estimate import JobProfile
    from rmux.job import JobSpec
    from rmux.place.decision import Decision
    from rmux.store.engine import Store


class PlaceGroup(FlatVerbGroup):
    """`rmux place SPEC` means `rmux place plan SPEC`."""

    flat_verb = "plan"


app = typer.Typer(cls=PlaceGroup)

Slo = Annotated[
    float | None,
    typer.Option("--slo", metavar="X", help="Accept this slowdown instead of the spec's."),
]
Rule = Annotated[
    str | None,
    typer.Option(
        "--rule",
        metavar="interval|paper",
        help="Admission rule instead of the cluster's; paper = Algorithm 1.",
    ),
]
Margin = Annotated[
    float | None,
    typer.Option("--margin", metavar="X", help="Plan with periods longer by this fraction."),
]


@app.callback()
def place() -> None:
    """Show where a job would go, what it costs and who gets slower."""


@app.command("plan")
def plan(
    ctx: typer.Context,
    spec: SpecPath,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every candidate with its numbers and its verdict.")
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Look at this group only.")
    ] = None,
    slo: Slo = None,
    rule: Rule = None,
    margin: Margin = None,
) -> int:
    """Show where a job would go now, what it costs and who gets slower. Reserves nothing.

    Exit 3 when there is no place for it now.
    """
    from rmux.cli import place_views
    from rmux.place import service
    from rmux.profile.service import profile_job
    from rmux.spec import load_spec
    from rmux.store import groups

    found = session(ctx)
    out = found.out
    wanted = with_slo(load_spec(spec), slo)
    with open_store(found) as store:
        profile = profile_job(store, wanted, ids=ids(), save=False)
        only = None
        if group is not None:
            with store.read() as conn:
                only = groups.resolve(conn, group)
        began_s = time.monotonic()
        decision = service.plan(store, wanted, profile, rule=rule, margin=margin, group=only)
        decision, notes = _as_queued(store, decision, wanted, profile)
        elapsed_s = time.monotonic() - began_s
    if not decision.admitted and not explain:
        raise service.infeasible(wanted, decision, hint=f"rmux place {spec} --explain")
    document = place_views.placement_document(
        decision, spec=wanted, profile=profile, elapsed_s=elapsed_s
    )
    for line in (place_views.profile_line(profile), *notes):
        out.note(line)
    if explain:
        out.note(
            f"{document.explored} candidates, {document.pruned} refused without a placement, "
            f"{elapsed_s * 1e3:.0f} ms"
        )
        wide = out.format == "wide"
        out.emit(
            document,
            table=lambda: place_views.explain_table(decision, wide=wide),
            names=[place_views.target(decision)],
        )
        if not wide and (more := place_views.left_out(decision)):
            out.note(more)
    else:
        out.emit(
            document,
            text=lambda: place_views.summary(decision),
            names=[place_views.target(decision)],
        )
    if not decision.admitted:
        raise service.infeasible(wanted, decision)
    out.note(f"plan only; nothing is reserved. next: rmux job submit {spec}")
    return int(ExitCode.DONE)


def _as_queued(
    store: Store, decision: Decision, spec: JobSpec, profile: JobProfile
) -> tuple[Decision, list[str]]:
    """The place that a deadline prefers, and what a deadline or a quota has to say of it."""
    if not spec.deadline_s and not spec.tenant:
        return decision, []
    from rmux.place import queue
    from rmux.place.deadline import unsubmitted
    from rmux.store import state

    with store.read() as conn:
        seen = state.load(conn)
    now = datetime.now(UTC)
    job = unsubmitted(spec, profile, job_id=decision.job_id, now=now)
    decision = queue.preferring_deadline(decision, job, now=now)
    told = [queue.late(decision, job, now=now)]
    if decision.assignment is not None:
        told.append(queue.quota_refusal(seen, job, decision.assignment))
    return decision, [f"{one.code}: {one.message}" for one in told if one is not None]


def with_slo(spec: JobSpec, slo: float | None) -> JobSpec:
    """The spec with another SLO. UserError below 1."""
    if slo is None:
        return spec
    if not 1 <= slo < float("inf"):
        raise UserError(f"--slo is {slo:g}; the smallest slowdown a job can accept is 1")
    return replace(spec, slo=slo)
