"""A secret is masked in every usual spelling, wherever it would leave the worker."""

import html
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus, urlencode
from xml.sax import saxutils

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import escape
from yarl import URL

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.tools.http import http_request

Encoder = Callable[[str], str]
Place = Callable[[SecretMask, str], str]


def base64_of(before: str = "", after: str = "") -> Encoder:
    return lambda text: b64encode(f"{before}{text}{after}".encode()).decode()


def sent_url(text: str, **fields: Any) -> str:
    url = "https://api.example/" + fields.pop("start", "") + text
    request = http_request.build_request({"url": url, **fields}, idempotency_key="k")
    return request.address.url


def mask_log(mask: SecretMask, text: str) -> str:
    with redaction.add_masker(mask.mask_text):
        return redaction.mask_log_line(text)


ENCODERS: dict[str, Encoder] = {
    "plain": lambda text: text,
    "JSON": json.dumps,
    "JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "JSON in JSON in UTF-8": lambda text: codec.encode_text(codec.encode_text({"a": text})),
    "JSON of PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "JSON in a page": lambda text: str(htmlsafe_json_dumps(text)),
    "HTML": html.escape,
    "HTML of Jinja": lambda text: str(escape(text)),
    "XML": saxutils.quoteattr,
    "HTML in JSON": lambda text: json.dumps(html.escape(text)),
    "repr": repr,
    "repr in a list": lambda text: repr([text, "it's"]),
    "repr of a longer text": lambda text: repr(f"it's {text}"),
    "repr of a text with both quotes": lambda text: repr(f"it's \"{text}"),
    "repr in JSON": lambda text: json.dumps(repr(text)),
    "ascii": ascii,
    "repr of bytes": lambda text: repr(text.encode()),
    "repr of longer bytes": lambda text: repr({"a": b"it's " + text.encode()}),
    "repr of bytes in JSON": lambda text: json.dumps(repr(text.encode())),
    "SQL": lambda text: text.replace("'", "''"),
    "base64": base64_of(),
    "base64 behind one": base64_of("u"),
    "base64 behind two": base64_of("u:", ":x"),
    "base64 behind three": base64_of("us:", ":"),
    "base64 for URLs": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: b64encode(text.encode()).decode().rstrip("="),
    "base64 in a URL": lambda text: quote_plus(b64encode(text.encode())),
    "base64 of JSON": lambda text: b64encode(json.dumps({"a": text}).encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "hex with colons": lambda text: text.encode().hex(":"),
    "URL": quote,
    "URL, all quoted": lambda text: quote(text, safe=""),
    "URL of a browser": lambda text: quote(text, safe="!'()*"),
    "form": quote_plus,
    "form with names": lambda text: urlencode({"a": text}),
    "URL twice": lambda text: quote(quote(text, safe=""), safe=""),
    "form twice": lambda text: quote_plus(quote_plus(text)),
    "URL of a form": lambda text: quote(quote_plus(text)),
    "small letters in a URL": lambda text: "".join(
        f"%{byte:02x}" if not chr(byte).isalnum() or byte > 127 else chr(byte)
        for byte in text.encode()
    ),
    "JSON in a URL": lambda text: quote(json.dumps(text)),
    "URL of yarl": lambda text: str(URL.build(scheme="https", host="a", path="/" + text)),
    "query of yarl": lambda text: str(URL("https://a").with_query({"x": text})),
}
PLACES: dict[str, Place] = {
    "text": lambda mask, text: mask.mask_text(text),
    "line": lambda mask, text: mask.mask_line(text),
    "data": lambda mask, text: mask.mask_bytes(text.encode()).decode(),
    "result": lambda mask, text: codec.decode_json(mask.mask_bytes(codec.encode_json([text])))[0],
    "value": lambda mask, text: mask.mask_value({"a": [text]})["a"][0],
    "key": lambda mask, text: next(iter(mask.mask_value({text: 1}))),
    "bytes": lambda mask, text: mask.mask_value([text.encode()])[0].decode(),
    "message": lambda mask, text: mask.mask_error(error_of(text)).message,
    "details": lambda mask, text: mask.mask_error(error_of(text)).details["a"][0],
    "log": mask_log,
}
# What may be left of a text that was encoded together with others: base64 has groups of 3 bytes.
LEFT_MAX = 4
SECRETS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=16, max_size=40).filter(
    lambda text: len(set(text.strip())) > 5 and len(text.strip()) >= 16
)


