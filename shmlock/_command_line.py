"""What the command lines have in common: an error is one line on stderr, with the way to the help."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final, NoReturn

FINE: Final = 0
USAGE: Final = 2  # as argparse has it


class Parser(argparse.ArgumentParser):
    """Help as it is written, options in full, and what is wrong in one line."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **arguments)

    def error(self, message: str) -> NoReturn:
        """Say it, and leave."""
        self.exit(fail(self.prog, USAGE, f"{message} (--help tells more)"))


def fail(prog: str, code: int, message: str) -> int:
    """Say what went wrong; the exit code."""
    sys.stderr.write(f"{prog}: error: {' '.join(message.split())}\n")
    return code
