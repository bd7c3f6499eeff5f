import json
from base64 import b64encode, urlsafe_b64encode
from html import escape
from urllib.parse import quote, quote_plus

import pytest

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.secret_mask import SecretMask


def test_secrets_are_masked_in_every_form_in_which_they_appear() -> None:
    mask = SecretMask()
    mask.learn_secrets({"password": 'p"ss/word-0123456789', "nested": [{"token": "hunter22"}]})
    assert mask.mask_text('a p"ss/word-0123456789 b hunter22') == "a *** b ***"
    assert mask.mask_text("a p%22ss%2Fword-0123456789 b") == "a *** b"
    assert mask.mask_bytes(b'{"x":"p\\"ss/word-0123456789"}') == b'{"x":"***"}'


def test_short_secrets_do_not_damage_data_and_very_short_ones_nothing() -> None:
    mask = SecretMask()
    mask.learn_secrets({"password": "hunter22", "pin": "12345"})
    assert mask.mask_bytes(b"hunter22 12345") == b"hunter22 12345"
    assert mask.mask_text("hunter22 12345") == "*** 12345"


def test_errors_are_masked_in_message_and_details() -> None:
    mask = SecretMask()
    mask.learn_secrets({"password": "hunter22"})
    error = ErrorObject(kind="auth", message="no hunter22", details={"traceback": "hunter22"})
    masked = mask.mask_error(error)
    assert masked.message == "no ***"
    assert masked.details == {"traceback": "***"}


AWKWARD = "p\"s's wörd/+&<%>\\x-0123456789"


@pytest.mark.parametrize(
    "spelled",
    [
        AWKWARD,
        json.dumps(AWKWARD),
        json.dumps(AWKWARD, ensure_ascii=False),
        json.dumps(json.dumps(AWKWARD, ensure_ascii=False), ensure_ascii=False),
        quote(AWKWARD),
        quote(AWKWARD, safe=""),
        quote_plus(AWKWARD),
        escape(AWKWARD),
        repr(AWKWARD),
        AWKWARD.replace("'", "''"),
        b64encode(AWKWARD.encode()).decode(),
        urlsafe_b64encode(AWKWARD.encode()).decode(),
        b64encode(f"a:{AWKWARD}".encode()).decode(),
        b64encode(f"ab:{AWKWARD}:c".encode()).decode(),
        b64encode(f"abc:{AWKWARD}:cd".encode()).decode(),
    ],
)
def test_every_usual_spelling_of_a_secret_is_known(spelled: str) -> None:
    mask = SecretMask()
    mask.learn_secrets(AWKWARD)
    masked = mask.mask_text(f"<<{spelled}>>")
    assert "0123456789" not in masked
    assert not any(b64encode(b"0123456789")[i : i + 8].decode() in masked for i in range(4))
    assert masked.startswith("<<")
    assert masked.endswith(">>")


def test_a_secret_inside_another_does_not_show_the_rest() -> None:
    mask = SecretMask()
    mask.learn_secrets(["hunter22", "hunter22-and-much-longer"])
    assert mask.mask_text("x hunter22-and-much-longer y") == "x *** y"


def test_each_line_of_a_key_is_masked() -> None:
    mask = SecretMask()
    mask.learn_secrets({"private_key": "-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END-----\n"})
    assert mask.mask_text("near 'MIIEvQIBADANBgkqhkiG9w0'") == "near '***'"


def test_values_are_masked_at_any_depth_and_what_is_no_text_stays() -> None:
    mask = SecretMask()
    mask.learn_secrets("hunter22")
    value = mask.mask_value({"hunter22": [1, None, {"a": "x hunter22"}], "b": True})
    assert value == {"***": [1, None, {"a": "x ***"}], "b": True}


def test_the_secrets_that_were_used_last_are_known_longest() -> None:
    mask = SecretMask()
    mask.learn_secrets("the-first-secret")
    for number in range(1100):
        mask.learn_secrets(f"secret-number-{number}")
        mask.learn_secrets("the-first-secret")
    assert mask.mask_text("the-first-secret secret-number-0") == "*** secret-number-0"
