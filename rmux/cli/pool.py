"""`rmux pool`: tell the store what hardware there is, and keep jobs off parts of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from rmux import units
from rmux.cli.documents_pools import PoolChange, PoolList
from rmux.cli.options import DryRun, session
from rmux.cli.output import Column, Table
from rmux.cli.pool_views import change, document, node_rows, policy_line, policy_part
from rmux.cli.wiring import open_store
from rmux.cluster import Policy
from rmux.ids import fresh_id

if TYPE_CHECKING:
    from rmux.store.engine import Conn

app = typer.Typer(help="Tell the store about pools, nodes and links.")

PoolArg = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name.")]
NodeArgs = Annotated[list[str], typer.Argument(metavar="NODE…", help="Nodes of any pool.")]


@app.command("add")
def add(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="A cluster file (TOML).")
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop the pools that the file leaves out.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Add the pools of a cluster file, or redefine them; others stay as they are."""
    from rmux.spec import load_cluster
    from rmux.store import pools

    found = session(ctx)
    cluster = load_cluster(file, host=found.settings.host)
    _change(
        ctx,
        lambda conn: pools.save(conn, cluster, replace=replace),
        names=tuple(pool.name for pool in cluster.pools),
        verb="added",
        dry_run=dry_run,
    )
    if cluster.tenants or cluster.policy != Policy():
        found.out.note(policy_line(cluster))


@app.command("ls")
def ls(ctx: typer.Context) -> None:
    """List the pools; -o wide lists their nodes too."""
    from rmux.store import groups, pools

    found = session(ctx)
    with open_store(found) as store, store.read() as conn:
        cluster, held = pools.load(conn), pools.holders(conn)
        revision = groups.revision(conn)
    items = tuple(document(cluster, pool, held) for pool in cluster.pools)
    found.out.emit(
        PoolList(items=items, policy=policy_part(cluster.policy), revision=revision),
        table=lambda: Table(
            (
                "POOL",
                "KIND",
                "HARDWARE",
                Column("NODES", right=True),
                Column("FREE", right=True),
                Column("DRAINED", right=True),
                Column("DEVICES", right=True),
                Column("USD/DEVICE/H", right=True),
                Column("NODE NAMES", wide=True),
            ),
            [
                (
                    item.name,
                    item.kind,
                    item.hardware,
                    item.num_nodes,
                    item.free_nodes,
                    item.drained_nodes,
                    item.num_devices,
                    f"{item.usd_per_device_h:.2f}",
                    ",".join(node.id for node in item.nodes),
                )
                for item in items
            ],
        ),
        names=[item.name for item in items],
    )
    found.out.note(policy_line(cluster))


@app.command("tenants")
def tenants(ctx: typer.Context) -> None:
    """List the tenants: quota, weight, jobs, and what each is charged of the bill.

    A group's price is charged to its members in proportion to the device-seconds they hold. The
    sum over tenants is the bill.
    """
    from rmux.cli import tenant_views

    found = session(ctx)
    with open_store(found) as store, store.read() as conn:
        seen = tenant_views.document(conn)
    found.out.emit(
        seen,
        table=lambda: tenant_views.table(seen),
        names=[item.name for item in seen.items if item.name],
    )
    found.out.note(f"bill {units.format_usd_per_h(seen.bill_usd_per_h)}, the sum over tenants")


@app.command("show")
def show(ctx: typer.Context, pool: PoolArg) -> None:
    """Show one pool: its nodes, who holds them, the memory planned on each, its links."""
    from rmux.cli import memory_views
    from rmux.store import pools

    found = session(ctx)
    with open_store(found) as store, store.read() as conn:
        cluster, held = pools.load(conn), pools.holders(conn)
        planned_bytes = memory_views.planned_bytes(conn)
    seen = document(cluster, cluster.pool(pool), held, planned_bytes=planned_bytes)
    found.out.emit(seen, table=lambda: node_rows(seen), names=[seen.name])
    for link in seen.links:
        found.out.note(f"link {link.source}, {link.target}: {units.format_rate(link.rate_bps)}")
    found.out.note(policy_line(cluster))


@app.command("rm")
def rm(ctx: typer.Context, pool: PoolArg, dry_run: DryRun = False) -> None:
    """Forget a pool whose nodes no group holds."""
    from rmux.store import pools

    def forget(conn: Conn) -> bool:
        pools.remove(conn, pool)
        return True

    _change(ctx, forget, names=(pool,), verb="removed", dry_run=dry_run)


@app.command("drain")
def drain(
    ctx: typer.Context,
    node: NodeArgs,
    reason: Annotated[str, typer.Option("--reason", help="Why, for those who wonder.")] = "drained",
    dry_run: DryRun = False,
) -> None:
    """Place nothing new on nodes; what runs there goes on."""
    from rmux.store import pools

    _change(
        ctx,
        lambda conn: sum(pools.set_drained(conn, name, reason or "drained") for name in node) > 0,
        names=tuple(node),
        verb="drained",
        dry_run=dry_run,
    )


@app.command("undrain")
def undrain(ctx: typer.Context, node: NodeArgs, dry_run: DryRun = False) -> None:
    """Let jobs onto drained nodes again."""
    from rmux.store import pools

    _change(
        ctx,
        lambda conn: sum(pools.set_drained(conn, name, "") for name in node) > 0,
        names=tuple(node),
        verb="undrained",
        dry_run=dry_run,
    )


def _change(
    ctx: typer.Context,
    write: Callable[[Conn], bool],
    *,
    names: tuple[str, ...],
    verb: str,
    dry_run: bool,
) -> None:
    found = session(ctx)
    with open_store(found) as store:
        changed, revision = change(store, write, dry_run=dry_run, ids=fresh_id)
    what = f"{verb} {', '.join(names)}" if changed else f"{', '.join(names)}: nothing to change"
    found.out.emit(
        PoolChange(changed=changed, dry_run=dry_run, names=names, revision=revision),
        text=f"would have {what}" if dry_run and changed else what,
        names=names,
    )
