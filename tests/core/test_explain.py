"""The founding case against the test values of its analysis."""

import pytest

from sakiyomi import store
from sakiyomi.commands.explain_command import explain_run, with_explanation
from sakiyomi.commands.saved_report import read_report
from sakiyomi.explain import explain
from sakiyomi.models.devices import find_device, known_devices
from sakiyomi.report import explanation_text
from sakiyomi.what_if import WhatIf, what_if


@pytest.fixture(scope="module")
def founding():
    reader = store.open_run("founding-case")
    report = read_report(reader)
    device = find_device("RTX PRO 6000 Blackwell Workstation")
    explanation, levers = explain_run(reader.facts, report, {}, device)
    return report, explanation, levers


def step(explanation, scenario, arm):
    return next(s for s in explanation.steps if (s.scenario, s.arm) == (scenario, arm))


def speculation(explanation, scenario):
    return next(s for s in explanation.speculation if s.scenario == scenario)


@pytest.mark.parametrize(
    ("scenario", "rate", "length", "ratio", "half_rate", "half_length"),
    [
        ("ja_chat", 0.3608, 2.082, 1.118, 0.081, 0.243),
        ("code_agent", 0.7145, 3.143, 1.853, 0.021, 0.063),
    ],
)
def test_the_run_solved_back(founding, scenario, rate, length, ratio, half_rate, half_length):
    report, _, _ = founding
    cell = next(c for c in report.cells if (c.scenario, c.arm) == (scenario, "mtp-k3"))
    found = cell.acceptance
    assert found.draft_acceptance_rate.point == pytest.approx(rate, abs=1e-4)
    assert found.draft_acceptance_rate.high - rate == pytest.approx(half_rate, abs=6e-4)
    assert found.mean_acceptance_length.point == pytest.approx(length, abs=1e-3)
    assert found.mean_acceptance_length.high - length == pytest.approx(half_length, abs=1.5e-3)
    compared = next(c for c in report.comparisons if (c.scenario, c.arm) == (scenario, "mtp-k3"))
    assert compared.ratio.point == pytest.approx(ratio, abs=1e-3)


def test_chat_is_not_established_and_code_is(founding):
    report, explanation, _ = founding
    verdicts = {c.scenario: c.verdict for c in report.comparisons if c.arm == "mtp-k3"}
    assert verdicts == {"ja_chat": "not_established", "code_agent": "faster"}
    assert speculation(explanation, "ja_chat").side == "contains"
    assert speculation(explanation, "code_agent").side == "above"


@pytest.mark.parametrize(
    ("scenario", "cost", "plain_ms", "step_ms", "excess_ms", "break_even"),
    [
        ("ja_chat", 1.862, 13.889, 25.868, 11.979, 0.2875),
        ("code_agent", 1.696, 14.144, 23.995, 9.851, 0.2322),
    ],
)
def test_step_costs(founding, scenario, cost, plain_ms, step_ms, excess_ms, break_even):
    one = speculation(founding[1], scenario)
    assert one.step_cost.point == pytest.approx(cost, abs=1e-3)
    assert one.plain_step_s * 1000 == pytest.approx(plain_ms, abs=1e-3)
    assert one.speculative_step_s * 1000 == pytest.approx(step_ms, abs=2e-3)
    assert one.excess_s * 1000 == pytest.approx(excess_ms, abs=3e-3)
    assert one.break_even_rate.point == pytest.approx(break_even, abs=2e-4)
    assert one.predicted_step_cost == pytest.approx(1.643, abs=1e-3)
    assert one.explained_s + one.unexplained_s == pytest.approx(one.excess_s)


def test_bytes_explain_most_of_the_excess_on_code(founding):
    assert speculation(founding[1], "code_agent").explained_share == pytest.approx(0.923, abs=2e-3)


@pytest.mark.parametrize(
    ("scenario", "arm", "ceiling", "attained"),
    [
        ("ja_chat", "plain", 108.3, 0.665),
        ("code_agent", "plain", 108.3, 0.653),
        ("ja_chat", "moe", 497.7, 0.356),
    ],
)
def test_ceilings_and_attained_shares(founding, scenario, arm, ceiling, attained):
    one = step(founding[1], scenario, arm)
    assert one.ceiling_nominal_tokens_per_s == pytest.approx(ceiling, abs=0.2)
    assert one.attained_nominal == pytest.approx(attained, abs=1e-3)


def test_the_head_is_read_four_times(founding):
    parts = {part.name: part for part in step(founding[1], "ja_chat", "mtp-k3").parts}
    head = parts["head"].share + parts["draft_head"].share
    assert head == pytest.approx(0.374, abs=1e-3)
    assert sum(part.share for part in parts.values()) == pytest.approx(1)


