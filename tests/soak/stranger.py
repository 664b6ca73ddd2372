"""A worker in an interpreter of its own: attaches by name, and to the board by descriptor."""

from __future__ import annotations

import sys
import traceback

from tests.ending import die_with
from tests.soak.board import Board
from tests.soak.roles import Part, prepare, work

if __name__ == "__main__":
    name = sys.argv[1]
    words, faults, printed, desks, seed, desk, life, threads, steps, parent = map(int, sys.argv[2:])
    die_with(parent)
    board = Board(desks, (words, faults, printed))
    prepare(board)
    try:
        work(Part(board, name, seed, desk, life, threads, steps))
    except BaseException:
        board.fault("error", traceback.format_exc())
        raise
