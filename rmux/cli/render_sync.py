"""Documents of `rmux sync`, as people read them."""

from __future__ import annotations

from rmux import units
from rmux.cli.documents_sync import SyncBench, SyncPlan, SyncVerification
from rmux.cli.output import Column, Table


def bench_head(document: SyncBench) -> str:
    config = document.config
    return (
        f"{config.num_sources} -> {config.num_targets} processes over loopback"
        f"   {units.format_bytes(config.size_bytes)}   {config.streams} flow(s) per transfer"
        f"   seed {config.seed}"
    )


def bench_table(document: SyncBench) -> Table:
    return Table(
        (
            "TOPOLOGY",
            "TRANSPORT",
            Column("RUNS", right=True),
            Column("P50", right=True),
            Column("P95", right=True),
            Column("ON SLOW LINK", right=True),
            Column("ON WIRE", right=True, wide=True),
            Column("GOODPUT", right=True),
            "VERIFY",
        ),
        [
            (
                result.topology,
                result.transport,
                result.runs,
                units.format_duration(result.p50_s),
                units.format_duration(result.p95_s),
                units.format_bytes(result.cross_link_bytes),
                units.format_bytes(result.bytes_on_wire),
                units.format_rate(result.goodput_bytes_per_s * 8),
                _verify_text(result.verify),
            )
            for result in document.results
        ],
    )


def _verify_text(verify: SyncVerification | None) -> str | None:
    if verify is None:
        return None
    good = verify.checked - verify.mismatched
    return f"{good}/{verify.checked} {'ok' if verify.ok else 'FAILED'}"


def bench_notes(document: SyncBench) -> list[str]:
    notes = []
    if document.speedup is not None:
        notes.append(
            f"hier is {document.speedup:.3g} times as fast as flat at p50; loopback has no slow "
            "link, so compare the bytes on it"
        )
    outliers = sum(result.outliers for result in document.results)
    notes.append(
        f"{document.config.warmup} warm-up runs not counted; {outliers or 'no'} outliers "
        "(over 1.5 times the median)"
    )
    return notes


def plan_text(document: SyncPlan) -> str:
    copies = document.cross_link_bytes / document.size_bytes
    text = (
        f"{document.topology}: {units.format_bytes(document.size_bytes)} from "
        f"{document.num_sources} to {document.num_targets} ranks; over the slow link "
        f"{units.format_bytes(document.cross_link_bytes)} ({copies:.3g} copies), inside the "
        f"target pool {units.format_bytes(document.local_bytes)}"
    )
    predicted = document.prediction
    if predicted is None:
        return text
    inside = ""
    if predicted.local_bps is not None:
        inside = f", {units.format_duration(predicted.local_s)} inside, at the same time"
    return (
        f"{text}\nat least {units.format_duration(predicted.total_s)} at "
        f"{units.format_rate(predicted.link_bps)}: {units.format_duration(predicted.link_s)} "
        f"on the slow link{inside}"
    )


def plan_table(document: SyncPlan) -> Table:
    return Table(
        ("STEP", "FROM", "TO", Column("BYTES", right=True), "LINK", "AFTER"),
        [
            (
                step.id,
                step.sender,
                step.receiver,
                units.format_bytes(step.end - step.begin),
                "slow" if step.crosses_link else "local",
                step.after,
            )
            for step in document.steps
        ],
    )
