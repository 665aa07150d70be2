"""Base URLs in every form people paste (faults F65, F12, F46)."""

import pytest

from sakiyomi.errors import PlanError
from sakiyomi.urls import api_root, api_url, page_candidates, same_host, split_url


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        (" http://h:8000/v1// ", "http://h:8000"),
        ("http://h:8000//v1", "http://h:8000"),
        ("http://h/openai/v1", "http://h/openai"),
        ("http://h:8000/v1/chat/completions", "http://h:8000"),
        ("http://h:8000/v1/completions/", "http://h:8000"),
        ("http://h:8000/v1/models?x=1", "http://h:8000"),
        ("http://h:8000/v10", "http://h:8000/v10"),
        ("http://h:8000/av1", "http://h:8000/av1"),
        ("https://[::1]:8000/v1", "https://[::1]:8000"),
        ("http://v1", "http://v1"),
    ],
)
def test_one_root_for_every_form(given, root):
    assert api_root(given) == root
    assert api_url(given, "/v1/chat/completions") == root + "/v1/chat/completions"
    assert api_url(given, "/metrics") == root + "/metrics"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("::1:8000", "http://[::1]:8000"),
        ("http://::1:8000", "http://[::1]:8000"),
        ("http://fe80::1:2:8000/v1", "http://[fe80::1:2]:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("::1", "http://[::1]:PORT"),
        ("", "http://HOST:PORT"),
        ("what is this", "http://HOST:PORT"),
        ("ftp://h", "http://"),
        ("http://", "http://HOST:PORT"),
        ("http://h:port", "http://HOST:PORT"),
        ("http://[::1", "http://HOST:PORT"),
        ("http://user:pass@h:8000", "--api-key-env"),
    ],
)
def test_what_is_no_url_is_refused_with_the_form_that_works(given, hint):
    with pytest.raises(PlanError) as caught:
        api_root(given)
    assert hint in caught.value.hint
    assert caught.value.exit_status == 2


def test_addresses():
    assert split_url("http://[::1]:8000/v1/models?a=ä") == (
        "http",
        "::1",
        8000,
        "/v1/models?a=%C3%A4",
    )
    assert split_url("http://[::1]:8000").authority == "[::1]:8000"
    assert split_url("https://h").authority == "h"
    assert split_url("https://h").port == 443
    assert split_url("http://h:81").authority == "h:81"
    assert split_url("http://日本.example/").host == "xn--wgv71a.example"


def test_pages_are_sought_below_the_api_and_below_the_host():
    assert page_candidates("http://h/proxy/v1", ("/metrics", "/prometheus/metrics")) == (
        "http://h/proxy/metrics",
        "http://h/proxy/prometheus/metrics",
        "http://h/metrics",
        "http://h/prometheus/metrics",
    )
    assert page_candidates("http://h:8000/v1", ("/metrics",)) == ("http://h:8000/metrics",)


def test_a_secret_stays_on_its_host():
    assert same_host("http://h:9000/metrics", "http://h:8000")
    assert not same_host("http://other/metrics", "http://h")
    assert not same_host("http://h/metrics", "https://h")
    assert same_host("https://h/metrics", "http://h")
