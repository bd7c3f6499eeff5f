"""Texts as values of a type: a text that is none of it is told, and no digit is lost."""

import pyarrow as pa
import pyarrow.compute as pc

_PLAIN_DECIMAL = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)$"
# What Arrow may read as a whole number.
_INTEGER = r"^(-?[0-9]+|0[xX][0-9a-fA-F]+)$"
_TRUE, _FALSE = ["true", "t", "1", "yes"], ["false", "f", "0", "no"]


def cast_texts(
    texts: pa.Array, kind: pa.DataType, *, rows_max: int | None = None
) -> tuple[pa.Array, list[int]]:
    """Cast texts; return the values, null for those that do not fit, and the rows of these.

    After `rows_max` rows that do not fit the others are not looked at.
    """
    if pa.types.is_string(kind):
        return texts, []
    plain = texts if pa.types.is_binary(kind) else pc.utf8_trim_whitespace(texts)
    parts: list[pa.Array] = []
    rows: list[int] = []
    if rows_max is None or rows_max > 1:
        # Where many do not fit, halving alone would look for each of them.
        is_misfit = _find_misfits(plain, kind)
        if is_misfit is not None:
            rows = pc.indices_nonzero(is_misfit).to_pylist()
            plain = pc.if_else(is_misfit, pa.scalar(None, plain.type), plain)
    _cast_parts(plain, kind, 0, parts, rows, len(texts) if rows_max is None else rows_max)
    return pa.concat_arrays(parts), rows


def _cast_parts(
    texts: pa.Array,
    kind: pa.DataType,
    first: int,
    parts: list[pa.Array],
    rows: list[int],
    rows_max: int,
) -> None:
    """Cast texts, halving what does not fit until the rows that do not are alone."""
    if rows and len(rows) >= rows_max:
        parts.append(pa.nulls(len(texts), kind))
        return
    try:
        parts.append(_cast_whole(texts, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(texts) == 1:
            parts.append(pa.nulls(1, kind))
            rows.append(first)
            return
        middle = len(texts) // 2
        _cast_parts(texts.slice(0, middle), kind, first, parts, rows, rows_max)
        _cast_parts(texts.slice(middle), kind, first + middle, parts, rows, rows_max)


def _cast_whole(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        lower = pc.utf8_lower(texts)
        is_true = pc.is_in(lower, pa.array(_TRUE))
        is_known = pc.or_(is_true, pc.is_in(lower, pa.array(_FALSE)))
        if pc.all(pc.if_else(texts.is_null(), True, is_known)).as_py() is False:  # noqa: FBT003 - Arrow's signature
            raise pa.ArrowInvalid("a text is neither true nor false")
        return pc.if_else(texts.is_null(), pa.scalar(None, pa.bool_()), is_true)
    if pa.types.is_decimal(kind):
        _check_digits(texts, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # A moment without a zone is one of UTC.
        has_zone = pc.match_substring_regex(texts, r"([zZ]|[+-][0-9]{2}(:?[0-9]{2})?)$")
        zoned = pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
        return zoned.cast(kind)
    values = texts.cast(kind)
    check_numbers(texts, values)
    return values


def check_numbers(texts: pa.Array, values: pa.Array) -> None:
    """Raise `ArrowInvalid` for a text of which Arrow's cast made another number."""
    if pa.types.is_signed_integer(values.type):
        # Digits of base 16 reach the bit of the sign.
        is_other = pc.and_(pc.less(values, 0), pc.invert(pc.starts_with(texts, "-")))
    elif pa.types.is_floating(values.type):
        is_named = pc.match_substring_regex(texts, r"(?i)^[+-]?inf")
        is_other = pc.and_(pc.is_inf(values), pc.invert(is_named))
    else:
        return
    if pc.any(is_other).as_py():
        raise pa.ArrowInvalid(f"a number is no {values.type}")


def _find_misfits(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return which texts cannot be of a type, as far as their digits say so; None if none does."""
    if pa.types.is_decimal(kind):
        fits = fit_digits(texts, kind)
    elif pa.types.is_integer(kind):
        fits = pc.match_substring_regex(texts, _INTEGER)
    else:
        return None
    return None if pc.all(fits).as_py() is not False else pc.fill_null(pc.invert(fits), False)  # noqa: FBT003 - Arrow's signature


def _check_digits(texts: pa.Array, kind: pa.DataType) -> None:
    """Raise `ArrowInvalid` for what a decimal does not hold: Arrow's cast wraps some around."""
    if pc.all(fit_digits(texts, kind)).as_py() is False:
        raise pa.ArrowInvalid(f"a number is no {kind}")


def fit_digits(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return which texts without an exponent a decimal holds exactly."""
    whole_digits = pc.replace_substring_regex(texts, r"^[+-]?0*|\..*$", "")
    fraction = pc.replace_substring_regex(texts, r"^[^.]*\.?|0+$", "")
    fits = pc.match_substring_regex(texts, _PLAIN_DECIMAL)
    fits = pc.and_(fits, pc.less_equal(pc.utf8_length(whole_digits), kind.precision - kind.scale))
    return pc.and_(fits, pc.less_equal(pc.utf8_length(fraction), kind.scale))
