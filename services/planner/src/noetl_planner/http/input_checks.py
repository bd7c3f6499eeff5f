"""Inputs that a playbook does not have: refused, or told where it runs without them."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from msgspec import UNSET, UnsetType

from noetl_contracts.ledger import CatalogEntry
from noetl_planner.http.problems import ApiError
from noetl_playbook import inputs
from noetl_playbook.expressions import TemplateError, compile_value


def check_inputs(entry: CatalogEntry, given: Mapping[str, Any]) -> None:
    """Refuse inputs that a playbook does not have; raises a 422 that names the nearest ones."""
    fault = inputs.find_fault_of_model(entry.model, given)
    if fault is None or not fault.is_refused:
        return
    raise ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="inputs_do_not_fit",
        detail=f"{entry.path}: {fault.message}",
        hint=fault.hint,
    )


def check_templates(given: Any) -> None:
    """Refuse inputs whose templates do not compile; raises a 422."""
    try:
        compile_value(given)
    except TemplateError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY, code="template_refused", detail=str(error)
        ) from error


def find_warnings(entry: CatalogEntry, given: Mapping[str, Any]) -> list[str] | UnsetType:
    """Tell the inputs that a playbook does not have, and runs without."""
    fault = inputs.find_fault_of_model(entry.model, given)
    return UNSET if fault is None else [fault.text]
