"""The words of the command line, before any verb reads them."""

from noetl_cli.failures import CliError, ExitCode


def check_words(words: list[str]) -> None:
    """Refuse words that are not text; raises `CliError`."""
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            shown = word.encode(errors="backslashreplace").decode()[:80]
            raise CliError(
                f"{shown!r} is not UTF-8.",
                way_out="Check the terminal's encoding.",
                exit_code=ExitCode.USAGE,
            )
