from __future__ import annotations

from pathlib import Path

import pytest

from rmux.errors import UserError
from rmux.store.disk import check_local, make_private_file, mount_of

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:40 / /home rw - nfs4 server:/home rw
32 31 0:41 / /home/ling/scratch rw - xfs /dev/vdb rw
33 22 0:42 / /mnt/with\040space rw master:3 - cifs //server/share rw
34 22 0:43 / /data rw - fuse.sshfs user@host:/data rw
35 22 0:44 / /local rw - fuse.mergerfs a:b rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ling/rmux.db", "nfs4"),
        ("/mnt/with space/rmux.db", "cifs"),
        ("/data/deep/er/rmux.db", "fuse.sshfs"),
    ],
)
def test_a_network_file_system_is_refused_by_name(path, kind):
    with pytest.raises(UserError) as caught:
        check_local(Path(path), mounts=MOUNTS)
    assert caught.value.code == "store.network-fs"
    assert kind in caught.value.message


@pytest.mark.parametrize(
    "path",
    ["/var/lib/rmux/rmux.db", "/home/ling/scratch/rmux.db", "/homes/rmux.db", "/local/rmux.db"],
)
def test_a_local_file_system_will_do(path):
    check_local(Path(path), mounts=MOUNTS)


def test_the_deepest_mount_counts():
    assert mount_of(Path("/home/ling/scratch/a"), MOUNTS) == ("/home/ling/scratch", "xfs")


def test_missing_folders_become_private_and_others_keep_their_mode(tmp_path):
    tmp_path.chmod(0o755)
    path = tmp_path / "a" / "b" / "rmux.db"
    make_private_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_path_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*: (Not a directory|File exists)"):
        make_private_file(tmp_path / "file" / "rmux.db")
