"""What a secret looks like when every escape of a text is undone (`escaped_text`)."""

from base64 import b64encode
from collections.abc import Iterable, Iterator

from noetl_contracts import codec
from noetl_worker.domain.escaped_text import EscapedText

# Of base64 that begins or ends inside a group, what is left must still be telling.
_LENGTH_MIN = 6
_LATIN_START, _LATIN_END = 0x80, 0x100


def list_secret_forms(secret: str) -> tuple[bytes, ...]:
    """List what a secret may look like: as text, in base64 and in hex."""
    texts = {secret, secret.strip(), secret.replace("'", "''")}
    # A form has plus signs in place of spaces, also where the plus signs are escaped.
    texts |= {text.replace(" ", "+") for text in texts}
    plain = {form for text in texts for form in _spell_latin(text)}
    # A secret with what looks like an escape is changed where the escapes around it are undone.
    forms = {level for form in plain for _, level in EscapedText(form).list_levels()}
    for text in {secret, secret.strip(), *_spell_json(secret)}:
        forms |= set(_spell_binary(_encode_text(text)))
    return tuple(form for form in forms if len(form) >= _LENGTH_MIN)


def _encode_text(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _spell_latin(text: str) -> Iterator[bytes]:
    r"""Spell as Python escapes a text: `\xe4` is a character there, and a byte elsewhere.

    A `repr` escapes only what cannot be printed.
    """
    yield _encode_text(text)
    if text.isascii():
        return
    for is_printed in (True, False):
        yield b"".join(
            bytes((ord(char),))
            if _LATIN_START <= ord(char) < _LATIN_END and not (is_printed and char.isprintable())
            else _encode_text(char)
            for char in text
        )


def _spell_json(text: str) -> Iterator[str]:
    """Write a text as JSON does, in UTF-8 and in ASCII; none is written of half a pair."""
    try:
        in_json = codec.encode_text(text)[1:-1]
    except UnicodeEncodeError:
        return
    yield in_json
    yield "".join(char if char.isascii() else _escape_char(char) for char in in_json)


def _escape_char(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _spell_binary(data: bytes) -> Iterator[bytes]:
    """Encode in base64 and hex."""
    for form in _list_base64_forms(data):
        yield from (form, form.replace(b"+", b"-").replace(b"/", b"_"))
    for hexed in (data.hex(), data.hex(":")):
        yield from (hexed.encode(), hexed.upper().encode())


def _list_base64_forms(secret: bytes) -> Iterable[bytes]:
    """Encode a secret by itself, and as a part of something longer, as `user:secret` is."""
    forms = [b64encode(secret), b64encode(secret).rstrip(b"=")]
    for lead, unclear in ((0, 0), (1, 2), (2, 3)):
        encoded = b64encode(bytes(lead) + secret)
        encoded_length = len(encoded.rstrip(b"="))
        forms.append(
            encoded[unclear : encoded_length - (1 if encoded_length < len(encoded) else 0)]
        )
    return forms
