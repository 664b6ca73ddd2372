/* Readers that ask and leave without the guard: exclusion, and no lost wake-up without anybody's time-out.
 *
 *   spin -a -DNR=3 -DNW=1 -DITER=1 ask.pml && gcc -O2 -DCOLLAPSE -o pan pan.c && ./pan -m1000000
 *
 * Every load and store of the decision is a step of its own, since readers store beside it; each fence stands where
 * sequential consistency is assumed. What is checked is the argument in shmlock/_engine/bias.py. Holds for NR=2 NW=1
 * ITER=2, NR=3 NW=1 ITER=1 and NR=2 NW=2 ITER=1, each with -DPATIENT (writers never give up) and without. Caught, as
 * they must be: -DNOLOOK -DPATIENT (a reader that leaves never decides), -DNOAGAIN (the wants are not loaded again
 * after the gate was opened), -DBLIND (a reader that asks relies on others without looking).
 */
#ifndef NR
#define NR 2
#endif
#ifndef NW
#define NW 1
#endif
#ifndef ITER
#define ITER 2
#endif
#define N (NR + NW)
#define R 1
#define W 3
byte reads[N], want[N];
bit gate, owed, guard;
byte writer, inR, inW;

inline admit() {
  k = 0; do :: k < N -> if :: seen[k] == R -> reads[k] = 1; want[k] = 0; seen[k] = 0 :: else fi; k++ :: else break od
}
inline load_wants() {
  k = 0; do :: k < N -> seen[k] = want[k]; k++ :: else break od
}
/* A writer's first look: no fence comes before it, so that it may miss any reader. What was asked under the guard, it
 * sees. A reader has made its fence before it decides. */
inline glance() {
  k = 0; busy = 0;
  do
  :: k < N ->
    if
    :: want[k] == W -> busy = 1
    :: want[k] == R -> busy = 1
    :: want[k] == R && !fenced -> skip
    :: want[k] == 0 -> skip
    fi;
    k++
  :: else -> break
  od
}
inline load_reads() {
  k = 0; busy = 0; do :: k < N -> if :: reads[k] -> busy = 1 :: else fi; k++ :: else break od
}
inline decide() {
  if
  :: writer -> skip
  :: else ->
    glance();
    if
    :: !busy ->
      owed = 0;
      if
      :: gate -> gate = 0;
#ifndef NOAGAIN
        load_wants()
#endif
      :: else
      fi;
      admit()
    :: else ->
      busy = 0;
      load_wants();
      if :: owed -> admit(); owed = 0 :: else fi;
      head = N; k = 0;
      do :: k < N -> if :: seen[k] == W && head == N -> head = k :: else fi; k++ :: else break od;
      if
      :: head == N ->
        if
        :: gate -> gate = 0;
#ifndef NOAGAIN
          load_wants()
#endif
        :: else
        fi;
        admit()
      :: else ->
        gate = 1;
        load_reads();
        if :: !busy -> writer = head + 1; owed = 1; want[head] = 0 :: else fi
      fi
    fi
  fi;
  k = 0; head = 0; busy = 0;
  do :: k < N -> seen[k] = 0; k++ :: else break od; k = 0
}
inline under_guard() { atomic { !guard -> guard = 1 } }
inline others_decide() {
  relies = 0;
  if
  :: gate ->
    if :: writer -> relies = 1 :: else -> load_reads(); relies = busy fi
  :: else
  fi;
  k = 0; busy = 0
}
proctype Reader(byte i) {
  byte k, head, busy, it, seen[N]; bit relies, fenced = 1;
  do
  :: it < ITER -> it++;
    reads[i] = 1;
    if
    :: gate ->
      reads[i] = 0;
      want[i] = R;
#ifdef BLIND
      relies = 1;
#else
      others_decide();
#endif
      if :: !relies -> under_guard(); decide(); guard = 0 :: else fi;
      want[i] == 0
    :: else
    fi;
    atomic { inR++; assert(inW == 0) };
    atomic { assert(inW == 0); inR-- };
    reads[i] = 0;
    if
    :: gate ->
#ifdef NOLOOK
      relies = 1;
#else
      others_decide();
#endif
      if :: !relies -> under_guard(); decide(); guard = 0 :: else fi
    :: else
    fi;
    relies = 0
  :: else -> break
  od
}
proctype Writer(byte i) {
  byte k, head, busy, it, seen[N]; bit granted, fenced;
  do
  :: it < ITER -> it++;
    under_guard(); want[i] = W; decide(); guard = 0;
    granted = 1;
    if
    :: want[i] == 0
#ifndef PATIENT
    :: true -> /* its time is over */
      under_guard();
      if :: want[i] -> want[i] = 0; granted = 0; decide() :: else fi;
      guard = 0
#endif
    fi;
    if
    :: granted ->
      atomic { inW++; assert(inW == 1 && inR == 0) };
      atomic { assert(inW == 1 && inR == 0); inW-- };
      under_guard(); writer = 0; decide(); guard = 0
    :: else
    fi;
    granted = 0
  :: else -> break
  od
}
init {
  byte j;
  atomic {
    do :: j < NR -> run Reader(j); j++ :: else break od;
    do :: j < N -> run Writer(j); j++ :: else break od
  }
}
