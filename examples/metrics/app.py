"""A site whose workers record their responses together, and a page for Prometheus that any of them gives.

pip install "shmlock-rw[gunicorn,prometheus]", then run gunicorn in this folder, and look at
http://127.0.0.1:8000/ and http://127.0.0.1:8000/metrics.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, make_wsgi_app

import shmlock
from shmlock.prometheus import Collector
from shmlock.wsgi import RecordRequests

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

NAME = os.environ.get("SITE", "site")

metrics = shmlock.RTMetrics(f"{NAME}.metrics")
lock = shmlock.RWLock(f"{NAME}.lock")

registry = CollectorRegistry()
registry.register(Collector(metrics, lock))
metrics_page = make_wsgi_app(registry)


def site(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """`/` says who answers; nothing else is here."""
    found = environ["PATH_INFO"] == "/"
    with lock.reader:
        start_response("200 OK" if found else "404 Not Found", [("Content-Type", "text/plain")])
        return [f"{os.getpid()}\n".encode()]


recorded_site = RecordRequests(site, metrics)


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """`/metrics` is not recorded itself."""
    answer = metrics_page if environ["PATH_INFO"] == "/metrics" else recorded_site
    return answer(environ, start_response)
