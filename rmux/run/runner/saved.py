"""What a runner must know again after its own death: one small file per node, written whole."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmux.clock import boot_id
from rmux.errors import UserError
from rmux.run.messages import Grant
from rmux.run.processes import ProcessId
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


def write(path: Path, saved: Saved) -> None:
    """Whole or not at all; it need not outlive the host, whose reboot ends everything in it."""
    document = {
        "boot_id": boot_id(),
        "epoch": saved.epoch,
        "positions": {
            device: {
                "grant": dataclasses.asdict(position.grant),
                "free": position.is_free,
                "since_s": position.since_s,
                "granted_s": position.granted_s,
            }
            for device, position in saved.positions.items()
            if position.grant is not None
        },
        "drivers": [
            {**dataclasses.asdict(driver), "process": str(driver.process)}
            for driver in saved.drivers
        ],
    }
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(document))
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


def _position(entry: Mapping[str, Any]) -> Position:
    """'granted' until the driver says more: it may have heard of the grant or not."""
    return Position(
        grant=Grant(**entry["grant"]),
        state="released" if entry["free"] else "granted",
        since_s=float(entry["since_s"]),
        granted_s=float(entry["granted_s"]),
    )
