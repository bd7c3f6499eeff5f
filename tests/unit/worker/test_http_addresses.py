"""An address that is written plainly is taken as it is; it means what the library says of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from noetl_worker.tools.http import http_request

_HOSTS = st.sampled_from(["a.example", "127.0.0.1", "localhost", "A.example", "[::1]", "a..b"])
_PORTS = st.sampled_from(["", ":80", ":443", ":8080", ":0", ":65535"])
_TEXTS = st.text(alphabet="abAB09._~:/?[]@!$&'()*+,;=%-", max_size=12)


@given(st.sampled_from(["http", "https"]), _HOSTS, _PORTS, _TEXTS)
def test_where_a_request_goes_is_what_its_url_says(
    scheme: str, host: str, port: str, rest: str
) -> None:
    text = f"{scheme}://{host}{port}/{rest}"
    built = http_request.build_request({"url": text}, idempotency_key="k")
    url = URL(text, encoded=True)
    assert built.address == http_request.build_address(url)


@pytest.mark.parametrize("rest", ["a/../b", "a//b", "?q=a%20b&c", "a?b?c", "a?", "#part"])
def test_a_path_is_sent_as_it_was_written(rest: str) -> None:
    built = http_request.build_request({"url": f"http://a.example/{rest}"}, idempotency_key="k")
    assert built.address.url == f"http://a.example/{rest}".partition("#")[0].removesuffix("?")
    assert (built.address.host, built.address.port) == ("a.example", 80)
