"""Flags of `job submit` that stand in for a key of the spec, and the tenants that there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmux import units
from rmux.errors import QuantityError, UserError
from rmux.job import JobSpec

if TYPE_CHECKING:
    from rmux.cluster import Tenant

Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name the job so instead of as the spec does."),
]
TenantName = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="Count it against this tenant."),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", metavar="N", help="Among waiting jobs the higher goes first."),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="DUR", help="Wanted end, counted from now, such as 48h."),
]


def overridden(
    spec: JobSpec,
    *,
    name: str | None = None,
    tenant: str | None = None,
    priority: int | None = None,
    deadline: str | None = None,
) -> JobSpec:
    """The spec with what flags say in place of its own keys. UserError where one is no value."""
    changes: dict[str, Any] = {
        flag: _checked(flag, value)
        for flag, value in (("name", name), ("tenant", tenant), ("priority", priority))
        if value is not None
    }
    if deadline is not None:
        try:
            changes["deadline_s"] = units.parse_duration_s(deadline)
        except QuantityError as error:
            raise UserError(f"--deadline: {error.message}", hint=error.hint) from None
    return replace(spec, **changes)


def check_tenant(name: str, declared: Iterable[Tenant]) -> None:
    """UserError for a tenant that the cluster file does not declare, if it declares any."""
    from rmux.toml_lines import nearest

    known = [tenant.name for tenant in declared]
    if not name or not known or name in known:
        return
    meant = nearest(name, known)
    hint = f"did you mean {meant}?" if meant else f"declared: {', '.join(sorted(known))}"
    raise UserError(
        f"no tenant {name!r} is declared in the cluster file",
        hint=f"{hint} (rmux pool tenants lists them)",
        code="tenant.unknown",
        details={"tenant": name, "declared": sorted(known)},
    )


def _checked(flag: str, value: object) -> object:
    """As the spec's own key is checked."""
    from pydantic import TypeAdapter, ValidationError

    from rmux.spec_models import SpecFile

    field = SpecFile.model_fields[flag]
    hint: Any = field.annotation
    if field.metadata:
        hint = Annotated[field.annotation, *field.metadata]
    checked: TypeAdapter[object] = TypeAdapter(hint)
    try:
        return checked.validate_python(value)
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"--{flag} {told}") from None
