"""What if, in words: a row of a predicted change."""

from collections.abc import Sequence

from sakiyomi.report.format import number
from sakiyomi.report.language import EN, Language
from sakiyomi.what_if import WhatIf

MAX_LEVERS = 8


def lever_sentences(levers: Sequence[WhatIf], say: Language = EN) -> list[str]:
    """Levers that gain, the best first; other hardware last and once a device."""
    texts = []
    for scenario in dict.fromkeys(lever.scenario for lever in levers):
        mine = [lever for lever in levers if lever.scenario == scenario and lever.gain > 0]
        software = [lever for lever in mine if lever.kind != "device"][:MAX_LEVERS]
        hardware = {lever.change: lever for lever in mine if lever.kind == "device"}
        rows = [*software, *hardware.values()]
        if rows:
            texts.append(say("what_if_on", scenario=scenario))
            texts += [_lever(row, say) for row in rows]
    return texts


def _lever(row: WhatIf, say: Language) -> str:
    return say(
        "lever",
        arm=row.arm,
        change=change(row, say),
        gain=gain(row, say),
        speed=number(row.tokens_per_s),
        mark="" if row.lossless else say("changes_text"),
        assumption=assumption(row, say),
    )


def gain(row: WhatIf, say: Language) -> str:
    """`+3% to +8%`."""
    if row.gain_low is None or round(row.gain_low, 2) == round(row.gain, 2):
        return f"{row.gain:+.0%}"
    return say("gain_range", low=f"{row.gain_low:+.0%}", high=f"{row.gain:+.0%}")


def change(row: WhatIf, say: Language) -> str:
    """What is changed: `fp8 head everywhere`."""
    if say.lang == "en":
        return row.change
    return say(f"change_{row.detail.get('part', row.kind)}", **row.detail)


def assumption(row: WhatIf, say: Language) -> str:
    """What the prediction rests on."""
    if say.lang == "en":
        return row.assumption
    values = dict(row.detail)
    match row.kind:
        case "format":
            values["speed"] = number(values.get("bytes_per_s", 0.0) / 1e9)
            return say("assume_body" if values["part"] == "body" else "assume_head", **values)
        case "draft_length":
            values["origin"] = say(values["origin"])
            values["costs"] = say.join((f"{cost:.3f}" for cost in values["costs"]), "or")
        case "draft_head":
            values = {
                "acceptance": f"{values['acceptance']:.0%}",
                "step_cost": number(values["step_cost"]),
            }
    return say(f"assume_{row.kind}", **values)
