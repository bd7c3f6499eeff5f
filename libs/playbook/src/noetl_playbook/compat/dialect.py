"""Detects the dialect of a document: older dialects tolerate more spellings.

A document is of the older dialect when its `apiVersion` is, or when it uses an older form. There a
missing value is false in tests, and names and keys that nothing knows are warnings.
"""

import msgspec

from noetl_contracts import spelling
from noetl_playbook.model.playbook import Playbook, UndefinedMode
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Level, Problem, Severity


def write_undefined_mode(playbook: Playbook, mode: UndefinedMode) -> Playbook:
    """Write into a playbook what its tests of missing values do."""
    spec = msgspec.structs.replace(playbook.executor.spec, undefined=mode)
    executor = msgspec.structs.replace(playbook.executor, spec=spec)
    return msgspec.structs.replace(playbook, executor=executor)


def choose_undefined_mode(
    reading: DocumentReader, written_mode: UndefinedMode | None
) -> UndefinedMode:
    """Tell what tests of missing values do: what is written, else what the dialect implies."""
    if written_mode is not None:
        return written_mode
    return "lenient" if reading.is_older else "strict"


def soften_problems(reading: DocumentReader, mode: UndefinedMode) -> list[Problem]:
    """Give the problems, those that a tolerant document may have as warnings."""
    if reading.level is Level.STRICT:
        return reading.problems
    return [
        msgspec.structs.replace(problem, severity=Severity.WARNING)
        if problem.is_error and _is_tolerated(problem, reading, mode)
        else problem
        for problem in reading.problems
    ]


def _is_tolerated(problem: Problem, reading: DocumentReader, mode: UndefinedMode) -> bool:
    match problem.code:
        case "E303":
            return mode == "lenient"
        case "E103":
            return reading.is_older and not _is_one_edit_away(problem)
        case _:
            return False


def _is_one_edit_away(problem: Problem) -> bool:
    """Tell whether an unknown key is one edit away from the known one that its hint names."""
    if problem.hint is None:
        return False
    _, quote, hint_tail = problem.hint.partition("'")
    known_word = hint_tail.rstrip("'?")
    word = problem.path.rpartition(".")[2]
    return bool(quote) and spelling.is_one_edit_away(word, known_word)
