"""The demo's document as a page of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmux.units import format_bytes, format_duration


def page(document: dict[str, Any]) -> str:
    return "\n".join(_lines(document)) + "\n"


def _lines(doc: dict[str, Any]) -> Iterator[str]:
    engines = " · ".join(f"{name} {version}" for name, version in doc["engines"].items())
    yield f"Two RL jobs on one pair of pools ({engines})"
    yield ""
    yield (
        f"{'JOB':8} {'ITER':>4}  {'REWARD':>14}  {'ALONE':>8}  {'TOGETHER':>8}  "
        f"{'SLOWDOWN':>8}  {'PLAN':>5}  {'SLO':>5}"
    )
    for job in doc["jobs"]:
        reward = f"{job['reward_first']:.3f} → {job['reward_last']:.3f}"
        yield (
            f"{job['name']:8} {job['iterations']:>4}  {reward:>14}  "
            f"{format_duration(job['solo_iteration_s']):>8}  "
            f"{format_duration(job['coexec_iteration_s']):>8}  "
            f"{job['slowdown']:>7.2f}×  {job['planned_slowdown']:>4.2f}×  {job['slo']:>4.2f}×"
        )
    yield ""
    share = doc["gain_per_device_hour"] / doc["gain_cap"]
    yield (
        f"throughput per device-hour  {doc['gain_per_device_hour']:.2f}× of dedicated pools; "
        f"the solo phase lengths allow {doc['gain_cap']:.2f}× ({share:.0%} of it)"
    )
    for pool in ("rollout", "train"):
        cold_s, warm_s = doc[pool]["cold_start_s"], doc[pool]["warm_switch_s"]
        ratio = f", 1/{cold_s / warm_s:.0f}" if warm_s else ""
        yield (
            f"{pool + ' start':26}  cold {format_duration(cold_s)}, "
            f"warm switch {format_duration(warm_s)}{ratio}"
        )
    sync = doc["sync"]
    yield (
        f"{'weight sync':26}  {format_duration(sync['p50_s'])} (p50), "
        f"{format_bytes(sync['bytes'])}, one copy, log-probabilities compared after each"
    )
    latency = doc["grant_latency_s"]
    yield (
        f"{'grant latency':26}  p50 {format_duration(latency['p50'])}, "
        f"p99 {format_duration(latency['p99'])} (n={latency['n']})"
    )
    yield f"{'own time per phase':26}  {format_duration(doc['overhead_per_phase_s'])} (p50)"
    parked = ", ".join(f"{pool} {share:.1%}" for pool, share in doc["parked_cpu"].items())
    yield f"{'CPU of a parked worker':26}  {parked} of one core"
    yield f"{'host memory, peak':26}  {format_bytes(doc['peak_memory_bytes'])}"
    yield (f"{'foreign CPU, mean':26}  {doc['foreign_cpu']:.1%} of one core during the shared run")
    roles = ", ".join(f"{role} {share:.1%}" for role, share in doc["role_cpu"].items())
    yield f"{'CPU by role, steady':26}  {roles}; stolen {doc['stolen_cpu']:.1%}"
    yield f"{'same seed, same weights':26}  {_equality(doc['weights_equal'])}"
    yield ""
    yield "where the gain is lost, per round"
    for row in doc["losses"]:
        ratio = "" if row["ratio"] is None else f"  ({row['ratio']:.2f}×)"
        yield f"  {format_duration(row['seconds_per_round']):>8}  {row['what']}{ratio}"
    yield ""
    yield from _gantt(doc["gantt"])
    if doc.get("run_dir"):
        yield ""
        yield f"run folder kept: {doc['run_dir']}"


def _equality(rows: list[dict[str, Any]]) -> str:
    said = [
        f"{row['name']} {row['equal']} of {row['compared']} iterations bit-equal" for row in rows
    ]
    return "; ".join(said) + " (alone against together)"


def _gantt(gantt: dict[str, Any]) -> Iterator[str]:
    letters = "  ".join(f"{letter} {name}" for letter, name in gantt["labels"].items())
    cell = format_duration(gantt["cell_s"])
    yield f"the last two rounds, one cell = {cell}   {letters}   · bubble"
    width = max(len(device) for device in gantt["lanes"])
    for device, lane in gantt["lanes"].items():
        yield f"{device:{width}}  {lane}"
