"""What two arms differ in: every field that is told, and nothing that is not."""

import pytest

from sakiyomi.analyse import analyse
from sakiyomi.differences import difference_cautions, find_differences
from sakiyomi.plan import Arm, Plan, ScenarioRef, Speculation
from sakiyomi.record import RUN_FORMAT, ArmFacts, Environment, RunFacts, Snapshot


def facts(name="a", **fields):
    return ArmFacts(**{"name": name, "engine": "vllm", "url": "u", **fields})


def found(one, other, **more):
    return {d.field: (d.baseline, d.arm) for d in find_differences(one, other, **more)}


def test_speculation_alone_is_no_difference():
    plain = facts("plain", engine_version="0.33.0", settings={"system_fingerprint": "vllm-1"})
    mtp = facts(
        "mtp",
        engine_version="0.33.0",
        speculative_method="mtp",
        num_speculative_tokens=3,
        settings={"system_fingerprint": "vllm-2"},
    )
    plans = {
        "plain": Arm(name="plain", args=("--dtype", "auto")),
        "mtp": Arm(
            name="mtp",
            args=("--dtype=auto", "--per-request-spec-decode-metrics", "summary"),
            speculation=Speculation(method="mtp"),
        ),
    }
    assert find_differences(plain, mtp, plans) == []
    assert difference_cautions(plain, mtp, [], forced=False) == []


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_vllm_schedules_some_methods_synchronously(method):
    drafted = facts("b", speculative_method=method, num_speculative_tokens=4)
    assert found(facts(), drafted) == {"scheduling": ("asynchronous", "synchronous")}
    cpu = {"engine_version": "0.32.0+cpu"}
    assert found(facts(**cpu), facts("b", speculative_method=method, **cpu)) == {}


def test_the_engines_own_word_on_scheduling_wins():
    told = {"scheduler_config": {"async_scheduling": False}}
    mtp = facts("b", speculative_method="mtp", settings=told)
    assert found(facts(settings=told), mtp) == {}
    told = {"scheduler_config": {"async_scheduling": True}}
    assert found(facts(settings=told), mtp) == {"scheduling": ("asynchronous", "synchronous")}


def test_settings_by_their_path():
    one = facts(
        settings={
            "cache_config": {"cache_dtype": "auto", "enable_prefix_caching": True},
            "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"},
        }
    )
    other = facts(
        "b",
        settings={
            "cache_config": {"cache_dtype": "fp8", "enable_prefix_caching": False},
            "compilation_config": {"cudagraph_mode": "PIECEWISE"},
            "only_here": 1,
        },
    )
    assert found(one, other) == {
        "cache_config.cache_dtype": ("auto", "fp8"),
        "cache_config.enable_prefix_caching": (True, False),
        "compilation_config.cudagraph_mode": ("FULL_AND_PIECEWISE", "PIECEWISE"),
    }


def test_arguments_and_names_of_environment_variables():
    plans = {
        "a": Arm(name="a", args=("--kv-cache-dtype", "fp8", "--lora", "x", "y"), env={"KEY": "1"}),
        "b": Arm(name="b", args=("--enforce-eager", "--lora", "x", "z"), env={"KEY": "2"}),
    }
    assert found(facts(), facts("b"), plans=plans) == {
        "--kv-cache-dtype": ("fp8", None),
        "--enforce-eager": (None, "on"),
        "--lora": ("x y", "x z"),
        "env.KEY": ("set", "set"),
    }


def test_clocks_beyond_five_percent():
    clocks = {"a": 2000.0, "b": 1850.0}
    assert found(facts(), facts("b"), clocks_mhz=clocks) == {"gpu_clock_mhz": (2000.0, 1850.0)}
    assert found(facts(), facts("b"), clocks_mhz={"a": 2000.0, "b": 1950.0}) == {}
    assert found(facts(), facts("b"), clocks_mhz={"a": 2000.0}) == {}


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        ({"engine_version": "0.33.0"}, {"engine_version": "0.32.0"}, "engine_version"),
        ({"device": "H200"}, {"device": "L40S"}, "device"),
    ],
)
def test_another_version_or_device_forbids_a_comparison(one, other, field):
    a, b = facts(model="m", **one), facts("b", model="n", **other)
    differences = find_differences(a, b)
    assert [(d.field, d.forbids) for d in differences] == [(field, True), ("model", False)]
    barred, stated = difference_cautions(a, b, differences, forced=False)
    assert (barred.kind, stated.kind) == ("not_comparable", "arms_differ")
    assert field in barred.message
    assert "--force" in barred.message
    (all_stated,) = difference_cautions(a, b, differences, forced=True)
    assert len(all_stated.detail["differences"]) == 2


def test_versions_of_two_engines_are_not_compared():
    one = facts(engine_version="0.33.0")
    other = facts("b", engine="sglang", engine_version="0.5.23")
    assert found(one, other) == {"engine": ("vllm", "sglang")}
    assert not any(d.forbids for d in find_differences(one, other))


def test_what_one_side_does_not_tell_is_no_difference():
    assert find_differences(facts(engine_version="0.33.0", device="H200"), facts("b")) == []


def test_clock_and_power_at_both_ends_of_the_repeats():
    """An engine without a metrics page has snapshots of the device alone."""
    run = RunFacts(
        format=RUN_FORMAT,
        run_id="r",
        created="",
        plan=Plan(
            name="p",
            arms=tuple(Arm(name=name, url="http://h") for name in "ab"),
            scenarios=(ScenarioRef(name="s"),),
        ),
        environment=Environment(tool_version="0"),
        arms=(facts("a"), facts("b")),
    )
    ends = [
        Snapshot(
            at_s=0.0,
            url="",
            arm=arm,
            scenario="s",
            load="closed-1",
            repeat=0,
            moment=moment,
            window=window,
            clock_mhz=clock,
            power_w=power,
        )
        for arm, window, moment, clock, power in (
            ("a", 1, "before", 1900.0, 300.0),
            ("a", 1, "after", 1980.0, 340.0),
            ("b", 2, "before", 1500.0, 250.0),
            ("b", 2, "after", 1600.0, 270.0),
        )
    ]
    report = analyse(run, [], ends)
    assert [(a["gpu_clock_mhz"], a["gpu_power_w"]) for a in report.arms] == [
        (1940, 320),
        (1550, 260),
    ]
    (caution,) = report.cautions
    assert caution.kind == "arms_differ"
    assert caution.detail["differences"] == [
        {"field": "gpu_clock_mhz", "baseline": 1940, "arm": 1550}
    ]
