import json
import stat
from dataclasses import replace

import pytest

from rmux.errors import UserError
from rmux.job import Engine
from rmux.run.driver.config_file import read_config, write_config


@pytest.fixture
def config(make_config):
    config = make_config(recipe=None, script="/a/job.py", labels=(("team", "x"),))
    nodes = tuple(replace(node, cores=((0, 1), (2,))) for node in config.nodes)
    return replace(config, nodes=nodes)


def test_a_driver_reads_the_configuration_its_runner_wrote(tmp_path, config):
    path = tmp_path / "driver.json"
    write_config(path, config)
    assert read_config(path) == config
    assert read_config(path).spec.engine is Engine.EMULATED
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"job_id": "j-1"}'])
def test_anything_else_is_refused(tmp_path, text):
    path = tmp_path / "driver.json"
    path.write_text(text)
    with pytest.raises(UserError, match="is no driver configuration"):
        read_config(path)


def test_a_value_of_no_such_kind_is_refused(tmp_path, config):
    path = tmp_path / "driver.json"
    write_config(path, config)
    document = json.loads(path.read_text())
    document["spec"]["engine"] = "imagined"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match="imagined"):
        read_config(path)
