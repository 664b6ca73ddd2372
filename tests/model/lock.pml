/* The whole protocol of one lock, each shared store a step, with store buffers, deaths and interruptions at any step.
 *
 * docs/model.md says which function each part stands for, what is left out and why, and how to run it; test_lock.py
 * has the configurations and the mutants. Names are those of the code: words are `m[WRITER]`, `m[WANT(slot)]`.
 *
 * Who takes part: NR readers, NW writers, NS seekers, NK children that are forked, in this order; slots likewise.
 */
#ifndef NR
#define NR 2
#endif
#ifndef NW
#define NW 1
#endif
#ifndef NS
#define NS 0
#endif
#ifndef NK
#define NK 0
#endif
#define N (NR + NW + NS + NK)
#ifndef ITER
#define ITER 1 /* how often each asks */
#endif
#ifndef CONVERSIONS
#define CONVERSIONS 0 /* that each may make */
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef INTERRUPTIONS
#define INTERRUPTIONS 0 /* exceptions that come in the middle of a slow path */
#endif
#ifndef LATE
#define LATE 0 /* time-outs */
#endif
#ifndef EAGER
#define EAGER 0 /* slices that end at any moment; -DLOOKS: also whenever nothing else can go on */
#endif
/* Slots whose reads and wants are stored without the guard, so that a scan loads them one at a time. */
#ifndef RACY
#if CONVERSIONS + NK + INTERRUPTIONS > 0
#define RACY N
#else
#define RACY NR
#endif
#endif

#define R 1
#define S 2
#define W 3
#define U 4 /* a seeker that asks for W */
#define MODE(want) ((want) & 7)
#define QUEUES(want) ((want) & 2)

#define OPEN 0
#define CLOSED 1
#define SLOW 2

/* The shared words, in ground truth's order: slot by slot, then those of the lock. */
#define READS(s) (s)
#define WANT(s) (N + (s))
#define ABANDONED(s) (2 * N + (s))
#define IN_USE(s) (3 * N + (s))
#define GATE (4 * N)
#define WRITER (4 * N + 1)
#define SEEKER (4 * N + 2)
#define OWED (4 * N + 3)
#define TICKET (4 * N + 4)
#define DIRTY (4 * N + 5)
#define RESTING (4 * N + 6)
#define SEQUENCE (4 * N + 7) /* its lowest bit */
#define OWNER_DIED (4 * N + 8)
byte m[4 * N + 9];

/* What is stored and not visible to others yet: a queue for each participant (x86-TSO). */
#define DEPTH 2
byte where[N * DEPTH], what[N * DEPTH], pending[N];
#define L(a) ((pending[i] > 1 && where[i * DEPTH + 1] == (a)) -> what[i * DEPTH + 1] : \
  ((pending[i] && where[i * DEPTH] == (a)) -> what[i * DEPTH] : m[a]))

byte guard;     /* whose, plus one */
bit owner_dead; /* EOWNERDEAD is for the next who takes it */
byte latch[N];  /* whose, plus one; the kernel opens it when that one ends */
bit posted[N];  /* the semaphore of a slot */

byte looked; /* those whose look found nothing; until something changes they need not look again */
byte asked[N], deaths, interruptions, late, eager, over;

/* A participant runs on without a break from one `step` to the next, and each step makes one load or store that others
 * can see (or see it made). Whoever is sent its `go` may run: that is how Promela gives up and takes back a turn. */
chan go[N + 1] = [0] of { bit }; /* the last one is nobody's */
active proctype Turns() {
end:
  do
  :: go[0]!0
#if N > 1
  :: go[1]!0
#endif
#if N > 2
  :: go[2]!0
#endif
#if N > 3
  :: go[3]!0
#endif
#if N > 4
  :: go[4]!0
#endif
  od
}
/* Before each store, seen by others or not, one may die or be interrupted. */
inline fate() {
#if DEATHS + INTERRUPTIONS
  if
  :: true
#if DEATHS
  :: deaths < DEATHS -> goto dies
#endif
#if INTERRUPTIONS
  :: interruptions < INTERRUPTIONS && asked[i] -> goto interrupted
#endif
  fi
#else
  skip
#endif
}
inline step() { go[i]?_; fate() }

/* What each believes it holds: R (how deep), S, W. */
byte hr[N];
bit hs[N], hw[N];

/* Of who is in the guard. */
#define REPAIR 1
#define ACT 2
#define SETTLE 3
#define EVICT 4
#define AGAIN 5
byte stage, seen[N], k, head, turn, busy, target, doomed, gate_to;
bit eod, own, flows, now, twice, beside;

