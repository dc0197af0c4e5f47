"""`rmux place period`: how long a round of some jobs would take. Needs no store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmux.cli.options import session
from rmux.cli.output import Column, Table
from rmux.units import format_duration

if TYPE_CHECKING:
    from rmux.cli.documents_place import PeriodDocument
    from rmux.cli.period_question import PeriodQuestion

app = typer.Typer()


@app.command("period")
def period(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="JSON of jobs and their nodes; - for stdin.")
    ],
) -> None:
    """Say how long a round of some jobs would take, what binds it, and who gets how much slower.

    FILE is {"jobs": [{"name", "rollout_s", "train_s", "nodes"}], "switch_s"}; jobs may also have
    sync_s, slo, max_staleness and max_repeats. All use the whole train pool.
    """
    from rmux.cli import period_question

    out = session(ctx).out
    answer = _answer(period_question.read(file))
    out.emit(
        answer,
        text=lambda: _summary(answer),
        table=lambda: _table(answer),
        names=answer.order,
    )


def _answer(question: PeriodQuestion) -> PeriodDocument:
    from rmux.cli.documents_place import PeriodDocument, PeriodJobPart
    from rmux.place import period as periods

    loops = question.loops()
    once = periods.period_of(loops)
    caps_s = {
        loop.job_id: once.period_s if job.slo is None else job.slo * loop.solo_s
        for job, loop in zip(question.jobs, loops, strict=True)
    }
    found = periods.best_round(loops, caps_s=caps_s)
    slowdowns = [found.iteration_s(loop.job_id) / loop.solo_s for loop in loops]
    return PeriodDocument(
        period_s=found.period_s,
        cycle_s=max(loop.solo_s for loop in loops),
        load_s=periods.largest_load_s(loops),
        saturated=periods.is_saturated(loops),
        closed_form=len(found.order) == len(loops) and periods.is_closed_form(loops),
        binding=found.binding.value,
        subject=found.subject,
        order=found.order,
        switch_s=question.switch_s,
        jobs=tuple(
            PeriodJobPart(
                name=job.name,
                turns=found.order.count(loop.job_id),
                iteration_s=found.iteration_s(loop.job_id),
                solo_s=loop.solo_s,
                slowdown=slowdown,
                slo=job.slo,
                ok=None if job.slo is None else slowdown <= job.slo * periods.CLOSE,
            )
            for job, loop, slowdown in zip(question.jobs, loops, slowdowns, strict=True)
        ),
    )


def _summary(answer: PeriodDocument) -> str:
    exact = "closed form" if answer.closed_form else "best cyclic order found"
    state = "saturated" if answer.saturated else "not saturated"
    bound = answer.binding + ("" if answer.binding == "order" else f" of {answer.subject}")
    return (
        f"period {format_duration(answer.period_s)}, bound by {bound} ({exact})\n"
        f"cycle {format_duration(answer.cycle_s)}, load {format_duration(answer.load_s)}: {state}\n"
        f"order {' '.join(answer.order)}\n"
    )


def _table(answer: PeriodDocument) -> Table:
    return Table(
        (
            "JOB",
            Column("TURNS", right=True),
            Column("ITERATION", right=True),
            Column("ALONE", right=True),
            Column("SLOWDOWN", right=True),
            Column("LIMIT", right=True),
            "OK",
        ),
        [
            (
                job.name,
                job.turns,
                format_duration(job.iteration_s),
                format_duration(job.solo_s),
                f"{job.slowdown:.2f}",
                None if job.slo is None else f"{job.slo:.2f}",
                None if job.ok is None else "yes" if job.ok else "no",
            )
            for job in answer.jobs
        ],
    )
