"""Checkpoints of one job: a folder per iteration, whole or not at all, checked when read.

    checkpoints/it-000003/manifest.json    {iteration, weight_version, attempt, seed, bytes, files}
    checkpoints/it-000003/...              what the engines wrote; files: name → xxh3_128

A checkpoint is filled under another name, flushed to disk and renamed; the manifest is its last
file. So a crash leaves the previous one, and damage found later does too.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

_log = logging.getLogger(__name__)

FOLDER = "checkpoints"
_MANIFEST = "manifest.json"
_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`iteration` iterations are finished and contained; `folder` holds the files."""

    folder: Path
    iteration: int
    weight_version: int
    attempt: int
    seed: int
    bytes: int
    files: Mapping[str, str]
    """Name below the folder to xxh3_128 in hex."""


def write(
    run_dir: Path,
    *,
    iteration: int,
    weight_version: int,
    attempt: int,
    seed: int,
    keep: int,
    fill: Callable[[Path], object],
) -> Manifest:
    """Let `fill` write into a new folder, then make it the newest checkpoint; keeps `keep`.

    OSError when the disk refuses; the older checkpoints are then as they were.
    """
    parent = run_dir / FOLDER
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    final = parent / _name(iteration)
    scratch = parent / f".{final.name}.{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        fill(scratch)
        paths = sorted(path for path in scratch.rglob("*") if path.is_file())
        files = {str(path.relative_to(scratch)): _settle(path) for path in paths}
        manifest = Manifest(
            folder=final,
            iteration=iteration,
            weight_version=weight_version,
            attempt=attempt,
            seed=seed,
            bytes=sum(path.stat().st_size for path in paths),
            files=files,
        )
        _write_manifest(scratch, manifest)
        _put_in_place(scratch, final)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _prune(parent, keep=keep)
    return manifest


def latest(run_dir: Path) -> Manifest | None:
    """The newest checkpoint whose every byte is as written; damaged ones are logged and skipped."""
    for folder in _newest_first(run_dir / FOLDER):
        try:
            manifest = _read_manifest(folder)
            for name, expected in manifest.files.items():
                if _checksum(folder / name) != expected:
                    raise ValueError(f"{name} is not what was written")
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("checkpoint %s is damaged, trying the one before: %s", folder, error)
            continue
        return manifest
    return None


def _name(iteration: int) -> str:
    return f"it-{iteration:06d}"


def _newest_first(parent: Path) -> list[Path]:
    found = [path for path in parent.glob("it-*") if path.name[3:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[3:]), reverse=True)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    document = asdict(manifest)
    del document["folder"]
    path = folder / _MANIFEST
    path.write_text(json.dumps(document, indent=1) + "\n")
    _settle(path)


def _read_manifest(folder: Path) -> Manifest:
    document = json.loads((folder / _MANIFEST).read_text())
    manifest = Manifest(folder=folder, **document)
    if folder.name != _name(manifest.iteration):
        raise ValueError(f"it says it is iteration {manifest.iteration}")
    return manifest


def _put_in_place(scratch: Path, final: Path) -> None:
    """An older folder of this iteration, from an attempt that got here before, makes room."""
    for folder in {path.parent for path in scratch.rglob("*")}:
        _flush_folder(folder)
    aside = final.with_name(f".{final.name}.aside.{os.getpid()}")
    if final.exists():
        final.rename(aside)
    scratch.rename(final)
    _flush_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _prune(parent: Path, *, keep: int) -> None:
    for folder in _newest_first(parent)[max(1, keep) :]:
        shutil.rmtree(folder, ignore_errors=True)
    for left in parent.glob(".it-*"):
        shutil.rmtree(left, ignore_errors=True)  # of a crash; one job has one writer


def _settle(path: Path) -> str:
    """Flush the file to disk; returns its checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _checksum(path)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
