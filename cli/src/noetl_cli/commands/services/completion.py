"""`noetl completion`: complete words in a shell."""

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from noetl_cli import settings


class Shell(StrEnum):
    """Whose words are completed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Whose script is printed.")]) -> None:
    """Print the script that completes words in a shell.

    bash: eval "$(noetl completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
    fish: noetl completion fish > ~/.config/fish/completions/noetl.fish
    """
    # As it is: a shell reads it.
    typer.echo(
        get_completion_script(
            prog_name="noetl", complete_var=settings.COMPLETION_VARIABLE, shell=shell
        )
    )
