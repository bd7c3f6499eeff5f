"""`noetl explain`: the plan that a result holds, of one table or of several."""

from typing import Any

import pytest

from noetl_cli.commands.executions import explain


@pytest.mark.parametrize(
    ("data", "plan"),
    [
        ({"rows": [], "columns": [], "plan": "scan"}, "scan"),
        (
            {
                "few": {"rows": [], "columns": ["a"], "plan": "scan a"},
                "many": {"_ref": "x", "columns": ["b"], "plan": "scan b"},
                "count": 2,
            },
            "few:\nscan a\n\nmany:\nscan b",
        ),
        ({"own": {"plan": "gold"}}, None),
        ({"rows": [], "columns": []}, None),
        ([1], None),
    ],
)
def test_plans_are_found_in_a_result(data: Any, plan: str | None) -> None:
    assert explain.find_plan(data) == plan
