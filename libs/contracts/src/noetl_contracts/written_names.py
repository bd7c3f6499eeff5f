"""Names that people write: of playbooks, steps, inputs, entries of the keychain and the workbook.

A name is one line of visible characters: it is shown in tables, logs and messages, and is a part of
addresses. Histories and catalogs may hold older names; these rules are for what is written anew.
"""

NAME_CHARACTERS_MAX = 256
_SHOWN_CHARACTERS_MAX = 40
_NO_FOLDERS = frozenset({"", ".", ".."})
# Direction controls reorder a line, separators end it; the others are not seen.
_HIDDEN = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *(0xAD, 0x61C, 0x180E, 0xFEFF),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
    *range(0xD800, 0xE000),
)


def _escape_code(code: int) -> str:
    match code:
        case 0x0A:
            return "\\n"
        case 0x0D:
            return "\\r"
        case 0x09:
            return "\\t"
        case _ if code <= 0xFF:  # noqa: PLR2004 - a byte
            return f"\\x{code:02x}"
        case _ if code <= 0xFFFF:  # noqa: PLR2004 - four digits
            return f"\\u{code:04x}"
        case _:
            return f"\\U{code:08x}"


_ESCAPES = {code: _escape_code(code) for code in _HIDDEN}
_ESCAPES_IN_TEXT = {code: text for code, text in _ESCAPES.items() if code not in (0x09, 0x0A)}
# JSON escapes what is below 32 itself, and has escapes of 16 bits alone.
_ESCAPES_IN_JSON = {
    code: "".join(
        f"\\u{unit:04x}"
        for unit in (
            (code,)
            if code <= 0xFFFF  # noqa: PLR2004 - one unit
            else (0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF))
        )
    )
    for code in _HIDDEN
    if code >= 0x7F  # noqa: PLR2004 - the first that JSON leaves as it is
}


def escape_line(text: str) -> str:
    """Show what would end a line, reorder it, stay unseen or command a terminal."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def escape_text(text: str) -> str:
    """Escape as `escape_line` does, but leave line ends and tabs."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES_IN_TEXT)


def escape_json(text: str) -> str:
    """Escape within encoded JSON, which stays the same value."""
    return text if text.isascii() else text.translate(_ESCAPES_IN_JSON)


def find_name_problem(name: str) -> str | None:
    """Say why a text cannot be a name, if it cannot."""
    shown_name = escape_line(name[:_SHOWN_CHARACTERS_MAX])
    if not name.strip():
        return "a name is empty"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"the name '{shown_name}…' is longer than {NAME_CHARACTERS_MAX} characters"
    if not name.isprintable():
        return f"the name '{shown_name}' has a line break or another character that is not visible"
    if name != name.strip():
        return f"the name '{shown_name}' begins or ends with a space"
    return None


def find_path_problem(path: str) -> str | None:
    """Say why a text cannot be the path of a playbook, if it cannot."""
    problem = find_name_problem(path)
    if problem is not None:
        return problem
    if any(part in _NO_FOLDERS or part != part.strip() for part in path.split("/")):
        shown_path = escape_line(path[:_SHOWN_CHARACTERS_MAX])
        return (
            f"the path '{shown_path}' has a part that is empty, '.', '..' or has spaces around it"
        )
    return None
