"""Templates compiled once, rendered often: values, texts and conditions."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes

from noetl_playbook import closures, coercion, failing, fallback, forms, syntax
from noetl_playbook.canonical import Expression
from noetl_playbook.closures import NotTranslatedError, Run, Scope
from noetl_playbook.condition import Condition
from noetl_playbook.faults import FAULTS, readable
from noetl_playbook.lookup import Lookup
from noetl_playbook.sandbox import Flavour
from noetl_playbook.steady import rendered_once
from noetl_playbook.syntax import SyntaxProblemError, Tree
from noetl_playbook.templates import cost, rendering
from noetl_playbook.templates.rendering import LimitExceededError
from noetl_playbook.templates.weight import check_weight
from noetl_playbook.undefined import Undefined, UndefinedUsedError

CACHED_TEMPLATES_MAX = 8_192

_SHOWN_CHARACTERS_MAX = 200
_TRUE_TEXTS = frozenset({"true", "1", "yes", "on"})
_FALSE_TEXTS = frozenset({"false", "0", "no", "off", "none", "null", ""})


class TemplateError(Exception):
    """A template could not be compiled or rendered; it never yields its own text.

    `kind` is that of the error which the playbook sees: `template`, or `limit`.
    """

    def __init__(
        self,
        message: str,
        *,
        expression: str,
        hint: str | None = None,
        path: tuple[str | int, ...] = (),
        kind: str = "template",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.expression = expression
        self.hint = hint
        self.path = path

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.message} in {self.expression}{hint}"

    def below(self, key: str | int) -> "TemplateError":
        """Place this error one level further out, under `key`."""
        return TemplateError(
            self.message,
            expression=self.expression,
            hint=self.hint,
            path=(key, *self.path),
            kind=self.kind,
        )


def located(error: TemplateError, *, step: str, task: str | None = None, field: str = "") -> str:
    """Say where a template failed: `step 'load', task 'fetch', field 'url': …`."""
    inner = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.path)
    whole = (field + inner).lstrip(".")
    places = [f"step '{step}'"]
    places += [f"task '{task}'"] if task is not None else []
    places += [f"field '{whole}'"] if whole else []
    return f"{', '.join(places)}: {error}"


class Compiled:
    """A value with its templates compiled; immutable, shared freely.

    `render` gives the plain form, as tool fields, inputs and `ctx` receive it. `evaluate` keeps
    a result view that is the whole value, as pipeline variables and `iter` do.
    """

    __slots__ = ("evaluate", "is_constant", "names", "paths", "render", "source")

    def __init__(
        self,
        source: Any,
        render: Run,
        *,
        evaluate: Run | None = None,
        names: frozenset[str] = frozenset(),
        paths: frozenset[str] = frozenset(),
        is_constant: bool = False,
    ) -> None:
        self.source = source
        self.render = render
        self.evaluate = evaluate or render
        self.names = names
        self.paths = paths
        self.is_constant = is_constant


def compile_value(source: Any, *, flavour: Flavour = "text") -> Compiled:
    """Compile every template in a value of any depth; raises `TemplateError`."""
    if isinstance(source, str):
        return _cached_text(source, flavour)
    if isinstance(source, dict):
        return _compile_mapping(source, flavour)
    if isinstance(source, list | tuple):
        return _compile_list(source, flavour)
    return _constant(source)


def _constant(source: Any) -> Compiled:
    return Compiled(source, lambda _scope: source, is_constant=True)


def _compile_mapping(source: dict[str, Any], flavour: Flavour) -> Compiled:
    parts = {key: _below(key, item, flavour) for key, item in source.items()}
    if all(part.is_constant for part in parts.values()):
        return _constant(source)
    entries = [(key, part.render) for key, part in parts.items()]

    def run(scope: Scope) -> Any:
        rendered: dict[str, Any] = {}
        key: str = ""
        try:
            for key, part in entries:
                rendered[key] = part(scope)
        except TemplateError as error:
            raise error.below(key) from error
        return rendered

    return _combined(source, run, list(parts.values()))


def _compile_list(source: list[Any] | tuple[Any, ...], flavour: Flavour) -> Compiled:
    parts = [_below(index, item, flavour) for index, item in enumerate(source)]
    if all(part.is_constant for part in parts):
        return _constant(source)
    runs = [part.render for part in parts]

    def run(scope: Scope) -> Any:
        rendered: list[Any] = []
        try:
            for part in runs:
                rendered.append(part(scope))  # noqa: PERF401 (its length places an error)
        except TemplateError as error:
            raise error.below(len(rendered)) from error
        return rendered

    return _combined(source, run, parts)


def _below(key: str | int, item: Any, flavour: Flavour) -> Compiled:
    try:
        return compile_value(item, flavour=flavour)
    except TemplateError as error:
        raise error.below(key) from error


def _combined(source: Any, run: Run, parts: list[Compiled]) -> Compiled:
    names = frozenset[str]().union(*(part.names for part in parts))
    paths = frozenset[str]().union(*(part.paths for part in parts))
    return Compiled(source, run, names=names, paths=paths)


@functools.lru_cache(maxsize=CACHED_TEMPLATES_MAX)
def _cached_text(source: str, flavour: Flavour) -> Compiled:
    if not coercion.is_template(source):
        return _constant(source)
    with _compiling(source):
        tree = syntax.parse(source)
        paths = syntax.paths(tree, names := syntax.names(tree))
        if tree.value is None:
            render = rendered_once(_watched(tree, _text(tree, flavour)), names)
            return Compiled(source, render, names=names, paths=paths)
        return Compiled(
            source,
            rendered_once(_watched(tree, _whole_value(tree, tree.value, keep_views=False)), names),
            evaluate=_watched(tree, _whole_value(tree, tree.value, keep_views=True)),
            names=names,
            paths=paths,
        )


def _watched(tree: Tree, run: Run) -> Run:
    """Let the process's guard watch over a template whose shape can be expensive."""
    if cost.is_light(tree.root):
        return run
    expression = shortened(tree.source)
    return rendering.watched(
        run,
        lambda error: _fault(error, expression),
        expression=expression,
        is_cheap=cost.is_cheap(tree.root),
    )