byte y, z, n; /* within one step only */

#ifdef SATURATES
byte waiters; /* a mutant's: how many wait, in a field that ends at SATURATES */
#endif
#ifdef PHASES
byte met[N], ahead[N], credit[N];
bit watched;
#define WATCHED (NR + NW - 1)
#endif

/* --- memory */

#ifdef PHASES
inline note(a, v) {
  if
  :: a == WRITER && v -> /* a write phase begins */
    n = 0;
    do
    :: n < N ->
      if
      :: MODE(m[WANT(n)]) == R && n + 1 != v -> met[n]++; assert(met[n] <= 1) /* a reader meets one write phase */
      :: MODE(m[WANT(n)]) == W && n + 1 != v -> assert(ahead[n] > 0); ahead[n]-- /* a writer, those ahead of it */
      :: else
      fi;
      if :: watched && v != WATCHED + 1 -> credit[n]++ :: else fi;
      n++
    :: else -> break
    od
  :: a >= WANT(0) && a < WANT(N) && MODE(v) == R -> met[a - N] = (m[WRITER] != 0)
  :: a >= WANT(0) && a < WANT(N) && MODE(v) == W ->
    ahead[a - N] = 0; n = 0;
    do :: n < N -> if :: MODE(m[WANT(n)]) == W && n != a - N -> ahead[a - N]++ :: else fi; n++ :: else -> break od
  :: a >= WANT(0) && a < WANT(N) && v == 0 -> met[a - N] = 0; ahead[a - N] = 0
  :: else
  fi;
  n = 0
}
#else
inline note(a, v) { skip }
#endif

inline commit(a, v) {
  note(a, v);
  if :: a != DIRTY && m[a] != v -> looked = 0 :: else fi;
  m[a] = v
}
inline pop(p) {
  commit(where[(p) * DEPTH], what[(p) * DEPTH]);
  where[(p) * DEPTH] = where[(p) * DEPTH + 1]; what[(p) * DEPTH] = what[(p) * DEPTH + 1];
  where[(p) * DEPTH + 1] = 0; what[(p) * DEPTH + 1] = 0;
  pending[p]--;
  if :: guard && guard != p + 1 -> beside = 1 :: else fi
}
inline flush(p) { do :: pending[p] -> pop(p) :: else -> break od }
inline push(a, v) {
  y = v;
  where[i * DEPTH + pending[i]] = a; what[i * DEPTH + pending[i]] = y; pending[i]++;
  y = 0
}
/* Without the guard: a step's store. */
#define ROOM (pending[i] < DEPTH) /* who has none waits for the memory */
inline store(a, v) { ROOM; d_step { push(a, v); beside = (guard != 0) } }
inline add_read() { ROOM; d_step { y = L(READS(me)) + 1; push(READS(me), y); beside = (guard != 0) } }
inline take_read() { ROOM; d_step { y = L(READS(me)) - 1; push(READS(me), y); beside = (guard != 0) } }
/* Under it: words that none but its holder loads. Nobody sees the order in which these are stored, but who repairs. */
inline set(a, v) {
  fate(); ROOM;
  d_step {
#ifdef TWICE
    assert(!twice || beside || L(a) == (v)); /* the second repair has nothing to do */
#endif
    push(a, v)
  }
}
/* Under it: words that others load without. */
inline put(a, v) { go[i]?_; set(a, v) }
inline toggle(a) { if :: L(a) -> set(a, 0) :: else -> set(a, 1) fi }
inline fence_here() { d_step { flush(i); y = 0 } }
inline membarrier() {
#ifdef NO_MEMBARRIER
  fence_here()
#else
  fence_here(); /* the caller's first, then the others', one by one */
  k = 0; do :: k < RACY -> go[i]?_; d_step { flush(k); k++ } :: else -> break od;
  do :: k < N -> flush(k); k++ :: else -> k = 0; break od
#endif
}
active proctype Memory() {
end:
  do
  :: d_step { pending[0] -> pop(0) }
#if N > 1
  :: d_step { pending[1] -> pop(1) }
#endif
#if N > 2
  :: d_step { pending[2] -> pop(2) }
#endif
#if N > 3
  :: d_step { pending[3] -> pop(3) }
#endif
#if N > 4
  :: d_step { pending[4] -> pop(4) }
#endif
  od
}

/* --- what must hold */

