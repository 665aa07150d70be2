"""Secrets and personal data in texts: found by their form, replaced by a numbered mark. Pure.

The same value gets the same mark within a conversation, so that what is repeated stays repeated
(drafts from the prompt depend on it). Names and street addresses have no form and stay.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

# Forms as the issuers document them: fixed prefix, alphabet, least length.
_API_KEY = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"sk-(?:ant-|proj-|svcacct-|or-v1-|lf-)?[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic, OpenRouter
    r"|pk-lf-[A-Za-z0-9-]{16,}"  # Langfuse
    r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
    r"|hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"  # GitHub
    r"|glpat-[A-Za-z0-9_-]{20,}"  # GitLab
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"  # AWS access key id
    r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}"  # Google
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"  # SendGrid
    r"|nvapi-[A-Za-z0-9_-]{20,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}"  # NVIDIA, Groq, xAI
    r"|r8_[A-Za-z0-9]{30,}|pplx-[A-Za-z0-9]{20,}|tvly-[A-Za-z0-9-]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|dop_v1_[a-f0-9]{40,}"
    r"|AccountKey=[A-Za-z0-9+/]{40,}={0,2}"  # Azure storage
    r")"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")
_BEARER = re.compile(
    r"(?i)\b(?:bearer|basic)\s+(?P<value>(?=[^\s]*[0-9])[A-Za-z0-9._~+/-]{16,}={0,2})"
)
_PASSWORD = re.compile(
    r"(?i)(?:password|passwd|pwd|secret(?:[_-]?key)?|api[_-]?key|access[_-]?key|auth[_-]?token"
    r"|access[_-]?token|パスワード|暗証番号)[\"']?\s*(?:[:=：＝]|は)\s*[\"'「]?"
    r"(?P<value>(?=[^\s\"'「」、。,;]*[0-9])[^\s\"'「」、。,;(){}\[\]<>]{6,})"
)
# Up to the last @ of the authority: a user may be a mail address, a password may hold an @.
_URL_LOGIN = re.compile(r"(?<=://)(?P<value>[^\s/:\"'<>]{1,80}:[^\s/\"'<>]{1,200})(?=@)")
_MAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@"
    r"(?P<domain>(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24})(?![A-Za-z0-9-])"
)
_RESERVED_DOMAIN = re.compile(
    r"(?i)(?:^|\.)(?:example\.(?:com|net|org|co\.jp|jp)|test|invalid|localhost|example)$"
)  # RFC 2606, and JPRS's example.jp
_MARKS = re.compile(r"(?:\[[A-Z_]+_[0-9]+\][:@]?)+")
_DASH = "[-‐‑‒–—−－ー]"
_DIGITS = r"[0-9０-９]"
_CARD = re.compile(rf"(?<![A-Za-z0-9_.]){_DIGITS}(?:[ -]?{_DIGITS}){{12,18}}(?![A-Za-z0-9_])")
_MY_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9_.-])(?<!{_DIGITS} )"
    rf"(?:{_DIGITS}{{4}}([ -]){_DIGITS}{{4}}\1{_DIGITS}{{4}}|{_DIGITS}{{12}})"
    rf"(?![A-Za-z0-9_-]| {_DIGITS})"
)
_MY_NUMBER_WORD = re.compile(r"マイナンバー|個人番号|(?i:my ?number)")
_GAP = rf"(?:[ .()]|{_DASH}){{0,2}}"
_PHONE = re.compile(
    r"(?<![A-Za-z0-9_.+-])(?:"
    rf"[+＋][1-9１-９](?:{_GAP}{_DIGITS}){{7,14}}"
    rf"|(?P<japan>[(（]?[0０][1-9１-９]{_DIGITS}{{0,3}}(?:[)）](?:{_DASH}| )?|{_DASH}| ?[(（]| )"
    rf"{_DIGITS}{{1,4}}(?:[)）]|{_DASH}| ){_DIGITS}{{3,4}})"  # 03-1234-5678, (03) 1234-5678
    r"|[0０][5-9５-９][0０][0-9０-９]{8}"  # 09012345678
    r"|\([2-9]\d{2}\)[ -]?\d{3}[ .-]\d{4}|[2-9]\d{2}[.-]\d{3}[.-]\d{4}"  # North America
    r")(?![A-Za-z0-9_]|[.-]\d)"
)


def mask_texts(texts: Iterable[str]) -> tuple[list[str], Counter[str]]:
    """Mask the texts of one conversation; say how many places of each kind were masked."""
    marks: dict[tuple[str, str], str] = {}
    counts: Counter[str] = Counter()
    return [_mask(text, marks, counts) for text in texts], counts


def _mask(text: str, marks: dict[tuple[str, str], str], counts: Counter[str]) -> str:
    """Until nothing is found: a mark can bring into view what stood around it."""
    before = None
    while text != before:
        before, text = text, _mask_once(text, marks, counts)
    return text


def _mask_once(text: str, marks: dict[tuple[str, str], str], counts: Counter[str]) -> str:
    for kind, pattern, accept in _RULES:

        def replace(
            match: re.Match[str],
            kind: str = kind,
            accept: Callable[[re.Match[str]], bool] | None = accept,
        ) -> str:
            if accept is not None and not accept(match):
                return match[0]
            whole = match[0]
            value = match.groupdict().get("value") or whole
            counts[kind] += 1
            if (kind, value) not in marks:
                number = 1 + sum(1 for known, _ in marks if known == kind)
                marks[kind, value] = f"[{kind.upper()}_{number}]"
            return whole.replace(value, marks[kind, value])

        text = pattern.sub(replace, text)
    return text


def _digits(text: str) -> list[int]:
    return [unicodedata.digit(c) for c in text if c.isdigit()]


def is_card(match: re.Match[str]) -> bool:
    """A known first digit (ISO/IEC 7812), 13 to 19 digits and the Luhn check digit."""
    digits = _digits(match[0])
    if digits[0] not in (2, 3, 4, 5, 6) or not 13 <= len(digits) <= 19:
        return False
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_my_number(match: re.Match[str]) -> bool:
    """Twelve digits with the check digit of the ordinance, beside the word or in groups of four.

    Check digit: 11 - (sum of p_n q_n mod 11), 0 if that sum mod 11 is 0 or 1; p_n the n-th digit
    from the right without the check digit, q_n = n + 1 up to 6, n - 5 above (Ordinance No. 85 of
    the Ministry of Internal Affairs and Communications, 2014, article 5).
    """
    digits = _digits(match[0])
    near = match.string[max(0, match.start() - 24) : match.end() + 12]
    if not (match[1] or _MY_NUMBER_WORD.search(near)):
        return False
    rest = sum(
        digit * (n + 1 if n <= 6 else n - 5) for n, digit in enumerate(digits[-2::-1], start=1)
    )
    return digits[-1] == (0 if rest % 11 <= 1 else 11 - rest % 11)


def _is_phone(match: re.Match[str]) -> bool:
    """Japanese numbers have ten or eleven digits with the leading zero: 05-12-2024 is a date."""
    return match["japan"] is None or len(_digits(match[0])) in (10, 11)


def _is_private_mail(match: re.Match[str]) -> bool:
    return not _RESERVED_DOMAIN.search(match["domain"])


def _is_no_mark(match: re.Match[str]) -> bool:
    return not _MARKS.fullmatch(match["value"])


_RULES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], bool] | None], ...] = (
    ("private_key", _PRIVATE_KEY, None),
    ("jwt", _JWT, None),
    ("api_key", _API_KEY, None),
    ("bearer_token", _BEARER, None),
    ("url_login", _URL_LOGIN, _is_no_mark),
    ("password", _PASSWORD, _is_no_mark),
    ("mail", _MAIL, _is_private_mail),
    ("card", _CARD, is_card),
    ("my_number", _MY_NUMBER, is_my_number),
    ("phone", _PHONE, _is_phone),
)
"""In this order: a longer form before a shorter one that would match inside it."""
