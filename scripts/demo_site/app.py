"""The application. Each answer says who gave it, and what it read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shmlock
from demo_site.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse

NAME = os.environ["DEMO_NAME"]

ledger = Ledger(Path(os.environ["DEMO_LEDGER"]))
# Whoever is next after a writer that was killed inside mends the ledger before anyone reads it.
lock = shmlock.RWLock(f"{NAME}.lock", on_owner_died=ledger.mend)
config = shmlock.SharedConfig(f"{NAME}.config")

first_use: dict[int, float] = {}  # by version, of this worker


def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """`/` reads; `/write` writes in the ledger, too; `/die` stops in the middle of that, until it is killed."""
    if environ["PATH_INFO"] == "/write":
        with lock.writer:
            ledger.write()
    elif environ["PATH_INFO"] == "/die":
        with lock.writer:
            ledger.write_half()
            time.sleep(60)
    with lock.reader:
        ledger_agrees = ledger.agrees()
    current = config.snapshot()
    used_at = first_use.setdefault(current.version, time.time())
    body = {
        "pid": os.getpid(),
        "version": current.version,
        "first": current.value["first"],
        "last": current.value["last"],
        "published_at": current.published_at,
        "used_at": used_at,
        "ledger_agrees": ledger_agrees,
    }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]
