"""Texts of the page, escaped; numbers as people of the language write them."""

import html
from typing import TYPE_CHECKING

from sakiyomi.record import Caution
from sakiyomi.report import format as fmt
from sakiyomi.report.language import LANGUAGES
from sakiyomi.report.words import TEXTS
from sakiyomi.report.words_cautions import caution_text
from sakiyomi.report.words_names import NAMES_EN, NAMES_JA
from sakiyomi.stats import Estimate

if TYPE_CHECKING:
    from collections.abc import Mapping


class Words:
    """The texts of one language."""

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self.say = LANGUAGES[lang]
        """Whole sentences; not escaped."""
        self.texts: Mapping[str, str] = TEXTS[lang]
        self.names: Mapping[str, str] = NAMES_JA if lang == "ja" else NAMES_EN

    def __call__(self, key: str, **values: object) -> str:
        """A text as HTML; its values are escaped."""
        return escape(self.texts[key].format(**values))

    def name(self, name: str) -> str:
        """The word for a part, a segment or a field; unknown ones as they are."""
        return escape(self.names.get(name, name.replace("_", " ")))

    def caution(self, caution: Caution) -> str | None:
        """A caution in this language; None where there are no words for its kind."""
        return escape(text) if (text := caution_text(caution, self.lang)) else None

    def interval(self, value: Estimate | None, scale: float = 1.0) -> str:
        """`72.0 <small>71.0–73.0</small>`."""
        if value is None:
            return '<span class="none">–</span>'
        ends = _ends(value, scale)
        point = fmt.number(value.point * scale)
        return f'{point} <small class="interval">{ends}</small>' if ends else point

    def percent(self, value: Estimate | None) -> str:
        """`36% <small>28–44</small>`."""
        if value is None:
            return '<span class="none">–</span>'
        ends = _percent_ends(value)
        point = f"{value.point:.0%}"
        return f'{point} <small class="interval">{ends}</small>' if ends else point

    def plain_interval(self, value: Estimate) -> str:
        """`1.12 (0.99–1.25)`, for sentences."""
        ends = _ends(value, 1.0)
        return fmt.number(value.point) + (f" ({ends})" if ends else "")

    def plain_percent(self, value: Estimate) -> str:
        """`36% (28–44)`, for sentences."""
        ends = _percent_ends(value)
        return f"{value.point:.0%}" + (f" ({ends})" if ends else "")

    def signed_points(self, value: Estimate) -> str:
        """`+14 (+9 … +19)`: a difference of shares, in points."""
        if value.low is None or value.high is None:
            return f"{value.point * 100:+.0f}"
        return f"{value.point * 100:+.0f} ({value.low * 100:+.0f} … {value.high * 100:+.0f})"


def _ends(value: Estimate, scale: float) -> str:
    """Both ends; a digit more where they would look the same."""
    if value.low is None or value.high is None:
        return ""
    low, high = value.low * scale, value.high * scale
    ends = fmt.number(low), fmt.number(high)
    if ends[0] == ends[1] and low != high:
        ends = f"{low:#.4g}", f"{high:#.4g}"
    return f"{ends[0]}{' … ' if value.low < 0 else '–'}{ends[1]}"


def _percent_ends(value: Estimate) -> str:
    if value.low is None or value.high is None:
        return ""
    ends = f"{value.low * 100:.0f}", f"{value.high * 100:.0f}"
    if ends[0] == ends[1] and value.low != value.high:
        ends = f"{value.low * 100:.1f}", f"{value.high * 100:.1f}"
    return f"{ends[0]}{' … ' if value.low < 0 else '–'}{ends[1]}"


def escape(text: object) -> str:
    """Text of users and models stays text, in content and in attributes."""
    return html.escape(str(text), quote=True)


def code(text: str, words: Words) -> str:
    """A command that can be copied."""
    return (
        f'<div class="code"><pre tabindex="0"><code>{escape(text)}</code></pre>'
        f'<button type="button" class="copy">{words("copy")}</button></div>'
    )
