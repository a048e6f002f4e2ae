/* Two sessions, of a model each, and a structural command.
 *
 * A structural command takes the gate, waits until there are no sessions (drains), takes the global
 * lock, looks for sessions again, works and commits. Sessions take the lock of their model, register,
 * and begin only if gate and global lock are free. See locks.pml for locks and for what goes wrong.
 */

#define LOCKS 4
#define GATE 0
#define GLOBAL 1
#define MODEL_1 2
#define MODEL_2 3
#ifdef SLOW_SESSIONS
#define SLOW (bit(1) | bit(2))
#else
#define SLOW (bit(1) | bit(3))
#endif
#include "locks.pml"

byte registered;    /* bits of the sessions with an object in the registry */
byte noticed;       /* bits of those whose object was listed; every attempt to begin has its own */
byte sessions_done; /* bits of the sessions that committed */
bool structural_done;

/* Sessions hold the global lock for a commit only, and their record says so: no reason for others to
 * wait. But a record that was stolen says so only after the fence; before, it may hide a structural
 * command that is about to commit. */
#ifdef COMMIT_UNFENCED
#define is_commit(key) (key == GLOBAL && lock[key].holder != 3)
#else
#define is_commit(key) (key == GLOBAL && lock[key].holder != 3 && lock[key].owner == lock[key].holder)
#endif

/* One look at a lock that should be free; `busy` if somebody has it. A stale one is taken over, which
 * fences, and released: its holder may still be alive and must not come back to it. */
inline look(key) {
    do
    :: atomic { lock[key].holder == NOBODY -> break }
    :: atomic { may_be_live(key) && lock[key].holder != me -> busy = !is_commit(key); break }
    :: steal(key);
       if
       :: stole -> complete(key); release(key); break
       :: else
       fi
    od
}

#define is_worth_a_look(key) (lock[key].holder == NOBODY || may_be_stale(key))

/* Sessions ------------------------------------------------------------------------------------- */

inline register() {
    atomic { registered = registered | bit(me); noticed = noticed & ~bit(me) }
}

inline unregister() {
    atomic { registered = registered & ~bit(me); noticed = noticed & ~bit(me) }
}

inline look_for_structural_work() {
#ifdef IGNORE_STALE_GLOBAL
    atomic { /* what is stale does not matter */
        if
        :: may_be_live(GATE) -> busy = true
        :: is_worth_a_look(GATE)
        fi
    }
    atomic {
        if
        :: may_be_live(GLOBAL) && !is_commit(GLOBAL) -> busy = true
        :: is_worth_a_look(GLOBAL) || is_commit(GLOBAL)
        fi
    }
#else
#ifndef NO_GATE
    look(GATE);
#endif
    if
    :: busy
    :: else -> look(GLOBAL)
    fi
#endif
}

/* Begin only if nobody does structural work; else let go of everything, wait, and start over. */
inline begin() {
    do
    ::
#ifdef REGISTER_FIRST
       register();
       acquire(model);
#else
       acquire(model);
       register();
#endif
       look_for_structural_work();
       if
       :: busy -> busy = false
       :: else -> break
       fi;
       release(model);
       unregister();
       is_worth_a_look(GATE);
       is_worth_a_look(GLOBAL) || is_commit(GLOBAL)
    od;
    began_after = structural_done /* pull */
}

inline commit_session() {
    do
    :: index_known = index_known | bit(me);
       verify(model);
       verify(GLOBAL);
       atomic {
           if
           :: index_known & bit(me) ->
               assert(lock[model].owner == me && lock[GLOBAL].owner == me); /* (1) */
               assert(structural_done == began_after);                      /* (4) */
               index_known = bit(me);
               sessions_done = sessions_done | bit(me);
               break
           :: else
           fi
       }
    od
}

proctype Session(byte me; byte model) {
    bool stole, busy, began_after;
    {
#ifdef ENDLESS_SESSIONS
        skip;
again:
#endif
        begin();
        acquire(GLOBAL);
        commit_session();
out:
        release(GLOBAL);
        release(model);
        unregister();
#ifdef ENDLESS_SESSIONS
        goto again;
#endif
        atomic { busy = false; began_after = false; silent = silent | bit(me) }
    } UNLESS_CRASHED
}

/* The structural command ------------------------------------------------------------------------ */

inline look_for_sessions() {
    live = 0;
    noticed = registered;
    look_for_session(1, MODEL_1);
    look_for_session(2, MODEL_2)
}

#ifdef TIMELY
#define may_be_left_behind(session) (session == crashed)
#else
#define may_be_left_behind(session) true
#endif

/* Look at the lock of a registered session. An object without a lock may have been left behind long
 * ago, and is removed in passing. */
inline look_for_session(session, key) {
    if
    :: noticed & bit(session) ->
        look_at_session(key);
        atomic {
            if
            :: busy -> busy = false; live = key
            :: !busy && noticed & bit(session) && may_be_left_behind(session) ->
                registered = registered & ~bit(session)
            :: !busy
            fi;
            noticed = noticed & ~bit(session)
        }
    :: else
    fi
}

inline look_at_session(key) {
#ifdef IGNORE_STALE_SESSION
    atomic {
        if
        :: may_be_live(key) -> busy = true
        :: is_worth_a_look(key)
        fi
    }
#else
    look(key)
#endif
}

inline drain() {
    do
    :: look_for_sessions();
       if
       :: live == 0 -> break
       :: else -> is_worth_a_look(live)
       fi
    od
}

inline exclude_sessions() {
#ifdef DRAIN_UNDER_GLOBAL
    acquire(GLOBAL);
    drain();
#elif defined(NO_SECOND_LOOK)
    drain();
    acquire(GLOBAL);
#else
    do
    :: drain();
       acquire(GLOBAL);
       look_for_sessions();
       if
       :: live == 0 -> break
       :: else -> release(GLOBAL)
       fi
    od;
#endif
    began_after = sessions_done /* pull */
}

inline commit_structure() {
    do
    :: index_known = index_known | bit(me);
#ifdef VERIFY_GATE
       verify(GATE);
#endif
       verify(GLOBAL);
       atomic {
           if
           :: index_known & bit(me) ->
               assert(lock[GLOBAL].owner == me);     /* (1) */
               assert(sessions_done == began_after); /* (4) */
               index_known = bit(me);
               structural_done = true;
               break
           :: else
           fi
       }
    od
}

proctype Structural(byte me) {
    bool stole, busy;
    byte live, began_after;
    {
#ifndef NO_GATE
        acquire(GATE);
#endif
        exclude_sessions();
        commit_structure();
out:
        release(GLOBAL);
        release(GATE);
        atomic { busy = false; live = 0; began_after = 0; silent = silent | bit(me) }
    } UNLESS_CRASHED
}

active proctype World() {
    atomic { run Session(1, MODEL_1); run Session(2, MODEL_2); run Structural(3) }
end:
    do
    :: idles
#ifdef TIMELY
    :: crashes(1)
    :: crashes(3)
#endif
    od
}

#ifdef ENDLESS_SESSIONS
ltl no_starvation { <> (silent & bit(3)) }
#elif defined(LIVENESS)
ltl nobody_waits_for_ever { <> everybody_ended }
#endif
