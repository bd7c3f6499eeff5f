"""Known secret values, replaced by `***` wherever they would leave the worker."""

import html
import re
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote, quote_plus

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject

MASK = "***"
_LENGTH_MIN_TEXT = 6
_LENGTH_MIN_DATA = 16
_SECRETS_MAX = 1024
# Of base64 that begins or ends inside a group, what is left must still be telling.
_CORE_LENGTH_MIN = 6
_ASCII_END = 128
_MASK_BYTES = MASK.encode()
PREFIX = "sealed:v1:"
SEALED = re.compile(r"sealed:v1:[0-9a-f]{8}:[A-Za-z0-9_-]+")
_ATOMS = frozenset({int, float, bool, type(None)})


class SecretMask:
    """Remembers the secrets that this process has opened, in every form in which they appear.

    The forms are looked for one by one: for the few secrets of a worker that is faster than any
    one pattern, and a text without secrets is not copied.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        """Know the worker's `own` secrets, which are never forgotten for others."""
        self._own_forms = {
            secret: _list_secret_forms(secret)
            for secret in _list_texts(list(own))
            if len(secret) >= _LENGTH_MIN_TEXT
        }
        self._forms_by_secret: dict[str, tuple[str, ...]] = {}
        self._texts: tuple[str, ...] = ()
        self._bytes: tuple[bytes, ...] = ()
        self._lines: frozenset[str] = frozenset()
        if self._own_forms:
            self._compile_forms()

    @property
    def form_length_max(self) -> int:
        """Return how long the longest form of a secret is; 0 while there is none."""
        return len(self._texts[0]) if self._texts else 0

    def learn_secrets(self, value: Any) -> None:
        """Remember every text inside a credential's fields; what is learned again stays longer."""
        known = len(self._forms_by_secret)
        for secret in _list_texts(value):
            if len(secret) >= _LENGTH_MIN_TEXT:
                found = self._forms_by_secret.pop(secret, None)
                known -= found is not None
                self._forms_by_secret[secret] = found or _list_secret_forms(secret)
        if len(self._forms_by_secret) > known:
            self._compile_forms()

    def _compile_forms(self) -> None:
        while len(self._forms_by_secret) > _SECRETS_MAX:
            del self._forms_by_secret[next(iter(self._forms_by_secret))]
        forms = {**self._forms_by_secret, **self._own_forms}
        # Longest first: a secret may be part of another.
        texts = {form for each in forms.values() for form in each}
        data = {form for secret, each in forms.items() if _is_long_secret(secret) for form in each}
        self._texts = tuple(sorted(texts, key=len, reverse=True))
        self._bytes = tuple(form.encode() for form in sorted(data, key=len, reverse=True))
        lines = (line.strip() for secret in forms for line in secret.splitlines()[1:])
        first = (secret.partition("\n")[0].strip() for secret in forms if "\n" in secret)
        self._lines = frozenset(line for line in (*lines, *first) if len(line) >= _LENGTH_MIN_TEXT)

    def contains_secret(self, text: str) -> bool:
        """Tell whether a text contains a secret of 6 characters and more."""
        return any(form in text for form in self._texts)

    def mask_text(self, text: str) -> str:
        """Mask a message: secrets of 6 characters and more."""
        for form in self._texts:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def may_change_lines(self, lines: str) -> bool:
        """Tell whether `mask_line` would change one of several lines; it may say so of none."""
        return self.contains_secret(lines) or any(line in lines for line in self._lines)

    def mask_line(self, text: str) -> str:
        """Mask one line of several: also the lines of a secret that has several, however short."""
        return MASK if text.strip() in self._lines else self.mask_text(text)

    def mask_bytes(self, data: bytes) -> bytes:
        """Mask encoded JSON: secrets of 16 characters and more, so short ones damage no data."""
        for form in self._bytes:
            if form in data:
                data = data.replace(form, _MASK_BYTES)
        return data

    def mask_value(self, value: Any) -> Any:
        """Mask every text in a value of JSON types, also the short secrets."""
        return map_texts(value, self.mask_text) if self._texts else value

    def mask_error(self, error: ErrorObject) -> ErrorObject:
        """Mask an error's texts and details."""
        if not self._texts:
            return error
        about = {
            name: self.mask_text(text)
            for name in ("message", "code", "exception_type", "source")
            if isinstance(text := getattr(error, name), str)
        }
        tries = [
            structs.replace(failed_try, message=self.mask_text(failed_try.message))
            for failed_try in error.tries
        ]
        return structs.replace(error, **about, details=self.mask_value(error.details), tries=tries)