inline exclusive() {
  n = 0;
  do
  :: n < N ->
    if
    :: n != i ->
      assert(!(hw[i] && (hr[n] || hs[n] || hw[n])));
      assert(!(hs[i] && (hs[n] || hw[n])));
      assert(!(hr[i] && hw[n]))
    :: else
    fi;
    n++
  :: else -> break
  od;
  n = 0
}
inline enters_as_reader() {
  hr[i]++;
#ifdef PHASES
  if :: watched && hr[i] == 1 -> assert(credit[i] > 0); credit[i]-- :: else fi;
#endif
  exclusive()
}
/* Whoever leaves the guard leaves nobody waiting who could be let in, as far as it can have seen. */
inline nothing_is_due() {
  z = N; n = 0;
  do
  :: n < N -> if :: QUEUES(m[WANT(n)]) && (z == N || m[WANT(n)] < m[WANT(z)]) -> z = n :: else fi; n++
  :: else -> break
  od;
  if
  :: m[SEEKER] && MODE(m[WANT(m[SEEKER] - 1)]) == U -> y = 2; z = m[SEEKER] - 1
  :: m[SEEKER] && MODE(m[WANT(m[SEEKER] - 1)]) != U -> y = 0
  :: !m[SEEKER] && z < N -> assert(MODE(m[WANT(z)]) == W); y = 1
  :: !m[SEEKER] && z == N -> y = 0
  fi;
  n = 0;
  if
  :: y -> /* a writer is next: somebody reads still */
    do :: n < N && !(m[READS(n)] && !(y == 2 && n == z)) -> n++ :: else -> break od;
    assert(n < N)
  :: else -> do :: n < N -> assert(MODE(m[WANT(n)]) != R); n++ :: else -> break od
  fi;
  y = 0; z = 0; n = 0
}
inline still_holds() {
  assert(!hw[i] || L(WRITER) == me + 1);
  assert(!hs[i] || L(SEEKER) == me + 1);
#ifndef CHILD_USES_PARENTS_SLOT
  assert(L(READS(me)) == hr[i])
#endif
}

/* --- State: under the guard */

