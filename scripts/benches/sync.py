"""Weight sync over loopback: hier against flat, side by side in one run, all bytes compared.

Loopback has no slow link, so hier cannot be faster here: it moves as many bytes in all, in two
hops. What counts is the bytes that would cross the link, beside the seconds both took.
"""

from __future__ import annotations

import sys

from rmux.sync.bench import BenchConfig, run_bench
from rmux.sync.plan import Topology
from scripts.benches._document import finish, flags, row

SHAPES = ((2, 2), (4, 4))
SIZE_BYTES = 64 * 2**20


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--runs", type=int, default=7)
    asked = parser.parse_args()
    rows = []
    verified = True
    for num_sources, num_targets in SHAPES:
        config = BenchConfig(
            num_sources=num_sources,
            num_targets=num_targets,
            size_bytes=SIZE_BYTES,
            runs=asked.runs,
            verify=True,
        )
        results = {result.topology: result for result in run_bench(config)}
        shape = f"{num_sources}:{num_targets}"
        for topology, result in results.items():
            checked = result.verification
            verified = verified and checked is not None and checked.ok
            rows.append(
                row(
                    f"{topology} {shape}, 64 MiB",
                    result.times_s,
                    unit="s",
                    facts={
                        "slow_link_bytes": result.link_bytes,
                        "copies_on_slow_link": result.link_bytes / SIZE_BYTES,
                        "verified": checked is not None and checked.ok,
                    },
                )
            )
        flat, hier = results[Topology.FLAT], results[Topology.HIER]
        rows.append(
            row(
                f"flat over hier {shape}, time",
                [one / other for one, other in zip(flat.times_s, hier.times_s, strict=True)],
                unit="ratio",
                seconds={"flat": flat.p50_s, "hier": hier.p50_s},
            )
        )
    finish("sync", rows, asked=asked)
    return 0 if verified else 7


if __name__ == "__main__":
    sys.exit(main())
