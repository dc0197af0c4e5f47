import re
import time

from rmux import ids


def test_a_fresh_id_has_its_kind_and_thirteen_characters():
    assert re.fullmatch(r"j-[0-9a-hjkmnp-tv-z]{13}", ids.fresh_id("j"))


def test_ids_sort_by_the_time_they_were_made():
    first = ids.fresh_id("j")
    time.sleep(0.002)
    assert first < ids.fresh_id("j")


def test_ids_of_one_moment_differ():
    assert len({ids.fresh_id("j") for _ in range(50)}) > 45


def test_numbered_ids_count_each_kind_by_itself():
    make = ids.numbered_ids()
    assert [make("j"), make("g"), make("j")] == ["j-0001", "g-0001", "j-0002"]