def map_texts(
    value: Any, change: Callable[[str], str], *, change_key: Callable[[str], str] | None = None
) -> Any:
    """Change every text in a value of JSON types; keys too, in their own way if there is one."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        of_key = change_key or change
        return {
            of_key(str(key)): map_texts(item, change, change_key=of_key)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_texts(item, change, change_key=change_key) for item in value]
    return value


def _is_long_secret(secret: str) -> bool:
    return len(secret) >= _LENGTH_MIN_DATA


def _list_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        lines = value.splitlines()
        # Of a key on many lines, each line is telling.
        return (
            [value, *(line for line in lines if _is_long_secret(line))]
            if len(lines) > 1
            else [value]
        )
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in _list_texts(item)] if isinstance(value, list) else []


def _list_secret_forms(secret: str) -> tuple[str, ...]:
    """Spell a secret in every way in which programs repeat what they were given."""
    in_json = codec.encode_text(secret)[1:-1]
    forms = {
        secret,
        secret.strip(),
        in_json,
        # JSON inside JSON, as in a logged request.
        codec.encode_text(in_json)[1:-1],
        _escape_non_ascii(in_json),
        repr(secret)[1:-1],
        secret.replace("'", "''"),
        html.escape(secret),
        quote_plus(secret),
    }
    for safe in ("", "/"):
        quoted = quote(secret, safe=safe)
        forms |= {quoted, _lower_percent_escapes(quoted)}
    for form in _list_base64_forms(secret.encode()):
        forms |= {form, form.replace("+", "-").replace("/", "_")}
    return tuple(form for form in forms if len(form) >= _CORE_LENGTH_MIN)


def _escape_non_ascii(in_json: str) -> str:
    """Escape what is not ASCII, as most writers of JSON do."""
    if in_json.isascii():
        return in_json
    units = (in_json[i].encode("utf-16-be") for i in range(len(in_json)))
    return "".join(
        unit.decode("utf-16-be")
        if unit[:-1] == b"\0" and unit[-1] < _ASCII_END
        else "".join(f"\\u{unit[i : i + 2].hex()}" for i in range(0, len(unit), 2))
        for unit in units
    )


def _lower_percent_escapes(quoted: str) -> str:
    parts = quoted.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


def _list_base64_forms(secret: bytes) -> list[str]:
    """Encode a secret by itself, and as a part of something longer, as `user:secret` is."""
    forms = [b64encode(secret).decode()]
    for lead, unclear in ((0, 0), (1, 2), (2, 3)):
        encoded = b64encode(bytes(lead) + secret).decode()
        whole = len(encoded.rstrip("="))
        forms.append(encoded[unclear : whole - (1 if whole < len(encoded) else 0)])
    return forms


def has_sealed_text(value: Any) -> bool:
    """Tell whether a value holds a sealed text."""
    kind = type(value)
    if kind is str:
        return PREFIX in value
    if kind in _ATOMS:
        return False
    if kind is dict:
        return _has_sealed_text_in_any(value.values())
    if kind is list:
        return _has_sealed_text_in_any(value)
    return False


def _has_sealed_text_in_any(values: Iterable[Any]) -> bool:
    for value in values:
        if PREFIX in value if type(value) is str else has_sealed_text(value):
            return True
    return False


def open_sealed_texts(value: Any, open_text: Callable[[str], str]) -> Any:
    """Replace every sealed text; a value without any comes back as it is."""
    if not has_sealed_text(value):
        return value
    return map_texts(value, lambda text: SEALED.sub(lambda found: open_text(found[0]), text))
