"""What can be found wrong with a job before it is stored: model, functions, script, engines."""

from __future__ import annotations

from pathlib import Path

from rmux.errors import SpecError
from rmux.job import Engine, JobSpec
from rmux.run.installed import check_engines


def check(spec: JobSpec, *, hardware: str) -> None:
    """UserError when a model, function or script cannot be used, BackendError without engines.

    The user's functions are imported in a process of their own, under a deadline, and an
    environment is made there and reset. Emulated jobs use none of it; a script that brings its own
    engines needs none of rmux's.
    """
    if spec.engine is Engine.EMULATED:
        if spec.emulated.lengths:
            from rmux.run.workers.emulated_fleet import read_lengths

            read_lengths(spec.emulated.lengths)
        return
    if spec.model_path:
        from rmux.profile.footprint import load_shape

        load_shape(spec.model_path)
        if spec.recipe is not None:
            from rmux.run.driver.tokenizer import load_characters

            load_characters(spec.model_path)
    check_engines(spec, hardware=hardware)
    functions = [name for name in (spec.task_module, spec.reward.function) if name]
    if functions:
        from rmux.run.sandbox.check import check_function

        for function in functions:
            check_function(function, python=spec.python)
    if spec.environment.function:
        from rmux.run.sandbox.check import check_environment

        _check_first(spec, check_environment(spec.environment.function, python=spec.python))
    if spec.script is not None:
        _check_script(Path(spec.script))


def _check_first(spec: JobSpec, text: str) -> None:
    """The observation that every episode begins with, where tokens are cheap to count."""
    from rmux.run.driver.tokenizer import load_characters

    chars = load_characters(spec.model_path) if spec.model_path else None
    count = len(text) if chars is None else len(chars.encode(text))
    longest = spec.rollout.max_prompt_tokens
    if not count or (chars is not None and count > longest):
        raise SpecError(
            f"{spec.environment.function}: the first observation has {count} tokens, "
            f"rollout.max_prompt_tokens allows 1 to {longest}",
            hint="raise rollout.max_prompt_tokens, or say less in render_text",
        )


def _check_script(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec")
    except OSError as error:
        raise SpecError(f"script: cannot read {path}: {error.strerror or error}") from error
    except SyntaxError as error:
        raise SpecError(f"script: {path}:{error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise SpecError(f"script: {path}: {error}") from error
