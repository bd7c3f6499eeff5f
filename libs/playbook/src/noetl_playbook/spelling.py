"""Which known name was probably meant."""

from collections.abc import Iterable

_CANDIDATES_MAX = 2_000
# Comparing is quadratic; no name of the language is longer.
_WORD_CHARACTERS_MAX = 200
# In shorter words one edit makes another word, in longer ones two edits are still one mistake.
_SLIP_CHARACTERS_MIN = 3
_TWO_SLIPS_CHARACTERS_MIN = 8


def distance(left: str, right: str) -> int:
    """Count the edits and swaps of neighbours between two words (optimal string alignment)."""
    before: list[int] = []
    current = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        earlier, before, current = before, current, [i] + [0] * len(right)
        for j, b in enumerate(right, 1):
            current[j] = min(before[j] + 1, current[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                current[j] = min(current[j], earlier[j - 2] + 1)
    return current[-1]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the nearest known word within two edits, or within a third of its length."""
    if len(word) > _WORD_CHARACTERS_MAX:
        return None
    best: str | None = None
    fewest = len(word)
    for candidate in sorted(set(known))[:_CANDIDATES_MAX]:
        allowed = min(max(2, len(candidate) // 3), fewest - 1)
        if candidate == word or abs(len(candidate) - len(word)) > allowed:
            continue
        edits = distance(word, candidate)
        if edits <= allowed:
            best, fewest = candidate, edits
    return best


def is_slip(word: str, meant: str) -> bool:
    """Tell whether a word is so near another one that it can only be a mistyped one."""
    if len(meant) < _SLIP_CHARACTERS_MIN or _lettered(word) == _lettered(meant):
        return False
    return distance(word, meant) <= (1 if len(meant) < _TWO_SLIPS_CHARACTERS_MIN else 2)


def _lettered(word: str) -> str:
    """Leave out digits: `url_1` and `url_2` are two names."""
    return "".join(each for each in word if not each.isdigit())


def hint(word: str, known: Iterable[str]) -> str | None:
    """Phrase the nearest known word as a question, if there is one."""
    found = nearest(word, known)
    return None if found is None else f"did you mean '{found}'?"
