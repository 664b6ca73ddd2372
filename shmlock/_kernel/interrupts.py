"""Where CPython runs signal handlers, and a function that begins without.

CPython looks for signals, and for exceptions that other threads sent, when a Python function begins, at a backward
jump, and after a call into C. The look at the beginning is part of the instruction RESUME. Its operand says where that
stands, and what goes on after a `yield from` does not look (see RESUME in the documentation of `dis`): a function that
says so of its beginning is under way before a handler can raise.

The end of a `with` needs that: its `__exit__` would be interrupted before anything of it has run, and nobody would
ever call it again. With a `with lock.reader:` around next to nothing, more than one in three signals came just then.
"""

from __future__ import annotations

from opcode import opmap
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

_RESUME: Final = opmap.get("RESUME")  # CPython's alone
_START, _AFTER_YIELD_FROM = 0, 2


def begins_at_once(function: F) -> F:
    """Have no signal handler run at the very start of the function. Costs nothing: it is the same instruction."""
    code = function.__code__
    instructions = bytearray(code.co_code)
    operations = list(instructions[::2])
    if _RESUME in operations:
        operand = 2 * operations.index(_RESUME) + 1
        if instructions[operand] == _START:
            instructions[operand] = _AFTER_YIELD_FROM
            function.__code__ = code.replace(co_code=bytes(instructions))
    return function
