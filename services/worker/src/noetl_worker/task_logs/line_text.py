"""Turns a line as it was written into the text that is stored: masked first, then cut.

A secret may stand across the place where a line is cut. So more of a long line is held than is
stored, all that is held is masked, and the end of it, which may begin a secret, is left out.
"""

from collections.abc import Sequence

from msgspec import Struct

from noetl_worker.domain.masking import Mask

LINE_CHARACTERS_MAX = 16 * 1024
RAW_BYTES_MAX = 64 * 1024


class RawLine(Struct, frozen=True, kw_only=True):
    """A line as it was written, and how many bytes of it were not held."""

    data: bytes
    left_out: int = 0


def texts_of(lines: Sequence[RawLine], mask: Mask) -> list[str]:
    """Return the texts of lines, without secrets and within their bound; a cut is said in them.

    All lines are looked at together first: most hold no secret, and are not looked at again.
    """
    texts = [line.data.decode(errors="replace") for line in lines]
    if mask.occurs_in("\n".join(texts)):
        texts = [mask.line(text) for text in texts]
    return [_bounded(text, line, mask) for text, line in zip(texts, lines, strict=True)]


def _bounded(masked: str, line: RawLine, mask: Mask) -> str:
    if line.left_out:
        masked = masked[: max(0, len(masked) - mask.form_length_max)]
    elif len(masked) <= LINE_CHARACTERS_MAX:
        return masked.removesuffix("\r")
    shown = masked[:LINE_CHARACTERS_MAX]
    return f"{shown} [cut: the line has {len(line.data) + line.left_out} bytes]"
