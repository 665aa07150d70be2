"""Texts of the page, escaped; numbers as people of the language write them."""

import html
from collections.abc import Mapping

from sakiyomi.report import format as fmt
from sakiyomi.report.words import NAMES_EN, NAMES_JA, TEXTS
from sakiyomi.report.words_cautions import MEANINGS_JA
from sakiyomi.stats import Estimate


class Words:
    """The texts of one language."""

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self.texts: Mapping[str, str] = TEXTS[lang]
        self.names: Mapping[str, str] = NAMES_JA if lang == "ja" else NAMES_EN

    def __call__(self, key: str, **values: object) -> str:
        """A text as HTML; its values are escaped."""
        return escape(self.texts[key].format(**values))

    def name(self, name: str) -> str:
        """The word for a part, a segment or a field; unknown ones as they are."""
        return escape(self.names.get(name, name.replace("_", " ")))

    def meaning(self, kind: str) -> str | None:
        """What a caution means, where its own message is in another language."""
        return escape(MEANINGS_JA[kind]) if self.lang == "ja" and kind in MEANINGS_JA else None

    def interval(self, value: Estimate | None, scale: float = 1.0) -> str:
        """`72.0 <small>71.0–73.0</small>`."""
        if value is None:
            return '<span class="none">–</span>'
        point = fmt.number(value.point * scale)
        if value.low is None or value.high is None:
            return point
        low, high = fmt.number(value.low * scale), fmt.number(value.high * scale)
        return f'{point} <small class="interval">{low}–{high}</small>'

    def percent(self, value: Estimate | None) -> str:
        """`36 % <small>28–44</small>`."""
        if value is None:
            return '<span class="none">–</span>'
        text = f"{value.point * 100:.0f} %"
        if value.low is None or value.high is None:
            return text
        ends = f"{value.low * 100:.0f}–{value.high * 100:.0f}"
        return f'{text} <small class="interval">{ends}</small>'

    def plain_interval(self, value: Estimate) -> str:
        """`1.12 (0.99–1.25)`, for sentences."""
        point = fmt.number(value.point)
        if value.low is None or value.high is None:
            return point
        return f"{point} ({fmt.number(value.low)}–{fmt.number(value.high)})"

    def plain_percent(self, value: Estimate) -> str:
        """`36 % (28–44)`, for sentences."""
        text = f"{value.point * 100:.0f} %"
        if value.low is None or value.high is None:
            return text
        return f"{text} ({value.low * 100:.0f}–{value.high * 100:.0f})"


def escape(text: object) -> str:
    """Text of users and models stays text, in content and in attributes."""
    return html.escape(str(text), quote=True)
