"""Traces are read as they are meant, and whatever is wrong is told with file, row and key."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmux.errors import NotFoundError, RmuxError, UserError
from rmux.place.sim.trace import load, read

DATA = Path(__file__).parents[3] / "data" / "traces"
HEAD = "job,arrival_s,duration_s,num_gpu\n"
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,"
    "iteration_time,resource_time_0,resource_time_1,resource_time_2,priority\n"
)
ROWS = "a,0,100,8\nb,50,200,1\nc,50,300,16\n"


def of(text, **options):
    content = text if isinstance(text, bytes) else text.encode()
    return read(io.BytesIO(content), name="t.csv", **options)


def refusal(text, **options):
    with pytest.raises(UserError) as raised:
        of(text, **options)
    return raised.value.message


def test_the_philly_window_is_what_the_readme_says():
    trace = load(DATA / "philly_300jobs.csv")
    assert len(trace) == 300
    assert trace.arrival_s[-1] / 3600 == pytest.approx(578.95, abs=0.01)
    assert trace["duration_s"].mean() / 3600 == pytest.approx(14.40, abs=0.01)
    assert trace["duration_s"].max() / 3600 == pytest.approx(84.4, abs=0.1)
    assert trace.notes == ()


def test_csv_and_json_lines_of_the_same_rows_are_the_same_trace():
    lines = [
        json.dumps({"job": job, "arrival_s": at, "duration_s": took, "num_gpu": gpus})
        for job, at, took, gpus in (("a", 0, 100, 8), ("b", 50, 200.0, "1"), ("c", 50, 300, 16))
    ]
    left, right = of(HEAD + ROWS), of("\n\n".join(lines))
    assert left.jobs == right.jobs == ["a", "b", "c"]
    assert list(right.lines) == [1, 3, 5]
    for key in ("arrival_s", "duration_s", "num_gpu", "slo"):
        np.testing.assert_array_equal(left[key], right[key])


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("job_id,submit_time,ddl,num_gpu,duration\nx,7,9,4,60\n", ""),
        ("Job ID,Submit-Time,num_gpus,run_time\nx,7,4,60\n", ""),
        ("id,arrival_ms,gpus,duration_min\nx,7000,4,1\n", ""),
        ("n,t0,g,len\nx,7,4,60000\n", "job=n,arrival_s=t0,duration_ms=len,num_gpu=g"),
        ("id,arrival_s,submit_time,gpus,duration_h\nx,7,99,4,0.01666666666666666666\n", ""),
        (
            MURI + "x,4,7000,5853661,dqn,128,60000,46122000,490,446,8,0,1\n",
            "",
        ),
    ],
    ids=["elasticflow", "spaces", "suffixes", "mapped", "own name wins", "muri"],
)
def test_headers_of_other_traces_are_understood(text, columns):
    trace = of(text, columns=columns)
    assert (trace.jobs, trace["arrival_s"][0]) == (["x"], 7)
    assert trace["duration_s"][0] == pytest.approx(60)
    assert trace["num_gpu"][0] == 4
    assert math.isnan(trace["iterations"][0])


def test_arrivals_may_be_dates():
    trace = of("job,submit_time,duration\na,2023-11-16 18:15:46,5\nb,2023-11-16T19:15:46Z,5\n")
    assert list(trace.arrival_s) == [0, 3600]


def test_a_job_may_bring_its_phases_and_its_length_in_iterations():
    trace = of(
        "job,arrival_s,iterations,rollout_s,train_s,sync_s,slo,tenant,priority\n"
        "a,0,10,4,5,1,1.5,blue,-2\n"
    )
    assert trace["duration_s"][0] == 100
    assert (trace["slo"][0], trace.tenants, trace["priority"][0]) == (1.5, ["blue"], -2)


def test_several_sources_are_merged_by_arrival_each_a_tenant():
    trace = load(DATA / "philly_two_clusters.csv")
    assert len(trace) == 80
    assert np.all(np.diff(trace.arrival_s) >= 0)
    assert trace.jobs[0] == "muri_trace4/0"
    assert set(trace.tenants) == {"muri_trace1", "muri_trace4"}
    only = load(DATA / "philly_two_clusters.csv", source="muri_trace4")
    assert (len(only), only.jobs[0], set(only.tenants)) == (40, "0", {"muri_trace4"})
    with pytest.raises(NotFoundError, match="no source 'muri'"):
        load(DATA / "philly_two_clusters.csv", source="muri")


def test_a_window_is_of_rows_or_of_time_after_the_first_arrival():
    text = HEAD + "".join(f"{n},{1000 + n * 3600},60,1\n" for n in range(10))
    assert of(text, window="2:5").jobs == ["2", "3", "4"]
    assert of(text, window="8:").jobs == ["8", "9"]
    assert of(text, window=":1").jobs == ["0"]
    assert of(text, window="2h:5h").jobs == ["2", "3", "4"]
    assert list(of(text, window="7200s:").arrival_s[:2]) == [0, 3600]


@pytest.mark.parametrize("window", ["5", "5:2", "1h:2", "a:b", "-1:3", "1h:1h", "20:30", ":0s"])
def test_a_window_that_is_none_or_empty_is_refused(window):
    assert "--window" in refusal(HEAD + ROWS, window=window)


def test_rows_out_of_order_are_refused_or_sorted_on_demand():
    text = HEAD + "a,10,1,1\nb,5,1,1\nc,7,1,1\n"
    assert refusal(text).startswith("t.csv:3: arrival_s: 5 s is before the 10 s of line 2")
    trace = of(text, sort=True)
    assert trace.jobs == ["b", "c", "a"]
    assert list(trace.lines) == [3, 4, 2]
    assert "sorted" in trace.notes[0]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("x,-5,10,1", "t.csv:5: arrival_s: '-5' is less than 0"),
        ("x,,10,1", "t.csv:5: arrival_s: missing"),
        ("x,nan,10,1", "t.csv:5: arrival_s: 'nan' is not a finite number"),
        ("x,soon,10,1", "t.csv:5: arrival_s: 'soon' is not a number"),
        ("x,60,-1,1", "t.csv:5: duration_s: '-1' is less than 0.001"),
        ("x,60,0,1", "t.csv:5: duration_s: '0' is less than 0.001"),
        ("x,60,,1", "t.csv:5: duration_s: missing"),
        ("x,60,inf,1", "t.csv:5: duration_s: 'inf' is not a finite number"),
        ("x,60,1e300,1", "t.csv:5: duration_s: '1e300' is more than 3.1536e+08"),
        ("x,60,10,0", "t.csv:5: num_gpu: '0' is less than 1"),
        ("x,60,10,1.5", "t.csv:5: num_gpu: '1.5' is not a whole number"),
        (",60,10,1", "t.csv:5: job: missing"),
        ("b,60,10,1", "t.csv:5: job: 'b' is already the job of line 3"),
        ("x,60,10", "t.csv:5: 3 fields where the header has 4"),
        ("x,60,10,1,2", "t.csv:5: 5 fields where the header has 4"),
        ("x\x07,60,10,1", "t.csv:5: job: 'x\\x07' cannot be a name"),
        ('"x,60,10,1', "t.csv:5: not CSV: unexpected end of data"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_its_key(row, told):
    assert refusal(HEAD + ROWS + row + "\n") == told


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ('{"job": "x", "arrival_s": 60}', "t.csv:4: no column for duration_s"),
        ('{"job": "x", "arrival_s": true, "duration_s": 1}', "t.csv:4: arrival_s: 'True' is not"),
        ('{"job": "x", "arrival_s": [1], "duration_s": 1}', "t.csv:4: arrival_s: '[1]' is not"),
        ('{"job": {}, "arrival_s": 60, "duration_s": 1}', "t.csv:4: job: '{}' is not a name"),
        ('{"job": "x", "arrival_s": 60, "duration_s": NaN}', "t.csv:4: duration_s: 'nan' is not"),
        ('{"job": "x", "arrival_s": 60, "duration_s": 1', "t.csv:4: not JSON"),
        ("[1, 2]", "t.csv:4: not a JSON object"),
        ("[" * 100_000, "t.csv:4: not JSON"),
        (f'{{"job": "x", "arrival_s": 1{"0" * 5000}, "duration_s": 1}}', "t.csv:4: "),
    ],
)
def test_a_json_line_that_cannot_be_used_is_named_with_its_key(row, told):
    good = [json.dumps({"job": n, "arrival_s": n, "duration_s": 9}) for n in range(3)]
    assert refusal("\n".join([*good, row])).startswith(told)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("0.5,,", "slo: '0.5' is less than 1"),
        ("1.5,-1,5", "rollout_s: '-1' is less than 0.001"),
        ("1.5,0,5", "rollout_s: '0' is less than 0.001"),
        ("1.5,5,", "train_s: missing, though there is rollout_s"),
    ],
)
def test_bad_slos_and_phase_times_are_refused(row, told):
    head = "job,arrival_s,duration_s,slo,rollout_s,train_s\n"
    assert refusal(f"{head}x,0,10,{row}\n") == f"t.csv:2: {told}"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "t.csv: empty; not even a header"),
        (b"\n\n", "t.csv: empty; not even a header"),
        (HEAD.encode(), "t.csv: no rows"),
        ((HEAD + ROWS).encode("utf-16"), "t.csv: not UTF-8 text"),
        ((HEAD + ROWS).encode("utf-16-le"), "t.csv: not UTF-8 text"),
        ((HEAD + ROWS).encode() + b"caf\xe9,60,10,1\n", "t.csv:5: not UTF-8: byte 0xe9 at 4"),
        (b"\x1f\x8b\x08\x00\x00", "t.csv: not UTF-8 text"),
        (b"a,b\n1,2\n", "t.csv:1: no column for arrival_s and duration_s; there is 'a', 'b'"),
        (b"job,job,arrival_s,duration_s\n", "t.csv:1: two columns 'job'"),
        (b"job,arrival_s\nx,1\n", "t.csv:1: no column for duration_s"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(content, told):
    assert refusal(content).startswith(told)


def test_a_byte_order_mark_is_no_part_of_the_first_header():
    assert of(b"\xef\xbb\xbf" + (HEAD + ROWS).encode()).jobs == ["a", "b", "c"]
    assert of(b'\xef\xbb\xbf{"job": 1, "arrival_s": 0, "duration_s": 1}').jobs == ["1"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("arrival=submit", "--columns: 'arrival=submit' does not name a column"),
        ("arrival_s", "--columns: 'arrival_s' does not name a column"),
        ("slo_ms=a", "--columns: 'slo_ms=a' does not name a column"),
        ("arrival_s=a,arrival_ms=b", "--columns: arrival_s is given twice"),
        ("arrival_s=nowhere", "t.csv:1: arrival_s: no column 'nowhere'"),
    ],
)
def test_a_mapping_that_leads_nowhere_is_refused(columns, told):
    assert refusal(HEAD + ROWS, columns=columns).startswith(told)


def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            load(path)


def test_a_row_far_down_is_named_by_its_own_line():
    rows = [f"j{n},{n},1,1\n" for n in range(10_000)]
    rows[9_000] = "j9000,9000,oops,1\n"
    assert refusal(HEAD + "\n" + "".join(rows)) == "t.csv:9003: duration_s: 'oops' is not a number"


def test_two_hundred_thousand_rows_are_read():
    text = HEAD + "".join(f"{n},{n},3600,8\n" for n in range(200_000))
    trace = of(text)
    assert len(trace) == 200_000


_WORDS = st.sampled_from(
    ["job", "arrival_s", "duration_ms", "num_gpu", "slo", "rollout_s", "train_s", "source", "-1"]
)
_CELLS = st.one_of(
    _WORDS,
    st.integers(-5, 10**6).map(str),
    st.floats().map(str),
    st.text(max_size=8),
    st.sampled_from(["", '"', "\n", "nan", "1e308", "2026-01-01"]),
)


@given(st.lists(st.lists(_CELLS, min_size=1, max_size=5).map(",".join), max_size=8))
@example(["job,arrival_s,duration_h", "a,1e308,1e308"])
def test_whatever_csv_holds_it_is_a_sound_trace_or_a_clear_error(lines):
    check_sound("\n".join(lines).encode(errors="surrogatepass"))


@given(st.binary(max_size=200))
def test_whatever_bytes_come_they_are_a_sound_trace_or_a_clear_error(content):
    check_sound(content)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(st.lists(st.dictionaries(_WORDS, _VALUES, max_size=6).map(json.dumps), max_size=6))
def test_whatever_json_holds_it_is_a_sound_trace_or_a_clear_error(lines):
    check_sound("\n".join(lines).encode())


def check_sound(content):
    try:
        trace = of(content)
    except RmuxError as error:
        told = error.message
    else:
        told = "t.csv"
        assert len(trace) > 0
        assert np.all(np.diff(trace.arrival_s) >= 0)
        assert np.all(trace["duration_s"] > 0)
        assert np.all(np.isfinite(trace["arrival_s"]))
        assert len(set(trace.jobs)) == len(trace)
    assert told.startswith("t.csv")
