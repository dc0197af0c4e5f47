"""Tenants and policy of the cluster, pools that grow, the order of a group's round."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "sharing",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("tenants", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sharing")),
    )
    op.add_column("pools", sa.Column("max_nodes", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("groups", sa.Column("turns", sa.JSON(), nullable=False, server_default="[]"))
