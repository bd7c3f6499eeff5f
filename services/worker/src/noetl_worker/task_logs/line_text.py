"""Turns a line as it was written into the text that is stored: masked first, then cut.

A secret may stand across the place where a line is cut. So more of a long line is held than is
stored, all that is held is masked, and the end of it, which may begin a secret, is left out.
"""

from msgspec import Struct

from noetl_worker.domain.masking import Mask

LINE_CHARACTERS_MAX = 16 * 1024
RAW_BYTES_MAX = 64 * 1024


class RawLine(Struct, frozen=True, kw_only=True):
    """A line as it was written, and how many bytes of it were not held."""

    data: bytes
    left_out: int = 0


def text_of(line: RawLine, mask: Mask) -> str:
    """Return a line's text, without secrets and within its bound; a cut is said in it."""
    whole = line.data.removesuffix(b"\r") if not line.left_out else line.data
    masked = mask.line(whole.decode(errors="replace"))
    if line.left_out:
        masked = masked[: max(0, len(masked) - mask.form_length_max)]
    if not line.left_out and len(masked) <= LINE_CHARACTERS_MAX:
        return masked
    shown = masked[:LINE_CHARACTERS_MAX]
    return f"{shown} [cut: the line has {len(line.data) + line.left_out} bytes]"
