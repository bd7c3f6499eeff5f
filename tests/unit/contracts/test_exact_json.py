"""JSON of others: no number loses a digit."""

from typing import Any

import msgspec
import pytest

from noetl_contracts import codec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1180591620717411303424", 2**70),
        ("-9223372036854775809", -(2**63) - 1),
        ("0.1", 0.1),
        ("1.0", 1.0),
        ("5e-324", 5e-324),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("1e400", "1e400"),
        ("1E-400", "1E-400"),
        ("1e5", 100000.0),
        ("9007199254740993.0", "9007199254740993.0"),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        ("0.30000000000000004", 0.30000000000000004),
        ("123456789012345678901234567890.5", "123456789012345678901234567890.5"),
        (r'"a\u0000"', "a\0"),
    ],
)
def test_a_number_is_exact_or_its_text(text: str, value: Any) -> None:
    found = codec.decode_exactly(f'{{"n": [{text}]}}')
    assert found == {"n": [value]}
    assert type(found["n"][0]) is type(value)


def test_the_sign_of_zero_stays() -> None:
    assert str(codec.decode_exactly("-0.0")) == "-0.0"


@pytest.mark.parametrize("text", [r'"\ud800"', "nan", "Infinity", "[1", "\udcff"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        codec.decode_exactly(text.encode("utf-8", "surrogateescape"))