inline load_wants() {
  k = 0;
  do
  :: k < RACY -> go[i]?_; seen[k] = L(WANT(k)); k++
  :: else -> do :: k < N -> seen[k] = L(WANT(k)); k++ :: else -> break od; k = 0; break
  od
}
inline load_reads() {
  busy = 0; k = 0;
  do
  :: k < RACY -> go[i]?_; if :: L(READS(k)) && !(own && k == head) -> busy++ :: else fi; k++
  :: else -> do :: k < N -> if :: L(READS(k)) && !(own && k == head) -> busy++ :: else fi; k++ :: else -> break od; k = 0; break
  od
#ifdef IGNORES_ONE
  ; if :: busy == 1 -> busy = 0 :: else fi
#endif
}
inline any_wants() {
  z = 0;
#ifdef SATURATES
  z = waiters
#else
  n = 0; do :: n < N -> if :: seen[n] -> z = 1 :: else fi; n++ :: else -> break od; n = 0
#endif
}
inline granted(s) {
#ifdef WAKE_FIRST
  posted[s] = 1;
  put(WANT(s), 0)
#else
  put(WANT(s), 0);
  woken = woken | (1 << (s))
#endif
#ifdef SATURATES
  ; if :: waiters -> waiters-- :: else fi
#endif
}
inline admit() {
  do
  :: k < N && MODE(seen[k]) != R -> k++
  :: k < N && MODE(seen[k]) == R -> put(READS(k), 1); granted(k); seen[k] = 0; k++
  :: k >= N -> k = 0; break
  od
}
inline flow() {
  if :: d_step {
    gate_to = (L(RESTING) -> SLOW : OPEN);
#ifdef SLOW_MODE
    gate_to = SLOW
#endif
  } fi;
  if
  :: L(GATE) != gate_to ->
    put(GATE, gate_to);
#ifndef SLOW_MODE
    fence_here();
#ifndef NO_SECOND_LOOK
    load_wants()
#endif
#endif
  :: else
  fi;
  admit()
}
inline close() {
  if
  :: L(GATE) == CLOSED
  :: L(GATE) == SLOW -> put(GATE, CLOSED)
  :: L(GATE) == OPEN ->
    put(GATE, CLOSED);
    membarrier();
#ifdef RESTS
    if :: set(RESTING, 1) :: skip fi /* openings: any number may be left */
#endif
  fi
}
inline grant_write(s) {
  put(WRITER, (s) + 1);
  toggle(SEQUENCE);
#ifndef OWED_LOST
  set(OWED, 1)
#endif
}
inline next_turn() {
  if :: d_step {
    turn = R; head = N; n = 0;
    do
    :: n < N ->
      if
      :: QUEUES(seen[n]) && (head == N || seen[n] < seen[head]) -> head = n
      :: else
      fi;
      n++
    :: else -> break
    od;
    n = 0;
    if
#ifdef QUEUED_WRITER_ENTERS
    :: L(SEEKER) && MODE(seen[L(SEEKER) - 1]) == U && head < N && MODE(seen[head]) == W -> turn = W
#endif
    :: L(SEEKER) && MODE(seen[L(SEEKER) - 1]) == U -> turn = U; head = L(SEEKER) - 1
    :: L(SEEKER) && MODE(seen[L(SEEKER) - 1]) != U -> turn = R
    :: !L(SEEKER) && head < N -> turn = MODE(seen[head])
    :: !L(SEEKER) && head == N -> turn = R
    fi
  } fi
}
inline decide() {
  if :: d_step { k = 0; flows = 0; own = 0; head = 0 } fi;
  if
  :: L(WRITER)
  :: else ->
    load_wants();
    if :: d_step { any_wants(); busy = z; z = 0 } fi;
    if
    :: !busy -> set(OWED, 0); flows = 1
    :: else ->
      busy = 0;
#ifndef SLOW_MODE
      fence_here();
      load_wants();
#endif
      if :: L(OWED) -> admit(); set(OWED, 0) :: else fi;
      next_turn();
      if
      :: turn == R -> flows = 1
      :: turn == S -> put(SEEKER, head + 1); granted(head); d_step { seen[head] = 0; flows = 1 }
      :: else ->
        close();
        own = (turn == U);
        load_reads();
        if :: !busy -> grant_write(head); granted(head) :: else fi
      fi
    fi;
    if :: flows -> flow() :: else fi
  fi;
  if :: d_step { k = 0; flows = 0; own = 0; head = 0; turn = 0; busy = 0; gate_to = 0; n = 0; do :: n < N -> seen[n] = 0; n++ :: else -> break od; n = 0 } fi
}
inline end_write() { toggle(SEQUENCE); put(WRITER, 0) }
inline repair() {
  if :: L(WRITER) -> set(OWED, 1) :: else fi;
  if :: L(SEQUENCE) != (L(WRITER) != 0) -> toggle(SEQUENCE) :: else fi;
  load_wants();
  do
  :: d_step { k < N && !(
      (MODE(seen[k]) == R && L(READS(k))) || (MODE(seen[k]) == S && L(SEEKER) == k + 1) ||
      ((MODE(seen[k]) == W || MODE(seen[k]) == U) && L(WRITER) == k + 1)) -> k++ }
  :: k < N && (
      (MODE(seen[k]) == R && L(READS(k))) || (MODE(seen[k]) == S && L(SEEKER) == k + 1) ||
      ((MODE(seen[k]) == W || MODE(seen[k]) == U) && L(WRITER) == k + 1)) -> granted(k); k++
  :: k >= N -> k = 0; break
  od;
  if :: d_step {
    n = 0; z = L(TICKET);
    do :: n < N -> if :: seen[n] / 8 + 1 > z -> z = seen[n] / 8 + 1 :: else fi; n++ :: else -> break od;
    n = 0; head = z; z = 0
  } fi;
  set(TICKET, head);
  if :: L(GATE) == CLOSED -> membarrier() :: else fi
}
inline settle(s) {
  if :: L(WANT(s)) && ((L(ABANDONED(s)) >> MODE(L(WANT(s)))) & 1) -> put(WANT(s), 0) :: else fi;
  if :: (L(ABANDONED(s)) >> R) & 1 -> put(READS(s), 0) :: else fi;
  if :: (L(ABANDONED(s)) & (1 << W | 1 << U)) && L(WRITER) == (s) + 1 -> end_write() :: else fi;
  if :: ((L(ABANDONED(s)) >> S) & 1) && L(SEEKER) == (s) + 1 -> put(SEEKER, 0) :: else fi;
  set(ABANDONED(s), 0)
}
inline clear(s) {
  put(READS(s), 0);
  put(WANT(s), 0);
  set(ABANDONED(s), 0);
  if :: L(SEEKER) == (s) + 1 -> put(SEEKER, 0) :: else fi;
  if :: L(WRITER) == (s) + 1 -> set(OWNER_DIED, 1); end_write() :: else fi
}
#ifdef EVICTS_THE_LIVING
#define IS_DEAD(s) (L(IN_USE(s)) && (s) != me)
#else
#define IS_DEAD(s) (L(IN_USE(s)) && !latch[s])
#endif
/* What a waiter looks at: the first in the queue, and whoever is next, at those that hold; the others at the first and at
   the writer. */
