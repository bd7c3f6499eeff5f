"""The `pft` command."""

import argparse
import sys

from noetl_pft.fixture import command as fixture
from noetl_pft.verify import command as verifier
from noetl_pft.workload import floor


def main() -> int:
    """Run one subcommand; return its exit code."""
    parser = argparse.ArgumentParser(prog="pft", description="The PFT reference workload.")
    commands = parser.add_subparsers(dest="command", required=True)
    fixture.add_serve_arguments(commands.add_parser("serve", help="run the fixture server"))
    verifier.add_begin_arguments(commands.add_parser("begin", help="start a run's ledger"))
    verifier.add_verify_arguments(commands.add_parser("verify", help="judge a run"))
    floor.add_floor_arguments(
        commands.add_parser("floor", help="measure the raw floor of a playbook")
    )
    arguments = parser.parse_args()
    match arguments.command:
        case "serve":
            return fixture.run_fixture(arguments)
        case "begin":
            return verifier.begin_run(arguments)
        case "verify":
            return verifier.verify_run(arguments)
        case "floor":
            return floor.run_floor(arguments)
        case _:
            return 2


if __name__ == "__main__":
    sys.exit(main())
