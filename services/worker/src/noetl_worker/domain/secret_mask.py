"""Known secret values, replaced by `***` wherever they would leave the worker."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from ahocorasick_rs import BytesAhoCorasick
from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.escaped_text import EscapedText, Span, has_escapes
from noetl_worker.domain.secret_spellings import list_secret_forms

MASK = "***"
_LENGTH_MIN_TEXT = 6
_LENGTH_MIN_DATA = 16
_SECRETS_MAX = 1024
_RECENT_MAX = 32
# A number, and what goes beyond a text: without these encoded JSON may not be JSON any more.
_MAY_BREAK_JSON = re.compile(rb"[0-9.eE+-]+|[^\"]*\"[\s\S]*")
_MASK_BYTES = MASK.encode()
PREFIX = "sealed:v1:"
SEALED = re.compile(r"sealed:v1:[0-9a-f]{8}:[A-Za-z0-9_-]+")
_ATOMS = frozenset({int, float, bool, type(None)})


class SecretMask:
    """Remembers the secrets that this process has opened, in every form in which they appear.

    One automaton finds all forms in one pass over a text, and over what it becomes when its escapes
    are undone. Secrets that were learned last have an automaton of
    their own, so that a new token does not build that of a thousand anew.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        """Know the worker's `own` secrets, which are never forgotten for others."""
        self._own_forms = {
            secret: list_secret_forms(secret)
            for secret in _list_texts(list(own))
            if len(secret) >= _LENGTH_MIN_TEXT
        }
        self._forms_by_secret: dict[str, tuple[bytes, ...]] = {}
        self._recent: dict[str, None] = {}
        self._recent_texts = self._recent_data = FormFinder(())
        self._settled_texts, self._settled_data = _build_finders(self._own_forms)
        self._lines: frozenset[str] = frozenset()
        if self._own_forms:
            self._compile_forms()

    @property
    def form_length_max(self) -> int:
        """Return how long the longest form of a secret is; 0 while there is none."""
        return max(self._settled_texts.length_max, self._recent_texts.length_max)

    def learn_secrets(self, value: Any) -> None:
        """Remember every text inside a credential's fields; what is learned again stays longer."""
        is_changed = False
        for secret in _list_texts(value):
            if len(secret) < _LENGTH_MIN_TEXT:
                continue
            forms = self._forms_by_secret.pop(secret, None)
            if forms is None:
                is_changed = True
                self._recent[secret] = None
                forms = list_secret_forms(secret)
            self._forms_by_secret[secret] = forms
        if is_changed:
            self._compile_forms()

    def _compile_forms(self) -> None:
        while len(self._forms_by_secret) > _SECRETS_MAX:
            dropped = next(iter(self._forms_by_secret))
            del self._forms_by_secret[dropped]
            self._recent.pop(dropped, None)
        forms = {**self._forms_by_secret, **self._own_forms}
        if len(self._recent) > _RECENT_MAX:
            self._recent.clear()
            self._settled_texts, self._settled_data = _build_finders(forms)
        self._recent_texts, self._recent_data = _build_finders(
            {secret: forms[secret] for secret in self._recent}
        )
        lines = (line.strip() for secret in forms for line in secret.splitlines()[1:])
        first = (secret.partition("\n")[0].strip() for secret in forms if "\n" in secret)
        self._lines = frozenset(line for line in (*lines, *first) if len(line) >= _LENGTH_MIN_TEXT)

    def contains_secret(self, text: str) -> bool:
        """Tell whether a text contains a secret of 6 characters and more."""
        data = text.encode(errors="surrogatepass")
        return bool(_find_spans(data, self._settled_texts, self._recent_texts))

    def mask_text(self, text: str) -> str:
        """Mask a message: secrets of 6 characters and more."""
        return _mask_text(text, self._settled_texts, self._recent_texts)

    def may_change_lines(self, lines: str) -> bool:
        """Tell whether `mask_line` would change one of several lines; it may say so of none."""
        return self.contains_secret(lines) or any(line in lines for line in self._lines)

    def mask_line(self, text: str) -> str:
        """Mask one line of several: also the lines of a secret that has several, however short."""
        return MASK if text.strip() in self._lines else self.mask_text(text)

    def mask_bytes(self, data: bytes) -> bytes:
        """Mask encoded JSON: secrets of 16 characters and more, so short ones damage no data.

        What was JSON stays JSON, also where the secret was a number.
        """
        spans = _find_spans(data, self._settled_data, self._recent_data)
        if not spans:
            return data
        masked = _cut_spans(data, spans)
        may_break = any(_MAY_BREAK_JSON.fullmatch(data, start, end) for start, end in spans)
        if not may_break or _is_json(masked) or not _is_json(data):
            return masked
        return codec.encode_json(map_texts(codec.decode_json(data), self._mask_long, numbers=True))

    def _mask_long(self, text: str) -> str:
        return _mask_text(text, self._settled_data, self._recent_data)

    def mask_value(self, value: Any) -> Any:
        """Mask every text in a value, also the short secrets; bytes and numbers, too."""
        return map_texts(value, self.mask_text, numbers=True) if self.form_length_max else value

    def mask_error(self, error: ErrorObject) -> ErrorObject:
        """Mask an error's texts and details."""
        if not self.form_length_max:
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


