"""Cross-process locks in shared memory that are fair and survive kill -9, and what can be built on them.

    errors
    _kernel     what Linux gives: robust mutexes, membarrier, semaphores, names in /dev/shm
    _segment    what the bytes mean: words, header, slots
    _engine     how waiting works: who is next (pure) | the readers' fast path | sleeping | recovery
    _faces      what `with` takes, and what is done about a writer that was killed inside
    locks       RWLock, SeekLock, Mutex
    config      SharedConfig
    metrics     RTMetrics
    timers      TimerQueue
    gunicorn    hooks for gunicorn.conf.py
    prometheus  a collector: all objects on one page, from any process
    wsgi        middleware that records each response
    asgi        the same for ASGI
    updater     python -m shmlock.updater
    bench       python -m shmlock.bench

Imports go down only.
"""

from __future__ import annotations

from shmlock._engine.stats import LockStatistics, ModeStatistics
from shmlock._segment.segment import unlink
from shmlock.config import SharedConfig, Snapshot
from shmlock.errors import (
    ClosedError,
    ForeignSegment,
    LayoutMismatch,
    LockTimeout,
    NotHeld,
    NotPublished,
    OwnerDied,
    ParticipantsExhausted,
    PayloadTooLarge,
    QueueFull,
    SegmentCorrupt,
    SegmentNotFound,
    ShmlockError,
    UnsupportedPlatform,
    WouldDeadlock,
)
from shmlock.locks import Mutex, RWLock, SeekLock
from shmlock.metrics import LatencyHistogram, MetricsSnapshot, RTMetrics
from shmlock.timers import TimerQueue

__version__ = "0.1.0"

__all__ = [
    "ClosedError",
    "ForeignSegment",
    "LatencyHistogram",
    "LayoutMismatch",
    "LockStatistics",
    "LockTimeout",
    "MetricsSnapshot",
    "ModeStatistics",
    "Mutex",
    "NotHeld",
    "NotPublished",
    "OwnerDied",
    "ParticipantsExhausted",
    "PayloadTooLarge",
    "QueueFull",
    "RTMetrics",
    "RWLock",
    "SeekLock",
    "SegmentCorrupt",
    "SegmentNotFound",
    "SharedConfig",
    "ShmlockError",
    "Snapshot",
    "TimerQueue",
    "UnsupportedPlatform",
    "WouldDeadlock",
    "unlink",
]
