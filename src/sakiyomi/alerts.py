"""Prometheus alert rules from a decision: acceptance below the measured break-even. Pure."""

from typing import Any

from sakiyomi.decision import Choice, Decision
from sakiyomi.record import ArmFacts, RunFacts
from sakiyomi.yaml_text import scalar, to_yaml

ALERT_FOR = "15m"
ALERT_WINDOW = "5m"


def alert_rules(decision: Decision, facts: RunFacts) -> str | None:
    """A rule for each arm served: acceptance below its highest break-even for 15 minutes.

    Acceptance cannot cross a break-even rate outside 0 to 1: a comment stands for such a rule.
    None when no chosen arm speculates on an engine whose counters tell acceptance.
    """
    served = {arm.name: arm for arm in facts.arms}
    rules, notes = [], []
    for name in dict.fromkeys(decision.chosen_arms.values()):
        k = served[name].num_speculative_tokens
        expression = acceptance_expression(served[name], k)
        if expression is None:
            continue
        thresholds: dict[str, float] = {}
        for path, rate in _break_even_rates(decision.choices, name):
            why = _never_crossed(rate)
            if why is None:
                thresholds[path] = max(rate, thresholds.get(path, rate))
            else:
                notes.append(f"# No rule for {scalar(name)} on {scalar(path)}: {why}\n")
        if thresholds:
            rules.append(_rule(name, thresholds, expression, k))
    if not rules and not notes:
        return None
    head = f"# Thresholds are the break-even rates measured in {facts.run_id}.\n"
    if len({rule["expr"].rsplit(" < ")[0] for rule in rules}) < len(rules):
        head += "# Arms of one model count together: add labels that tell their servers apart.\n"
    groups = [{"name": "sakiyomi", "rules": rules}] if rules else []
    return head + "".join(dict.fromkeys(notes)) + to_yaml({"groups": groups})


def _break_even_rates(choices: tuple[Choice, ...], arm: str) -> list[tuple[str, float]]:
    """(path, rate) of each choice that the arm serves and whose break-even is known."""
    return [
        (choice.scenario, found.break_even_rate.point)
        for choice in choices
        if choice.arm == arm
        and (found := choice.chosen) is not None
        and found.break_even_rate is not None
    ]


def _never_crossed(rate: float) -> str | None:
    """Why acceptance never crosses a break-even rate; None where it can."""
    if rate >= 1:
        return f"it breaks even at {rate:.1%} acceptance, which no drafter exceeds"
    if rate <= 0:
        return f"it breaks even at {rate:.1%} acceptance, below which none can fall"
    return None


def acceptance_expression(arm: ArmFacts, k: int | None) -> str | None:
    """PromQL of accepted over proposed draft tokens, by the names on the engine's own page."""

    def grown(name: str) -> str:
        named = arm.engine in _LABELLED and arm.model
        labels = f"{{model_name={scalar(arm.model)}}}" if named else ""
        return f"sum(rate({name}{labels}[{ALERT_WINDOW}]))"

    if arm.engine in _COUNTERS:
        accepted, proposed = _COUNTERS[arm.engine]
        return f"{grown(accepted)} / {grown(proposed)}"
    if arm.engine == "sglang" and k:
        verified = grown("sglang:spec_verify_calls_total")
        generated = grown("sglang:generation_tokens_total")
        finished = grown("sglang:num_requests_total")
        return f"({generated} - {finished} - {verified}) / ({verified} * {k})"
    if arm.engine == "tgi" and k:
        skipped, steps = "tgi_request_skipped_tokens_sum", "tgi_request_skipped_tokens_count"
        finished = grown("tgi_request_success")
        return f"{grown(skipped)} / (({grown(steps)} - {finished}) * {k})"
    return None


_COUNTERS = {
    "vllm": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
    ),
    "dynamo": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
    ),
    "lmdeploy": (
        "lmdeploy:spec_decode_num_accepted_tokens_total",
        "lmdeploy:spec_decode_num_draft_tokens_total",
    ),
    "llama.cpp": (
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
    "tensorrt-llm": (
        "trtllm_spec_decode_accepted_tokens_total",
        "trtllm_spec_decode_drafted_tokens_total",
    ),
}
"""(accepted, proposed), as each engine's reader in `engines` has them."""
_LABELLED = ("vllm", "lmdeploy")


def _rule(arm: str, thresholds: dict[str, float], expression: str, k: int | None) -> dict[str, Any]:
    """The rule of one arm; `thresholds`: break-even rate by path."""
    threshold = max(thresholds.values())
    name = "".join(part.capitalize() for part in arm.replace("_", "-").replace(".", "-").split("-"))
    paths = _literal(", ".join(thresholds))
    return {
        "alert": f"SpeculationBelowBreakEven{name}",
        "expr": f"{expression} < {threshold:.4f}",
        "for": ALERT_FOR,
        "labels": {"severity": "warning", "arm": _literal(arm)},
        "annotations": {
            "summary": f"{_literal(arm)}: drafts cost more than they bring on {paths}",
            "description": "Acceptance is {{ $value | humanizePercentage }}, break-even is "
            f"{threshold:.1%} at k = {k}. Shorten the drafts or turn them off.",
        },
    }


def _literal(name: str) -> str:
    """A name inside Prometheus's template language, where `{{` opens an action."""
    return name.replace("{{", '{{ "{{" }}')
