"""What happens to the things that a playbook is about: orders, patients, shipments."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.ids import RunId
from noetl_contracts.payloads import PayloadRef

ATTRIBUTES_BYTES_MAX = 2048


class BusinessObjectChanged(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="business_object.changed",
):
    """A step's end brought about, changed or removed an object of the playbook's domain.

    `object_id` begins with the type; `attributes` replace those of the same names. `result_ref` is
    the step's result, which it comes from.
    """

    object_type: str
    object_id: str
    step: str
    run_id: RunId
    status: str | None = None
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    result_ref: PayloadRef | None = None
    is_deleted: bool = False
