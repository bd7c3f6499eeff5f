"""Documents, templates, execution, pipelines, results and pagination, as the language has them."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.support import site
from tests.support.examining import Case, Examiner, cases
from tests.support.stack import running_stack

pytestmark = pytest.mark.timeout(300)

SECTIONS = ("document", "templates", "execution", "pipelines", "results", "pagination")


ENVIRON = {"NOETL_TEMPLATE_ENV": "LISTED", "LISTED": "shown"}
SETTINGS = ("--no-s3", "--set", "WORKER_SHELL_ALLOWED=true")


@pytest.fixture(scope="module")
def examiner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """One stack for all the cases; they share nothing but it."""
    folder = tmp_path_factory.mktemp("language") / "stack"
    with (
        site.serving() as running,
        running_stack(folder, *SETTINGS, environ=ENVIRON) as stack,
        closing(Examiner(stack, SITE=running.url)) as found,
    ):
        found.keep("pg_target", "postgres", dsn=stack.url("target"))
        yield found


@pytest.mark.parametrize("case", cases(*SECTIONS))
def test_a_playbook_does_what_the_language_page_says(examiner: Examiner, case: Case) -> None:
    examiner.examine(case)
