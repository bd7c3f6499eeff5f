"""Headers of an answer are plain text: results, previews and references are made of them."""

from multidict import CIMultiDict, istr

from noetl_contracts import codec
from noetl_worker.tools import http


def test_names_that_the_library_interned_become_plain_text() -> None:
    given = CIMultiDict(
        [(istr("Content-Type"), "a"), (istr("Set-Cookie"), "b"), ("Set-Cookie", "c")]
    )
    found = http._joined(given)
    assert found == {"Content-Type": "a", "Set-Cookie": "b, c"}
    assert {type(name) for name in found} == {str}
    assert codec.text(next(iter(found))) == '"Content-Type"'
