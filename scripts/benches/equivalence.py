"""Whether sharing changes what is learned: alone, co-executed, co-executed with migration.

GRPO, DAPO and PPO on the real engines, on two rollout devices and one train device; every seed runs
each way from the same model. About four minutes a seed on two cores.
"""

from __future__ import annotations

import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.benches._document import finish, flags, row, save
from scripts.benches._equivalence import ALGORITHMS, Mode, Outcome, run

PLOT = Path("docs/plots/equivalence.svg")

_T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t by degrees of freedom: half-width of a two-sided interval of 95 %, in errors."""
_NORMAL_975 = 1.96

Runs = Mapping[tuple[str, Mode], Sequence[Outcome]]
"""By algorithm and mode, one outcome per seed in order."""


def half_width(sample: Sequence[float]) -> float:
    """Of the 95 % confidence interval of the mean; 0 for a single value, which has none."""
    degrees = len(sample) - 1
    if degrees < 1:
        return 0.0
    error = statistics.stdev(sample) / math.sqrt(len(sample))
    return _T_975.get(degrees, _NORMAL_975) * error


def measure(*, seeds: int, iterations: int, trigger: str) -> Iterator[Runs]:
    """What there is after each seed."""
    runs: dict[tuple[str, Mode], list[Outcome]] = {}
    for seed in range(1, seeds + 1):
        folder = Path(tempfile.mkdtemp(prefix="rmux-eq-"))
        try:
            for mode in Mode:
                groups = [[name] for name in ALGORITHMS] if mode is Mode.ALONE else [ALGORITHMS]
                for number, names in enumerate(groups):
                    found = run(
                        folder / f"{mode.name}-{number}".lower(),
                        mode,
                        names,
                        seed=seed,
                        iterations=iterations,
                        trigger=trigger,
                    )
                    for name, outcome in found.items():
                        runs.setdefault((name, mode), []).append(outcome)
                    sys.stderr.write(f"seed {seed}, {mode}: {', '.join(names)}\n")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        yield runs


def rows_of(runs: Runs) -> list[dict[str, Any]]:
    return [_row(name, mode, runs) for name in ALGORITHMS for mode in Mode]


def _row(name: str, mode: Mode, runs: Runs) -> dict[str, Any]:
    here, alone = runs[name, mode], runs[name, Mode.ALONE]
    held_out = [one.held_out for one in here]
    facts: dict[str, Any] = {
        "95 % confidence, ±": half_width(held_out),
        "variance over seeds": statistics.variance(held_out) if len(held_out) > 1 else 0.0,
        "reward, first iteration": statistics.fmean(one.rewards[0] for one in here),
        "reward, last iteration": statistics.fmean(one.rewards[-1] for one in here),
    }
    if mode is not Mode.ALONE:
        apart = [a.held_out - b.held_out for a, b in zip(here, alone, strict=True)]
        equal = [a.checksums == b.checksums for a, b in zip(here, alone, strict=True)]
        facts |= {
            "held-out reward less that alone, mean": statistics.fmean(apart),
            "of that, 95 % confidence, ±": half_width(apart),
            "seeds with bit-equal weights in every iteration": sum(equal),
            "iterations with bit-equal weights, share": _equal_share(here, alone),
            "responses moved": sum(one.moved for one in here),
            "moved responses continued exactly, share": _share(
                sum(one.exact for one in here), sum(one.moved for one in here)
            ),
        }
    return row(
        f"{name}, {mode}: held-out reward",
        held_out,
        unit="reward",
        facts=facts,
        keys={
            "engine": "real",
            "algorithm": name,
            "mode": str(mode),
            "curve": [statistics.fmean(each) for each in _by_iteration(here)],
            "curve_half_width": [half_width(each) for each in _by_iteration(here)],
        },
    )


def _by_iteration(outcomes: Sequence[Outcome]) -> list[tuple[float, ...]]:
    return list(zip(*(one.rewards for one in outcomes), strict=True))


def _equal_share(here: Sequence[Outcome], alone: Sequence[Outcome]) -> float:
    pairs = [
        pair
        for a, b in zip(here, alone, strict=True)
        for pair in zip(a.checksums, b.checksums, strict=True)
    ]
    return sum(one == other for one, other in pairs) / len(pairs)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def plot(rows: Sequence[Mapping[str, Any]]) -> None:
    """Reward curves with their confidence bands, a panel per algorithm."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(ALGORITHMS), figsize=(11, 3.2), sharey=True)
    for panel, name in zip(panels, ALGORITHMS, strict=True):
        for each in (one for one in rows if one["algorithm"] == name):
            steps = range(1, len(each["curve"]) + 1)
            low, high = (
                [y + sign * w for y, w in zip(each["curve"], each["curve_half_width"], strict=True)]
                for sign in (-1, 1)
            )
            (line,) = panel.plot(steps, each["curve"], label=each["mode"])
            panel.fill_between(steps, low, high, alpha=0.15, color=line.get_color())
        panel.set_title(name)
        panel.set_xlabel("iteration")
    panels[0].set_ylabel("mean reward, 95 % confidence")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, metadata={"Date": None})


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--trigger", default="0.5", help="of the third mode; see rmux-group(1)")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for runs in measure(seeds=asked.seeds, iterations=asked.iterations, trigger=asked.trigger):
        rows = rows_of(runs)
        if not asked.no_save:
            save("equivalence", rows)
            plot(rows)
    finish("equivalence", rows, asked=asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
