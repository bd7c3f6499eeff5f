"""Where the statements of an SQL text begin and end."""

from collections.abc import Iterator

from noetl_worker.domain.sql_tokens import Dialect, Token, read_tokens, refuse

_CLOSERS = {")": "(", "]": "[", "}": "{"}
_ROUTINE = frozenset({"function", "procedure"})
# Blocks of Spark's scripts that end with their own word behind `END`.
_NAMED_ENDS = frozenset({"if", "while", "loop", "repeat", "for"})
_BEFORE_LABEL = frozenset({"as", "."})


class _Nesting:
    """The brackets and bodies of one statement that are open, in which no semicolon ends it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.tokens: list[Token] = []
        self._brackets: list[Token] = []
        self._bodies: list[Token] = []

    @property
    def open_token(self) -> Token | None:
        """The token that opened what is still open, None when a semicolon ends the statement."""
        if self._brackets:
            return self._brackets[-1]
        return self._bodies[-1] if self._bodies else None

    def add(self, token: Token, following: Token | None) -> bool:
        """Take the next token; False when it closes a bracket that is not open."""
        if token.raw in {"(", "[", "{"}:
            self._brackets.append(token)
        elif token.raw in _CLOSERS:
            if not self._brackets or self._brackets.pop().raw != _CLOSERS[token.raw]:
                return False
        elif token.word and not self._brackets:
            self._note(token, following)
        self.tokens.append(token)
        return True

    def _note(self, token: Token, following: Token | None) -> None:
        before = self.tokens[-1].raw.lower() if self.tokens else ""
        if before in _BEFORE_LABEL:
            return
        is_body = token.word == "begin" and self._opens_body(following)
        if is_body or (self._bodies and token.word == "case" and before != "end"):
            self._bodies.append(token)
        elif self._bodies and token.word == "end" and not self._is_named(following):
            self._bodies.pop()

    def _opens_body(self, following: Token | None) -> bool:
        if self._dialect == "spark":
            # A script, perhaps with a label; within it every `BEGIN` opens a block.
            is_labelled = [token.raw for token in self.tokens[1:]] == [":"]
            return bool(self._bodies) or not self.tokens or is_labelled
        if self._dialect == "duckdb" or following is None or following.word != "atomic":
            return False
        words = [token.word for token in self.tokens[:4]]
        return words[:1] == ["create"] and not _ROUTINE.isdisjoint(words[1:])

    def _is_named(self, following: Token | None) -> bool:
        is_script = self._dialect == "spark"
        return is_script and following is not None and following.word in _NAMED_ENDS


def cut(text: str, dialect: Dialect) -> Iterator[tuple[int, int, list[Token]]]:
    """Yield start, end and tokens of each statement that is not empty.

    What cannot be cut with certainty raises `ToolFailure` with its line.
    """
    tokens = read_tokens(text, dialect)
    start = 0
    nesting = _Nesting(dialect)
    for index, token in enumerate(tokens):
        if token.raw == ";" and nesting.open_token is None:
            if nesting.tokens:
                yield start, token.start, nesting.tokens
            start, nesting = token.end, _Nesting(dialect)
            continue
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        if not nesting.add(token, following):
            refuse(text, token.start, f"'{token.raw}' closes nothing that is open", dialect)
    if nesting.open_token is not None:
        token = nesting.open_token
        refuse(text, token.start, f"'{token.raw}' is not closed", dialect)
    if nesting.tokens:
        yield start, len(text), nesting.tokens
