"""What `rmux group up` is: one per group and host, stateless, ends with its group."""

from rmux.run.parent.up import detach, group_tag, is_up, run, sweep

__all__ = ["detach", "group_tag", "is_up", "run", "sweep"]
