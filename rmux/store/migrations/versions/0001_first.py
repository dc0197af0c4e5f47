"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _hardware()
    _jobs()
    _groups()
    _journal()


def _hardware() -> None:
    op.create_table(
        "meta",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("revision", _BIG, nullable=False),
        sa.Column("written_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_meta")),
    )
    op.create_table(
        "pools",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("usd_per_device_h", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pools")),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("num_devices", sa.Integer(), nullable=False),
        sa.Column("cores", sa.JSON(), nullable=False),
        sa.Column("gpu_uuids", sa.JSON(), nullable=False),
        sa.Column("host_memory_bytes", _BIG, nullable=False),
        sa.Column("reserved_memory_bytes", _BIG, nullable=False),
        sa.Column("drained", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["pool"], ["pools.name"], name=op.f("fk_nodes_pool")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "links",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("rate_bps", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("source", "target", name=op.f("pk_links")),
    )


def _jobs() -> None:
    op.create_table(
        "profiles",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("spec_hash", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("rollout_hardware", sa.Text(), nullable=False),
        sa.Column("train_hardware", sa.Text(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
    )
    op.create_index(op.f("ix_profiles_spec_hash"), "profiles", ["spec_hash"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("spec_hash", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("reason_code", sa.Text(), nullable=False),
        sa.Column("reason_message", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text()),
        sa.Column("profile_id", sa.Text()),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("desired", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text()),
        sa.Column("phase_state", sa.Text(), nullable=False),
        sa.Column("reward_first", sa.Double()),
        sa.Column("reward_last", sa.Double()),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("run_dir", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["profile_id"], ["profiles.id"], name=op.f("fk_jobs_profile_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_group_id"), "jobs", ["group_id"], unique=False)
    op.create_index(op.f("ix_jobs_name"), "jobs", ["name"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)


def _groups() -> None:
    op.create_table(
        "groups",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("desired", sa.Text(), nullable=False),
        sa.Column("rotation_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
    )
    op.create_table(
        "members",
        sa.Column("position", _BIG, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("rollout", sa.JSON(), nullable=False),
        sa.Column("train", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_members_group_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_members_job_id")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_members")),
        sa.UniqueConstraint("job_id", name=op.f("uq_members_job_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_members_group_id"), "members", ["group_id"], unique=False)
    op.create_table(
        "group_nodes",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_group_nodes_group_id")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_group_nodes_node_id")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_group_nodes")),
    )
    op.create_index(op.f("ix_group_nodes_group_id"), "group_nodes", ["group_id"], unique=False)


def _journal() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("epoch", _BIG, nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "events",
        sa.Column("seq", _BIG, autoincrement=True, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_n", _BIG, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("group_id", sa.Text()),
        sa.Column("job_id", sa.Text()),
        sa.Column("iteration", sa.Integer()),
        sa.Column("phase", sa.Text()),
        sa.Column("node", sa.Text()),
        sa.Column("device", sa.Text()),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
        sa.UniqueConstraint("source", "source_n", name=op.f("uq_events_source_source_n")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_group_id_seq"), "events", ["group_id", "seq"], unique=False)
    op.create_index(op.f("ix_events_job_id_seq"), "events", ["job_id", "seq"], unique=False)
