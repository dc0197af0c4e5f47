"""The papers' tables and figures reproduced: theirs, ours over seeds, and what differs.

Writes docs/results/papers.json and the plots of docs/plots. `--only` runs some studies and keeps
the rows of the others as they are.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scripts.benches._document import RESULTS, finish, flags
from scripts.papers.lines import Figures, rows
from scripts.papers.studies import STUDIES

KEPT = RESULTS / "papers.json"


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="of every study that draws")
    parser.add_argument("--only", nargs="+", default=[], choices=list(STUDIES), metavar="STUDY")
    parser.add_argument("--processes", type=int, default=2, help="seeds at once")
    parser.add_argument("--plots", default="docs/plots", help="folder; '' for none")
    asked = parser.parse_args()
    chosen = [STUDIES[name] for name in asked.only] or list(STUDIES.values())
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        for study in chosen:
            began_s = time.monotonic()
            seeds = range(asked.seeds if study.drawn else 1)
            found = list(pool.map(figures_of, [study.name] * len(seeds), seeds))
            took_s = time.monotonic() - began_s
            print(f"papers: {study.name} in {took_s:.0f} s", file=sys.stderr, flush=True)
            # After each, as all of them together take most of an hour.
            finish("papers", merged(rows(study, found), study.name), asked=asked)
    if asked.plots and not asked.no_save:
        from scripts.papers.plots import draw

        draw(Path(asked.plots), only=[study.name for study in chosen])
    return 0


def figures_of(name: str, seed: int) -> Figures:
    return STUDIES[name].figures(seed)


def merged(made: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The new rows among those of the other studies, in the order of the studies."""
    old = json.loads(KEPT.read_text())["rows"] if KEPT.exists() else []
    every = [row for row in old if row["study"] != name] + made
    order = list(STUDIES)
    return sorted(
        (row for row in every if row["study"] in STUDIES), key=lambda row: order.index(row["study"])
    )


if __name__ == "__main__":
    sys.exit(main())
