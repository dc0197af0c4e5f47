"""Tables of the store. Instants are UTC; specs, profiles and placements are JSON documents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

REVISIONS = ("0001", "0002")
"""Every schema this rmux knows, oldest first; the last is the one it works with."""

HEAD = REVISIONS[-1]


class UtcDateTime(sa.TypeDecorator[datetime]):
    """SQLite keeps no time zone: what is written is UTC, so what is read is UTC too."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        stored: datetime = value
        return stored.replace(tzinfo=UTC) if stored.tzinfo is None else stored.astimezone(UTC)


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""64 bits on both; SQLite numbers rows by itself only for a plain INTEGER key."""

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("revision", _BIG, nullable=False),
    sa.Column("written_by", sa.Text, nullable=False),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("hardware", sa.Text, nullable=False),
    sa.Column("usd_per_device_h", sa.Double, nullable=False),
    sa.Column("max_nodes", sa.Integer, nullable=False, server_default="0"),
)

sharing = sa.Table(
    "sharing",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("policy", sa.JSON, nullable=False),
    sa.Column("tenants", sa.JSON, nullable=False),
)
"""One row at most: how the cluster is shared, and by whom."""

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("pool", sa.Text, sa.ForeignKey("pools.name"), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("device_kind", sa.Text, nullable=False),
    sa.Column("num_devices", sa.Integer, nullable=False),
    sa.Column("cores", sa.JSON, nullable=False),
    sa.Column("gpu_uuids", sa.JSON, nullable=False),
    sa.Column("host_memory_bytes", _BIG, nullable=False),
    sa.Column("reserved_memory_bytes", _BIG, nullable=False),
    sa.Column("drained", sa.Text, nullable=False),
)

links = sa.Table(
    "links",
    metadata,
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("rate_bps", sa.Double, nullable=False),
)

profiles = sa.Table(
    "profiles",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("spec_hash", sa.Text, nullable=False, index=True),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("rollout_hardware", sa.Text, nullable=False),
    sa.Column("train_hardware", sa.Text, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
)

groups = sa.Table(
    "groups",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("desired", sa.Text, nullable=False),
    sa.Column("rotation_version", sa.Integer, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("turns", sa.JSON, nullable=False, server_default="[]"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, index=True),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("spec_hash", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("reason_code", sa.Text, nullable=False),
    sa.Column("reason_message", sa.Text, nullable=False),
    sa.Column("group_id", sa.Text, index=True),
    sa.Column("profile_id", sa.Text, sa.ForeignKey("profiles.id")),
    sa.Column("iteration", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("desired", sa.Text, nullable=False),
    sa.Column("phase", sa.Text),
    sa.Column("phase_state", sa.Text, nullable=False),
    sa.Column("reward_first", sa.Double),
    sa.Column("reward_last", sa.Double),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("run_dir", sa.Text, nullable=False),
    sa.Column("started_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
)

members = sa.Table(
    "members",
    metadata,
    sa.Column("position", _BIG, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), nullable=False, unique=True),
    sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id"), nullable=False, index=True),
    sa.Column("rollout", sa.JSON, nullable=False),
    sa.Column("train", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)
"""`position` is the order of joining, which is the order of the rotation."""

group_nodes = sa.Table(
    "group_nodes",
    metadata,
    sa.Column("node_id", sa.Text, sa.ForeignKey("nodes.id"), primary_key=True),
    sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id"), nullable=False, index=True),
    sa.Column("position", sa.Integer, nullable=False),
)
"""A node is its own key here: no two groups can hold it, whatever a program does."""

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("epoch", _BIG, nullable=False),
    sa.Column("expires_s", sa.Double, nullable=False),
    sa.Column("boot_id", sa.Text, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", _BIG, primary_key=True, autoincrement=True),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("source_n", _BIG, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("at_s", sa.Double, nullable=False),
    sa.Column("group_id", sa.Text),
    sa.Column("job_id", sa.Text),
    sa.Column("iteration", sa.Integer),
    sa.Column("phase", sa.Text),
    sa.Column("node", sa.Text),
    sa.Column("device", sa.Text),
    sa.Column("data", sa.JSON, nullable=False),
    sa.UniqueConstraint("source", "source_n"),
    sa.Index(None, "group_id", "seq"),
    sa.Index(None, "job_id", "seq"),
    sqlite_autoincrement=True,
)
