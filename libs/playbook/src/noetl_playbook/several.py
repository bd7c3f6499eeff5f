"""Texts that hold several playbooks, cut into one text each."""

import itertools

from noetl_playbook.document import LINE_BREAK


def cut(text: str, begins: list[int]) -> list[str]:
    """Cut a text into its documents, each with what stands before it; the first begins the text."""
    places = [0, *(match.end() for match in LINE_BREAK.finditer(text)), len(text)]
    starts = [0, *(places[line - 1] for line in begins[1:]), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(starts)]
