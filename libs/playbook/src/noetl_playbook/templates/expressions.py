"""Templates compiled once, rendered often: values, texts and conditions."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes

from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Expression
from noetl_playbook.templates import (
    closures,
    conditions,
    error_words,
    jinja_fallback,
    output_forms,
    render_limits,
    syntax,
    template_cost,
)
from noetl_playbook.templates.closures import NotTranslatedError, Run, Scope
from noetl_playbook.templates.conditions import Condition
from noetl_playbook.templates.frame_render_cache import render_once
from noetl_playbook.templates.lookup import Lookup
from noetl_playbook.templates.render_limits import (
    FAULTS,
    LimitExceededError,
    check_weight,
    flatten_message,
)
from noetl_playbook.templates.sandbox import Flavour
from noetl_playbook.templates.syntax import SyntaxProblemError, TemplateTree
from noetl_playbook.templates.undefined import Undefined, UndefinedUsedError

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

    def place_under(self, key: str | int) -> "TemplateError":
        """Place this error one level further out, under `key`."""
        return TemplateError(
            self.message,
            expression=self.expression,
            hint=self.hint,
            path=(key, *self.path),
            kind=self.kind,
        )


def describe_location(
    error: TemplateError, *, step: str, task: str | None = None, field: str = ""
) -> str:
    """Say where a template failed: `step 'load', task 'fetch', field 'url': …`."""
    inner = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.path)
    whole = (field + inner).lstrip(".")
    places = [f"step '{step}'"]
    places += [f"task '{task}'"] if task is not None else []
    places += [f"field '{whole}'"] if whole else []
    return f"{', '.join(places)}: {error}"


class CompiledTemplate:
    """A value with its templates compiled; immutable, shared freely.

    `render_value` gives the plain form, as tool fields, inputs and `ctx` receive it. `evaluate`
    keeps a result view that is the whole value, as pipeline variables and `iter` do.
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


def compile_value(source: Any, *, flavour: Flavour = "text") -> CompiledTemplate:
    """Compile every template in a value of any depth; raises `TemplateError`."""
    if isinstance(source, str):
        return _compile_text_cached(source, flavour)
    if isinstance(source, dict):
        return _compile_mapping(source, flavour)
    if isinstance(source, list | tuple):
        return _compile_list(source, flavour)
    return _compile_constant(source)


def _compile_constant(source: Any) -> CompiledTemplate:
    return CompiledTemplate(source, lambda _scope: source, is_constant=True)


def _compile_mapping(source: dict[str, Any], flavour: Flavour) -> CompiledTemplate:
    parts = {key: _compile_under(key, item, flavour) for key, item in source.items()}
    if all(part.is_constant for part in parts.values()):
        return _compile_constant(source)
    entries = [(key, part.render) for key, part in parts.items()]

    def render_mapping(scope: Scope) -> Any:
        rendered: dict[str, Any] = {}
        key: str = ""
        try:
            for key, part in entries:
                rendered[key] = part(scope)
        except TemplateError as error:
            raise error.place_under(key) from error
        return rendered

    return _combine_parts(source, render_mapping, list(parts.values()))


def _compile_list(source: list[Any] | tuple[Any, ...], flavour: Flavour) -> CompiledTemplate:
    parts = [_compile_under(index, item, flavour) for index, item in enumerate(source)]
    if all(part.is_constant for part in parts):
        return _compile_constant(source)
    runs = [part.render for part in parts]

    def render_list(scope: Scope) -> Any:
        rendered: list[Any] = []
        try:
            for part in runs:
                rendered.append(part(scope))  # noqa: PERF401 (its length places an error)
        except TemplateError as error:
            raise error.place_under(len(rendered)) from error
        return rendered

    return _combine_parts(source, render_list, parts)


def _compile_under(key: str | int, item: Any, flavour: Flavour) -> CompiledTemplate:
    try:
        return compile_value(item, flavour=flavour)
    except TemplateError as error:
        raise error.place_under(key) from error


