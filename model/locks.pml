/* Locks that are objects in a store, and what can happen to whoever holds one.
 *
 * Included by commit.pml and structural.pml, which define LOCKS and the processes. Clients have the
 * numbers 1 to 3; the number stands for the nonce in a client's record. One step of a process is one
 * request to the store. A client that cannot go on jumps to its label `out`.
 *
 * A token changes with every write of an object, so all that matters about a remembered token is
 * whether it is still the current one. `known` has one bit per client: set when the client reads or
 * writes the object, cleared for all others when somebody writes it. A conditional write succeeds if
 * the bit is set. So there are finitely many states, however often something is written.
 *
 * What goes wrong:
 *   - A process stands still anywhere, for as long as you like, as often as you like, or for ever (a
 *     crash). Nothing has to be modelled for that: spin tries every order of steps.
 *   - Clocks are wrong. The record of a client in SLOW may be taken for stale at any time, so what is
 *     proved does not rest on clocks, heartbeats or the length of a pause.
 *   - The answer to a conditional write is lost. Its sender reads the record again.
 *   - With -DFOREIGN, client 3 is of another kind: it takes a lock only if there is no record, deletes
 *     without a condition what it takes for stale, some time after it has looked, and fences nothing.
 *
 * Nobody can wait in vain when every lock can be stolen. With -DTIMELY clocks are right, one client
 * crashes at most, and only the locks of those that crashed or ended get stale: then spin finds out
 * whether everybody else comes to his end.
 */

#define NOBODY 0
#define ABANDONED 4 /* a nonce that nobody has: such a record is stale */
#define FREE 5      /* with -DLEAVE_FREE: what is left of a lock that was given back */
#define bit(client) (1 << (client))

typedef Record {
    byte holder; /* the nonce in the record; NOBODY: the lock is free */
    byte known;  /* bits of those whose token is the current one */
    byte owner   /* for assertions only: whose acquisition was the last to be completed */
#ifdef FOREIGN
    ;byte missing /* for assertions only: bits of those whose record a client of another kind deleted */
#endif
}

Record lock[LOCKS];
byte index_known; /* the same for the index document; bit 0 belongs to a late request */
#ifdef FENCE_ONLY_IF_THERE
bool can_be_fenced; /* there is an index: somebody has committed */
#else
#define can_be_fenced true /* where there is no index, an empty one is created */
#endif
byte silent = bit(ABANDONED); /* bits of those that crashed or ended */

#ifdef TIMELY
byte crashed;
#define may_be_stale(key) (silent & bit(lock[key].holder))
#define may_be_live(key) (lock[key].holder != NOBODY && !may_be_stale(key))
#define UNLESS_CRASHED unless { crashed == me }
#define crashes(client) \
    atomic { crashed == 0 && !(silent & bit(client)) -> crashed = client; silent = silent | bit(client) }
#else
#define may_be_stale(key) (lock[key].holder != NOBODY && (SLOW | silent) & bit(lock[key].holder))
#define may_be_live(key) (lock[key].holder != NOBODY && lock[key].holder != ABANDONED)
#define UNLESS_CRASHED
#endif

/* With -DLIVENESS (and fair scheduling) spin looks for a run in which somebody goes on for ever. A crash
 * may happen but need not: so the world may idle. */
#ifdef LIVENESS
#define idles (silent != 0) /* always so; spin wants a condition */
#else
#define idles false
#endif
#define everybody_ended (silent == (bit(1) | bit(2) | bit(3) | bit(ABANDONED)))

/* Write a record: create, refresh and take over all end like this. */
inline put(key) {
#ifdef FOREIGN
    lock[key].missing = lock[key].missing & ~bit(me);
#endif
    lock[key].holder = me;
    lock[key].known = bit(me)
}

inline remove(key) {
    lock[key].holder = NOBODY;
    lock[key].known = 0
}

/* Leave a record to be stolen, by whoever needs the lock next. */
inline abandon(key) {
    lock[key].holder = ABANDONED;
    lock[key].known = 0
}

/* Read a record that may be stale, and replace it if it is still that one. */
inline steal(key) {
    atomic { may_be_stale(key) && lock[key].holder != me -> lock[key].known = lock[key].known | bit(me) }
#ifdef STEAL_BY_DELETE
    atomic { remove(key) } /* whoever creates it next does not know that it was stolen */
#else
    atomic {
        if
        :: lock[key].known & bit(me) -> put(key); stole = true
        :: else
        fi
    }
#endif
}

