"""What `rmux group up` is: one per group and host, stateless, ends with its group."""

from rmux.run.parent.every_group import run_every
from rmux.run.parent.up import Served, detach, group_tag, is_up, run, served, served_in, sweep

__all__ = [
    "Served",
    "detach",
    "group_tag",
    "is_up",
    "run",
    "run_every",
    "served",
    "served_in",
    "sweep",
]