def _combine_parts(source: Any, run: Run, parts: list[CompiledTemplate]) -> CompiledTemplate:
    names = frozenset[str]().union(*(part.names for part in parts))
    paths = frozenset[str]().union(*(part.paths for part in parts))
    return CompiledTemplate(source, run, names=names, paths=paths)


@functools.lru_cache(maxsize=CACHED_TEMPLATES_MAX)
def _compile_text_cached(source: str, flavour: Flavour) -> CompiledTemplate:
    if not coercion.is_template(source):
        return _compile_constant(source)
    with _catch_compile_errors(source):
        tree = syntax.parse_template(source)
        paths = syntax.list_paths(tree, names := syntax.list_names(tree))
        if tree.value is None:
            render = render_once(_watch_render(tree, _compile_text(tree, flavour)), names)
            return CompiledTemplate(source, render, names=names, paths=paths)
        return CompiledTemplate(
            source,
            render_once(
                _watch_render(tree, _compile_whole_value(tree, tree.value, keep_views=False)), names
            ),
            evaluate=_watch_render(tree, _compile_whole_value(tree, tree.value, keep_views=True)),
            names=names,
            paths=paths,
        )


def _watch_render(tree: TemplateTree, run: Run) -> Run:
    """Let the process's guard watch over a template whose shape can be expensive."""
    if template_cost.is_light(tree.root):
        return run
    expression = shorten_template(tree.source)
    return render_limits.watch_render(
        run,
        lambda error: _build_template_error(error, expression),
        expression=expression,
        is_cheap=template_cost.is_cheap(tree.root),
    )


@contextlib.contextmanager
def _catch_compile_errors(source: str) -> Iterator[None]:
    """Turn every fault of compilation into a template error."""
    try:
        yield
    except SyntaxProblemError as error:
        raise TemplateError(
            error.message, expression=shorten_template(source), hint=error.hint
        ) from error
    except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
        raise _build_template_error(error, shorten_template(source)) from error


def shorten_template(source: str) -> str:
    """Show a template in a message, whole if it is short."""
    text = source.strip()
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def _build_template_error(
    error: BaseException, expression: str, paths: frozenset[str] = frozenset()
) -> TemplateError:
    """Make a template error; `paths` are those that the template reads."""
    if isinstance(error, UndefinedUsedError):
        error = error.complete_path(paths)
    hint = getattr(error, "hint", None)
    return TemplateError(
        error_words.describe_fault(flatten_message(str(error) or type(error).__name__)),
        expression=expression,
        hint=hint if isinstance(hint, str) else None,
        kind=error.kind if isinstance(error, LimitExceededError) else "template",
    )


def choose_evaluator(tree: TemplateTree, value: nodes.Expr) -> Run:
    """Give the closure of a whole-value template, or Jinja's own code for it."""
    try:
        return closures.translate_expression(value)
    except NotTranslatedError:
        return jinja_fallback.compile_value_by_jinja(tree, value)


def _compile_whole_value(tree: TemplateTree, value: nodes.Expr, *, keep_views: bool) -> Run:
    evaluate = choose_evaluator(tree, value)
    expression = shorten_template(tree.source)
    paths = syntax.list_paths(tree, syntax.list_names(tree))
    # Below its root a path yields raw data, which holds no views: no need to walk it.
    is_raw = isinstance(value, nodes.Getattr | nodes.Getitem) and syntax.split_path(value)[1] != []
    # What a template has made may hold one value many times.
    is_made = not isinstance(value, nodes.Name | nodes.Getattr | nodes.Getitem)
    untouched = frozenset({str, int, float, bool, type(None), *((dict, list) if is_raw else ())})

    def evaluate_whole(scope: Scope) -> Any:
        try:
            result = evaluate(scope)
            if type(result) in untouched:
                return result
            if isinstance(result, Undefined):
                result.fail()
            if keep_views and isinstance(result, Lookup):
                return result
            if is_made:
                check_weight(result)
            return output_forms.to_plain(result)
        except FAULTS as error:
            raise _build_template_error(error, expression, paths) from error

    return evaluate_whole


