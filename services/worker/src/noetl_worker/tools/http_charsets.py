"""The character sets that an answer may name; a server's word chooses among them and no more.

Python's codecs would do much else for a name: some refuse every text, some take escapes apart, and
each name that they do not know is remembered for good.
"""

from encodings import aliases, normalize_encoding
from functools import lru_cache

DEFAULT = "utf-8"
# Codecs that make something else than a text of bytes.
_NO_CHARSETS = frozenset(
    {
        *("base64_codec", "bz2_codec", "hex_codec", "quopri_codec", "rot_13", "uu_codec"),
        *("zlib_codec", "mbcs", "utf_7"),
    }
)
# Those that Python knows by one name alone.
_SINGLE = (
    *("cp1006", "cp720", "cp737", "cp856", "cp874", "cp875", "iso8859_1", "koi8_t", "koi8_u"),
    *("mac_arabic", "mac_croatian", "mac_farsi", "mac_romanian"),
)
_CODECS = {
    **{name: name for name in (*aliases.aliases.values(), *_SINGLE)},
    **aliases.aliases,
}


@lru_cache(maxsize=256)
def codec_of(charset: str | None) -> str:
    """Name the codec for what an answer calls its character set, UTF-8 for what nobody knows."""
    found = _CODECS.get(normalize_encoding(charset or DEFAULT).lower(), DEFAULT)
    return DEFAULT if found in _NO_CHARSETS else found
