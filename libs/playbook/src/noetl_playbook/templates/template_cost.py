"""Which templates can be expensive, by their shape alone: only those are watched while they run.

What is cheap costs no more than a few passes over the values that it names; what is light costs the
same for all values.
"""

from jinja2 import nodes

_CHEAP_NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Const,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.CondExpr,
    nodes.Add,
    nodes.Sub,
    nodes.Div,
    nodes.FloorDiv,
    nodes.Mod,
    nodes.Neg,
    nodes.Pos,
    nodes.Concat,
    nodes.Test,
    nodes.If,
)
_CHEAP_FILTERS = frozenset(
    {
        *("abs", "b64decode", "b64encode", "capitalize", "count", "d", "default", "float", "int"),
        *("encrypt_secret", "first", "fromjson", "iso8601", "items", "last", "length", "list"),
        *("lower", "md5", "round", "sha256", "sql_ident", "sql_literal", "string", "to_bool"),
        *("title", "to_datetime", "to_number", "tojson", "trim", "upper", "urldecode"),
        "urlencode",
    }
)
_CHEAP_METHODS = frozenset(
    {
        *("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "isdigit"),
        *("isalpha", "capitalize", "title", "find", "get", "keys", "values", "items", "split"),
        *("splitlines", "isoformat", "strftime", "date", "time", "timestamp"),
    }
)
_CHEAP_FUNCTIONS = frozenset({"now", "today", "uuid4", "token", "timedelta", "dict"})
_LIGHT_NODES = (
    nodes.Template,
    nodes.TemplateData,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Const,
    nodes.List,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.CondExpr,
    nodes.Neg,
    nodes.Pos,
)
_LIGHT_ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Div, nodes.FloorDiv)
_LIGHT_FILTERS = frozenset(
    {"abs", "count", "d", "default", "first", "float", "int", "last", "length"}
)
_LIGHT_TESTS = frozenset(
    {
        *("boolean", "defined", "even", "false", "float", "integer", "mapping", "none", "number"),
        *("odd", "sequence", "string", "true", "undefined"),
    }
)
_LIGHT_FUNCTIONS = frozenset({"now", "today", "uuid4", "token"})
# A text of so many parts, each a value that may be long.
_LIGHT_PARTS_MAX = 3


def is_light(root: nodes.Template) -> bool:
    """Tell whether a template takes as long as it is, for all values that it names."""
    return all(_is_light(node) for node in root.find_all(nodes.Node))


def _is_light(node: nodes.Node) -> bool:
    match node:
        case nodes.Filter():
            return node.name in _LIGHT_FILTERS
        case nodes.Test():
            return node.name in _LIGHT_TESTS
        case nodes.Call():
            return isinstance(node.node, nodes.Name) and node.node.name in _LIGHT_FUNCTIONS
        case nodes.Output():
            parts = [part for part in node.nodes if not isinstance(part, nodes.TemplateData)]
            return len(parts) <= _LIGHT_PARTS_MAX
        case nodes.Compare():
            return all(_is_light_link(node.expr, link) for link in node.ops)
        case nodes.BinExpr() if isinstance(node, _LIGHT_ARITHMETIC):
            return isinstance(node.left, nodes.Const) or isinstance(node.right, nodes.Const)
    return isinstance(node, _LIGHT_NODES)


def _is_light_link(left: nodes.Expr, link: nodes.Operand) -> bool:
    if link.op in ("in", "notin"):
        return isinstance(link.expr, nodes.List)
    return isinstance(left, nodes.Const) or isinstance(link.expr, nodes.Const)


def is_cheap(root: nodes.Template) -> bool:
    """Tell whether nothing in a template can take long."""
    return all(_is_cheap(node) for node in root.find_all(nodes.Node))


def _is_cheap(node: nodes.Node) -> bool:
    """Tell whether a node costs a few passes over its values at most, and needs no watching."""
    if isinstance(node, nodes.Filter):
        return node.name in _CHEAP_FILTERS
    if isinstance(node, nodes.Call):
        callee = node.node
        if isinstance(callee, nodes.Getattr):
            return callee.attr in _CHEAP_METHODS
        return isinstance(callee, nodes.Name) and callee.name in _CHEAP_FUNCTIONS
    return isinstance(node, _CHEAP_NODES)
