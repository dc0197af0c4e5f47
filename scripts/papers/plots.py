"""Plots of the simulated window: cost and devices over time, and who gets how much slower."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmux.place.sim.policies.catalogue import Setting, make
from rmux.place.sim.replay import Outcome, Point, replay
from rmux.place.sim.world import GPUS_PER_NODE, World
from scripts.papers.replays import of_window

POLICIES = {
    "solo": ("Solo-D", "#8c8c8c", "-"),
    "rollmux-paper": ("Algorithm 1", "#d1791f", "--"),
    "rollmux": ("rmux", "#1f5fa8", "-"),
    "most-idle": ("Most-idle", "#6b4c9a", ":"),
}
SEED = 0


def draw(folder: Path, *, only: Sequence[str] = ("mixed",)) -> None:
    """Writes SVG and PNG files of one seed of the mixed window, where that is among the studies."""
    if "mixed" not in only or folder == Path():
        return
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "rmux", "font.size": 9, "axes.grid": True})
    mpl.rcParams.update({"grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
    folder.mkdir(parents=True, exist_ok=True)
    lines = {name: _followed(name) for name in POLICIES}
    _steps(folder / "cost", lines, what="USD/h", of=lambda point: point.usd_per_h)
    _steps(
        folder / "devices",
        lines,
        what="GPUs held",
        of=lambda point: GPUS_PER_NODE * (point.rollout_devices + point.train_devices),
    )
    _slowdowns(folder / "slowdowns", {name: outcomes for name, (_, outcomes) in lines.items()})


def _followed(name: str) -> tuple[list[Point], Sequence[Outcome]]:
    points: list[Point] = []
    world = World()
    policy = make(name, Setting(world=world, seed=SEED))
    done = replay(of_window(SEED), policy, world=world, watch=points.append)
    return points, done.outcomes


def _steps(path: Path, lines, *, what: str, of) -> None:  # type: ignore[no-untyped-def]
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for name, (points, _) in lines.items():
        label, colour, style = POLICIES[name]
        axes.step(
            [point.at_s / 3600 for point in points],
            [of(point) for point in points],
            where="post",
            label=label,
            color=colour,
            linestyle=style,
            linewidth=1.1,
        )
    axes.set(xlabel="hours", ylabel=what, xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False, ncols=len(lines), loc="upper center", bbox_to_anchor=(0.5, 1.15))
    _save(figure, path)


def _slowdowns(path: Path, found: dict[str, Sequence[Outcome]]) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3), layout="constrained")
    for name, outcomes in found.items():
        label, colour, style = POLICIES[name]
        part = sorted(one.tightness for one in outcomes)
        share = [(index + 1) / len(part) for index in range(len(part))]
        axes.step(part, share, where="post", label=label, color=colour, linestyle=style)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(
        xlabel="longest iteration ÷ (SLO × solo); above 1 the promise is broken",
        ylabel="share of jobs",
        xlim=(0, 3),
        ylim=(0, 1),
    )
    axes.legend(frameon=False, loc="lower right")
    _save(figure, path)


def _save(figure, path: Path) -> None:  # type: ignore[no-untyped-def]
    from matplotlib import pyplot

    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=130, metadata={"Software": None})
    pyplot.close(figure)
