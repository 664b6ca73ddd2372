"""Two workers that share their metrics, and a lock."""

import os
from functools import partial

import shmlock
from shmlock.gunicorn import *  # noqa: F403  all hooks there are

NAME = os.environ.get("SITE", "site")

bind = "127.0.0.1:8000"
workers = 2
wsgi_app = "app:application"
shmlock_objects = {
    f"{NAME}.metrics": partial(shmlock.RTMetrics, max_participants=64),  # threads of all workers; 104 KB each
    f"{NAME}.lock": "RWLock",
}