/* What has to be done before a stolen lock counts as held: write the index, so that every token of it
 * that was read before is worthless. One attempt is enough: if the condition does not hold, somebody
 * else has written the index meanwhile, which does the same.
 *
 * If the store does not let us, the record must not be removed, because whoever creates the lock does
 * not fence. It is left to be stolen. */
inline complete(key) {
    if
#ifndef NO_FENCE
    :: atomic { stole -> index_known = index_known | bit(me) }
       atomic {
           if
           :: index_known & bit(me) && can_be_fenced -> index_known = 0
           :: else
           fi;
           index_known = index_known & ~bit(me); /* what we had read of it is older */
           hold(key)
       }
    :: atomic { stole -> stole = false; give_up(key); goto out }
#else
    :: atomic { stole -> hold(key) }
#endif
    :: !stole
    fi
}

inline hold(key) {
    stole = false;
    if
    :: lock[key].holder == me -> lock[key].owner = me
    :: else /* it was stolen from us already */
    fi
}

inline give_up(key) {
    if
    :: lock[key].holder == me ->
#ifdef DELETE_UNFENCED
        remove(key)
#else
        abandon(key)
#endif
    :: else
    fi
}

/* Wait for the lock and take it. If an answer is lost, our nonce in the record tells that we have it. */
inline acquire(key) {
    do
    :: atomic {
           lock[key].holder == NOBODY ->
           put(key);
           lock[key].owner = me;
           if
           :: break
           :: skip /* the answer is lost */
           fi
       }
#ifdef LEAVE_FREE
    :: atomic { lock[key].holder == FREE -> lock[key].known = lock[key].known | bit(me) }
       atomic {
           if
           :: lock[key].known & bit(me) -> put(key); lock[key].owner = me; break
           :: else
           fi
       }
#endif
    :: steal(key);
       if
       :: stole -> break
       :: skip /* we came too late, or the answer is lost */
       fi
    :: atomic {
           lock[key].holder == me ->
#ifdef FORGET_STEAL
           stole = false;
#endif
           break
       }
    od;
    complete(key)
}

/* Prove that the lock is ours, by a conditional refresh. */
inline verify(key) {
    atomic {
        if
        :: lock[key].holder == me -> put(key)
        :: else -> goto out
        fi
    }
}

/* Give the lock back, on condition that it is still ours. Where a store is not proven to delete on
 * condition, a record that says "free" replaces ours on condition. Among clients that know it, both are
 * one step from our record to none; -DLEAVE_FREE is what others see of it. */
inline release(key) {
#ifdef REFRESH_THEN_DELETE
    atomic {
        if
        :: lock[key].holder == me -> put(key); ours = true
        :: else -> ours = false
        fi
    }
    atomic {
        if
        :: ours -> delete_blindly(key); ours = false
        :: else
        fi
    }
#elif defined(DELETE_WITHOUT_CAS)
    atomic { delete_blindly(key) }
#else
    atomic {
        if
#ifdef LEAVE_FREE
        :: lock[key].holder == me -> lock[key].holder = FREE; lock[key].known = 0
#else
        :: lock[key].holder == me -> remove(key)
#endif
        :: else
        fi
    }
#endif
}

inline delete_blindly(key) {
    assert(lock[key].holder == me || lock[key].holder == NOBODY); /* (6) */
    remove(key)
}

#ifdef FOREIGN
/* Clients of another kind ------------------------------------------------------------------------ */

#ifdef PUNCTUAL
bool hits_live; /* a deletion without a condition hits a lock whose holder is at work */
#endif

#define looks_stale(key) (lock[key].holder != me && (may_be_stale(key) || lock[key].holder == FREE))

/* Take the lock if there is none; delete what looks stale, whatever is in its place by then. */
inline acquire_as_others(key) {
    do
    :: atomic { lock[key].holder == NOBODY -> put(key); lock[key].owner = me; break }
    :: looks_stale(key);
       atomic { delete_as_others(key) }
    od
}

/* Look whether it is still ours, then delete it. */
inline release_as_others(key) {
    if
    :: lock[key].holder == me ->
       atomic { delete_as_others(key) }
    :: lock[key].holder != me
    fi
}

inline delete_as_others(key) {
#ifdef PUNCTUAL
    hits_live = may_be_live(key) && lock[key].holder != me && lock[key].holder != FREE;
    assert(!hits_live); /* (7) */
#endif
    lock[key].missing = lock[key].missing | (lock[key].holder == NOBODY -> 0 : bit(lock[key].holder));
    remove(key)
}
#endif