inline look() {
  d_step {
    target = N; head = N; z = 0; n = 0;
    do
    :: n < N ->
      if :: L(WANT(n)) && (target == N || L(WANT(n)) < L(WANT(target))) -> target = n :: else fi;
      if :: QUEUES(L(WANT(n))) && (head == N || L(WANT(n)) < L(WANT(head))) -> head = n :: else fi;
      n++
    :: else -> break
    od;
    if :: L(SEEKER) -> head = (MODE(L(WANT(L(SEEKER) - 1))) == U -> L(SEEKER) - 1 : N) :: else fi;
    n = 0;
    do
    :: n < N ->
      if
      :: n != me && (L(WRITER) == n + 1 ||
          ((target == me || head == me) -> (L(READS(n)) || L(SEEKER) == n + 1) : n == target)) &&
         (L(ABANDONED(n)) || IS_DEAD(n)) -> z = 1
      :: else
      fi;
      n++
    :: else -> break
    od;
    busy = z; z = 0; n = 0; target = 0; head = 0
  }
}
inline next_abandoned() {
  target = 0; do :: target < N && !L(ABANDONED(target)) -> target++ :: else -> break od;
  if
  :: target < N -> stage = SETTLE
  :: else ->
    target = 0; doomed = 0; stage = EVICT;
    do :: target < N -> if :: IS_DEAD(target) -> doomed = doomed | (1 << target) :: else fi; target++ :: else -> break od;
    target = 0
  fi
}
inline leave_scratch() {
  stage = 0; k = 0; head = 0; turn = 0; busy = 0; target = 0; doomed = 0; gate_to = 0;
  eod = 0; own = 0; flows = 0; now = 0; twice = 0; beside = 0;
  n = 0; do :: n < N -> seen[n] = 0; n++ :: else -> break od; n = 0
}
inline is_free() {
  load_wants();
  if :: d_step {
    n = 0; z = 0; do :: n < N -> if :: seen[n] -> z = 1 :: else fi; seen[n] = 0; n++ :: else -> break od;
    now = (!L(WRITER) && !L(SEEKER) && !z); n = 0; z = 0
  } fi
}

/* --- death, and exceptions */

inline kill(v) { /* what was stored is seen, whenever the end comes; the kernel opens the mutexes */
  flush(v);
  if :: guard == v + 1 -> guard = 0; owner_dead = 1; leave_scratch() :: else fi;
  n = 0; do :: n < N -> if :: latch[n] == v + 1 -> latch[n] = 0 :: else fi; n++ :: else -> break od; n = 0;
#ifdef PHASES
  if :: v == WATCHED -> unwatch() :: else fi;
#endif
  hr[v] = 0; hs[v] = 0; hw[v] = 0; asked[v] = 0; looked = 0; deaths++; over++
}
inline unwatch() {
  watched = 0; n = 0; do :: n < N -> credit[n] = 0; n++ :: else -> break od; n = 0
}

/* --- who takes part */

#define NOTHING 0
#define ASK 1
#define DECIDE 2
#define WITHDRAW 3
#define LOOK 4
#define TRY_SEEK 5
#define TRY_WRITE 6
#define RELEASE_WRITE 7
#define RELEASE_UPGRADED 8
#define WRITE_TO_SEEK 9
#define RELEASE_SEEK 10
#define SETTLES 11
#define CLAIM 12
#define NONE 255
#ifndef KID
#define KID R /* what a child asks for */
#endif