@contextlib.contextmanager
def _compiling(source: str) -> Iterator[None]:
    """Turn every fault of compilation into a template error."""
    try:
        yield
    except SyntaxProblemError as error:
        raise TemplateError(error.message, expression=shortened(source), hint=error.hint) from error
    except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
        raise _fault(error, shortened(source)) from error


def shortened(source: str) -> str:
    """Show a template in a message, whole if it is short."""
    text = source.strip()
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def _fault(
    error: BaseException, expression: str, paths: frozenset[str] = frozenset()
) -> TemplateError:
    """Make a template error; `paths` are those that the template reads."""
    if isinstance(error, UndefinedUsedError):
        error = error.with_whole_path(paths)
    hint = getattr(error, "hint", None)
    return TemplateError(
        readable(str(error) or type(error).__name__),
        expression=expression,
        hint=hint if isinstance(hint, str) else None,
        kind=error.kind if isinstance(error, LimitExceededError) else "template",
    )


def evaluator(tree: Tree, value: nodes.Expr) -> Run:
    """Give the closure of a whole-value template, or Jinja's own code for it."""
    try:
        return closures.translate(value)
    except NotTranslatedError:
        return fallback.value(tree, value)


def _whole_value(tree: Tree, value: nodes.Expr, *, keep_views: bool) -> Run:
    evaluate = evaluator(tree, value)
    expression = shortened(tree.source)
    paths = syntax.paths(tree, syntax.names(tree))
    # Below its root a path yields raw data, which holds no views: no need to walk it.
    is_raw = isinstance(value, nodes.Getattr | nodes.Getitem) and syntax.chain(value)[1] != []
    # What a template has made may hold one value many times.
    is_made = not isinstance(value, nodes.Name | nodes.Getattr | nodes.Getitem)
    untouched = frozenset({str, int, float, bool, type(None), *((dict, list) if is_raw else ())})

    def run(scope: Scope) -> Any:
        try:
            found = evaluate(scope)
            if type(found) in untouched:
                return found
            if isinstance(found, Undefined):
                found.fail()
            if keep_views and isinstance(found, Lookup):
                return found
            if is_made:
                check_weight(found)
            return forms.plain(found)
        except FAULTS as error:
            raise _fault(error, expression, paths) from error

    return run


