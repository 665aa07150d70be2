# ruff: noqa: E501 - a wide character counts two columns
"""Cautions in Japanese: what each kind means, and its numbers."""

from collections.abc import Mapping
from typing import Any

from sakiyomi.record import Caution
from sakiyomi.report.format import number

MEANINGS_JA: Mapping[str, str] = {
    "acceptance_estimated": "採択率は推定値です。このエンジンからはより良い証拠が得られません。",
    "acceptance_one": "すべてのドラフトが採択されています。強制採択・文章のループ・エンジンの不具合の疑い。",
    "acceptance_zero": "ドラフトが1つも採択されていません。ドラフトヘッドの欠落の疑い。",
    "above_ceiling": "実測速度が上限を超えています。バイト数か帯域の見積もりが誤っています。",
    "arms_differ": "比較対象と投機的デコード以外にも違いがあります。比は全部を合わせた結果です。",
    "better_evidence": "このエンジンはリクエストごとの採択数も出せます。起動引数を足してください。",
    "buffered_stream": "回答がまとめて届いています。途中でバッファされており、TTFTと速度は測れません。",
    "bursts_ambiguous": "届き方からステップを数えられず、採択率もステップあたりのトークン数も分かりません。",
    "client_lag": "クライアントの送信が遅れました。負荷を下げるか別の機械で測ってください。",
    "compared_by_force": "異なる条件の測定を --force で比べています。比は全部の違いを合わせた結果です。",
    "concurrency_not_reached": "会話数が足りず、指定した同時数に届きませんでした。",
    "confounded": "言語と仕事の種類が分けられません（日本語の会話と英語のコード）。英語の会話と日本語のコードの測定があれば分けられます。",
    "counter_reset": "測定中にカウンタが戻りました（エンジンの再起動）。増分は下限です。",
    "counters_short": "メトリクスの増分が受け取ったトークンより少なく、値は下限です（別のワーカーのページの可能性）。",
    "cap_ignored": "サーバーが max_tokens を無視しています。サーバー側の上限を設定してください。",
    "cut_by_cap": "多くの回答が上限で切れています。max_tokens を上げてください。",
    "drift": "最初と最後の反復で速度が違います（クロック・温度・他の負荷）。--repeats を増やしてください。",
    "ended_too_early": "回答が短すぎて速度が安定しません。",
    "fields_refused": "サーバーが一部の任意項目を受け付けず、得られる証拠が減っています。",
    "forced_acceptance": "採択が強制されています。ステップ費用の測定であり、仕事については何も言えません。",
    "impossible_counts": "エンジンの数え方に矛盾があります。",
    "k_unknown": "ドラフト長 k が不明なため、損益分岐を計算できません。",
    "looked_after_every_repeat": "反復のたびに結果を見て、自動で終えました。区間はその分広くしてあります。",
    "looped_output": "回答がループしています。繰り返しは当てやすく、採択率を高く見せます。",
    "lossy_acceptance": "エンジンが本来選ばれないドラフトも採択しています（出力が変わります）。",
    "metrics_incomplete": "メトリクスの一部が読めないか、途中で止まった回の分がありません。",
    "metrics_unavailable": "メトリクスのページが読めません。",
    "no_answer_text": "思考だけで上限に達し、回答のないものがあります。",
    "no_drafts": "投機的デコードの構成なのに、ドラフトが見つかりません。",
    "not_comparable": "エンジンの版か機器が違うため、優劣を判定しません。",
    "other_traffic": "測定中に他のリクエストがありました。空いたサーバーで測ってください。",
    "published": "公表された数値で、測定のばらつきは分かりません。",
    "published_rate": "公表された速度は最初のトークンを数えながら、その時間を含みません。トークン数分の1ほど高めです。",
    "published_ttft": "TTFT は一律 50〜100 ms と公表され、分布が分からないため載せていません。",
    "rates_disagree": "サーバーとクライアントの計時が合いません。",
    "requests_failed": "失敗したリクエストがあります。数値は残りのものです。",
    "several_models": "メトリクスに複数のモデルがあります。--model で指定してください。",
    "restarts_differ": "エンジンの起動ごとに速度が違います。--repeats を増やしてください。",
    "server_changed": "測定中に同じ系統の応答元が変わりました（再起動または別の複製）。数値は混ざったものです。",
    "sources_disagree": "採択率の2つの情報源が食い違っています。",
    "step_cost_differs": "ステップ費用がシナリオで違います。文章には依存しないはずで、どちらかの測定が汚れています。",
    "suspect": "ログに既知の不具合の兆候があります。",
    "tls_not_verified": "TLS証明書を検証していません。",
    "tokens_estimated": "サーバーがトークンを数えていません。イベント数で代用した下限です。",
    "too_few_conversations": "会話が少なすぎて差を確定できません。",
    "too_few_repeats": "反復ごとの比がばらついています。静かなマシンで --repeats を増やしてください。",
    "tool_calls_at_once": "ツール呼び出しが完成後に一括で届いています（サーバー側のパーサ）。TTFTと速度は測れません。",
    "warm_prefix_cache": "プレフィックスキャッシュが効いており、TTFTが良く見えます。",
}