def _compile_text(tree: TemplateTree, flavour: Flavour) -> Run:
    try:
        parts = _translate_parts(tree)
    except NotTranslatedError:
        return _compile_text_by_jinja(tree, flavour)
    form = output_forms.to_text if flavour == "text" else output_forms.to_python_literal
    snippets = syntax.list_snippets(tree.source)

    def render_text(scope: Scope) -> str:
        texts: list[str] = []
        try:
            for part in parts:
                texts.append(part if isinstance(part, str) else form(part(scope)))  # noqa: PERF401 (its length places an error)
            return render_limits.bound_text("".join(texts))
        except FAULTS as error:
            position = sum(not isinstance(part, str) for part in parts[: len(texts)])
            source = snippets[position] if position < len(snippets) else tree.source
            raise _build_template_error(error, shorten_template(source)) from error

    return render_text


def _translate_parts(tree: TemplateTree) -> list[str | Run]:
    """Split a text template into literal text and closures."""
    parts: list[str | Run] = []
    for statement in tree.root.body:
        if not isinstance(statement, nodes.Output):
            raise NotTranslatedError(type(statement).__name__)
        for node in statement.nodes:
            if isinstance(node, nodes.TemplateData):
                parts.append(node.data)
            else:
                parts.append(closures.translate_expression(node))
    return parts


def _compile_text_by_jinja(tree: TemplateTree, flavour: Flavour) -> Run:
    render = jinja_fallback.compile_text_by_jinja(tree, flavour)
    expression = shorten_template(tree.source)
    paths = syntax.list_paths(tree, syntax.list_names(tree))

    def render_by_jinja(scope: Scope) -> str:
        try:
            return render(scope)
        except FAULTS as error:
            raise _build_template_error(error, expression, paths) from error

    return render_by_jinja


def compile_condition(source: Expression) -> Condition:
    """Compile a condition; raises `TemplateError`."""
    if isinstance(source, bool):
        verdict = (source, None)
        return Condition(source, lambda _scope: verdict, names=frozenset(), paths=frozenset())
    return _compile_condition_cached(source)


@functools.lru_cache(maxsize=CACHED_TEMPLATES_MAX)
def _compile_condition_cached(source: str) -> Condition:
    template = source if coercion.is_template(source) else "{{ " + source + " }}"
    with _catch_compile_errors(source):
        tree = syntax.parse_template(template)
        names = syntax.list_names(tree)
        judge = (
            _compile_text_condition(tree)
            if tree.value is None
            else _compile_value_condition(tree, tree.value)
        )
        return Condition(
            source,
            _watch_render(tree, judge),
            names=names,
            paths=syntax.list_paths(tree, names),
            needs_error=tree.value is not None and conditions.needs_error(tree.value),
        )


def _compile_value_condition(
    tree: TemplateTree, value: nodes.Expr
) -> Callable[[Scope], tuple[bool, str | None]]:
    evaluate = choose_evaluator(tree, value)
    expression = shorten_template(tree.source)
    paths = syntax.list_paths(tree, syntax.list_names(tree))

    def judge_value(scope: Scope) -> tuple[bool, str | None]:
        try:
            result = evaluate(scope)
            if isinstance(result, Undefined):
                return bool(result), result.path
            return bool(result), None
        except FAULTS as error:
            raise _build_template_error(error, expression, paths) from error

    return judge_value


def _compile_text_condition(tree: TemplateTree) -> Callable[[Scope], tuple[bool, str | None]]:
    render = _compile_text(tree, "text")

    def judge_text(scope: Scope) -> tuple[bool, str | None]:
        text = str(render(scope)).strip().lower()
        if text in _TRUE_TEXTS | _FALSE_TEXTS:
            return text in _TRUE_TEXTS, None
        raise TemplateError(
            f"the condition gives {text[:_SHOWN_CHARACTERS_MAX]!r}, neither true nor false",
            expression=shorten_template(tree.source),
        )

    return judge_text


def render_value(source: Any, scope: Mapping[str, Any]) -> Any:
    """Compile and render a value at once; what is compiled stays cached."""
    return compile_value(source).render(scope)
