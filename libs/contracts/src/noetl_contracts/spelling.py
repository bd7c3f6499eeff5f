"""Suggests the known name that a misspelled one probably means."""

import difflib
from collections.abc import Iterable

_CANDIDATES_MAX = 2_000
# Comparing is quadratic; no name of the language is longer.
_WORD_CHARACTERS_MAX = 200
# In shorter words one edit makes another word, in longer ones two edits are still one mistake.
_SLIP_CHARACTERS_MIN = 3
_TWO_EDITS_CHARACTERS_MIN = 8
_TWO_EDITS_RATIO_MIN = 0.8
_LISTED_MAX = 20


def find_nearest_word(word: str, known_names: Iterable[str]) -> str | None:
    """Find the known word that is most like another one, if one is like it at all."""
    if len(word) > _WORD_CHARACTERS_MAX:
        return None
    candidates = [name for name in sorted(set(known_names))[:_CANDIDATES_MAX] if name != word]
    close_matches = difflib.get_close_matches(word, candidates, n=1)
    return close_matches[0] if close_matches else None


def suggest_word(word: str, known_names: Iterable[str]) -> str | None:
    """Phrase the nearest known word as a question, if there is one."""
    nearest_word = find_nearest_word(word, known_names)
    return None if nearest_word is None else f"did you mean '{nearest_word}'?"


def suggest_or_list(word: str, known_names: Iterable[str], *, label: str) -> str:
    """Ask for the nearest known word; without one list them behind a label, as `its steps are`."""
    words = list(known_names)
    more_text = f" and {len(words) - _LISTED_MAX} more" if len(words) > _LISTED_MAX else ""
    return (
        suggest_word(word, words)
        or f"{label} {', '.join(words[:_LISTED_MAX]) or 'none'}{more_text}"
    )


def is_one_edit_away(word: str, known_names: str) -> bool:
    """Tell whether a letter was left out, added, changed, or swapped with its neighbour."""
    if word == known_names:
        return False
    pairs = enumerate(zip(word, known_names, strict=False))
    start = next((place for place, (a, b) in pairs if a != b), min(len(word), len(known_names)))
    left, right = word[start:], known_names[start:]
    is_swap = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return is_swap or right in (left[1:], right[:1] + left[1:], right[:1] + left)


def is_spelling_slip(word: str, meant: str) -> bool:
    """Tell whether a word is so near another one that it can only be a mistyped one."""
    if len(meant) < _SLIP_CHARACTERS_MIN or _drop_digits(word) == _drop_digits(meant):
        return False
    if is_one_edit_away(word, meant):
        return True
    ratio = difflib.SequenceMatcher(a=meant, b=word).ratio()
    return len(meant) >= _TWO_EDITS_CHARACTERS_MIN and ratio >= _TWO_EDITS_RATIO_MIN


def _drop_digits(word: str) -> str:
    """Leave out digits: `url_1` and `url_2` are two names."""
    return "".join(item for item in word if not item.isdigit())
