"""What a payload is refused with that cannot be read, or not within its bound."""

from noetl_contracts.errors import Permanent

# What one payload may hold unpacked, where a reader says nothing else.
DECODED_BYTES_MAX = 1024 * 1024 * 1024


class PayloadUnreadable(Permanent):
    """The stored bytes are whole, but they are no result payload."""


class PayloadTooLarge(PayloadUnreadable):
    """The stored bytes unpack to more than the reader may hold in memory."""


class MalformedBytes(ValueError):  # noqa: N818 - it says what is wrong with the bytes
    """Bytes do not have the form of the structure that they are read as."""


def build_too_large_error(subject: str, size: int, bytes_max: int) -> PayloadTooLarge:
    """Say what would take how many bytes, and what to do about it."""
    return PayloadTooLarge(
        f"{subject} takes at least {size} bytes unpacked, the limit is {bytes_max}: store it in "
        "parts, or move it with kind transfer or duckdb, which read files by pieces"
    )