def test_nine_becomes_4_7_becomes_2_5(founding):
    _, explanation, levers = founding
    ratio = next(m.ratio for m in explanation.models if m.scenario == "ja_chat")
    assert ratio.bytes_ratio == pytest.approx(4.594, abs=0.01)
    assert ratio.time_ratio == pytest.approx(2.458, abs=2e-3)
    assert ratio.bytes_ratio * ratio.attainment == pytest.approx(ratio.time_ratio)
    code = next(m.ratio for m in explanation.models if m.scenario == "code_agent")
    assert code.time_ratio == pytest.approx(2.504, abs=1e-3)
    text = " ".join(explanation_text.summary(explanation, levers))
    assert "x9.00; weights read x4.67, with state and cache x4.59" in text
    assert "speed x2.46" in text


@pytest.mark.parametrize(
    ("change", "chat", "code"),
    [
        ("fp8 head for the drafts only", 89.3, 146.6),
        ("fp8 head everywhere", 92.7, 152.6),
        ("NVFP4 head everywhere", 96.1, 158.8),
    ],
)
def test_levers(founding, change, chat, code):
    found = {lever.scenario: lever for lever in founding[2] if lever.change == change}
    assert found["ja_chat"].tokens_per_s == pytest.approx(chat, abs=1)
    assert found["code_agent"].tokens_per_s == pytest.approx(code, abs=1)
    assert found["ja_chat"].lossless is (change == "fp8 head for the drafts only")


def test_k_2_never_loses_on_chat_and_k_1_may(founding):
    chat = {lever.change[:5]: lever for lever in founding[2] if lever.scenario == "ja_chat"}
    assert 0 <= chat["k = 2"].gain_low <= chat["k = 2"].gain <= 0.08 + 0.01
    assert chat["k = 1"].gain_low < 0 < chat["k = 1"].gain


def test_a_step_cost_that_depends_on_the_text_is_a_caution(founding):
    (caution,) = [c for c in founding[0].cautions if c.kind == "step_cost_differs"]
    costs = caution.detail["step_cost"]
    assert costs["ja_chat"] / costs["code_agent"] == pytest.approx(1.098, abs=1e-3)


def test_levers_are_ranked_within_a_scenario(founding):
    for scenario in ("ja_chat", "code_agent"):
        gains = [lever.gain for lever in founding[2] if lever.scenario == scenario]
        assert gains == sorted(gains, reverse=True)


def test_an_arm_without_a_model_is_named_and_the_rest_explained(founding):
    report, explanation, _ = founding
    bare = explain(report, {}, None, {"plain": "no idea"})
    assert bare.steps == ()
    assert bare.unknown == {"plain": "no idea"}
    assert [s.step_cost for s in bare.speculation] == [s.step_cost for s in explanation.speculation]
    assert all(s.explained_s is None and s.unexplained_s is None for s in bare.speculation)
    assert all(isinstance(lever, WhatIf) for lever in what_if(report, bare, {}, known_devices()))
    assert "No device is known" in explanation_text.render(bare, ())


def test_more_than_the_measured_ceiling_is_called_a_defect(founding):
    report, explanation, levers = founding
    import msgspec

    def above(**change):
        device = msgspec.structs.replace(explanation.device, **change)
        explained, _ = explain_run(store.open_run("founding-case").facts, report, {}, device)
        return explanation_text.above_ceiling(explained)

    read = above(measured_bytes_per_s=5e11, measured_kind="streaming read")
    assert all("of the measured ceiling cannot be" in text for text in read)
    # 16.54 GB at 500 GB/s: 30.2 tok/s
    assert read[0].startswith(f"ja_chat x plain: {72.0 / (5e11 / 16.542e9):.0%} of")
    assert "of the nominal ceiling cannot be" in above(nominal_bytes_per_s=5e11)[0]
    # what others' decode steps or a GEMM reached is no bound of this one
    assert above(measured_bytes_per_s=5e11, measured_kind="e2e decode (57%)") == []
    assert above(measured_bytes_per_s=5e11, measured_kind="GEMM bf16") == []
    assert explanation_text.above_ceiling(explanation) == []
    filled = with_explanation(report, explanation, levers)
    assert filled.explanation["summary"]


def test_arms_that_seldom_draft_have_no_lever_of_another_length(founding):
    """What another k would find is not known where only some steps find a draft."""
    import msgspec

    report, explanation, _ = founding

    def seldom(cell):
        found = cell.acceptance
        seen = {"draft_coverage": 0.1, "num_drafts": 85.0}
        return msgspec.structs.replace(
            cell, acceptance=found and msgspec.structs.replace(found, **seen)
        )

    rare = msgspec.structs.replace(report, cells=[seldom(cell) for cell in report.cells])
    kinds = [{row.kind for row in what_if(r, explanation, {})} for r in (report, rare)]
    assert kinds == [{"draft_length"}, set()]


def test_a_step_that_is_shorter_than_a_plain_one_is_said_so(founding):
    import msgspec

    _, explanation, _ = founding
    short = [
        msgspec.structs.replace(one, excess_s=-0.00114, unexplained_s=-0.0101)
        for one in explanation.speculation
    ]
    found = msgspec.structs.replace(explanation, speculation=tuple(short))
    text = " ".join(explanation_text.sentences(found))
    assert "it took 1.14 ms less than a plain step" in text
    assert "-1.14" not in text
