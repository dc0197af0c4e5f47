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


def _solo(setting: Setting) -> Policy:
    from rmux.place.sim.policies.solo import Solo

    return Solo(setting.world)


def _colocate(setting: Setting) -> Policy:
    from rmux.place.sim.policies.colocate import Colocate

    return Colocate(setting.world)


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
}
