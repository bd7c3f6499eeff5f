"""What every value of the canonical playbook is made from."""

import msgspec

# A declared number or duration (seconds) is a number, or text holding a whole-value template.
Number = int | float | str
# A condition: template text, or a YAML boolean.
Expression = str | bool


def document_key(field: str) -> str:
    """Spell a field as the document does: `in_` is `in`, `api_version` is `apiVersion`."""
    return "apiVersion" if field == "api_version" else field.rstrip("_")


class Canonical(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=document_key):
    """A value of the canonical model; absent fields hold their stated defaults."""
