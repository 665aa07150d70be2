# ruff: noqa: E501 - a wide character counts two columns
"""The explanation in Japanese, from the same fields as the English sentences. Formats only."""

import re
from typing import Any

from sakiyomi.report.format import number
from sakiyomi.report.words import NAMES_JA

SIDES = {
    "above": "それより上：投機的デコードは得です",
    "below": "それより下：投機的デコードは損です",
    "contains": "それを含む：まだ言えません",
}
CHANGES = (
    (r"^k = (\d+) in place of (\d+)$", r"k を \2 から \1 に"),
    (r"^fp8 head for the drafts only$", "ドラフト用の出力ヘッドだけ fp8 に"),
    (r"^(fp8|NVFP4) head everywhere$", r"出力ヘッドをすべて \1 に"),
    (r"^(fp8|NVFP4) body$", r"本体を \1 に"),
    (r"^context of (\d+) tokens$", r"文脈が \1 トークンの場合"),
    (r"^on (.+)$", r"\1 の場合"),
    (r"^its own draft head with k = 1$", "自前のドラフトヘッドを k = 1 で"),
    (r"^the same bytes per second and the same acceptance$", "毎秒バイト数と採択率は同じ"),
    (r"^the same acceptance and bytes per second$", "採択率と毎秒バイト数は同じ"),
    (r"^the same share of the nominal bandwidth$", "公称帯域に対する達成率は同じ"),
    (r"^head reads saved at (.+), as the plain step reached$", r"節約分は通常ステップの実効 \1"),
    (r"^head reads saved at (.+)$", r"節約分は \1 で換算"),
    (
        r"^acceptance (iid from the rate|measured by position); cost per draft (.+?) plain steps.*$",
        r"採択率は\1、ドラフト1個の費用は通常ステップの \2 倍",
    ),
)


def change_ja(text: str) -> str:
    """A lever or its assumption in Japanese; as it is when its form is not known."""
    for pattern, replacement in CHANGES:
        new, count = re.subn(pattern, replacement, text)
        if count:
            return (
                new.replace("iid from the rate", "率から均一と仮定")
                .replace("measured by position", "位置ごとの実測")
                .replace(" or ", " または ")
            )
    return text


def sentences_ja(content: dict[str, Any]) -> list[str]:
    """What was measured and what bytes say of it."""
    texts = []
    seen = set()
    for step in content.get("steps", []):
        if step["arm"] in seen:
            continue
        seen.add(step["arm"])
        texts.append(_reads(step))
    return texts + [_speculation(one) for one in content.get("speculation", [])]


def _reads(step: dict[str, Any]) -> str:
    parts = sorted(step["parts"], key=lambda part: -part["share"])
    named = "、".join(
        f"{NAMES_JA.get(part['name'], part['name'])} {number(part['num_bytes'] / 1e9)} GB "
        f"({part['share']:.0%})"
        for part in parts
        if part["share"] >= 0.005
    )
    k = step["num_speculative_tokens"]
    drafts = f"（k = {k}）" if k else ""
    return f"{step['arm']}（{step['model']}）：1ステップ{drafts}が読むもの：{named}。"


def _speculation(one: dict[str, Any]) -> str:
    text = (
        f"{one['scenario']} × {one['arm']}：投機ステップの費用は C({one['num_speculative_tokens']}) "
        f"= {_estimate(one['step_cost'])} 通常ステップ、{number(one['speculative_step_s'] * 1000)} ms"
        f"（通常は {number(one['plain_step_s'] * 1000)} ms）。"
    )
    if one.get("explained_s") is not None:
        text += (
            f"バイト数からは {number(one['predicted_step_cost_overlap'])} のはず："
            f"増えた {number(one['excess_s'] * 1000)} ms のうち "
            f"{number(one['explained_s'] * 1000)} ms がバイト数で説明でき、"
            f"{number((one.get('unexplained_s') or 0) * 1000)} ms は説明できません。"
        )
    if one.get("break_even_rate"):
        text += f"損益分岐は採択率 {_percent(one['break_even_rate'])}"
        if one.get("draft_acceptance_rate") and one.get("side"):
            text += f"、実測 {_percent(one['draft_acceptance_rate'])} は{SIDES[one['side']]}"
        text += "。"
    return text


def _estimate(value: dict[str, Any]) -> str:
    point = number(value["point"])
    if value["low"] is None or value["high"] is None:
        return point
    return f"{point}（{number(value['low'])}〜{number(value['high'])}）"


def _percent(value: dict[str, Any]) -> str:
    text = f"{value['point'] * 100:.0f}%"
    if value["low"] is None or value["high"] is None:
        return text
    return f"{text}（{value['low'] * 100:.0f}〜{value['high'] * 100:.0f}）"
