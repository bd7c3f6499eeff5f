from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.masking import Mask


def test_secrets_are_masked_in_every_form_in_which_they_appear() -> None:
    mask = Mask()
    mask.learn({"password": 'p"ss/word-0123456789', "nested": [{"token": "hunter22"}]})
    assert mask.text('a p"ss/word-0123456789 b hunter22') == "a *** b ***"
    assert mask.text("a p%22ss%2Fword-0123456789 b") == "a *** b"
    assert mask.data(b'{"x":"p\\"ss/word-0123456789"}') == b'{"x":"***"}'


def test_short_secrets_do_not_damage_data_and_very_short_ones_nothing() -> None:
    mask = Mask()
    mask.learn({"password": "hunter22", "pin": "12345"})
    assert mask.data(b"hunter22 12345") == b"hunter22 12345"
    assert mask.text("hunter22 12345") == "*** 12345"


def test_errors_are_masked_in_message_and_details() -> None:
    mask = Mask()
    mask.learn({"password": "hunter22"})
    error = ErrorObject(kind="auth", message="no hunter22", details={"traceback": "hunter22"})
    masked = mask.error(error)
    assert masked.message == "no ***"
    assert masked.details == {"traceback": "***"}
