"""`rmux group`: run, watch and stop the groups of jobs that share nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmux import timeline as lines
from rmux import units
from rmux.cli import group_rows, group_views, group_watch
from rmux.cli.documents_groups import GroupDown, GroupList, Timeline
from rmux.cli.options import DryRun, Session, session
from rmux.cli.wiring import open_store
from rmux.errors import UserError

if TYPE_CHECKING:
    from rmux.store.engine import Store

app = typer.Typer(help="Run and watch the groups of jobs that share nodes.")

GroupArg = Annotated[
    str, typer.Argument(metavar="GROUP", help="Id, 6 characters of it, or a job in the group.")
]


@app.command("ls")
def ls(
    ctx: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Also groups that are empty by now.")
    ] = False,
) -> None:
    """List the groups that hold nodes."""
    found = session(ctx)
    with open_store(found) as store:
        _emit_list(found, store, everything=everything)


def _emit_list(found: Session, store: Store, *, everything: bool) -> None:
    from rmux.store import groups

    with store.read() as conn:
        chosen = groups.ls(conn, all=everything)
        items = tuple(group_views.document(group_views.look(conn, group.id)) for group in chosen)
    found.out.emit(
        GroupList(items=items),
        table=lambda: group_rows.groups(items),
        names=[item.id for item in items],
    )


@app.command("show")
def show(ctx: typer.Context, group: GroupArg) -> None:
    """Show a group: its members, its plan, its price, what each device does."""
    from rmux.store import groups

    found = session(ctx)
    with open_store(found) as store, store.read() as conn:
        document = group_views.document(group_views.look(conn, groups.resolve(conn, group)))
    found.out.emit(
        document,
        text=lambda: group_rows.text(document),
        table=lambda: group_rows.members(document),
        names=[document.id],
    )


@app.command("watch")
def watch(
    ctx: typer.Context,
    group: GroupArg,
    once: Annotated[bool, typer.Option("--once", help="One look, then end.")] = False,
    since_seq: Annotated[
        int | None, typer.Option("--since-seq", min=0, help="Events after this number.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="done|idle", help="End by itself then.")
    ] = None,
) -> None:
    """Follow a group: a live picture on a terminal, plain or JSON lines anywhere else.

    `-o jsonl` begins with a snapshot, then one line per event, a heartbeat every 15 s of quiet,
    and one `end` line that says why it ended.
    """
    from rmux.store import groups

    found = session(ctx)
    if until not in (None, "done", "idle"):
        raise UserError(f"{until!r} is nothing to wait for", hint="--until done or idle")
    with open_store(found) as store:
        with store.read() as conn:
            group_id = groups.resolve(conn, group)
        request = group_watch.Request(group=group_id, since_seq=since_seq, until=until, once=once)
        group_watch.watch(found.out, store, request)


@app.command("timeline")
def timeline(
    ctx: typer.Context,
    group: GroupArg,
    last: Annotated[
        str, typer.Option("--last", metavar="DURATION", help="How far to look back.")
    ] = "2m",
    width: Annotated[int, typer.Option("--width", min=10, help="Cells of a lane.")] = 80,
) -> None:
    """Draw who held each device lately, as text."""
    from rmux.store import groups

    found = session(ctx)
    last_s = units.parse_duration_s(last)
    with open_store(found) as store, store.read() as conn:
        seen = group_views.look(conn, groups.resolve(conn, group), window_s=last_s)
    since_s, held = seen.now_s - last_s, seen.held
    document = Timeline(
        group=seen.group.id,
        since_s=since_s,
        until_s=seen.now_s,
        labels={str(job): letter for job, letter in seen.labels.items()},
        lanes=lines.lanes(held, seen.labels, since_s=since_s, until_s=seen.now_s, width=width),
        busy=lines.busy_fraction(held, since_s=since_s, until_s=seen.now_s),
    )
    found.out.emit(document, text=lambda: group_rows.timeline(document, width=width))


@app.command("up")
def up(
    ctx: typer.Context,
    group: Annotated[
        str | None,
        typer.Argument(metavar="GROUP", help="Id, 6 characters of it, or a job in the group."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every group with nodes on this host, also later ones.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready; it goes on.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="Go on when all jobs have ended, for later ones.")
    ] = False,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Rehearse: engines that sleep as profiled, no jobs.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Rounds that a rehearsal counts: 3.")
    ] = None,
    tail_trigger: Annotated[
        str,
        typer.Option(
            "--tail-trigger",
            metavar="WHEN",
            help="Last responses move by predicted gain, off, or at a share done such as 0.8.",
        ),
    ] = "gain",
) -> None:
    """Run a group's processes of this host; the foreground is the default.

    Ends with 0 when all its jobs have ended, or at once when it is up already. A rehearsal sets
    period and slowdowns against the plan, and leaves jobs and store as they are.

    Exit 7 when a rehearsal went wrong, 8 when another process has its socket, 9 without the engines
    of its jobs, 11 when the Redis does not answer.
    """
    from rmux.cli import group_rehearsal, group_up

    found = session(ctx)
    chosen = {"--all": everything, "--detach": detach, "--stay": stay, "--emulate": emulate}
    flags = [flag for flag, given in chosen.items() if given]
    group_up.check_flags(group, flags, counts_rounds=rounds is not None)
    group_up.check_trigger(tail_trigger)
    with open_store(found) as store:
        if group is None:
            code = group_up.up_all(found, store, stay=stay, tail_trigger=tail_trigger)
            _emit_list(found, store, everything=False)
        elif emulate:
            group_id = group_up.resolved(store, group)
            code = group_rehearsal.rehearse(found, store, group_id, rounds=rounds or 3)
        else:
            group_id = group_up.resolved(store, group)
            code = group_up.up(
                found, store, group_id, detach=detach, stay=stay, tail_trigger=tail_trigger
            )
            with store.read() as conn:
                document = group_views.document(group_views.look(conn, group_id))
            told = f"{group_id} {document.status.upper()}"
            found.out.emit(document, text=told, names=[group_id])
    if code:
        raise typer.Exit(code)


@app.command("down")
def down(ctx: typer.Context, group: GroupArg, dry_run: DryRun = False) -> None:
    """Stop a group's processes on every host; its jobs keep their places and resume with `up`."""
    from rmux.cli import group_up

    found = session(ctx)
    with open_store(found) as store:
        seen, changed = group_up.down(found, store, group, dry_run=dry_run)
    document = GroupDown(id=seen.group.id, changed=changed, status=seen.status, dry_run=dry_run)
    told = f"{document.id} {document.status.upper()}" if changed else f"{document.id}: down already"
    found.out.emit(document, text=told, names=[document.id])
    if seen.status == "stopping":
        found.out.note(f"rmux group watch {document.id} --until idle tells when it has stopped")
