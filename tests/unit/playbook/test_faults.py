"""What goes wrong inside a template is the template's fault; what asks for something is not."""

import builtins
import re

import pytest
from tests.support.planning import NOON

from noetl_contracts.errors import NoetlError
from noetl_playbook.templates.expressions import (
    TemplateError,
    compile_condition,
    compile_value,
    describe_location,
)
from noetl_playbook.templates.render_limits import FAULTS, LimitExceededError, flatten_message
from noetl_playbook.templates.scope import ScopeParts, TemplateScope, TimeSource
from noetl_playbook.views.payload_handle import NeededForRender

SCOPE = TemplateScope(
    TimeSource(now=lambda: NOON, new_uuid=lambda: "0" * 32).build_names(), ScopeParts()
)
# Groups of errors are made by who runs tasks, warnings by who asks for them.
NEVER_RAISED = (ExceptionGroup, Warning, StopAsyncIteration, ImportError)


def test_whatever_a_library_answers_is_a_fault() -> None:
    found = [item for item in vars(builtins).values() if isinstance(item, type)]
    ours = [item for item in found if issubclass(item, Exception) and item is not Exception]
    missing = [each for each in ours if not issubclass(each, (*FAULTS, *NEVER_RAISED))]
    assert missing == []


def test_what_the_engine_asks_for_passes_through() -> None:
    for item in (NeededForRender, NoetlError):
        assert not issubclass(item, tuple(set(FAULTS) - {LimitExceededError}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'abcdef' | truncate(2)", "expected length >= 3, got 2"),
        ("1e17 | iso8601", "."),
        ("'x' | replace(1e400)", "."),
        ("1 is divisibleby(0)", "."),
        ("[1, 'a'] | sort", "."),
        ("timedelta(days=10 ** 10)", "."),
        ("'(' | regex_search('(')", "."),
        ("[1] | slice(0) | list", "."),
    ],
)
def test_a_filter_that_fails_in_any_way_fails_its_template_by_name(
    value: str, message: str
) -> None:
    for source in ("{{ " + value + " }}", "text {{ " + value + " }}"):
        with pytest.raises(TemplateError) as error_info:
            compile_value(source).render(SCOPE)
        text = describe_location(error_info.value, step="s", field="f")
        assert re.search(message, error_info.value.message)
        assert text.startswith("step 's', field 'f': ")
        assert value in text
    with pytest.raises(TemplateError):
        compile_condition("{{ " + value + " }}").evaluate_condition(SCOPE)


def test_a_message_is_of_a_length_and_of_signs_that_any_event_can_hold() -> None:
    for name in ("'x' * 90000", "'\\ud800'", "'a\\n\\n b'"):
        with pytest.raises(TemplateError) as error_info:
            compile_value("{{ gone[" + name + "] }}").render(SCOPE)
        error_info.value.message.encode()
        assert len(error_info.value.message) <= 1_000
        assert "\n" not in error_info.value.message
    assert flatten_message("a\n b\ud800") == "a b\\ud800"