def error_of(text: str) -> ErrorObject:
    return ErrorObject(kind="auth", message=text, details={"a": [text]})


def assert_masked(secret: str, encoder: str, place: str) -> None:
    mask = SecretMask()
    mask.learn_secrets({"password": secret})
    spelled = ENCODERS[encoder](secret)
    shown = PLACES[place](mask, spelled)
    around = ENCODERS[encoder]("")
    assert "***" in shown, (spelled, shown)
    assert len(shown.replace("***", "")) <= len(around) + 2 * LEFT_MAX, (spelled, shown)


@pytest.mark.parametrize("encoder", ENCODERS)
@settings(max_examples=40, deadline=None)
@given(secret=SECRETS, place=st.sampled_from(sorted(PLACES)))
def test_a_secret_is_masked_in_every_spelling_and_place(
    encoder: str, secret: str, place: str
) -> None:
    assert_masked(secret, encoder, place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(
    "secret", ["p\"s's wörd/+&<%>\\x-0123456789", "cGFzc3dvcmQxMjM0NTY+/w==A7"]
)
def test_an_awkward_secret_is_masked(secret: str, encoder: str, place: str) -> None:
    assert_masked(secret, encoder, place)


@pytest.mark.parametrize("secret", ["pa ss/wö'rd+%41-0123456789", "p;a=b,c@d:e!f$(g)*~0123456789"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"start": "?key="},
        {"start": "a%20b/"},
        {"params": {"key": "other"}},
    ],
)
def test_a_url_that_the_client_sends_shows_no_secret(secret: str, fields: dict[str, Any]) -> None:
    mask = SecretMask()
    mask.learn_secrets(secret)
    shown = mask.mask_text(sent_url(secret, **fields))
    assert "0123456789" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    ("secret", "value"),
    [
        ("1234567890123456", {"n": 1234567890123456}),
        ("1234567890123456", [9912345678901234567, 1234567890123456.0]),
        ('a","b":"c-0123456789', {"x": "1-a", "b": "c-0123456789"}),
        ("9007199254740993", {"9007199254740993": {"deep": [9007199254740993]}}),
    ],
)
def test_what_was_json_stays_json(secret: str, value: Any) -> None:
    mask = SecretMask()
    mask.learn_secrets(secret)
    masked = mask.mask_bytes(codec.encode_json(value))
    codec.decode_json(masked)
    assert secret not in masked.decode()


def test_numbers_and_bytes_of_results_are_masked() -> None:
    mask = SecretMask()
    mask.learn_secrets(["12345678", "hunter22"])
    value = mask.mask_value(
        {"pin": 12345678, "raw": b"x hunter22", "view": memoryview(b"hunter22")}
    )
    assert value == {"pin": "***", "raw": b"x ***", "view": b"***"}
    plain = {"n": 91234567890, "f": 1.5, "t": True, "none": None, "raw": b"\xff\x00"}
    assert mask.mask_value(plain) == plain


def test_secrets_that_overlap_leave_nothing_of_either() -> None:
    mask = SecretMask()
    mask.learn_secrets(["first-secret-abc", "abc-second-secret"])
    assert mask.mask_text("<first-secret-abc-second-secret>") == "<***>"


def test_half_of_a_pair_does_not_stop_the_mask() -> None:
    mask = SecretMask()
    mask.learn_secrets(["hunter22", "\ud800-other-secret-ä"])
    assert mask.mask_text("<\ud800-other-secret-ä>") == "<***>"
    assert mask.mask_text("\ud800 hunter22 \udfff") == "\ud800 *** \udfff"


def test_a_new_token_is_masked_at_once_among_many() -> None:
    mask = SecretMask()
    tokens = [f"token-{number:04}-{number * 7919:08}" for number in range(200)]
    for token in tokens:
        mask.learn_secrets(token)
        assert mask.mask_text(f"<{token}>") == "<***>"
    assert all(mask.mask_text(token) == "***" for token in tokens)
