"""`rmux trace`: export what happened, and check that it was sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmux.cli import trace_sim, trace_views
from rmux.cli.documents_groups import TraceCheck
from rmux.cli.options import session
from rmux.cli.wiring import open_store
from rmux.errors import CheckError, NotFoundError, UserError

app = typer.Typer(help="Export and check what happened, phase by phase.")


@app.command("check")
def check(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="GROUP|FILE", help="A group, or a file of `group watch -o jsonl`."),
    ],
) -> None:
    """Check that every device served one job at a time, and every job its phases in order.

    Exit 7 when it did not, with what was wrong; 2 for a file and 4 for a group without any events.
    """
    from rmux.run import trace_check

    found = session(ctx)
    if Path(source).is_file():
        events = trace_views.from_file(Path(source))
        if not events:
            raise UserError(f"{source}: no events", code="trace.empty")
    else:
        with open_store(found) as store:
            events = trace_views.of_group(store, source)
        if not events:
            raise NotFoundError(f"{source}: no events yet", code="trace.empty")
    problems = tuple(
        f"{violation.rule}: {violation.message}" for violation in trace_check.check(events)
    )
    if problems:
        raise CheckError(
            f"{source}: {len(problems)} problem{'s'[: len(problems) > 1]} in {len(events)} events",
            code="trace.unsound",
            details={"why": list(problems[:20]), "problems": list(problems)},
        )
    found.out.emit(
        TraceCheck(source=source, events=len(events), ok=True, problems=()),
        text=f"{source}: {len(events)} events, sound",
    )


@app.command("export")
def export(
    ctx: typer.Context,
    group: Annotated[
        str | None,
        typer.Argument(metavar="GROUP", help="Id or a job in the group; sim takes all without."),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", metavar="perfetto|sim", help="What to write."),
    ] = "perfetto",
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where to write; - for stdout.")
    ] = "-",
) -> None:
    """Write a group's journal for ui.perfetto.dev, or the store's jobs as a trace for rmux sim."""
    found = session(ctx)
    if form not in ("perfetto", "sim"):
        raise UserError(f"--format: {form!r} is not one of perfetto, sim")
    if form == "perfetto" and group is None:
        raise UserError("which group?", hint="rmux trace export GROUP; see rmux group ls")
    advice = "open it in https://ui.perfetto.dev"
    with open_store(found) as store:
        if form == "perfetto":
            text = trace_views.chrome_json(store, group or "")
        else:
            exported = trace_sim.jobs_as_trace(store, group)
            text = "\n".join(exported.lines)
            advice = f"replay it with rmux sim run {'FILE' if out == '-' else out}"
            if exported.left_out:
                found.out.note(f"left out {exported.left_out} jobs without phases to replay")
    if out == "-":
        found.out.print(text)
        return
    Path(out).write_text(text + "\n")
    found.out.note(f"wrote {out}; {advice}")
