"""The words of a segment, line by line, each with its invariant.

    header | shared words | slot 0 | slot 1 | ... | slot n-1 | payload

"Under the guard" means: stored only by a thread that holds the guard. A participant's number is its slot
plus one, so that 0 can mean nobody. What is *derived* is recomputed by `State.repair` from the rest.
"""

from __future__ import annotations

from typing import Final

from shmlock._segment.record import Record

# Written before the segment has a name, and never again.
HEADER: Final = Record(
    "magic version kind size participants payload capacity option word_size mutex_size libc:2 fast owner boot:2",
    "created checksum",
)

# One participant's account (or, summed, that of all departed ones). Only the owner of the slot adds to it.
# write, seek, read: granted and given back through the slow path (reads: also the fast one with
# statistics="full"); of the grants, those that had to wait, for how long in all and at longest (ns).
# wait_histogram: bucket i counts waits of less than 2**i us, the last one all longer ones.
ACCOUNT: Final = Record(
    "write_locks write_unlocks write_waits write_wait_ns write_longest_ns "
    "seek_locks seek_unlocks seek_waits seek_wait_ns seek_longest_ns "
    "read_locks read_unlocks read_waits read_wait_ns read_longest_ns "
    "timeouts",
    "wait_histogram:16",
)
# Of these offsets the largest counts, not the sum.
MAXIMA: Final = frozenset(ACCOUNT[name] for name in ACCOUNT if name.endswith("_longest_ns"))

SHARED: Final = Record(
    # guard: the robust mutex. dirty: 1 while a change under it is unfinished; who finds 1 repairs first.
    # high_water: no slot from here up is in use.
    "guard:8 dirty high_water",
    # seat: the robust mutex of the one that feeds the segment (a configuration's updater) as long as it lives.
    "seat:8",
    # gate (derived): 0 open, the readers' fast path is allowed; 1 closed for a writer; 2 closed for good
    # because there is no membarrier, or until a reader asks (resting): every reader takes the guard.
    "gate",
    # sequence (derived, up to its value): odd exactly while writer is not 0. Grows only.
    "sequence",
    # writer, seeker: numbers; writer and seeker are equal during an upgrade.
    # owed: 1 from the grant of a W until the readers waiting after it are let in; so 1 while writer is not 0.
    # ticket: greater than that of every want. owner_died: 1 from a writer's death until a writer vouches.
    "writer seeker owed ticket owner_died writer_since seeker_since",
    # Counted under the guard. fold: account bank in force (bit 0) and the slot, plus one, whose account the
    # bank holds although the slot has not been cleared yet (bits 1 up).
    # revocations: how often the gate was closed that had been open, and what the fences of that took in all.
    # resting: 1 from a revocation until a reader asks: meanwhile the gate is not opened for those who don't.
    # openings: how many revocations more are not followed by a rest.
    "fold evictions repairs owner_deaths revocations revocation_ns resting openings",
    f"bank0:{ACCOUNT.size}",
    f"bank1:{ACCOUNT.size}",
)

SLOT: Final = Record(
    # latch: held by the owning thread as long as it lives. in_use: stored last by a claim and a departure.
    # The next four are for people. All under the guard.
    # batch: of a timer queue, the tag of the last timers that were handed out to the owner. Stored by the owner;
    # a claim makes it 0, so that an owner is told from those before it.
    "latch:8 in_use pid tid started namespace batch",
    # reads: how many nested R the owner holds. Stored by the owner; by a granter only from 0 to 1, and
    # only while want is R, when the owner does not touch it.
    "reads",
    # want: 0, or ticket << 3 | mode. Under the guard. Going to 0 is the grant, and comes after the grant's
    # other stores.
    # abandoned: modes (bit 1 << mode) that the owner has walked away from without the guard, held or wanted;
    # stored by the owner, cleared under the guard together with them. While it is not 0 the owner uses
    # nothing of the slot.
    # watch: 1 while the owner wants to be woken by a writer's leaving. since: when it began to wait (ns).
    "want abandoned watch since",
    f"account:{ACCOUNT.size}",
)

GATE_OPEN: Final = 0
GATE_CLOSED: Final = 1
GATE_SLOW: Final = 2

SHARED_AT: Final = HEADER.size
SLOTS_AT: Final = SHARED_AT + SHARED.size
MOST_PARTICIPANTS: Final = 1 << 14

# Indices of shared words from the start of the segment.
GUARD: Final = SHARED_AT + SHARED["guard"]
SEAT: Final = SHARED_AT + SHARED["seat"]
DIRTY: Final = SHARED_AT + SHARED["dirty"]
HIGH_WATER: Final = SHARED_AT + SHARED["high_water"]
GATE: Final = SHARED_AT + SHARED["gate"]
SEQUENCE: Final = SHARED_AT + SHARED["sequence"]
WRITER: Final = SHARED_AT + SHARED["writer"]
SEEKER: Final = SHARED_AT + SHARED["seeker"]
OWED: Final = SHARED_AT + SHARED["owed"]
TICKET: Final = SHARED_AT + SHARED["ticket"]
OWNER_DIED: Final = SHARED_AT + SHARED["owner_died"]
WRITER_SINCE: Final = SHARED_AT + SHARED["writer_since"]
SEEKER_SINCE: Final = SHARED_AT + SHARED["seeker_since"]
FOLD: Final = SHARED_AT + SHARED["fold"]
EVICTIONS: Final = SHARED_AT + SHARED["evictions"]
REPAIRS: Final = SHARED_AT + SHARED["repairs"]
OWNER_DEATHS: Final = SHARED_AT + SHARED["owner_deaths"]
REVOCATIONS: Final = SHARED_AT + SHARED["revocations"]
REVOCATION_NS: Final = SHARED_AT + SHARED["revocation_ns"]
RESTING: Final = SHARED_AT + SHARED["resting"]
OPENINGS: Final = SHARED_AT + SHARED["openings"]
BANKS: Final = (SHARED_AT + SHARED["bank0"], SHARED_AT + SHARED["bank1"])

# Offsets within a slot.
LATCH: Final = SLOT["latch"]
IN_USE: Final = SLOT["in_use"]
PID: Final = SLOT["pid"]
TID: Final = SLOT["tid"]
STARTED: Final = SLOT["started"]
NAMESPACE: Final = SLOT["namespace"]
BATCH: Final = SLOT["batch"]
READS: Final = SLOT["reads"]
WANT: Final = SLOT["want"]
ABANDONED: Final = SLOT["abandoned"]
WATCH: Final = SLOT["watch"]
SINCE: Final = SLOT["since"]
ACCOUNT_AT: Final = SLOT["account"]


def slot(number: int) -> int:
    """The index of the first word of a slot."""
    return SLOTS_AT + number * SLOT.size


def payload_at(participants: int) -> int:
    """The index of the first word of the payload."""
    return slot(participants)
