"""`rmux group up --emulate`: rehearse a group and set what came out against its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmux import units
from rmux.cli.documents_groups import RehearsalDocument, RehearsedPart
from rmux.cli.job_views import slowdown_text
from rmux.cli.options import Session
from rmux.cli.output import Column, Table
from rmux.errors import CheckError
from rmux.ids import GroupId

if TYPE_CHECKING:
    from rmux.run.rehearsal import Rehearsal
    from rmux.store.engine import Store


def rehearse(session: Session, store: Store, group_id: GroupId, *, rounds: int) -> int:
    """Rehearse and print; the exit code, 0 unless a signal came.

    CheckError after the answer when a device was shared at once or a job failed.
    """
    from rmux.place.period import period
    from rmux.run import rehearsal
    from rmux.store import groups, pools

    with store.read() as conn:
        group = groups.get(conn, group_id)
        cluster = pools.load(conn)
    if group.members:
        count = rehearsal.WARM_UP + rounds
        about_s = count * period(group.members, order=group.round).period_s
        session.out.note(
            f"{group_id} is rehearsed on emulated engines for {count} rounds, about "
            f"{units.format_duration(about_s)}; the jobs themselves stay as they are"
        )
    done = rehearsal.rehearse(group, cluster, rounds=rounds, host=session.settings.host)
    if done.status:
        return done.status
    document = _document(done, group_id, rounds=rounds)
    session.out.emit(
        document,
        text=lambda: _text(document),
        table=lambda: _table(document),
        names=[member.id for member in document.members],
    )
    failed = [f"{one.name}: {one.error}" for one in document.members if one.error]
    if failed or document.problems:
        raise CheckError(
            f"the rehearsal of {group_id} went wrong",
            code="group.rehearsal",
            details={"why": [*failed, *document.problems]},
        )
    return 0


def _document(done: Rehearsal, group_id: GroupId, *, rounds: int) -> RehearsalDocument:
    return RehearsalDocument(
        id=group_id,
        rounds=rounds,
        planned_period_s=done.plan.period_s,
        period_s=done.period_s,
        events=len(done.events),
        problems=tuple(f"{found.rule}: {found.message}" for found in done.violations),
        members=tuple(
            RehearsedPart(
                id=one.member.job_id,
                name=one.member.name,
                solo_s=one.member.solo_s,
                period_s=one.period_s,
                planned_slowdown=one.slowdown_of(done.plan.iteration_s(one.member.job_id)),
                slowdown=one.slowdown_of(one.period_s),
                max_slowdown=one.member.slo,
                error=one.error,
            )
            for one in done.members
        ),
    )


def _text(document: RehearsalDocument) -> str:
    planned, found = map(units.format_duration, (document.planned_period_s, document.period_s))
    trace = f"{len(document.problems)} problems" if document.problems else "sound"
    lines = [
        f"group   {document.id}, {document.rounds} rounds on emulated engines; nothing was stored",
        f"period  {planned} planned, {found} rehearsed",
        f"trace   {document.events} events, {trace}",
        "",
    ]
    return "\n".join(lines)


def _table(document: RehearsalDocument) -> Table:
    return Table(
        (
            "JOB",
            "NAME",
            Column("ALONE", right=True),
            Column("PERIOD", right=True),
            Column("PLANNED", right=True),
            Column("SLOWDOWN", right=True),
        ),
        [
            (
                member.id,
                member.name,
                units.format_duration(member.solo_s),
                units.format_duration(member.period_s),
                None if member.planned_slowdown is None else f"{member.planned_slowdown:.2f}",
                slowdown_text(member.slowdown, member.max_slowdown),
            )
            for member in document.members
        ],
    )
