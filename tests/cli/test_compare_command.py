"""Runs made at different times: compared when they asked the same, refused when not (E10)."""

import json

import pytest

PLAN = """
name = "{name}"
repeats = 1
[[arms]]
name = "{name}"
url = "{url}"
[[scenarios]]
name = "en_chat"
num_requests = 4
max_tokens = 24
temperature = {temperature}
"""


@pytest.fixture
def measured(sakiyomi, fake_engine, tmp_path):
    """Measure a run of this name."""

    def measure(name, temperature, *options):
        url = fake_engine("--dialect", "vllm", "--step", "0.01", "--ttft", "0.01", *options)
        plan = tmp_path / f"{name}.toml"
        plan.write_text(PLAN.format(name=name, url=url, temperature=temperature))
        done = sakiyomi("run", str(plan))
        assert done.returncode == 0, done.stderr

    return measure


def test_two_runs_that_asked_the_same(sakiyomi, measured):
    measured("plain", 0)
    measured("mtp", 0, "--k", "3", "--script", "3")
    report = json.loads(sakiyomi("compare", "plain", "mtp", "--json").stdout)
    (comparison,) = report["comparisons"]
    assert report["baseline"].endswith("/plain")
    assert comparison["arm"].endswith("/mtp")
    assert comparison["ratio"]["point"] == pytest.approx(4, rel=0.25)
    assert comparison["verdict"] == "faster"


def test_e10_another_temperature_is_another_question(sakiyomi, measured):
    measured("greedy", 0)
    measured("sampled", 0.7)
    refused = sakiyomi("compare", "greedy", "sampled")
    assert refused.returncode == 2
    assert "scenarios.en_chat.sampling" in refused.stderr
    assert refused.stdout == ""
    forced = sakiyomi("compare", "greedy", "sampled", "--force", "--json")
    kinds = {caution["kind"] for caution in json.loads(forced.stdout)["cautions"]}
    assert "compared_by_force" in kinds
