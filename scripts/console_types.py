"""Write the console's types of the API, and words of the language: `make console/types`."""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.console_bundle import SOURCE, find_node, install_packages, run_node

TYPES = SOURCE / "src/lib/schema.d.ts"
VOCABULARY = SOURCE / "src/playbook/vocabulary.json"
DIGEST = "// The OpenAPI document's SHA-256: "


def build_document() -> str:
    """Return the OpenAPI document as the planner serves it, without what types do not need.

    Left out are its version, refusals, and examples, which are made up anew each time.
    """
    from tests.support.api import ApiWorld  # noqa: PLC0415 - the test of this file has it anyway

    from noetl_planner.api.app import create_app  # noqa: PLC0415

    schema = create_app(ApiWorld().services()).openapi_schema.to_schema()
    schema["info"]["version"] = "0"
    for operations in schema["paths"].values():
        for operation in operations.values():
            responses = operation.get("responses", {})
            operation["responses"] = {code: said for code, said in responses.items() if code < "4"}
    return json.dumps(drop_examples(schema), sort_keys=True, default=str)


def drop_examples(value: Any) -> Any:
    """Return a part of the document without its examples."""
    match value:
        case dict():
            return {
                name: drop_examples(part)
                for name, part in value.items()
                if not (name == "examples" and isinstance(part, list))
            }
        case list():
            return [drop_examples(part) for part in value]
        case _:
            return value


def build_vocabulary() -> dict[str, list[str]]:
    """Collect the words of the language from its JSON Schema: keys, and kinds of tools."""
    from noetl_playbook.model.tools import KINDS  # noqa: PLC0415 - as above
    from noetl_playbook.schema import build_document_schema  # noqa: PLC0415 - as above

    keys: set[str] = set()

    def collect_keys(value: Any) -> None:
        match value:
            case dict():
                properties = value.get("properties")
                keys.update(properties if isinstance(properties, dict) else ())
                for part in value.values():
                    collect_keys(part)
            case list():
                for part in value:
                    collect_keys(part)

    collect_keys(build_document_schema())
    kinds = [name for name, kind in KINDS.items() if kind.is_available]
    return {"keys": sorted(keys), "kinds": sorted(kinds)}


def digest_document(document: str) -> str:
    """Name a document."""
    return hashlib.sha256(document.encode()).hexdigest()


def read_digest() -> str:
    """Return which document the types were made from."""
    first = TYPES.read_text().partition("\n")[0]
    return first.removeprefix(DIGEST)


def main() -> int:
    """Write the types."""
    document = build_document()
    node = find_node()
    install_packages(node)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "openapi.json"
        path.write_text(document)
        words = ["node_modules/openapi-typescript/bin/cli.js", str(path), "--output", str(TYPES)]
        run_node(node, words, limit_s=120, what="openapi-typescript")
    VOCABULARY.write_text(json.dumps(build_vocabulary(), indent=2) + "\n")
    TYPES.write_text(f"{DIGEST}{digest_document(document)}\n{TYPES.read_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
