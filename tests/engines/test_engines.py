"""What all engines owe."""

from pathlib import Path

import pytest

from sakiyomi.engines import ALIASES, ENGINES, find_engine, recognise
from sakiyomi.engines.engine import CONFIG_FILE
from sakiyomi.errors import MetricsError, PlanError
from sakiyomi.plan import Arm, Speculation

SPECULATING = Arm(
    name="spec",
    engine="x",
    model="some/model",
    args=("--flag", "1"),
    speculation=Speculation(method="mtp", num_speculative_tokens=3, draft_model="some/draft"),
)


@pytest.mark.parametrize("name", ENGINES)
def test_is_found_by_its_own_name(name):
    assert find_engine(name).name == name
    assert find_engine(name.upper()) is ENGINES[name]


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_is_found_by_other_spellings(alias, name):
    if name in ENGINES:
        assert find_engine(alias).name == name


def test_an_unknown_name_is_refused_with_near_ones():
    with pytest.raises(PlanError) as caught:
        find_engine("vlm")
    assert "did you mean vllm" in caught.value.hint
    assert "llama.cpp" in caught.value.hint
    with pytest.raises(PlanError) as caught:
        find_engine("zzzzzzzz")
    assert "did you mean" not in caught.value.hint


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_a_launched_arm_carries_its_port_and_its_own_arguments(engine):
    if engine.command is None:
        return
    argv = engine.command(SPECULATING, 8123)
    assert all(isinstance(part, str) for part in argv)
    env = engine.launch_env(SPECULATING, 8123) if engine.launch_env else {}
    assert "8123" in " ".join([*argv, *env.values()])
    assert argv[-2:] == ["--flag", "1"]
    plain_arm = Arm(name="plain", engine="x", model="some/model")
    plain = engine.command(plain_arm, 8123)
    text = engine.config_file(SPECULATING) if engine.config_file else None
    if engine.name != "ollama":
        assert plain != argv[:-2] or text != engine.config_file(plain_arm)
    assert (CONFIG_FILE in argv) == (text is not None)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    "text",
    ["", "<html><body>404 page not found</body></html>", '{"detail": "Not Found"}', "\x1f\x8b\x08"],
)
def test_a_body_that_is_no_metrics_page_is_refused(engine, text):
    if not engine.metrics_paths:
        return
    with pytest.raises(MetricsError) as caught:
        engine.read_metrics(text, None)
    assert "empty" in caught.value.message or repr(text[:60]) in caught.value.message


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_a_page_of_something_else_has_no_speculation(engine):
    if not engine.metrics_paths:
        return
    metrics = engine.read_metrics("python_info 1\nprocess_start_time_seconds 5.0e+00", None)
    assert all(one.speculation is None for one in metrics.series.values())
    assert metrics.gauge is None
    assert metrics.num_requests_running is None
    assert metrics.process_start_s in (5.0, None)


@pytest.mark.parametrize(
    ("pages", "name"),
    [
        ({"/metrics": "vllm:num_requests_running 0"}, "vllm"),
        ({"/v1/models": '{"data":[{"id":"m","owned_by":"vllm"}]}'}, "vllm"),
        ({"/metrics": '"# HELP x\\nllamacpp:requests_processing 0"'}, "llama.cpp"),
        ({"/props": '{"build_info": "b11549-abc"}'}, "llama.cpp"),
        ({"/v1/models": '{"data":[{"id":"m","owned_by":"me"}]}'}, "openai"),
        ({}, "openai"),
    ],
)
def test_a_server_is_recognised_by_its_pages(pages, name):
    assert recognise(pages) == name


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_says_what_it_can_tell(engine):
    assert engine.evidence
    assert engine.title
    if engine.command is not None:
        assert engine.program


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_information_pages_of_another_shape_are_survived(engine):
    for text in ("", "null", "[]", '"x"', "{}", "<html>", '{"data": 5}', '{"data": [1]}'):
        facts = engine.read_server(dict.fromkeys(engine.info_paths, text))
        assert facts.num_speculative_tokens is None
        assert facts.models == ()


DOCS = Path(__file__).parents[2] / "docs" / "engines"


@pytest.mark.parametrize("name", ENGINES)
def test_has_a_page_that_the_table_links(name):
    page = DOCS / f"{name}.md"
    assert f"({page.name})" in (DOCS / "README.md").read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    program = ENGINES[name].program.split(" (")[0]
    if program:
        assert program.split()[0] in text


def test_the_shared_defaults_of_quality_are_the_contracts_words():
    for engine in ENGINES.values():
        assert set(engine.qualities) == {"per_request", "counters", "events", "bursts", "gauge"}
        assert set(engine.qualities.values()) <= {"exact", "derived", "estimated"}
