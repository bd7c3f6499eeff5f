"""User code, compiled: which inputs become parameters of code that returns."""

import keyword

import pytest

from noetl_worker.sandbox.user_call import CallRequest, run_user_call

FITS = ("n", "_", "match", "case", "type", "ä", "class_", "__name")
FITS_NOT = (*keyword.kwlist, "__debug__", "a-b", "1st", "", "ﬁ", "x y")


@pytest.mark.parametrize("name", [*FITS, *FITS_NOT])
def test_an_input_of_any_name_is_there_for_code_that_returns(name: str) -> None:
    inputs = {"asked": name, name: 7}
    ask = CallRequest(code="return inputs[asked]", inputs=inputs, execution_id="1", cpu_s=1)
    assert run_user_call(ask, lambda _: None) == 7


def test_names_that_the_compiler_takes_for_one_do_not_meet() -> None:
    ask = CallRequest(
        code="return fi, inputs['ﬁ']", inputs={"ﬁ": 1, "fi": 2}, execution_id="1", cpu_s=1
    )
    assert run_user_call(ask, lambda _: None) == [2, 1]


@pytest.mark.parametrize("name", FITS)
def test_an_input_that_code_can_name_is_a_variable(name: str) -> None:
    ask = CallRequest(code=f"return {name} + 1", inputs={name: 7}, execution_id="1", cpu_s=1)
    assert run_user_call(ask, lambda _: None) == 8
