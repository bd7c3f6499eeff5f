import pytest

from noetl_worker.domain.failures import (
    build_error,
    classify_exception,
    classify_http_status,
    classify_sqlstate,
)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (429, "rate_limit", True),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (400, "client_error", False),
        (408, "client_error", True),
        (425, "client_error", True),
        (500, "server_error", True),
        (503, "server_error", True),
    ],
)
def test_http_statuses_have_kinds(status: int, kind: str, *, retryable: bool) -> None:
    error = classify_http_status(status, "m", retry_after=None)
    assert (error.kind, error.retryable, error.code) == (kind, retryable, f"HTTP_{status}")


@pytest.mark.parametrize(
    ("sqlstate", "kind", "retryable"),
    [
        ("08006", "db_connection", True),
        ("57P01", "db_connection", True),
        ("53300", "db_connection", True),
        ("40001", "db_deadlock", True),
        ("40P01", "db_deadlock", True),
        ("55P03", "db_deadlock", True),
        ("57014", "db_timeout", True),
        ("23505", "db_constraint", False),
        ("28P01", "auth", False),
        ("42601", "db_error", False),
    ],
)
def test_sqlstates_have_kinds(sqlstate: str, kind: str, *, retryable: bool) -> None:
    error = classify_sqlstate(sqlstate, "m", details={})
    assert (error.kind, error.retryable, error.pg_code) == (kind, retryable, sqlstate)


@pytest.mark.parametrize(
    ("name", "bases", "kind", "retryable"),
    [
        ("ValueError", ["ValueError", "Exception"], "transform", False),
        ("TimeoutError", ["TimeoutError", "OSError"], "timeout", True),
        ("ConnectionResetError", ["ConnectionResetError", "ConnectionError"], "connection", True),
        ("AssertionError", ["AssertionError"], "assertion", False),
    ],
)
def test_exceptions_have_kinds(name: str, bases: list[str], kind: str, *, retryable: bool) -> None:
    error = classify_exception(name, bases, "")
    assert (error.kind, error.retryable, error.exception_type) == (kind, retryable, name)


def test_a_kind_is_its_own_code_unless_another_is_given() -> None:
    assert build_error("assertion", "m").code == "ASSERTION"
    assert build_error("connection", "m").code == "CONN"
    assert build_error("limit", "m", code="MAX_JUMPS").code == "MAX_JUMPS"
