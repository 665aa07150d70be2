"""Pages that lie: what is fine on them stays readable, everything else is refused with its start."""

import gzip

import pytest

from sakiyomi.engines.prometheus import by_position, of_model, read_page, series_keys
from sakiyomi.errors import MetricsError

PAGE = """# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 6.491797e+06
llamacpp:n_busy_slots_per_decode -nan
"""


def assert_readable(text):
    page = read_page(text)
    assert page.total("llamacpp:requests_processing") == 1
    assert page.total("llamacpp:tokens_predicted_total") == 6491797.0
    return page


def test_values_with_exponents_and_nan():
    page = assert_readable(PAGE)
    assert page.total("llamacpp:n_busy_slots_per_decode") is None
    assert page.notes == ("1 samples without a finite value left out",)


def test_a_page_as_one_json_string_is_unquoted_once_with_a_note():
    # F47a, llama.cpp b7010 - b7100
    quoted = '"' + PAGE.replace("\n", "\\n") + '"'
    page = assert_readable(quoted)
    assert any("JSON string" in note for note in page.notes)
    with pytest.raises(MetricsError):
        read_page('"' + PAGE[:40])
    with pytest.raises(MetricsError):
        read_page('""')


@pytest.mark.parametrize("mark", ["\ufeff", "\xef\xbb\xbf"])
def test_a_byte_order_mark_is_stripped(mark):
    # F47b: decoded as UTF-8, or taken as Latin-1
    assert_readable(mark + PAGE)


def test_line_ends():
    # F47 g, h
    assert_readable(PAGE.rstrip("\n"))
    assert_readable(PAGE.replace("\n", "\r\n"))


def test_one_unreadable_line_does_not_cost_the_page():
    # llama.cpp on Windows prints -nan(ind)
    page = assert_readable(PAGE.replace("-nan", "-nan(ind)"))
    assert page.notes == (
        "1 unreadable lines skipped, the first: 'llamacpp:n_busy_slots_per_decode -nan(ind)'",
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"error": {"code": 501, "message": "This server does not support metrics endpoint."}}',
        "<!DOCTYPE html><html><head><title>Sign in to continue to your workspace</title></head>",
        '[{"iter": 1, "inflightBatchingStats": {"numGenRequests": 1}}]',
        "Not Found",
        gzip.compress(PAGE.encode()).decode("utf-8", "replace"),
    ],
)
def test_what_is_no_page_is_refused_with_its_first_characters(text):
    # F47 d, e, f
    with pytest.raises(MetricsError) as caught:
        read_page(text)
    assert repr(text[:60]) in caught.value.message
    assert caught.value.hint
    if text.startswith("\x1f"):
        assert "compressed" in caught.value.hint


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_page_is_refused(text):
    with pytest.raises(MetricsError, match="empty"):
        read_page(text)


def test_tensor_parallel_ranks_count_once_and_data_parallel_ranks_add_up():
    # F43
    lines = [
        f'x:tokens_total{{dp_rank="{dp}",tp_rank="{tp}"}} {100 * (dp + 1)}'
        for dp in range(2)
        for tp in (3, 0, 1, 2)
    ]
    page = read_page("\n".join(lines))
    assert page.total("x:tokens_total") == 300
    assert {
        k: len(v) for k, v in series_keys(page.select("x:tokens_total"), ("dp_rank",)).items()
    } == {
        "dp_rank=0": 1,
        "dp_rank=1": 1,
    }


def test_another_models_series_are_left_out_when_the_model_is_named():
    text = 'v:t_total{model_name="a"} 1\nv:t_total{model_name="b"} 2\nv:up 1\n'
    page = read_page(text)
    assert of_model(page, "a").total("v:t_total") == 1
    assert of_model(page, "a").total("v:up") == 1
    assert of_model(page, "missing").total("v:t_total") == 3
    assert of_model(page, None).total("v:t_total") == 3


def test_positions_are_ordered_by_number():
    text = "\n".join(f'p_total{{position="{i}"}} {20 - i}' for i in (10, 2, 0, 1))
    found = by_position(read_page(text).select("p_total"), "position")
    assert found[:3] == (20, 19, 18)
    assert found[3] == 0
    assert found[10] == 10
    assert by_position((), "position") is None


def test_an_exemplar_does_no_harm():
    page = read_page('a_total{x="1"} 5 # {trace_id="abc"} 0.5 1700000000\n')
    assert page.total("a_total") == 5
