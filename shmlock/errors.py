"""Every exception, in one place.

All of them are `ShmlockError`s. Where the standard library has a word for the same thing, they are that,
too, so that code written for `threading` or for files catches them without knowing this package.
They carry nothing but their message, and so pickle.
"""

from __future__ import annotations


class ShmlockError(Exception):
    """The base of every error of this package."""


class LockTimeout(ShmlockError, TimeoutError):
    """The lock was not to be had in the time given. Nothing is held."""


class NotHeld(ShmlockError, RuntimeError):
    """A release, downgrade or conversion by a thread that does not hold what it gives up."""


class WouldDeadlock(ShmlockError, RuntimeError):
    """The wait asked for could only end by what the caller itself holds, or is in the middle of."""


class SegmentNotFound(ShmlockError, FileNotFoundError):
    """There is no segment of this name, and it was not to be created."""


class LayoutMismatch(ShmlockError):
    """The segment is sound, but not what was asked for: another kind, layout version, size or platform."""


class ForeignSegment(ShmlockError, PermissionError):
    """The segment belongs to a user that is neither root, nor us, nor the owner we were told to expect."""


class SegmentCorrupt(ShmlockError):
    """The bytes under this name are not a whole segment."""


class ParticipantsExhausted(ShmlockError):
    """Every slot of the segment belongs to a thread that lives."""


class PayloadTooLarge(ShmlockError, ValueError):
    """The encoded value does not fit the capacity that was fixed at creation."""


class QueueFull(ShmlockError):
    """The timer queue holds as many timers as it was created for."""


class NotPublished(ShmlockError, LookupError):
    """Nothing has been published yet, and no default was given."""


class OwnerDied(ShmlockError):
    """A writer was killed inside, and nobody has vouched for what it left behind."""


class ClosedError(ShmlockError):
    """The object was closed."""


class UnsupportedPlatform(ShmlockError, OSError):
    """This platform lacks something that no slower way can replace."""