proctype Participant(byte i; byte role; byte me) {
  byte action, mode, woken, among, it, left; /* left: conversions that it may make still */
  bit gave;
#ifdef CHILD_USES_PARENTS_SLOT
  if :: me == NONE -> me = 0 :: else fi;
#endif
  atomic {
  skip;
next:
  step();
  /* What next? Nothing is held that is not in hr, hs, hw. */
  action = NOTHING; mode = 0; gave = 0; woken = 0; among = 0;
  if
  :: me == NONE -> action = CLAIM; goto guarded
  :: me != NONE && L(ABANDONED(me)) -> action = SETTLES; goto guarded
#ifdef LOOKS
  :: me != NONE && L(ABANDONED(me)) && it == ITER -> goto finished /* leaves that to others */
#endif
  :: else
  fi;
  still_holds();
  if
  :: hw[i] ->
    hw[i] = 0;
    if
    :: hs[i] -> action = RELEASE_WRITE; asked[i] = 1 << W; goto guarded
    :: hs[i] -> action = RELEASE_UPGRADED; hs[i] = 0; asked[i] = 1 << W | 1 << S; goto guarded
    :: !hs[i] -> action = RELEASE_WRITE; asked[i] = 1 << W; goto guarded
    :: !hs[i] && left -> left--; action = WRITE_TO_SEEK; asked[i] = 1 << W | 1 << S; goto guarded
    :: left -> /* W to R */
      left--; add_read(); go[i]?_;
      hr[i]++; asked[i] = 1 << W | hs[i] << S; hs[i] = 0;
      action = RELEASE_UPGRADED; goto guarded
    fi
  :: !hw[i] && hs[i] ->
    if
    :: hs[i] = 0; action = RELEASE_SEEK; asked[i] = 1 << S; goto guarded
    :: left -> left--; mode = U; asked[i] = 1 << U; action = ASK; goto guarded
    :: left -> /* S to R */
      left--; add_read(); go[i]?_;
      hr[i]++; hs[i] = 0; asked[i] = 1 << S;
      action = RELEASE_SEEK; goto guarded
    fi
  :: !hw[i] && !hs[i] && hr[i] ->
    if
    :: goto leave
    :: left && hr[i] == 1 -> left--; goto enter /* nested */
    :: left && hr[i] == 1 -> left--; mode = S; asked[i] = 1 << S; action = TRY_SEEK; goto guarded
    :: left && hr[i] == 1 -> left--; mode = W; asked[i] = 1 << W; action = TRY_WRITE; goto guarded
    fi
  :: !hw[i] && !hs[i] && !hr[i] ->
    if
    :: it < ITER ->
      it++; left = CONVERSIONS;
      if
      :: role == R -> goto enter
      :: role != R -> mode = role; asked[i] = 1 << mode; action = ASK; goto guarded
      fi
    :: it == ITER -> goto finished
    fi
  fi;

enter: /* the fast path */
  add_read();
  go[i]?_;
  if
  :: L(READS(me)) > 1 || L(GATE) == OPEN -> enters_as_reader(); goto next
  :: else
  fi;
  step(); store(READS(me), 0);
  mode = R; asked[i] = 1 << R;
  go[i]?_;
  if
  :: L(GATE) != CLOSED -> action = ASK; step(); goto guarded
  :: else
  fi;
  step(); ROOM; y = L(TICKET) * 8 + R; store(WANT(me), y);
#ifdef SATURATES
  if :: waiters < SATURATES -> waiters++ :: else fi;
#endif
#ifdef BLIND
  goto wait;
#endif
  goto others_decide;

leave:
  hr[i]--; take_read();
  go[i]?_;
  if
  :: L(GATE) == OPEN || L(READS(me)) -> goto next
  :: else
  fi;
#ifdef LEAVES_BLINDLY
  goto next;
#endif

others_decide: /* whether somebody else is sure to, after what we have stored */
  step();
  fence_here();
#ifndef SLOW_MODE
  go[i]?_;
  if
  :: L(GATE) != CLOSED -> goto must_decide
  :: else
  fi;
  go[i]?_;
  if
  :: L(WRITER) -> goto rely
  :: else
  fi;
  do
  :: among < RACY -> go[i]?_; if :: L(READS(among)) -> woken = woken | (1 << among) :: else fi; among++
  :: else ->
    do :: among < N -> if :: L(READS(among)) -> woken = woken | (1 << among) :: else fi; among++ :: else -> break od;
    among = 0; break
  od;
  go[i]?_;
  if :: L(SEEKER) -> woken = woken & (255 - (1 << (L(SEEKER) - 1))) :: else fi;
  if :: woken -> woken = 0; goto rely :: else fi;
#endif
must_decide:
  action = DECIDE;
  step();
  goto guarded;
rely:
  if
  :: mode -> goto wait
  :: else -> goto next
  fi;

wait:
  step();
  if
  :: L(WANT(me)) == 0 -> goto got
  :: else
  fi;
asleep:
  if
  :: posted[me] -> posted[me] = 0; goto wait
#if LATE
  :: go[(late < LATE -> i : N)]?_ -> late++; goto time_is_over
#endif
#if EAGER
  :: go[(eager < EAGER -> i : N)]?_ -> eager++; action = LOOK; goto guarded
#endif
#ifdef LOOKS
  :: timeout && !((looked >> i) & 1) -> looked = looked | (1 << i); action = LOOK; goto guarded
#endif
  fi;

time_is_over:
  go[i]?_;
  if
  :: L(WANT(me)) == 0 ->
#ifdef TAKES_NO_LATE_GRANT
    asked[i] = 0; goto next
#else
    goto got
#endif
  :: else -> action = WITHDRAW; step(); goto guarded
  fi;

got:
  asked[i] = 0;
#ifdef PHASES
  if :: i == WATCHED && watched -> unwatch() :: else fi;
#endif
  if
  :: mode == R -> enters_as_reader()
  :: mode == S -> hs[i] = 1; exclusive()
  :: mode == W || mode == U -> hw[i] = 1; exclusive()
  fi;
  goto next;

guarded: /* Guard.run(action) */
  if
  :: guard == 0 ->
    guard = i + 1; flush(i); beside = 0;
    eod = owner_dead; owner_dead = 0;
    stage = ((eod || m[DIRTY]) -> REPAIR : ACT);
#ifdef NO_REPAIR
    stage = ACT; eod = 0;
#endif
#if LATE
  :: go[((guard != 0 && late < LATE && mode == R && (action == DECIDE || action == ASK)) -> i : N)]?_ ->
    late++; goto gives_up
  :: go[((guard != 0 && action == WITHDRAW) -> i : N)]?_ -> goto abandon
#endif
  fi;
  if :: eod -> set(DIRTY, 1); eod = 0 :: else fi;
again:
  if
  :: stage == REPAIR -> repair()
  :: stage == ACT ->
#ifdef DIRTY_CLEARED_EARLY
    set(DIRTY, 0);
#else
    set(DIRTY, 1);
#endif
    if
    :: action == ASK ->
      if :: mode == W -> is_free() :: mode == U -> now = 1 :: else fi;
      if
      :: now ->
        close(); own = 1; head = me; load_reads();
        if :: !busy -> grant_write(me); gave = 1; goto unlock :: else fi
      :: else
      fi;
      if :: mode == R && L(RESTING) -> set(RESTING, 0) :: else fi;
      head = L(TICKET);
      set(TICKET, head + 1);
      put(WANT(me), head * 8 + mode)
#ifdef SATURATES
      ; if :: waiters < SATURATES -> waiters++ :: else fi
#endif
    :: action == DECIDE
    :: action == WITHDRAW ->
      if
      :: L(WANT(me)) == 0 -> gave = 1; goto unlock
      :: else
      fi;
#ifndef KEEPS_ITS_WANT
      put(WANT(me), 0);
#ifdef SATURATES
      if :: waiters -> waiters-- :: else fi;
#endif
#endif
#ifdef WITHDRAWS_BLINDLY
      goto unlock
#endif
    :: action == LOOK ->
      look();
      if :: busy -> next_abandoned(); goto again :: else fi
    :: action == TRY_SEEK ->
      load_wants();
      n = 0; now = !L(WRITER) && !L(SEEKER);
      do :: n < N -> if :: QUEUES(seen[n]) -> now = 0 :: else fi; n++ :: else -> break od; n = 0;
      if :: now -> put(SEEKER, me + 1); gave = 1 :: else -> goto unlock fi
    :: action == TRY_WRITE ->
      is_free();
      if :: now -> skip :: else -> goto unlock fi;
      own = 1; head = me; load_reads();
      if :: busy -> goto unlock :: else fi;
      close(); load_reads();
      if :: !busy -> grant_write(me); gave = 1; goto unlock :: else fi
    :: action == RELEASE_WRITE -> set(OWNER_DIED, 0); end_write()
    :: action == RELEASE_UPGRADED ->
      if :: L(SEEKER) == me + 1 -> put(SEEKER, 0) :: else fi;
      set(OWNER_DIED, 0); end_write()
    :: action == WRITE_TO_SEEK -> put(SEEKER, me + 1); set(OWNER_DIED, 0); end_write()
    :: action == RELEASE_SEEK -> put(SEEKER, 0)
    :: action == SETTLES -> target = me; settle(me); target = 0
    :: action == CLAIM ->
      head = 0; do :: head < N && (L(IN_USE(head)) || latch[head]) -> head++ :: else -> break od;
      assert(head < N); latch[head] = i + 1; me = head;
      put(READS(me), 0); put(WANT(me), 0); set(ABANDONED(me), 0); set(IN_USE(me), 1);
      goto unlock
    fi
  :: stage == SETTLE -> settle(target)
  :: stage == EVICT ->
    do
    :: target < N && !((doomed >> target) & 1) -> target++
    :: target < N && ((doomed >> target) & 1) ->
      assert(!latch[target]); /* nothing is taken from the living */
      clear(target); set(IN_USE(target), 0); target++
    :: target >= N -> target = 0; break
    od
  :: stage == AGAIN
  fi;
  decide();
  if
  :: stage == REPAIR ->
    stage = ACT;
#ifdef TWICE
    if :: !twice -> twice = 1; stage = REPAIR :: else -> twice = 0 fi
#endif
  :: stage == ACT -> stage = 0
  :: stage == SETTLE -> next_abandoned()
  :: stage == EVICT -> stage = AGAIN
  :: stage == AGAIN -> stage = 0
  fi;
  if :: stage -> goto again :: else fi;

unlock:
  if
  :: m[WRITER] || beside || gave || (action > LOOK && action < RELEASE_WRITE) || action == CLAIM
  :: else -> flush(i); nothing_is_due()
  fi;
  set(DIRTY, 0);
  flush(i);
#ifdef PHASES
  if
  :: i == WATCHED && action == ASK && !gave && m[WANT(me)] ->
    watched = 1; n = 0; do :: n < N -> credit[n] = 1; n++ :: else -> break od; n = 0
  :: i == WATCHED && action == WITHDRAW -> unwatch()
  :: else
  fi;
#endif
  leave_scratch();
  if :: mode && action == ASK -> woken = woken & (255 - (1 << me)) :: else fi;
  guard = 0;
  do
  :: woken -> /* each post may be the last thing that we do */
    step();
    n = 0; do :: !((woken >> n) & 1) -> n++ :: else -> break od;
    posted[n] = 1; woken = woken & (255 - (1 << n)); n = 0
  :: else -> break
  od;
  if
  :: action == ASK && gave -> goto got
  :: action == ASK && !gave -> goto wait
  :: action == LOOK -> goto wait
  :: action == DECIDE && mode -> goto wait
  :: action == DECIDE && !mode -> goto next
  :: action == WITHDRAW && gave -> goto got
  :: action == WITHDRAW && !gave -> asked[i] = 0; goto next
  :: (action == TRY_SEEK || action == TRY_WRITE) && !gave -> asked[i] = 0; goto next
  :: (action == TRY_SEEK || action == TRY_WRITE) && gave ->
    step(); /* the own R goes last */
    asked[i] = 0; hr[i]--; take_read();
    if :: mode == S -> hs[i] = 1 :: else -> hw[i] = 1 fi;
    exclusive();
    goto next
  :: action == WRITE_TO_SEEK -> asked[i] = 0; hs[i] = 1; exclusive(); goto next
  :: else -> asked[i] = 0; goto next
  fi;

gives_up: /* the guard was not to be had */
  if
  :: L(WANT(me)) -> goto abandon
  :: else ->
    if :: action == DECIDE -> goto got :: else -> asked[i] = 0; goto next fi
  fi;
abandon:
  store(ABANDONED(me), 1 << mode);
  asked[i] = 0;
  goto next;

#if INTERRUPTIONS
interrupted:
  if :: guard == i + 1 -> flush(i); guard = 0; leave_scratch() :: else fi;
  interruptions++;
  step();
  store(ABANDONED(me), asked[i]);
  asked[i] = 0; action = SETTLES; mode = 0; gave = 0; woken = 0; among = 0;
  step();
  goto guarded;
#endif
#if DEATHS
dies:
  kill(i); action = 0; mode = 0; gave = 0; woken = 0; among = 0; it = 0; left = 0;
  goto gone;
#endif
finished:
  flush(i); over++; action = 0; left = 0;
gone:
  skip
  }
}

init {
  byte j;
  d_step {
#ifdef SLOW_MODE
    m[GATE] = SLOW;
#endif
    do :: j < N - NK -> m[IN_USE(j)] = 1; latch[j] = j + 1; j++ :: else -> break od; j = 0
  };
  atomic {
    do :: j < NR -> run Participant(j, R, j); j++ :: else -> break od;
    do :: j < NR + NW -> run Participant(j, W, j); j++ :: else -> break od;
    do :: j < NR + NW + NS -> run Participant(j, S, j); j++ :: else -> break od;
    do :: j < N -> run Participant(j, KID, NONE); j++ :: else -> break od;
    j = 0
  };
  over == N; /* nobody sleeps for ever: otherwise this is where the search ends */
  d_step {
    if
    :: deaths -> skip
    :: else -> do :: j < N && !m[ABANDONED(j)] -> assert(!m[READS(j)] && !m[WANT(j)]); j++ :: else -> break od
    fi
  }
}
