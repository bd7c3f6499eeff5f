"""Which SQL a task may run: queries over its own inputs, and nothing that reaches beyond them.

Spark's SQL can start programs, call Java, read files and change settings. What a statement means
is asked of Spark's own parser and analyser, and everything that is not known to be harmless is
refused.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from noetl_contracts import codec
from noetl_worker.spark.tables.store_access import SparkRefusal

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_ANALYSIS = "org.apache.spark.sql.catalyst.analysis."
_EXECUTION = "org.apache.spark.sql.execution."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
# Operators of queries. Commands, statements and the additions of newer releases are refused.
_OPERATORS = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Join", "LateralJoin", "AsOfJoin", "Sort", "Window"),
        *("GlobalLimit", "LocalLimit", "LimitAll", "Offset", "Tail", "Distinct", "Deduplicate"),
        *("Union", "Except", "Intersect", "SubqueryAlias", "View", "WithWindowDefinition"),
        *("Generate", "Expand", "OneRowRelation", "LocalRelation", "EmptyRelation", "Range"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions", "Sample", "Pivot"),
        *("Unpivot", "Transpose", "UnresolvedHint", "ResolvedHint", "CTERelationDef", "WithCTE"),
        *("CTERelationRef", "UnresolvedWith", "PipeOperator", "PipeExpression", "UnionLoop"),
        *("UnionLoopRef", "LocalLimitAndOffset"),
    }
)
_UNRESOLVED = frozenset(
    {
        *("UnresolvedRelation", "UnresolvedInlineTable", "ResolvedInlineTable"),
        *("UnresolvedTableValuedFunction", "UnresolvedSubqueryColumnAliases"),
        *("UnresolvedTVFAliases", "UnresolvedHaving", "NameParameterizedQuery"),
    }
)
# What a parsed expression is made of before its names are known.
_UNRESOLVED_EXPRESSIONS = (
    *("Star", "Attribute", "Function", "Alias", "Parameter", "ExtractValue", "Regex", "Ordinal"),
    *("NamespaceExpression", "Generator", "MultiAlias", "GroupByAll", "OrderByAll"),
    "ExceptOrReplace",
)
_SOURCES = frozenset(
    {f"{_EXECUTION}LogicalRDD", f"{_EXECUTION}datasources.v2.DataSourceV2Relation"}
)
_STREAMS = frozenset(
    {
        "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2",
        f"{_LOGICAL}EventTimeWatermark",
    }
)
_REACHING = ("Reflect", "Protobuf", "Avro", "ScriptTransformation", "PythonUDF", "ScalaUDF")


def check_query(session: SparkSession, text: str) -> None:
    """Refuse a statement that is no query; raises `SparkRefusal`, and errors of Spark's parser."""
    plan = _parse_plan(session, text)
    _check_plan(plan, "the statement")


def refuse_command() -> None:
    """Say what may stand before the last statement."""
    text = (
        "only the last statement may be a query, and those before it CREATE TEMPORARY VIEW "
        "name AS …: write what else they do as a view"
    )
    raise SparkRefusal("validation", text)


def check_analysed(frame: DataFrame) -> None:
    """Refuse a query that means more than its text says; raises `SparkRefusal`."""
    _check_plan(frame._jdf.queryExecution().analyzed(), "the query")  # noqa: SLF001 - Spark has no other way to show a plan


def list_operators(frame: DataFrame) -> list[str]:
    """List the names of the operators of a query, as Spark's classes have them."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
    classes = _list_classes(codec.decode_json(plan.toJSON().encode()))
    return [name.rpartition(".")[2] for name in classes if name.startswith(_LOGICAL)]


def _parse_plan(session: SparkSession, text: str) -> Any:
    parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - as above
    return parser.parsePlan(text)


def _check_plan(plan: Any, subject: str) -> None:
    for name in sorted(set(_list_classes(codec.decode_json(plan.toJSON().encode())))):
        if not _is_class_allowed(name):
            text = (
                f"{subject} uses {name.rpartition('.')[2]}, which tasks may not: query the "
                "inputs of the task, or let an operator set NOETL_WORKER_SPARK_CODE_ALLOWED=true"
            )
            raise SparkRefusal("config", text)


def _list_classes(value: Any) -> Iterator[str]:
    """List the classes of a plan's operators and expressions, subqueries included."""
    if isinstance(value, dict):
        if isinstance(value.get("class"), str):
            yield value["class"]
        for item in value.values():
            yield from _list_classes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_classes(item)


def _is_class_allowed(name: str) -> bool:
    package, _, class_name = name.rpartition(".")
    if name in _STREAMS:
        return True
    if any(part in class_name for part in _REACHING):
        return False
    if package == _LOGICAL[:-1]:
        return class_name in _OPERATORS
    if name.startswith(_EXECUTION):
        return name in _SOURCES
    if package == _ANALYSIS[:-1]:
        return class_name in _UNRESOLVED or class_name.endswith(_UNRESOLVED_EXPRESSIONS)
    return name.startswith(_EXPRESSIONS)