EVIDENCE_JA: Mapping[str, str] = {
    "acceptance_estimated": "情報源：{source}",
    "acceptance_one": "ドラフトトークン {num_draft_tokens:.0f} 個",
    "acceptance_zero": "ドラフトトークン {num_draft_tokens:.0f} 個",
    "arms_differ": "{arm} と {baseline} の違い：{differences}",
    "better_evidence": "{arm}：{args}",
    "buffered_stream": "{num_buffered} 件",
    "client_lag": "送信の遅れの中央値 {median_send_lag_s:.4f} 秒",
    "compared_by_force": "{differences}",
    "concurrency_not_reached": "同時 {max_concurrency} 件の指定",
    "counter_reset": "{series}",
    "cap_ignored": "{num_longer} 件が上限 {max_tokens} を超過（最長 {num_tokens} トークン）",
    "cut_by_cap": "{num_cut} 件が上限 {max_tokens} トークンで終了",
    "drift": "最後の反復は最初に対して {change:+.0%}",
    "ended_too_early": "中央値 {median_num_tokens:.0f} トークン",
    "fields_refused": "{arm}：{fields}",
    "looked_after_every_repeat": "{max_looks} 回中 {look} 回目",
    "looped_output": "{num_looped} 件",
    "metrics_incomplete": "問題 {num_problems} 件",
    "metrics_unavailable": "{arm}：{asked}",
    "no_answer_text": "{num_requests} 件",
    "no_drafts": "方式：{method}",
    "not_comparable": "{arm} と {baseline} の違い：{differences}",
    "other_traffic": "他のトークンの割合 {foreign_share:.0%}",
    "rates_disagree": "サーバーの値はクライアントの {server_over_client:.2f} 倍",
    "requests_failed": "{num_failed} 件：{reasons}",
    "several_models": "{models}",
    "step_cost_differs": "{arm}：{step_cost}",
    "suspect": "{arm}：{url}",
    "tokens_estimated": "{num_estimated} 件",
    "too_few_conversations": "会話 {num_conversations} 件、差は {gain:+.0%}",
    "too_few_repeats": "反復ごとの比 {repeat_ratios}",
    "tool_calls_at_once": "{num_whole} 件",
    "warm_prefix_cache": "プロンプトの {cached_share:.0%}",
}
"""The numbers of a caution, from its `detail`."""


def caution_text(caution: Caution, lang: str) -> str | None:
    """A caution in a language; None where the language has no words for its kind."""
    if lang == "en":
        return caution.message
    meaning = MEANINGS_JA.get(caution.kind)
    if meaning is None or caution.kind not in EVIDENCE_JA:
        return meaning
    try:
        values = {name: _shown(value) for name, value in caution.detail.items()}
        return f"{meaning}（{EVIDENCE_JA[caution.kind].format(**values)}）"
    except (KeyError, ValueError, TypeError):  # another version's detail
        return meaning


def _shown(value: Any) -> Any:
    """Lists and tables in a line; differences as `field: this / that`."""
    if isinstance(value, dict):
        return "、".join(f"{name} {_in_line(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "、".join(
            f"{v['field']}（{v['baseline']} / {v['arm']}）"
            if isinstance(v, dict) and {"field", "baseline", "arm"} <= v.keys()
            else _in_line(v)
            for v in value[:6]
        )
    return value


def _in_line(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


COLUMNS: Mapping[str, str] = {
    "acceptance_estimated": "accepted",
    "acceptance_one": "accepted",
    "acceptance_zero": "accepted",
    "forced_acceptance": "accepted",
    "impossible_counts": "accepted",
    "k_unknown": "accepted",
    "lossy_acceptance": "accepted",
    "looped_output": "accepted",
    "no_drafts": "accepted",
    "other_traffic": "accepted",
    "counter_reset": "accepted",
    "several_models": "accepted",
    "metrics_incomplete": "accepted",
    "sources_disagree": "accepted",
    "warm_prefix_cache": "ttft",
    "client_lag": "ttft",
    "no_answer_text": "ttft",
    "too_few_conversations": "speedup",
    "too_few_repeats": "speedup",
}
"""The column of the table whose number a caution concerns; the speed otherwise."""