def _text(tree: Tree, flavour: Flavour) -> Run:
    try:
        parts = _parts(tree)
    except NotTranslatedError:
        return _text_by_jinja(tree, flavour)
    form = forms.text_of if flavour == "text" else forms.python_of
    snippets = syntax.snippets(tree.source)

    def run(scope: Scope) -> str:
        texts: list[str] = []
        try:
            for part in parts:
                texts.append(part if isinstance(part, str) else form(part(scope)))  # noqa: PERF401 (its length places an error)
            return rendering.bounded("".join(texts))
        except FAULTS as error:
            position = sum(not isinstance(part, str) for part in parts[: len(texts)])
            known = snippets[position] if position < len(snippets) else tree.source
            raise _fault(error, shortened(known)) from error

    return run


def _parts(tree: Tree) -> list[str | Run]:
    """Split a text template into literal text and closures."""
    parts: list[str | Run] = []
    for statement in tree.root.body:
        if not isinstance(statement, nodes.Output):
            raise NotTranslatedError(type(statement).__name__)
        for node in statement.nodes:
            if isinstance(node, nodes.TemplateData):
                parts.append(node.data)
            else:
                parts.append(closures.translate(node))
    return parts


def _text_by_jinja(tree: Tree, flavour: Flavour) -> Run:
    render = fallback.text(tree, flavour)
    expression = shortened(tree.source)
    paths = syntax.paths(tree, syntax.names(tree))

    def run(scope: Scope) -> str:
        try:
            return render(scope)
        except FAULTS as error:
            raise _fault(error, expression, paths) from error

    return run


def compile_condition(source: Expression) -> Condition:
    """Compile a condition; raises `TemplateError`."""
    if isinstance(source, bool):
        verdict = (source, None)
        return Condition(source, lambda _scope: verdict, names=frozenset(), paths=frozenset())
    return _cached_condition(source)


@functools.lru_cache(maxsize=CACHED_TEMPLATES_MAX)
def _cached_condition(source: str) -> Condition:
    template = source if coercion.is_template(source) else "{{ " + source + " }}"
    with _compiling(source):
        tree = syntax.parse(template)
        names = syntax.names(tree)
        judge = _judge_text(tree) if tree.value is None else _judge_value(tree, tree.value)
        return Condition(
            source,
            _watched(tree, judge),
            names=names,
            paths=syntax.paths(tree, names),
            needs_error=tree.value is not None and failing.needs_error(tree.value),
        )


def _judge_value(tree: Tree, value: nodes.Expr) -> Callable[[Scope], tuple[bool, str | None]]:
    evaluate = evaluator(tree, value)
    expression = shortened(tree.source)
    paths = syntax.paths(tree, syntax.names(tree))

    def judge(scope: Scope) -> tuple[bool, str | None]:
        try:
            found = evaluate(scope)
            if isinstance(found, Undefined):
                return bool(found), found.path
            return bool(found), None
        except FAULTS as error:
            raise _fault(error, expression, paths) from error

    return judge


def _judge_text(tree: Tree) -> Callable[[Scope], tuple[bool, str | None]]:
    render = _text(tree, "text")

    def judge(scope: Scope) -> tuple[bool, str | None]:
        text = str(render(scope)).strip().lower()
        if text in _TRUE_TEXTS | _FALSE_TEXTS:
            return text in _TRUE_TEXTS, None
        raise TemplateError(
            f"the condition gives {text[:_SHOWN_CHARACTERS_MAX]!r}, neither true nor false",
            expression=shortened(tree.source),
        )

    return judge


def render(source: Any, scope: Mapping[str, Any]) -> Any:
    """Compile and render a value at once; what is compiled stays cached."""
    return compile_value(source).render(scope)
