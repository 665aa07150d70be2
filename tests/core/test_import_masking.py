"""What is masked, what is left alone, and that masking again changes nothing."""

import json
from importlib.resources import files

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sakiyomi.logs.masking import mask_texts

# Written in two pieces, so that scanners of this repository find no key in it.
SK = "sk" + "-proj-abcDEF0123456789abcDEF0123456789"


def mask(text):
    (masked,), counts = mask_texts([text])
    return masked, dict(counts)


@pytest.mark.parametrize(
    ("text", "kind", "secret"),
    [
        (f"my key is {SK}.", "api_key", SK),
        ("sk" + "-ant-api03-AbCdEf0123456789_-xyz ok", "api_key", "AbCdEf0123456789"),
        ("h" + "f_abcdefghijklmnopqrstuvwxyzABCDEFGH", "api_key", "abcdefghijklmnop"),
        ("gh" + "p_0123456789abcdefghijABCDEFGHIJ012345", "api_key", "0123456789abc"),
        ("AKI" + "AIOSFODNN7EXAMPLE", "api_key", "IOSFODNN7"),
        ("AIz" + "aSyA0123456789abcdefghijklmnopqrstu", "api_key", "SyA0123456789"),
        ("xox" + "b-123456789012-abcdefGHIJ", "api_key", "123456789012"),
        ("curl -H 'Authorization: Bearer abcdef0123456789ABCDEF'", "bearer_token", "abcdef0123"),
        ("ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmN", "jwt", "dozjg"),
        (
            "-----BEGIN RSA PRIVATE" + " KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----",
            "private_key",
            "MIIEow",
        ),
        ("-----BEGIN OPENSSH PRIVATE" + " KEY-----\ncut off here", "private_key", "cut off"),
        ("postgres://admin:hunter2@db.internal/prod", "url_login", "hunter2"),
        ("https://taro@corp.jp:hunter2@host/x", "url_login", "hunter2"),
        ("amqp://taro:hun@ter2@host:5672/x", "url_login", "ter2"),
        ("password = 'hunter22x'", "password", "hunter22x"),
        ('{"api_key": "a1b2c3d4e5f6"}', "password", "a1b2c3d4e5f6"),
        ("パスワードは「sakura2024」です", "password", "sakura2024"),
        ("mail taro.yamada+work@mail.co.jp now", "mail", "taro.yamada"),
        ("連絡先：taro@kaisha.jpまで", "mail", "taro@kaisha"),
        ("電話 03-1234-5678 です", "phone", "1234-5678"),
        ("(03) 1234-5678", "phone", "1234"),
        ("携帯は090-1234-5678。", "phone", "1234-5678"),
        ("09012345678まで", "phone", "09012345678"),
        ("０９０－１２３４－５６７８", "phone", "１２３４"),
        ("0120-444-113", "phone", "444"),
        ("call +44 20 7946 0958", "phone", "7946"),
        ("+81-90-1234-5678", "phone", "1234"),
        ("(415) 555-2671", "phone", "2671"),
        ("card 4111 1111 1111 1111 exp", "card", "1111 1111"),
        ("378282246310005", "card", "378282"),
        ("マイナンバーは123456789018です", "my_number", "123456789018"),
        ("1234 5678 9018", "my_number", "5678"),
    ],
)
def test_is_masked(text, kind, secret):
    masked, counts = mask(text)
    assert secret not in masked
    assert f"[{kind.upper()}_1]" in masked
    assert counts == {kind: 1}


@pytest.mark.parametrize(
    "text",
    [
        "version 1.2.3.4 of 2024-05-12, released 05-12-2024",
        "4111 1111 1111 1112 is no card: its check digit is wrong",
        "order 123456789018 of the shop",  # a valid My Number, and nothing says it is one
        "write to support@example.com or admin@mail.example.jp",
        "his basic responsibilities and a bearer of good news",
        "password = get_password(user)",
        "api_key = os.environ['OPENAI_API_KEY']",
        "the secret: patience",
        "0.123456789012345678 and 1e-10",
        "id 550e8400-e29b-41d4-a716-446655440000",
        "call f(0, 10, 200) then g[03:12]",
        "https://example.org/path@v1:8080/x",
        "sk-learn and hf_hub are names",
        "12,345,678 円、平成31年4月30日",
        "@decorator\ndef f(): pass",
        "for i in range(1000000000): x[i] = 1234567890",
    ],
)
def test_is_left_alone(text):
    assert mask(text) == (text, {})


def test_what_is_repeated_stays_repeated_within_a_conversation():
    texts, counts = mask_texts(
        ["from a@corp.jp to b@corp.jp", "again a@corp.jp, 03-1234-5678", "b@corp.jp"]
    )
    assert texts == ["from [MAIL_1] to [MAIL_2]", "again [MAIL_1], [PHONE_1]", "[MAIL_2]"]
    assert counts == {"mail": 4, "phone": 1}


@pytest.mark.parametrize("name", ["ja_chat", "rag_qa", "code_agent", "ja_business", "tool_calls"])
def test_the_built_in_scenarios_have_nothing_to_mask(name):
    lines = (files("sakiyomi") / "scenarios" / f"{name}.jsonl").read_text("utf-8").split("\n")
    texts = [turn for line in lines[1:] if line for turn in json.loads(line)["turns"]]
    assert mask_texts(texts) == (texts, {})


PIECES = st.sampled_from(
    [
        *(SK, "a@corp.jp", "03-1234-5678", "4111111111111111", "password: abc123def", "Bearer "),
        *("x" * 20, "0123456789abcdef", "u:p1@h", "https://", " ", "\n", "です", "-", "は"),
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join))
@settings(deadline=None)
@example("https://ですa@corp.jpu:p1@h")
@example(f"https://{SK}:p1@h")
def test_masking_again_changes_nothing(text):
    masked, _ = mask(text)
    assert mask(masked) == (masked, {})


def test_card_numbers_agree_with_a_plain_luhn():
    """Luhn written the long way, over random numbers with and without the right last digit."""
    import random

    rng = random.Random(3)
    for _ in range(200):
        digits = [4, *(rng.randrange(10) for _ in range(15))]
        total = 0
        for place, digit in enumerate(reversed(digits)):
            total += digit if place % 2 == 0 else sum(divmod(2 * digit, 10))
        number = "".join(map(str, digits))
        assert ("card" in mask(f"card {number}")[1]) == (total % 10 == 0), number
