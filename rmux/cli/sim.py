"""`rmux sim`: replay a trace of jobs under a policy, and set policies side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmux.cli import sim_views
from rmux.cli.documents_sim import SimPolicy, SimPolicyList
from rmux.cli.options import Session, session
from rmux.cli.output import Table
from rmux.cli.sim_request import Request
from rmux.errors import UserError

if TYPE_CHECKING:
    from rmux.place.sim.replay import Point
    from rmux.place.sim.study import Result, Study
    from rmux.place.sim.trace import Trace

app = typer.Typer(help="Replay a trace of jobs; compare policies on it.")

TracePath = Annotated[
    str, typer.Argument(metavar="TRACE", help="CSV or JSON lines, see rmux-trace(5); - for stdin.")
]
Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        metavar="mixed|balanced|rollout-heavy|train-heavy",
        help="Which phase times jobs draw that bring none of their own.",
    ),
]
Slo = Annotated[
    str, typer.Option("--slo", metavar="LO:HI", help="Slowdowns accepted, uniform between these.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of what is drawn.")]
Columns = Annotated[
    str,
    typer.Option("--columns", metavar="KEY=HEADER,…", help="Which column is what: arrival_s=t0."),
]
Source = Annotated[
    str, typer.Option("--source", metavar="NAME", help="Only rows whose column source says so.")
]
Window = Annotated[
    str,
    typer.Option(
        "--window", metavar="START:END", help="Only these rows (0:300) or hours (0h:24h)."
    ),
]
Sort = Annotated[bool, typer.Option("--sort", help="Take rows that are not sorted by arrival.")]
Gpus = Annotated[
    str,
    typer.Option("--gpus", metavar="8|trace", help="GPUs of a job in each pool; trace = num_gpu."),
]
Pools = Annotated[
    str | None,
    typer.Option(
        "--pools", metavar="ROLLOUT:TRAIN", help="Fixed pools of so many nodes; else they grow."
    ),
]
Prices = Annotated[
    str | None,
    typer.Option("--prices", metavar="ROLLOUT:TRAIN", help="USD per GPU and hour (1.85:5.28)."),
]
HostMemory = Annotated[
    str | None,
    typer.Option(
        "--host-memory", metavar="SIZE", help="Host memory of a node; else not looked at."
    ),
]
DurationsOption = Annotated[
    str,
    typer.Option(
        "--durations",
        metavar="hold|work",
        help="The trace's durations are time in place, or work that sharing stretches.",
    ),
]
MaxMembers = Annotated[
    int, typer.Option("--max-members", min=0, help="Jobs in one group; 0 for no limit.")
]
Margin = Annotated[
    float,
    typer.Option("--margin", metavar="X", help="Plan with periods longer by this fraction."),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="placement|phases",
        help="Plan every group, or simulate its phases one by one, too.",
    ),
]
DispatchOption = Annotated[
    str,
    typer.Option(
        "--dispatch", metavar="strict|fifo", help="Strict order, or the paper's queues (phases)."
    ),
]
Jitter = Annotated[
    float,
    typer.Option("--jitter", metavar="CV", help="Variation of phase times, log-normal (phases)."),
]
DriftOption = Annotated[
    str,
    typer.Option(
        "--drift",
        metavar="none|increasing|decreasing|mixed",
        help="How phase times move over a job's life (phases).",
    ),
]
Mtbf = Annotated[
    str | None,
    typer.Option(
        "--mtbf", metavar="DURATION", help="Mean time between failures of a job (phases)."
    ),
]
Payback = Annotated[
    str,
    typer.Option("--payback", metavar="DURATION", help="A move must earn its price in this time."),
]
NoOpt = Annotated[bool, typer.Option("--no-opt", help="Leave out the best packing and LP bound.")]


@app.command("run")
def run(
    ctx: typer.Context,
    trace: TracePath,
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME", help="See rmux sim policies.")
    ] = "rollmux",
    workload: Workload = "mixed",
    slo: Slo = "1:2",
    seed: Seed = 0,
    columns: Columns = "",
    source: Source = "",
    window: Window = "",
    sort: Sort = False,
    gpus: Gpus = "8",
    pools: Pools = None,
    prices: Prices = None,
    host_memory: HostMemory = None,
    durations: DurationsOption = "hold",
    max_members: MaxMembers = 5,
    margin: Margin = 0.0,
    payback: Payback = "1h",
    no_opt: NoOpt = False,
    mode: Mode = "placement",
    dispatch: DispatchOption = "strict",
    jitter: Jitter = 0.0,
    drift: DriftOption = "none",
    mtbf: Mtbf = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Also write the time line, as JSON lines."),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option("--events", metavar="FILE", help="Also write every phase event (phases)."),
    ] = None,
) -> None:
    """Replay a trace under one policy: what it costs, who keeps its SLO, who waits."""
    found = session(ctx)
    request = Request.of(ctx.params)
    study, rows = _read(found, request, events=events is not None)
    points: list[Point] = []
    result = _run(rows, [policy], study, None if out is None else points)[0]
    document = sim_views.sim_document(
        result, request=request, study=study, settings=sim_views.settings_part(request, study)
    )
    if events is not None:
        _write_lines(events, "--events", map(sim_views.event_line, result.events))
        found.out.note(f"wrote {len(result.events)} events to {events}")
    if out is not None:
        _write_lines(out, "--out", map(sim_views.point_line, points))
        found.out.note(f"wrote {len(points)} points to {out}")
    found.out.emit(document, text=lambda: sim_views.summary(document), names=[policy])


@app.command("compare")
def compare(
    ctx: typer.Context,
    trace: TracePath,
    policies: Annotated[
        str, typer.Option("--policies", metavar="A,B,…", help="See rmux sim policies.")
    ] = "rollmux,rollmux-static,rollmux-paper",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="N", help="As many seeds, from --seed on.")
    ] = 3,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Processes at once, one per seed.")
    ] = 1,
    workload: Workload = "mixed",
    slo: Slo = "1:2",
    seed: Seed = 0,
    columns: Columns = "",
    source: Source = "",
    window: Window = "",
    sort: Sort = False,
    gpus: Gpus = "8",
    pools: Pools = None,
    prices: Prices = None,
    host_memory: HostMemory = None,
    durations: DurationsOption = "hold",
    max_members: MaxMembers = 5,
    margin: Margin = 0.0,
    payback: Payback = "1h",
    no_opt: NoOpt = False,
    mode: Mode = "placement",
    dispatch: DispatchOption = "strict",
    jitter: Jitter = 0.0,
    drift: DriftOption = "none",
    mtbf: Mtbf = None,
) -> None:
    """Replay a trace under several policies and seeds: costs, ratios to the best packing."""
    found = session(ctx)
    request = Request.of(ctx.params)
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise UserError(f"--policies: {policies!r} is not a list of different policies")
    study, rows = _read(found, request)
    results = _run_seeds(rows, names, [study.of_seed(seed + n) for n in range(seeds)], jobs)
    document = sim_views.compare_document(
        results,
        policies=names,
        request=request,
        settings=sim_views.settings_part(request, study),
    )
    found.out.emit(document, table=lambda: sim_views.compare_table(document), names=names)


@app.command("policies")
def policies(ctx: typer.Context) -> None:
    """List the policies that a replay can run."""
    from rmux.place.sim.policies.catalogue import POLICIES

    items = tuple(SimPolicy(name=name, summary=one.summary) for name, one in POLICIES.items())
    session(ctx).out.emit(
        SimPolicyList(items=items),
        table=Table(("POLICY", "WHAT"), [(item.name, item.summary) for item in items]),
        names=[item.name for item in items],
    )


def _read(found: Session, request: Request, *, events: bool = False) -> tuple[Study, Trace]:
    study = request.study(events=events)
    rows = request.load()
    for note in rows.notes:
        found.out.note(f"{request.trace}: {note}")
    return study, rows


def _run(
    rows: Trace, names: list[str], study: Study, points: list[Point] | None
) -> tuple[Result, ...]:
    from rmux.place.sim import study as studies

    return studies.run(rows, names, study, watch=None if points is None else points.append)


def _run_seeds(rows: Trace, names: list[str], each: list[Study], processes: int) -> list[Result]:
    from rmux.place.sim import study as studies

    if processes == 1:
        return [result for study in each for result in studies.run(rows, names, study)]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    count = min(processes, len(each))
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(studies.run, rows, names, study) for study in each]
        return [result for future in futures for result in future.result()]


def _write_lines(path: Path, option: str, lines: Iterable[str]) -> None:
    """All lines or none."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with half.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise UserError(f"{option}: {path} cannot be written: {error.strerror}") from error
