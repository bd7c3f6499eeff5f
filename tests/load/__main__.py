"""Load and soak: `python -m tests.load soak | concurrent | sweep | tenants`; writes docs/load.{json,md}.

Each measures a stack of its own and writes its section anew; what the others found stays. `--found FILE`
keeps what was found in a file instead, `--write FILE` takes such a file into the page.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from tests.load import soak


def main() -> None:
    """Run one load."""
    given = _arguments()
    with tempfile.TemporaryDirectory(prefix=f"noetl-{given.name}-") as folder:
        found = soak.run(
            Path(folder),
            soak.Asked(minutes=given.minutes, each_s=given.rate, sample_file=given.samples),
        )
    given.found.write_bytes(msgspec.json.format(msgspec.json.encode(found)))


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--samples", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--found", type=Path, default=Path("soak.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
