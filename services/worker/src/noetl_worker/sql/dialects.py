"""How the engines read SQL, by sqlglot: loaded when the first text is read, as it takes long."""

from functools import cache
from typing import Any

from msgspec import Struct
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

__all__ = ["DialectTokenizer", "TokenError", "reader"]


class DialectTokenizer(Struct, frozen=True):
    """The tokenizer of a dialect."""

    tokenizer: type[Tokenizer]
    dialect: Any

    def read(self, text: str) -> list[Token]:
        """Return the tokens of a text; raises `TokenError`."""
        # A tokenizer holds the text that it reads: threads need one each.
        return self.tokenizer(dialect=self.dialect).tokenize(text)


def is_word(token: Token) -> bool:
    """Tell words from what is quoted, numbers and marks."""
    return token.token_type is TokenType.VAR


def is_continued(before: Token, token: Token) -> bool:
    """Tell whether a string may go on with one that has escapes."""
    is_escaped = before.token_type is TokenType.BYTE_STRING
    return is_escaped and token.token_type is TokenType.STRING


@cache
def reader(name: str) -> DialectTokenizer:
    """Return the tokenizer of a dialect."""
    dialect = Dialect.get_or_raise(name)
    base = dialect.tokenizer_class
    # Words stay words: several of them would be one token, and a command would swallow what
    # follows it, strings and all. A hint is a comment.
    keywords = {key: kind for key, kind in base.KEYWORDS.items() if _is_operator(key)}
    tokenizer_class = type(f"{name}_tokens", (base,), {"KEYWORDS": keywords, "COMMANDS": set()})
    return DialectTokenizer(tokenizer_class, dialect)


def _is_operator(key: str) -> bool:
    return not any(char.isalnum() or char in "{}" for char in key) and not key.startswith("/*")
