"""`rmux profile`: estimate or measure a job's phase times and memory; look at what is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmux.cli.options import FlatVerbGroup, Session, SpecPath, session
from rmux.cli.output import Column, Table
from rmux.cli.wiring import ids, open_store
from rmux.errors import UserError
from rmux.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmux.events import PhaseEvent
    from rmux.run.probe import GroupProbe
    from rmux.store.engine import Store

app = typer.Typer(
    cls=FlatVerbGroup,
    help="Estimate or measure a job's phase times and memory.",
)


@app.command("run")
def run(
    ctx: typer.Context,
    spec: SpecPath,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run it alone on the real engines of this host.")
    ] = False,
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="Measured iterations, after one to warm up.")
    ] = 5,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Make it anew even if one is known.")
    ] = False,
    no_save: Annotated[bool, typer.Option("--no-save", help="Do not keep it.")] = False,
    keep_events: Annotated[
        Path | None,
        typer.Option(
            "--keep-events", help="Leave the events of a measuring run here, a JSON object a line."
        ),
    ] = None,
) -> None:
    """Estimate a job's phase times and memory, or measure them; keeps the result for place."""
    from rmux.cli import place_views
    from rmux.cli.documents_place import ProfileDocument
    from rmux.profile.service import profile_job
    from rmux.spec import load_spec

    if keep_events is not None and not measure:
        raise UserError("--keep-events has no events to keep", hint="add --measure")
    found = session(ctx)
    wanted = load_spec(spec)
    with open_store(found) as store:
        probe = _probe(found, store) if measure else None
        profile = profile_job(
            store,
            wanted,
            ids=ids(),
            probe=probe,
            refresh=refresh or keep_events is not None,
            iterations=iterations,
            on_progress=found.out.note,
            save=not no_save,
        )
    if keep_events is not None and probe is not None:
        _leave(keep_events, probe.recorded)
    found.out.emit(
        ProfileDocument.model_validate(
            {**place_views.profile_fields(profile), "name": wanted.name, "saved": not no_save}
        ),
        table=lambda: place_views.profile_table(profile),
        names=[profile.id],
    )
    found.out.note(f"{place_views.profile_line(profile)}")
    if profile.rollout.num_samples == 0 and not measure:
        found.out.note("estimated; to measure: rmux profile run --measure " + spec)
    found.out.note(f"next: rmux place {spec} --explain")


@app.command("ls")
def ls(ctx: typer.Context) -> None:
    """List the profiles that are kept, newest first."""
    from rmux.cli import place_views
    from rmux.cli.documents_place import ProfileList
    from rmux.store import profiles

    found = session(ctx)
    with open_store(found) as store, store.read() as conn:
        kept = profiles.ls(conn)
    found.out.emit(
        ProfileList(items=tuple(place_views.profile_record(one) for one in kept)),
        table=lambda: Table(
            (
                "ID",
                "SOURCE",
                "ROLLOUT",
                "TRAIN",
                Column("ROLLOUT WORST", right=True),
                Column("TRAIN WORST", right=True),
                Column("ALONE", right=True),
                Column("RESIDENT", right=True),
                "SPEC",
                Column("CREATED", wide=True),
            ),
            [
                (
                    one.id,
                    one.source.value,
                    one.rollout_hardware,
                    one.train_hardware,
                    format_duration(one.rollout.planned_s),
                    format_duration(one.train.planned_s),
                    format_duration(one.solo_s),
                    " + ".join(
                        format_bytes(held)
                        for held in (one.rollout_resident_bytes, one.train_resident_bytes)
                    ),
                    one.spec_hash,
                    f"{one.created_at.astimezone():%Y-%m-%d %H:%M:%S %z}",
                )
                for one in kept
            ],
        ),
        names=[one.id for one in kept],
    )


@app.command("show")
def show(
    ctx: typer.Context,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Id of a profile.")],
) -> None:
    """Show one profile."""
    from rmux.cli import place_views
    from rmux.cli.documents_place import ProfileDocument
    from rmux.store import profiles

    found = session(ctx)
    with open_store(found) as store, store.read() as conn:
        kept = profiles.get(conn, profile)
    found.out.emit(
        ProfileDocument.model_validate(
            {**place_views.profile_fields(kept), "name": None, "saved": True}
        ),
        table=lambda: place_views.profile_table(kept),
        names=[kept.id],
    )
    found.out.note(place_views.profile_line(kept))


def _leave(path: Path, events: Iterable[PhaseEvent]) -> None:
    import json

    from rmux.events import to_document

    lines = (json.dumps(to_document(event), allow_nan=False) for event in events)
    path.write_text("".join(f"{line}\n" for line in lines))


def _probe(found: Session, store: Store) -> GroupProbe:
    from rmux.run.probe import GroupProbe

    return GroupProbe(host=found.settings.host, store=store)
