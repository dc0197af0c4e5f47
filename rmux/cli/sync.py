"""`rmux sync`: explain how weights travel, and time it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmux import units
from rmux.cli.documents_sync import SyncBench, bench_document, plan_document, prediction_document
from rmux.cli.options import session
from rmux.cli.render_sync import bench_head, bench_notes, bench_table, plan_table, plan_text
from rmux.errors import CheckError, UserError

if TYPE_CHECKING:
    from rmux.sync.plan import Topology

app = typer.Typer(help="Explain and time how weights travel from train to rollout ranks.")

Ranks = Annotated[
    str, typer.Option("--ranks", metavar="N:M", help="Source ranks and target ranks.")
]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Size of the weights: 64MiB.")]


@app.command("plan")
def plan(
    ctx: typer.Context,
    ranks: Ranks = "2:2",
    size: Size = "64MiB",
    topology: Annotated[
        str, typer.Option("--topology", metavar="flat|hier", help="How they travel.")
    ] = "hier",
    link_rate: Annotated[
        str | None,
        typer.Option("--link-rate", metavar="RATE", help="The slow link, shared by all: 20Gbps."),
    ] = None,
    local_rate: Annotated[
        str | None,
        typer.Option("--local-rate", metavar="RATE", help="Each target's link inside its pool."),
    ] = None,
) -> None:
    """Say who would send which bytes to whom, and how long it takes; move nothing."""
    from rmux.sync.plan import plan as make_plan
    from rmux.sync.plan import predict

    out = session(ctx).out
    num_sources, num_targets = _ranks(ranks)
    made = make_plan(
        _topologies(topology, most=1)[0],
        size_bytes=units.parse_size_bytes(size),
        num_sources=num_sources,
        num_targets=num_targets,
    )
    if link_rate is None and local_rate is not None:
        raise UserError("--local-rate needs --link-rate", hint="such as --link-rate 20Gbps")
    prediction = None
    if link_rate is not None:
        link_bps = units.parse_rate_bps(link_rate)
        local_bps = None if local_rate is None else units.parse_rate_bps(local_rate)
        predicted = predict(made, link_bps=link_bps, local_bps=local_bps)
        prediction = prediction_document(predicted, link_bps=link_bps, local_bps=local_bps)
    document = plan_document(made, prediction)
    out.emit(
        document,
        text=lambda: plan_text(document),
        table=lambda: plan_table(document),
        names=[step.id for step in made.steps],
    )


@app.command("bench")
def bench(
    ctx: typer.Context,
    ranks: Ranks = "2:2",
    size: Size = "64MiB",
    topology: Annotated[
        str, typer.Option("--topology", metavar="flat,hier", help="What to compare.")
    ] = "flat,hier",
    runs: Annotated[int, typer.Option("--runs", min=1, help="Counted runs of each.")] = 5,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Runs before those.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the weights.")] = 7,
    streams: Annotated[int, typer.Option("--streams", min=1, help="TCP flows per transfer.")] = 1,
    chunk: Annotated[
        str, typer.Option("--chunk", metavar="SIZE", help="Unit of striping and forwarding.")
    ] = "1MiB",
    deadline: Annotated[
        str, typer.Option("--deadline", metavar="DURATION", help="Longest time of one run.")
    ] = "60s",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all bytes of every target, every run.")
    ] = False,
    asserts: Annotated[
        list[str] | None,
        typer.Option("--assert", metavar="EXPR", help="Exit 7 unless 'hier.p95_s<3' holds."),
    ] = None,
    export_json: Annotated[
        Path | None,
        typer.Option("--export-json", metavar="FILE", help="Also write the JSON document here."),
    ] = None,
) -> None:
    """Time weight syncs between processes of this host, over its loopback."""
    from rmux.sync.assertions import Assertion
    from rmux.sync.bench import BenchConfig, run_bench

    out = session(ctx).out
    num_sources, num_targets = _ranks(ranks)
    config = BenchConfig(
        num_sources=num_sources,
        num_targets=num_targets,
        size_bytes=units.parse_size_bytes(size),
        topologies=_topologies(topology, most=2),
        runs=runs,
        warmup=warmup,
        seed=seed,
        verify=verify,
        streams=streams,
        chunk_bytes=units.parse_size_bytes(chunk),
        deadline_s=units.parse_duration_s(deadline),
    )
    parsed = [Assertion.parse(text) for text in asserts or ()]
    for each in parsed:
        each.needs(config.topologies)
    document = bench_document(config, run_bench(config, say=out.note), parsed)
    if export_json is not None:
        _export(document, export_json)
    out.emit(document, text=lambda: bench_head(document), table=lambda: bench_table(document))
    for line in bench_notes(document):
        out.note(line)
    check(document)


def check(document: SyncBench) -> None:
    """CheckError when bytes differ or an assertion does not hold."""
    failed = [each.expr for each in document.asserts if not each.ok]
    damaged = [each.topology for each in document.results if each.verify and not each.verify.ok]
    if damaged:
        raise CheckError(
            f"targets hold other bytes than the sources under {', '.join(damaged)}",
            code="sync.mismatch",
        )
    if failed:
        values = "; ".join(
            f"{each.topology} p50 {units.format_duration(each.p50_s)}, "
            f"p95 {units.format_duration(each.p95_s)}"
            for each in document.results
        )
        raise CheckError(
            f"does not hold: {', '.join(failed)}", code="sync.assert", details={"why": values}
        )


def _export(document: SyncBench, path: Path) -> None:
    try:
        path.write_text(document.to_json(indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def _ranks(text: str) -> tuple[int, int]:
    left, colon, right = text.partition(":")
    if not colon or not left.isdecimal() or not right.isdecimal():
        raise UserError(f"{text!r} is not a pair of rank counts", hint="such as --ranks 2:2")
    return int(left), int(right)


def _topologies(text: str, *, most: int) -> tuple[Topology, ...]:
    from rmux.sync.plan import Topology

    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in list(Topology)]
    if unknown or len(names) > most or len(set(names)) < len(names):
        raise UserError(
            f"--topology {text!r} is not {'one' if most == 1 else 'a list'} of "
            f"{', '.join(Topology)}"
        )
    return tuple(Topology(name) for name in names)
