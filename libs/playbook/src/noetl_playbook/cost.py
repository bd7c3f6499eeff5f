"""Which templates can be expensive, by their shape alone: only those are watched while they run.

Everything else costs no more than a few passes over the values that it names.
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


def is_cheap(root: nodes.Template) -> bool:
    """Tell whether nothing in a template can take long."""
    return all(_is_cheap(node) for node in root.find_all(nodes.Node))


def _is_cheap(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Filter):
        return node.name in _CHEAP_FILTERS
    if isinstance(node, nodes.Call):
        callee = node.node
        if isinstance(callee, nodes.Getattr):
            return callee.attr in _CHEAP_METHODS
        return isinstance(callee, nodes.Name) and callee.name in _CHEAP_FUNCTIONS
    return isinstance(node, _CHEAP_NODES)
