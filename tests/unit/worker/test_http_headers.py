"""Headers of an answer are plain text: results, previews and references are made of them."""

from noetl_contracts import codec
from noetl_worker.tools.http import exchange


def read(*lines: bytes) -> dict[str, str]:
    return exchange._decode_headers(list(lines))


def test_headers_that_come_twice_are_joined_and_keep_their_case() -> None:
    found = read(
        b"HTTP/1.1 200 OK\r\n",
        b"Content-Type: a\r\n",
        b"Set-Cookie: b\r\n",
        b"Set-Cookie:c\r\n",
        b"ETag:\r\n",
        b"\r\n",
    )
    assert found == {"Content-Type": "a", "Set-Cookie": "b, c", "ETag": ""}
    assert codec.encode_text(next(iter(found))) == '"Content-Type"'


def test_only_the_last_head_counts() -> None:
    found = read(
        b"HTTP/1.1 103 Early Hints\r\n", b"Link: x\r\n", b"\r\n", b"HTTP/1.1 200\r\n", b"A: b\r\n"
    )
    assert found == {"A": "b"}


def test_a_line_that_begins_with_a_space_goes_on_with_the_one_before() -> None:
    assert read(b"HTTP/1.1 200\r\n", b"A: b\r\n", b"  c\r\n", b"\r\n", b" d\r\n") == {"A": "b c"}


def test_bytes_that_are_no_utf8_are_still_text() -> None:
    assert read(b"A: \xe4\r\n", b"B: \xc3\xa4\r\n") == {"A": "ä", "B": "ä"}


def test_known_names_are_written_as_the_standards_write_them() -> None:
    found = read(b"HTTP/1.1 200\r\n", b"content-type: a\r\n", b"ETAG: b\r\n", b"x-My-Own: c\r\n")
    assert found == {"Content-Type": "a", "ETag": "b", "x-My-Own": "c"}
