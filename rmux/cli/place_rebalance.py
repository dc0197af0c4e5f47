"""`rmux place rebalance`: which jobs are worth moving to other groups, and moving them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmux.cli.options import session
from rmux.cli.output import Column, Table
from rmux.cli.wiring import ids, open_store
from rmux.errors import UserError
from rmux.units import format_duration, format_usd_per_h, parse_duration_s

if TYPE_CHECKING:
    from rmux.cli.documents_place import RebalanceDocument
    from rmux.place.rebalance import Rebalance

app = typer.Typer()


@app.command("rebalance")
def rebalance(
    ctx: typer.Context,
    commit: Annotated[
        bool, typer.Option("--commit", help="Move the jobs; without it they are only told.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen; the default.")
    ] = False,
    payback: Annotated[
        str | None,
        typer.Option(
            "--payback",
            metavar="TIME",
            help="A move must earn its price within this time; else as the cluster's policy says.",
        ),
    ] = None,
) -> None:
    """Say which jobs are worth moving to other groups, with the price of each move.

    A move takes a cold start from its job and holds both places meanwhile. Jobs that have started
    stay where they are.
    """
    from rmux.place import service

    if commit and dry_run:
        raise UserError("--commit and --dry-run exclude each other")
    payback_s = None if payback is None else _payback_s(payback)
    found = session(ctx)
    with open_store(found) as store:
        proposal, staying = service.rebalance(store, ids=ids(), payback_s=payback_s)
        if commit and proposal.moves:
            found.confirm(f"would move {_jobs(len(proposal.moves))}")
            proposal, staying = service.rebalance(
                store, ids=ids(), payback_s=payback_s, dry_run=False
            )
    document = _document(proposal, staying, committed=commit)
    found.out.emit(
        document, table=lambda: _table(document), names=[move.job_id for move in document.moves]
    )
    if staying:
        found.out.note(f"{_jobs(len(staying))} stay: they have started")
    found.out.note(_summary(document))


def _payback_s(text: str) -> float:
    seconds = parse_duration_s(text)
    if seconds <= 0:
        raise UserError(f"--payback is {text}; a move needs some time to pay back")
    return seconds


def _document(
    proposal: Rebalance, staying: tuple[str, ...], *, committed: bool
) -> RebalanceDocument:
    from rmux.cli.documents_place import MovePart, RebalanceDocument

    return RebalanceDocument(
        dry_run=not committed,
        moves=tuple(
            MovePart(
                job_id=move.job_id,
                name=move.name,
                source=move.source,
                target=None if move.assignment.group_id is None else move.target,
                added_nodes=move.assignment.added_nodes,
                price_s=move.price_s,
                price_usd=move.price_usd,
            )
            for move in proposal.moves
        ),
        staying=staying,
        usd_per_h_before=proposal.usd_per_h_before,
        usd_per_h_after=proposal.usd_per_h_after,
        saves_usd_per_h=proposal.saves_usd_per_h,
        price_s=proposal.price_s,
        price_usd=proposal.price_usd,
        payback_s=proposal.payback_s,
    )


def _table(document: RebalanceDocument) -> Table:
    head = ("JOB", "NAME", "FROM", "TO", Column("TAKES", right=True), Column("USD", right=True))
    return Table(
        head,
        [
            (
                move.job_id,
                move.name,
                move.source,
                move.target or "new group",
                format_duration(move.price_s),
                f"{move.price_usd:.2f}",
            )
            for move in document.moves
        ],
    )


def _summary(document: RebalanceDocument) -> str:
    now = format_usd_per_h(document.usd_per_h_before)
    if not document.moves:
        return f"no move pays back within {format_duration(document.payback_s)}; groups cost {now}"
    after = format_usd_per_h(document.usd_per_h_after)
    done = "moved" if not document.dry_run else "plan only; --commit moves them"
    return (
        f"{now} → {after}, saves {format_usd_per_h(document.saves_usd_per_h)} for "
        f"{document.price_usd:.2f} USD once and {format_duration(document.price_s)} of the jobs' "
        f"time; {done}"
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
