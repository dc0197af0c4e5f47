"""Several RL post-training jobs share one pair of GPU pools, phase by phase.

What a training script uses; everything else is the command line's. Importing this loads nothing
but itself: each function loads what it needs when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import ParamSpec, TypeVar

    from rmux.run.driver.engines import Fleet, Trainer

    P = ParamSpec("P")
    R = TypeVar("R")

__version__ = "0.1.0"
__all__ = ["__version__", "fleet", "phase", "runtime_hook", "trainer"]


def phase(
    name: str, *, park: Callable[[], Any] | None = None, wake: Callable[[], Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function as a phase of the job: 'rollout', 'train', 'sync' or 'init'.

    Under rmux a call of a rollout or train function waits until its devices are granted, calls
    `wake`, runs the function, calls `park` and hands the devices back. `wake` and `park` move the
    script's own engines onto their devices and off them. A sync or init function holds no device.
    Outside rmux the call is a plain call. UserError when another phase is due.
    """
    from rmux.run.driver import shim

    return shim.phase(name, park=park, wake=wake)


def runtime_hook(function: Callable[[Mapping[str, Any]], R]) -> Callable[[Mapping[str, Any]], R]:
    """Mark a function that is called with a mapping of numbers while responses are generated.

    Under rmux each call also reports the numbers as progress, at most twice a second.
    """
    from rmux.run.driver import shim

    return shim.runtime_hook(function)


def fleet(*, spec: str | None = None) -> Fleet:
    """The job's rollout engines. Outside rmux: engines in the spec's image, started on this host
    for this process; `spec` is the path of a job spec, $RMUX_SPEC by default.

    UserError without a spec, or when the spec names no model.
    """
    from rmux.run.driver import shim

    return shim.fleet(spec)


def trainer(*, spec: str | None = None) -> Trainer:
    """The job's training ranks; outside rmux as with `fleet`, and of the same engines."""
    from rmux.run.driver import shim

    return shim.trainer(spec)
