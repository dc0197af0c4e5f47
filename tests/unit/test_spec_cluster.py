import pytest

from rmux import spec
from rmux.cluster import PoolKind
from rmux.errors import SpecError

POOLS = """\
[pools.rollout]
kind = "rollout"
hardware = "cpu"
usd_per_device_h = 1.85
nodes = [{name = "r0", cores = [0], host_memory = "8GiB"}]
[pools.train]
kind = "train"
hardware = "H800"
usd_per_device_h = 5
[[pools.train.nodes]]
name = "h800-0[1-3]"
host = "box-0[1-3]"
devices = 8
host_memory = "1TiB"
reserved_memory = "64GiB"
[[links]]
from = "train"
to = "rollout"
rate = "10Gbps"
"""


@pytest.fixture
def load(tmp_path):
    def read(text):
        path = tmp_path / "pools.toml"
        path.write_text(text)
        return spec.load_cluster(path, host="here")

    return read


def one_node(fields):
    return (
        '[pools.p]\nkind = "rollout"\nhardware = "cpu"\nusd_per_device_h = 1\n'
        f'nodes = [{{name = "n", host_memory = "1GiB", {fields}}}]\n'
    )


def test_a_cluster_file_is_read_with_units_hosts_and_ranges(load):
    cluster = load(POOLS)
    rollout, train = cluster.pools
    assert rollout.kind is PoolKind.ROLLOUT
    assert (rollout.nodes[0].host, rollout.nodes[0].cores) == ("here", ((0,),))
    assert [node.id for node in train.nodes] == ["h800-01", "h800-02", "h800-03"]
    assert [node.host for node in train.nodes] == ["box-01", "box-02", "box-03"]
    assert train.nodes[0].device_kind == "H800"
    assert train.nodes[0].num_devices == 8
    assert train.nodes[0].usable_memory_bytes == 2**40 - 2**36
    assert cluster.links[0].rate_bps == 10e9


def test_a_range_keeps_its_width_and_may_stand_anywhere(load):
    pool = load(one_node("devices = 1").replace('"n"', '"a[8-10]-b[1-2]"')).pools[0]
    assert [node.id for node in pool.nodes][:3] == ["a8-b1", "a8-b2", "a9-b1"]
    assert len(pool.nodes) == 6
    pool = load(one_node("devices = 1").replace('"n"', '"a[08-10]"')).pools[0]
    assert [node.id for node in pool.nodes] == ["a08", "a09", "a10"]


@pytest.mark.parametrize(
    ("fields", "cores"),
    [
        ("cores = [0, 1]", ((0,), (1,))),
        ("cores = [0, 1], devices = 1", ((0, 1),)),
        ("cores = [[0, 2], [1]]", ((0, 2), (1,))),
        ("cores = [0, 1], devices = 3, oversubscribe = true", ((0,), (1,), (0,))),
        ("cores = [[0], [0]], oversubscribe = true", ((0,), (0,))),
        ("devices = 4", ()),
    ],
)
def test_cores_are_dealt_to_devices(load, fields, cores):
    node = load(one_node(fields)).pools[0].nodes[0]
    assert node.cores == cores
    assert node.num_devices == (len(cores) or 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("cores = [0], devices = 2", "2 devices on 1 cores; write oversubscribe = true"),
        ("cores = [[0], [0]]", "devices share a core; write oversubscribe = true"),
        ("cores = [0, 1, 2], devices = 2", "3 cores cannot be shared evenly by 2 devices"),
        ("cores = [[0]], devices = 2", "cores has 1 sets for 2 devices"),
        ("cores = []", "cores is empty"),
        ("cores = [-1]", "numbered from 0"),
        ('cores = ["x"]', "must be a whole number"),
        ("oversubscribe = true", "names no devices, cores or gpu_uuids"),
        ('gpu_uuids = ["a"], devices = 2', "1 gpu_uuids for 2 devices"),
        ('devices = 1, reserved_memory = "1GiB"', "leaves nothing of host_memory"),
        ('devices = 1, host = "a[1-2]"', "names 2 hosts for 1 nodes"),
        ("devices = 0", "must be at least 1"),
        ("devices = 65537", "devices is 65537; it must be at most 65536"),
        ("cores = [65536]", "numbered from 0 to 65535"),
        ("gpu_uuidz = []", "nodes[0].gpu_uuidz is not a key (did you mean gpu_uuids?)"),
    ],
)
def test_a_node_that_cannot_be_is_refused_with_its_line(load, fields, message):
    with pytest.raises(SpecError) as caught:
        load(one_node(fields))
    assert message in caught.value.message
    assert "pools.toml:5: " in caught.value.message


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('to = "rollout"', 'to = "rollot"', "no pool 'rollot' in this file (did you mean rollout?"),
        ('to = "rollout"', 'to = "train"', "goes from 'train' to itself"),
        ('"h800-0[1-3]"', '"h800-0[3-1]"', "[3-1] is not a range"),
        ('name = "r0"', 'name = "h800-02"', "'h800-02' is in pool 'rollout' already"),
        ('kind = "train"', 'kind = "trian"', "write 'rollout' or 'train'"),
        ("_h = 5", "_h = 1000001", "usd_per_device_h is 1000001; it must be at most 1000000"),
        ("_h = 5", "_h = inf", "usd_per_device_h must be finite"),
        ("8GiB", "9" * 400 + "GiB", "is too large a size; at most 4194304TiB"),
        ('rate = "10Gbps"', f'rate = "{"9" * 400}Gbps"', "is too large a rate"),
        ('rate = "10Gbps"', "rate = 10", "write a number and a unit"),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(load, before, after, message):
    with pytest.raises(SpecError) as caught:
        load(POOLS.replace(before, after))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('hardware = "H800"', 'hardwear = "H800"', ":8: pools.train.hardwear is not a key (did "),
        ("[pools.", "[pool.", ":1: pool is not a key (did you mean pools?)"),
        ("[[links]]", "[[link]]", ":16: link is not a key (did you mean links?)"),
    ],
)
def test_a_misspelt_key_is_told_before_what_is_missing_for_it(load, before, after, message):
    text = POOLS.replace(before, after).replace("[[pool.train", "[[pools.train")
    with pytest.raises(SpecError) as caught:
        load(text)
    assert f"pools.toml{message}" in caught.value.message


def test_a_file_without_pools_is_refused(load):
    with pytest.raises(SpecError, match="pools is missing"):
        load("")
