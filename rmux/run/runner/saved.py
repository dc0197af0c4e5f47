"""What a runner must know again after its own death: one small file per node, written whole.

It lies in memory, not on disk: it need not outlive the host, and every grant waits for it (a rename
on a busy disk takes up to 30 ms). Its name carries the run tag, so that a sweep removes it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmux.errors import UserError
from rmux.run.messages import Grant
from rmux.run.processes import ProcessId, boot_id
from rmux.run.runner.gate import Position

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDriver:
    job: str
    attempt: int
    process: ProcessId
    tag: str
    run_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    epoch: int = 0
    positions: Mapping[str, Position] = field(default_factory=dict)
    drivers: tuple[SavedDriver, ...] = ()


def path_of(tag: str, node: str, *, folder: Path = Path("/dev/shm")) -> Path:
    return folder / f"{tag}.node-{node}.json"


def write(path: Path, saved: Saved) -> None:
    """Whole or not at all; it need not outlive the host, whose reboot ends everything in it."""
    document = {
        "boot_id": boot_id(),
        "epoch": saved.epoch,
        "positions": {
            device: {
                "grant": _fields(position.grant),
                "free": position.is_free,
                "since_s": position.since_s,
                "granted_s": position.granted_s,
            }
            for device, position in saved.positions.items()
            if position.grant is not None
        },
        "drivers": [
            {**_fields(driver), "process": str(driver.process)} for driver in saved.drivers
        ],
    }
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(json.dumps(document))
    scratch.replace(path)


def read(path: Path) -> Saved:
    """Empty when there is no file, or one of another boot or that cannot be read."""
    try:
        document = json.loads(path.read_text())
        if document["boot_id"] != boot_id():
            return Saved()
        return Saved(
            epoch=int(document["epoch"]),
            positions={device: _position(entry) for device, entry in document["positions"].items()},
            drivers=tuple(
                SavedDriver(**{**entry, "process": ProcessId.parse(entry["process"])})
                for entry in document["drivers"]
            ),
        )
    except FileNotFoundError:
        return Saved()
    except (OSError, ValueError, KeyError, TypeError, UserError) as error:
        logger.warning("cannot use %s: %s", path, error)
        return Saved()


def _fields(value: Grant | SavedDriver) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _position(entry: Mapping[str, Any]) -> Position:
    """'granted' until the driver says more: it may have heard of the grant or not."""
    return Position(
        grant=Grant(**entry["grant"]),
        state="released" if entry["free"] else "granted",
        since_s=float(entry["since_s"]),
        granted_s=float(entry["granted_s"]),
    )
