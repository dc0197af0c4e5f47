"""Documents of `rmux sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rmux.cli.documents import Document, Part, named

if TYPE_CHECKING:
    from rmux.sync.assertions import Assertion
    from rmux.sync.bench import BenchConfig, TopologyResult
    from rmux.sync.plan import Plan, Prediction


class SyncBenchConfig(Part):
    """What was measured; ranks are processes of this host, joined by its loopback."""

    num_sources: int
    num_targets: int
    size_bytes: int
    transport: Literal["tcp"]
    topologies: tuple[str, ...]
    runs: int
    warmup: int
    seed: int
    streams: int
    chunk_bytes: int


class SyncVerification(Part):
    """Whole blobs compared, one per target and run, warm-up included."""

    ok: bool
    algo: Literal["xxh3_128"] = "xxh3_128"
    checked: int
    mismatched: int


class SyncBenchResult(Part):
    """One topology. Bytes are those of one run; goodput is one copy over the median time."""

    topology: str
    transport: Literal["tcp"]
    size_bytes: int
    runs: int
    p50_s: float
    p95_s: float
    min_s: float
    max_s: float
    times_s: tuple[float, ...]
    outliers: int
    bytes_on_wire: int
    cross_link_bytes: int
    goodput_bytes_per_s: float
    verify: SyncVerification | None


class SyncAssertion(Part):
    expr: str
    ok: bool


class SyncHost(Part):
    """Where it ran."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str


class SyncBench(Document):
    """Times of weight syncs, topologies side by side in one run."""

    schema_: Literal["rmux.sync_bench/v1"] = named("rmux.sync_bench/v1")
    config: SyncBenchConfig
    results: tuple[SyncBenchResult, ...]
    speedup: float | None
    asserts: tuple[SyncAssertion, ...]
    host: SyncHost


class SyncStep(Part):
    """One shard from one rank to another; `after` is the step that it forwards."""

    id: str
    sender: str
    receiver: str
    begin: int
    end: int
    crosses_link: bool
    after: str | None


class SyncPrediction(Part):
    """Seconds from link rates alone: no latency, no CPU."""

    link_bps: float
    local_bps: float | None
    link_s: float
    local_s: float
    total_s: float
    binding: str


class SyncPlan(Document):
    """Who would send which bytes to whom."""

    schema_: Literal["rmux.sync_plan/v1"] = named("rmux.sync_plan/v1")
    topology: str
    size_bytes: int
    num_sources: int
    num_targets: int
    cross_link_bytes: int
    local_bytes: int
    steps: tuple[SyncStep, ...]
    prediction: SyncPrediction | None


def bench_document(
    config: BenchConfig, results: tuple[TopologyResult, ...], asserts: list[Assertion]
) -> SyncBench:
    from rmux.sync.assertions import speedup
    from rmux.sync.host import host

    here = host()
    return SyncBench(
        config=SyncBenchConfig(
            num_sources=config.num_sources,
            num_targets=config.num_targets,
            size_bytes=config.size_bytes,
            transport="tcp",
            topologies=tuple(str(topology) for topology in config.topologies),
            runs=config.runs,
            warmup=config.warmup,
            seed=config.seed,
            streams=config.streams,
            chunk_bytes=config.chunk_bytes,
        ),
        results=tuple(_result_document(result) for result in results),
        speedup=speedup(results),
        asserts=tuple(SyncAssertion(expr=each.text, ok=each.holds(results)) for each in asserts),
        host=SyncHost(
            cpu=here.cpu,
            cores=here.cores,
            memory_bytes=here.memory_bytes,
            kernel=here.kernel,
            python=here.python,
        ),
    )


def _result_document(result: TopologyResult) -> SyncBenchResult:
    checked = result.verification
    return SyncBenchResult(
        topology=str(result.topology),
        transport="tcp",
        size_bytes=result.size_bytes,
        runs=len(result.times_s),
        p50_s=result.p50_s,
        p95_s=result.p95_s,
        min_s=min(result.times_s),
        max_s=max(result.times_s),
        times_s=result.times_s,
        outliers=result.outliers,
        bytes_on_wire=result.sent_bytes,
        cross_link_bytes=result.link_bytes,
        goodput_bytes_per_s=result.goodput_bytes_per_s,
        verify=None
        if checked is None
        else SyncVerification(
            ok=checked.ok, checked=checked.checked, mismatched=checked.mismatched
        ),
    )


def prediction_document(
    predicted: Prediction, *, link_bps: float, local_bps: float | None
) -> SyncPrediction:
    return SyncPrediction(
        link_bps=link_bps,
        local_bps=local_bps,
        link_s=predicted.link_s,
        local_s=predicted.local_s,
        total_s=predicted.total_s,
        binding=predicted.binding,
    )


def plan_document(made: Plan, prediction: SyncPrediction | None) -> SyncPlan:
    return SyncPlan(
        topology=str(made.topology),
        size_bytes=made.size_bytes,
        num_sources=made.num_sources,
        num_targets=made.num_targets,
        cross_link_bytes=made.link_bytes,
        local_bytes=made.local_bytes,
        steps=tuple(
            SyncStep(
                id=step.id,
                sender=str(step.sender),
                receiver=str(step.receiver),
                begin=step.shard.begin,
                end=step.shard.end,
                crosses_link=step.crosses_link,
                after=step.after,
            )
            for step in made.steps
        ),
        prediction=prediction,
    )
