"""Four workers that share a lock and a configuration."""
# ruff: noqa: N999  gunicorn's name for this file

import os
from functools import partial

import shmlock
from shmlock.gunicorn import *  # noqa: F403  all hooks there are

NAME = os.environ["DEMO_NAME"]

bind = "127.0.0.1:0"
workers = 4
control_socket_disable = True
shmlock_objects = {
    f"{NAME}.lock": "RWLock",
    f"{NAME}.config": partial(shmlock.SharedConfig, capacity=200_000),
}
