"""Count words; `main` takes the task's inputs by name."""

from collections import Counter


def main(text: str) -> dict[str, int]:
    """Count each word of a text."""
    return dict(Counter(text.split()))
