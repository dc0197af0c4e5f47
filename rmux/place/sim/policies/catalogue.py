"""Every policy by its name, made when used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmux.cluster import Policy as Sharing
from rmux.errors import UserError
from rmux.place.sim.policies.base import Policy
from rmux.place.sim.world import World
from rmux.toml_lines import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a policy may look at when it is made."""

    world: World
    max_members: int = 5
    """Jobs in one group; 0 for no limit."""
    margin: float = 0.0
    payback_s: float = 3600.0
    """A move must earn its price within this time."""
    seed: int = 0
    """Of policies that draw."""


@dataclass(frozen=True, slots=True)
class Entry:
    summary: str
    make: Callable[[Setting], Policy]


def make(name: str, setting: Setting) -> Policy:
    """A fresh policy for one replay. UserError for a name that is none."""
    return entry(name).make(setting)


def entry(name: str) -> Entry:
    """UserError for a name that is none, with the nearest one."""
    if name not in POLICIES:
        meant = nearest(name, POLICIES)
        raise UserError(
            f"no policy {name!r}" + (f" (did you mean {meant}?)" if meant else ""),
            hint="rmux sim policies",
            code="sim.policy",
        )
    return POLICIES[name]


def _rollmux(setting: Setting, *, rule: str = "interval", rebalance: bool = False) -> Policy:
    from rmux.place.sim.policies.rollmux import RollMux

    sharing = Sharing(
        rule=rule,
        margin=setting.margin,
        max_members=setting.max_members,
        rebalance=rebalance,
        payback_s=setting.payback_s,
    )
    return RollMux(setting.world, sharing=sharing)


def _gavel(setting: Setting, *, cheapest: bool = False) -> Policy:
    from rmux.place.sim.mixes import Objective
    from rmux.place.sim.policies.gavel import Gavel

    objective = Objective.COST if cheapest else Objective.THROUGHPUT_PER_COST
    return Gavel(setting.world, objective=objective)


def _solo(setting: Setting) -> Policy:
    from rmux.place.sim.policies.solo import Solo

    return Solo(setting.world)


def _colocate(setting: Setting) -> Policy:
    from rmux.place.sim.policies.colocate import Colocate

    return Colocate(setting.world)


def _random(setting: Setting, *, packed: bool = False) -> Policy:
    from rmux.place.sim.policies.random_ import Random

    return Random(setting.world, max_members=setting.max_members, packed=packed, seed=setting.seed)


def _most_idle(setting: Setting, *, packed: bool = False) -> Policy:
    from rmux.place.sim.policies.most_idle import MostIdle

    return MostIdle(setting.world, max_members=setting.max_members, packed=packed)


def _optimal(setting: Setting, *, priced: bool = False) -> Policy:
    from rmux.place.sim.policies.optimal import Optimal

    return Optimal(
        setting.world, max_members=setting.max_members, margin=setting.margin, priced=priced
    )


POLICIES: dict[str, Entry] = {
    "rollmux": Entry(
        "rmux: the interval rule, and moves where they pay",
        lambda setting: _rollmux(setting, rebalance=True),
    ),
    "rollmux-static": Entry("rmux that never moves a job", _rollmux),
    "rollmux-paper": Entry(
        "Algorithm 1 of RollMux to the letter", lambda setting: _rollmux(setting, rule="paper")
    ),
    "solo": Entry("Solo-D: nodes of their own for every job", _solo),
    "colocate": Entry("veRL: both phases of a job on its train nodes", _colocate),
    "gavel": Entry("Gavel+: the nodes of most iterations per dollar for each job", _gavel),
    "gavel-cheapest": Entry(
        "Gavel+: the cheapest nodes that keep each SLO on average",
        lambda setting: _gavel(setting, cheapest=True),
    ),
    "optimal": Entry("the cheapest packing, anew and for nothing at every event", _optimal),
    "optimal-priced": Entry(
        "the cheapest packing at every event; jobs that move pay for it",
        lambda setting: _optimal(setting, priced=True),
    ),
    "random": Entry("a random group or a new one, new nodes where it does not fit", _random),
    "random-packed": Entry(
        "a random group in which the job fits",
        lambda setting: _random(setting, packed=True),
    ),
    "most-idle": Entry("the most idle group, new nodes where it does not fit", _most_idle),
    "most-idle-packed": Entry(
        "the most idle group in which the job fits",
        lambda setting: _most_idle(setting, packed=True),
    ),
}