class FormFinder:
    """Finds all of many byte strings in one pass."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        patterns = sorted(set(forms))
        self.length_max = max(map(len, patterns), default=0)
        self._automaton = BytesAhoCorasick(patterns) if patterns else None

    def find_spans(self, data: bytes) -> list[Span]:
        """List where forms are, those that overlap too."""
        if self._automaton is None or not self._automaton.find_matches_as_indexes(data):
            return []
        matches = self._automaton.find_matches_as_indexes(data, overlapping=True)
        return [(start, end) for _, start, end in matches]


def _mask_text(text: str, *finders: FormFinder) -> str:
    data = text.encode(errors="surrogatepass")
    spans = _find_spans(data, *finders)
    return _cut_spans(data, spans).decode(errors="surrogatepass") if spans else text


def _find_spans(data: bytes, *finders: FormFinder) -> list[Span]:
    """List where forms are, as they stand and behind escapes."""
    active_finders = [finder for finder in finders if finder.length_max]
    if not active_finders:
        return []
    if not has_escapes(data):
        return [span for finder in active_finders for span in finder.find_spans(data)]
    escaped_text = EscapedText(data)
    spans: list[Span] = []
    for depth, level in escaped_text.list_levels():
        level_spans = [span for finder in active_finders for span in finder.find_spans(level)]
        spans += escaped_text.find_origin(depth, level_spans) if level_spans else []
    return spans


def _is_json(data: bytes) -> bool:
    try:
        codec.decode_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _cut_spans(data: bytes, spans: list[Span]) -> bytes:
    """Replace each span, and spans that overlap once: a secret may be a part of another."""
    parts: list[bytes] = []
    position = end_before = 0
    for start, end in sorted(spans):
        if start >= end_before:
            parts += (data[position:start], _MASK_BYTES)
        end_before = max(end_before, end)
        position = end_before
    return b"".join((*parts, data[position:]))


def _build_finders(forms: Mapping[str, tuple[bytes, ...]]) -> tuple[FormFinder, FormFinder]:
    """Build what finds all secrets in texts, and the long ones in data."""
    texts = FormFinder(form for item in forms.values() for form in item)
    data = (form for secret, item in forms.items() if _is_long_secret(secret) for form in item)
    return texts, FormFinder(data)


def map_texts(
    value: Any,
    change: Callable[[str], str],
    *,
    change_key: Callable[[str], str] | None = None,
    numbers: bool = False,
) -> Any:
    """Change every text in a value; keys too, in their own way if there is one.

    With `numbers`, bytes are changed as the text that they hold, and what is neither text nor a
    list is changed if the text that it would become is.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        of_key = change_key or change
        return {
            of_key(str(key)): map_texts(item, change, change_key=of_key, numbers=numbers)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_texts(item, change, change_key=change_key, numbers=numbers) for item in value]
    if not numbers or value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        changed = change(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        return value if changed == data else changed
    text = str(value)
    changed_text = change(text)
    is_whole = changed_text == MASK or len(text) >= _LENGTH_MIN_DATA
    return changed_text if is_whole and changed_text != text else value


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
    return map_texts(value, lambda text: SEALED.sub(lambda match: open_text(match[0]), text))
