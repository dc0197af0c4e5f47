"""What a real job needs installed here, looked at without importing any of it."""

from __future__ import annotations

import importlib.util

from rmux.errors import BackendError
from rmux.job import Engine, JobSpec

_ENGINES = ("ray", "torch", "deepspeed", "vllm")


def check_engines(spec: JobSpec, *, hardware: str) -> None:
    """BackendError when the job runs on rmux's engines and one of them is missing.

    An emulated job needs none, nor does a script that brings its own; what an interpreter of the
    job's own has installed only that one can tell.
    """
    if spec.engine is Engine.EMULATED or not spec.model_path or spec.python is not None:
        return
    missing = [name for name in _ENGINES if not _is_installed(name)]
    if missing:
        extra = "cpu" if hardware == "cpu" else "gpu"
        raise BackendError(
            f"job {spec.name} needs {', '.join(missing)}, not installed here",
            hint=f"pip install 'rmux[{extra}]', or write engine = \"emulated\"",
            details={"missing": missing},
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        # A finder that refuses it, or a module put there without a spec: it cannot be imported.
        return False
