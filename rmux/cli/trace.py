"""`rmux trace`: export what happened, and check that it was sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmux.cli import trace_views
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
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id or a job in the group.")],
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where to write; - for stdout.")
    ] = "-",
) -> None:
    """Write a group's journal as Chrome trace JSON, for ui.perfetto.dev."""
    found = session(ctx)
    with open_store(found) as store:
        text = trace_views.chrome_json(store, group)
    if out == "-":
        found.out.print(text)
        return
    Path(out).write_text(text + "\n")
    found.out.note(f"wrote {out}; open it in https://ui.perfetto.dev")
