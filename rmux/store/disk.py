"""Where a SQLite store may lie: on a local file system, private to its user."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rmux.errors import UserError

_NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "9p", "ceph", "lustre",
        "gpfs", "beegfs", "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs2", "davfs", "virtiofs",
    }
)  # fmt: skip
_NETWORK_FUSE = re.compile(
    r"fuse\.(sshfs|glusterfs|ceph.*|s3fs|gcsfuse|juicefs|rclone|davfs.*|curlftpfs|.*nfs.*)"
)


def check_local(path: Path, *, mounts: str | None = None) -> None:
    """UserError (`store.network-fs`) when the file would lie on a network file system.

    SQLite's locks and its shared memory do not work there: two hosts would write at once.
    `mounts` is the text of /proc/self/mountinfo.
    """
    if mounts is None:
        mounts = Path("/proc/self/mountinfo").read_text()
    folder = path.resolve().parent
    point, kind = mount_of(folder, mounts)
    if kind in _NETWORK or _NETWORK_FUSE.fullmatch(kind):
        raise UserError(
            f"{point} is {kind}; SQLite's locking is not safe there",
            code="store.network-fs",
            hint="use a local path such as /var/lib/rmux/rmux.db, or a postgresql+psycopg:// URL",
            details={"path": str(path), "mount": point, "file_system": kind},
        )


def mount_of(folder: Path, mounts: str) -> tuple[str, str]:
    """(mount point, file system) of a folder; later mounts hide earlier ones."""
    found = ("/", "")
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = _unescape(fields[4])
        if folder.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, right.split()[0])
    return found


def make_private_file(path: Path) -> None:
    """An empty 0600 file, missing folders made 0700; what exists is left as it is."""
    try:
        _make_private_folder(path.absolute().parent)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}",
            code="store.path",
            hint="name another with --store or RMUX_STORE",
        ) from error


def _make_private_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
