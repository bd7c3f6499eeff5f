"""The digits of a PostgreSQL numeric, as its type modifier holds them."""

# What `pg_attribute.atttypmod` holds where a type has no modifier.
NO_MODIFIER = -1
_HEADER_BYTES = 4
_PRECISION_SHIFT = 16
_SCALE_MASK = 0x7FF
_SCALE_SIGN = 0x400


def parse_digits(modifier: int | None) -> tuple[int | None, int]:
    """Return the precision and scale that a numeric's type modifier holds, None if it has none."""
    if modifier is None or modifier < _HEADER_BYTES:
        return None, 0
    packed_digits = modifier - _HEADER_BYTES
    # Eleven bits hold the scale, which may be negative.
    scale = ((packed_digits & _SCALE_MASK) ^ _SCALE_SIGN) - _SCALE_SIGN
    return packed_digits >> _PRECISION_SHIFT, scale
