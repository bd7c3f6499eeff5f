"""The code of a Spark task before it runs: what is no `main` is refused, or raises as its own."""

from typing import Any

import pytest
from tests.support.hostile import HOSTILE

from noetl_worker.spark.code import main_call
from noetl_worker.spark.tables.store_access import SparkRefusal


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:30])
def test_code_that_defines_no_main_ends_as_an_error_of_the_code(value: Any) -> None:
    # What code raises, of any class, is told as its own.
    with pytest.raises((SparkRefusal, SyntaxError, NameError, ValueError, TypeError)):
        main_call._load_main(str(value))


def test_main_is_found_beside_other_names() -> None:
    main = main_call._load_main("x = 2\ndef main(spark, inputs): return x")
    assert main(None, {}) == 2
