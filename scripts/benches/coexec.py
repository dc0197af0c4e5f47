"""Two real jobs on one pair of CPU devices: the demo, its numbers kept as rows.

Takes about six minutes; nothing else should run on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from scripts.benches._document import finish, flags, row


def demo() -> dict[str, Any]:
    """The document of one run of the demo; its own words go to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "story.flow", "--json"],
        env=os.environ | {"PYTHONPATH": "scripts"},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode not in (0, 7):
        raise SystemExit(f"coexec: the demo ended with {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def rows_of(doc: dict[str, Any]) -> list[dict[str, Any]]:
    solo = {f"{job['name']}, solo": job["solo_iteration_s"] for job in doc["jobs"]}
    both = solo | {f"{job['name']}, together": job["coexec_iteration_s"] for job in doc["jobs"]}
    rows = [
        row(
            "throughput per device-hour over dedicated pools",
            [doc["gain_per_device_hour"]],
            unit="ratio",
            seconds=both,
            facts={
                "cap": doc["gain_cap"],
                "share of the cap": doc["gain_per_device_hour"] / doc["gain_cap"],
                "foreign CPU, of one core": doc["foreign_cpu"],
            },
        )
    ]
    for job in doc["jobs"]:
        alone_s = job["solo_iteration_s"]
        rows.append(
            row(
                f"{job['name']}: slowdown, iteration over the median alone",
                [seconds / alone_s for seconds in doc["samples"]["iteration_s"][job["name"]]],
                unit="ratio",
                seconds={"solo": alone_s, "together": job["coexec_iteration_s"]},
                facts={
                    "planned": job["planned_slowdown"],
                    "SLO": job["slo"],
                    "reward, first": job["reward_first"],
                    "reward, last": job["reward_last"],
                },
            )
        )
    for pool in ("rollout", "train"):
        cold_s, warm_s = doc[pool]["cold_start_s"], doc[pool]["warm_switch_s"]
        rows.append(
            row(
                f"{pool}: warm switch over cold start",
                [warm_s / cold_s],
                unit="ratio",
                seconds={"cold": cold_s, "warm": warm_s},
                facts={"CPU of a parked worker, of one core": doc["parked_cpu"][pool]},
            )
        )
    samples = doc["samples"]
    rows.append(row("grant latency", samples["grant_latency_s"], unit="s"))
    rows.append(row("rmux's own time per rollout or train phase", samples["overhead_s"], unit="s"))
    rows.append(
        row("weight sync", samples["sync_s"], unit="s", facts={"bytes": doc["sync"]["bytes"]})
    )
    return rows


def main() -> int:
    asked = flags(__doc__).parse_args()
    finish("coexec", rows_of(demo()), asked=asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
