"""What a python task may require."""

from typing import Any

import pytest

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.python.requirements import (
    Policy,
    Requirements,
    parse_network,
    parse_requirements,
)

HASH = f"--hash=sha256:{'a' * 64}"


def refusal_of(given: Any, policy: Policy = "any") -> tuple[str, str]:
    with pytest.raises(ToolFailure) as caught:
        parse_requirements({"requirements": given}, policy)
    return caught.value.error.kind, caught.value.error.message


@pytest.mark.parametrize(
    "line",
    [
        "requests",
        "requests==2.32.3",
        "requests >= 2, < 3",
        "requests[socks,security]~=2.32",
        "tomli==2.0; python_version < '3.11'",
        "a.b_c-d!=1.0",
        f"requests==2.32.3 {HASH} {HASH}",
    ],
)
def test_packages_of_an_index_are_taken(line: str) -> None:
    assert parse_requirements({"requirements": [line]}, "any").lines == (line,)


@pytest.mark.parametrize(
    "line",
    [
        "-r other.txt",
        "--index-url=https://evil.example",
        "requests --index-url https://evil.example",
        "requests @ https://evil.example/requests.whl",
        "git+https://evil.example/requests",
        "./local",
        "/etc/passwd",
        "requests==1.0 --hash=md5:aa",
        "requests==1.0; x @ y",
        "file:///etc",
    ],
)
def test_options_addresses_and_files_are_refused(line: str) -> None:
    kind, message = refusal_of([line])
    assert kind == "validation"
    assert "name==version" in message


def test_a_text_has_one_package_a_line_and_comments() -> None:
    text = f"# ours\nb==1 \\\n  {HASH}\n\na==2 {HASH} # pinned\n"
    requirements = parse_requirements({"requirements": text}, "hashed")
    assert requirements == Requirements(lines=(f"a==2 {HASH}", f"b==1 {HASH}"), has_hashes=True)


def test_the_older_key_means_the_same_and_both_are_refused() -> None:
    older = {"deps": {"packages": ["a", "b"]}}
    assert parse_requirements(older, "any").lines == ("a", "b")
    with pytest.raises(ToolFailure, match="mean the same"):
        parse_requirements({**older, "requirements": ["a"]}, "any")
    assert parse_requirements({}, "refused") == Requirements()


def test_a_policy_refuses_by_the_name_of_its_setting() -> None:
    for policy in ("refused", "hashed"):
        kind, message = refusal_of(["a==1"], policy)  # type: ignore[arg-type]  # both are policies
        assert kind == "config"
        assert "NOETL_WORKER_PYTHON_REQUIREMENTS=" in message


def test_some_hashes_are_none() -> None:
    kind, message = refusal_of([f"a==1 {HASH}", "b==2"])
    assert (kind, "'b==2' has no hash" in message) == ("validation", True)


@pytest.mark.parametrize("given", [{"a": 1}, [1], 5])
def test_what_is_no_list_of_packages_is_refused(given: Any) -> None:
    assert refusal_of(given)[0] == "validation"


def test_a_list_has_an_end() -> None:
    assert "the limit is 100" in refusal_of([f"a{index}" for index in range(101)])[1]


@pytest.mark.parametrize(
    ("given", "is_open", "is_by_task", "expected"),
    [
        (None, False, True, False),
        (None, True, False, True),
        (True, False, True, True),
        ("true", False, True, True),
        (False, True, True, False),
    ],
)
def test_the_network_is_asked_for(
    given: Any, *, expected: bool, is_open: bool, is_by_task: bool
) -> None:
    assert parse_network({"network": given}, is_open=is_open, is_by_task=is_by_task) is expected


@pytest.mark.parametrize("given", [True, "perhaps"])
def test_the_network_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ToolFailure, match=r"spec\.network"):
        parse_network({"network": given}, is_open=False, is_by_task=False)
