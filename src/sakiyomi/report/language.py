"""Sentences in one language: its templates, its numbers, its lists. Formats; computes nothing."""

from collections.abc import Iterable, Mapping

from sakiyomi.report import format as fmt
from sakiyomi.report.words_decision import DECISION
from sakiyomi.report.words_explanation import EXPLANATION, LEVERS_JA
from sakiyomi.report.words_names import NAMES_EN, NAMES_JA
from sakiyomi.report.words_why import WHY
from sakiyomi.stats import Estimate


class Language:
    """`say("key", value=...)` is a sentence; the methods write what goes into it."""

    def __init__(self, lang: str) -> None:
        self.lang = lang
        levers = LEVERS_JA if lang == "ja" else {}
        self.texts: Mapping[str, str] = {
            **DECISION[lang],
            **EXPLANATION[lang],
            **WHY[lang],
            **levers,
        }
        self._names = NAMES_JA if lang == "ja" else NAMES_EN

    def __call__(self, key: str, **values: object) -> str:
        """The sentence of a key with its values."""
        text = self.texts[key].format(**values)
        return text.replace("） ", "）") if self.lang == "ja" else text

    def name(self, name: str) -> str:
        """The word for a part or a field; unknown ones as they are."""
        return self._names.get(name, name.replace("_", " "))

    def join(self, items: Iterable[str], mark: str = "comma") -> str:
        """A list: `a, b` or, with `semicolon`, `a; b`."""
        return self.texts[mark].join(items)

    def estimate(self, value: Estimate | None) -> str:
        """`72.0 (71 to 73)`."""
        if self.lang == "en" or value is None or value.low is None or value.high is None:
            return fmt.estimate(value)
        if fmt.is_too_wide(value):
            return f"{fmt.number(value.point)}（区間が広すぎます）"
        return f"{fmt.number(value.point)}（{fmt.number(value.low)}〜{fmt.number(value.high)}）"

    def percent(self, value: Estimate | None) -> str:
        """`36% (28-44)`."""
        if self.lang == "en" or value is None or value.low is None or value.high is None:
            return fmt.percent(value)
        return f"{value.point:.0%}（{value.low * 100:.0f}〜{value.high * 100:.0f}）"

    def break_even(self, value: Estimate) -> str:
        """`29% (20-38)`; outside 0 to 100 % it says so: `74% (below 0 to above 100)`."""
        ends = [end for end in (value.low, value.high) if end is not None]
        if all(0 <= number <= 1 for number in (value.point, *ends)):
            return self.percent(value)
        point = self._bound(value.point, "_percent")
        if len(ends) < 2 or min(value.point, *ends) > 1 or max(value.point, *ends) < 0:
            return point
        low, high = (self._bound(end) for end in ends)
        return self("break_even_interval", point=point, ends=self("span", low=low, high=high))

    def break_even_clause(self, value: Estimate) -> str:
        """What the break-even rate means, without a full stop. A rate lies between 0 and 100 %."""
        if 0 <= value.point <= 1:
            return self("breaks_even", rate=self.break_even(value))
        never = value.point > 1
        end = value.low if never else value.high
        is_open = end is not None and (end <= 1 if never else end >= 0)
        key = ("never_pays" if never else "always_pays") + ("_open" if is_open else "")
        return self(key, rate=self.break_even(value))

    def break_even_sentence(self, value: Estimate) -> str:
        """The clause as a sentence of its own."""
        return self.break_even_clause(value) + self("stop")

    def _bound(self, rate: float, unit: str = "") -> str:
        if rate > 1:
            return self.texts["above_100" + unit]
        if rate < 0:
            return self.texts["below_0" + unit]
        return f"{rate:.0%}" if unit else f"{rate * 100:.0f}"


EN = Language("en")
JA = Language("ja")
LANGUAGES: Mapping[str, Language] = {"en": EN, "ja": JA}
