/* Three sessions of the same model that each push one version.
 *
 * A session takes the lock of the model, pulls, uploads its version under the next free number, reads the
 * index, takes the global lock, commits and releases. With -DBESIDE what it uploads is little: that happens
 * at any time after the pull, while the global lock is taken; the commit waits for it, and nothing else
 * does, so that it may still arrive when its session has given up. Writing the record of a lock after the index was read
 * proves that lock, so the global one is not proved once more, unless the index is read again: then both
 * are. Not in the model: that a proof is good for half the time to live of a lock only. What is proved here
 * does not need that; it keeps the moment short in which a client of another kind, which fences nothing,
 * may take the lock of one that stood still. See locks.pml for locks and for what goes wrong; in addition
 * one request of a commit may arrive late, after its sender has given it up, or, with -DFORCED, a user
 * forces the release of one lock. With -DFOREIGN the third is a client of another kind, which takes the
 * same locks again and again. What it takes for stale it deletes, so that whoever creates the lock next
 * does not fence; with it (1) does not hold, but a lock that was missing before the index was read is
 * missed. With -DPUNCTUAL as well, clocks are right and nobody crashes: then it deletes no live lock.
 */

#define LOCKS 2
#define MODEL 0
#define GLOBAL 1
#if defined(FORCED) || defined(BESIDE)
#define SLOW bit(1)
#elif defined(PUNCTUAL)
#define SLOW 0
#else
#define SLOW (bit(1) | bit(2) | bit(3))
#endif
#include "locks.pml"

#define LATE 0 /* the bit of index_known that belongs to the late request */

byte number[4];    /* by client: the number of the version that it pushes */
byte object[4];    /* by number: whose content was uploaded */
byte committed[4]; /* by number: whose version the index names */
byte uploading;    /* bits of the clients whose version is on its way */
byte acknowledged; /* bits of the clients that were told that their version is on the remote */

#ifdef FOREIGN
byte ownerless;    /* bits of those that read the index when a lock of theirs was missing */
#endif

byte late;         /* whose request is under way */
#if defined(TIMELY) || defined(FORCED) || defined(FOREIGN)
bool request_may_be_late = false;
#else
bool request_may_be_late = true;
#endif

#define is_kept(client) (!(acknowledged & bit(client)) || committed[number[client]] == client)

/* The index is replaced by one that names the version as well. */
inline apply(client) {
#ifdef FOREIGN
    assert(!(ownerless & bit(client)));                                  /* (1), as far as it holds */
#elif !defined(BLIND_COMMIT) /* which would break this, too */
    assert(lock[MODEL].owner == client && lock[GLOBAL].owner == client); /* (1) */
#endif
    assert(object[number[client]] == client);                            /* (3) */
    assert(committed[number[client]] == NOBODY || committed[number[client]] == client);
    forget_unseen(client);
    committed[number[client]] = client;
#ifdef FENCE_ONLY_IF_THERE
    can_be_fenced = true;
#endif
    assert(is_kept(1) && is_kept(2) && is_kept(3))                       /* (2) */
}

#ifdef BLIND_COMMIT
byte seen[4];
#define matches true
inline see() {
    seen[me] = (committed[1] -> 2 : 0) + (committed[2] -> 4 : 0) + (committed[3] -> 8 : 0)
}
inline forget_unseen(client) {
    committed[1] = (seen[client] & 2 -> committed[1] : NOBODY);
    committed[2] = (seen[client] & 4 -> committed[2] : NOBODY);
    committed[3] = (seen[client] & 8 -> committed[3] : NOBODY)
}
#else
#define matches (index_known & bit(me))
inline see() { skip }
inline forget_unseen(client) { skip }
#endif

inline pull() {
    atomic {
        number[me] = 1;
        do
        :: committed[number[me]] != NOBODY -> number[me]++
        :: else -> break
        od;
        uploading = uploading | bit(me)
    };
#ifndef BESIDE
    upload(me)
#endif
}

/* Numbers that are taken stay taken, so it is enough to look at all of them at once. */
inline upload(client) {
    atomic {
        uploading & bit(client) ->
#ifndef OVERWRITE_UPLOAD
        do
        :: object[number[client]] != NOBODY -> number[client]++
        :: else -> break
        od;
#endif
        object[number[client]] = client;
        uploading = uploading & ~bit(client)
    }
}

inline wait_for_upload() {
#if defined(BESIDE) && !defined(COMMIT_WHILE_UPLOADING)
    !(uploading & bit(me))
#else
    skip
#endif
}

inline read_index() {
    atomic { index_known = index_known | bit(me); see(); count_locks() }
}

#ifdef FOREIGN
inline count_locks() {
    ownerless = (ownerless & ~bit(me)) | ((lock[MODEL].missing | lock[GLOBAL].missing) & bit(me))
}
#else
inline count_locks() { skip }
#endif

inline verify_all() {
#ifndef NO_VERIFY
    verify(MODEL);
    if
    :: is_first /* taking it has proved it */
    :: !is_first -> verify(GLOBAL)
    fi
#else
    skip
#endif
}

inline commit() {
    do
    ::
#ifdef VERIFY_BEFORE_READ
       verify_all();
       read_index();
#else
       if
       :: is_first
       :: !is_first -> read_index()
       fi;
       verify_all();
#endif
       atomic {
           is_first = false;
           if
           :: matches ->
               apply(me);
               index_known = bit(me);
               if
               :: acknowledge(); break
               :: skip /* the answer is lost */
               fi
           :: matches && request_may_be_late ->
               request_may_be_late = false;
               late = me;
               index_known = index_known | bit(LATE);
               unsure = true
           :: !(matches)
           fi
       }
       atomic { /* read it back */
           if
           :: committed[number[me]] == me -> acknowledge(); break
           :: else ->
               if
               :: unsure -> break /* give up */
               :: skip
               fi
           fi
       }
    od
}

inline acknowledge() {
    acknowledged = acknowledged | bit(me);
    unsure = false
}

/* A request that we know nothing of must not arrive after the locks were released. So fence first; if
 * the store does not let us, leave the locks to get stale: whoever steals them fences. */
inline release_all() {
    if
#ifndef RELEASE_UNSURE
    :: atomic { unsure -> index_known = index_known | bit(me) }
       atomic {
           if
           :: index_known & bit(me) -> index_known = bit(me)
           :: else
           fi;
           unsure = false
       }
       release(GLOBAL);
       release(MODEL)
    :: atomic { unsure -> unsure = false }
    :: !unsure ->
#else
    :: unsure = false;
#endif
       release(GLOBAL);
       release(MODEL)
    fi
}

proctype Client(byte me) {
    bool stole, unsure, is_first;
#ifdef REFRESH_THEN_DELETE
    bool ours;
#endif
    {
        acquire(MODEL);
        pull();
#ifdef BELIEVE_OLD_PROOF
        acquire(GLOBAL);
        read_index();
#else
        read_index();
        acquire(GLOBAL);
#endif
        wait_for_upload();
        is_first = true;
        commit();
out:
        release_all();
        silent = silent | bit(me)
    } UNLESS_CRASHED
}

#ifdef FOREIGN
proctype Foreign(byte me) {
end:
    do
    :: acquire_as_others(MODEL); release_as_others(MODEL)
    :: acquire_as_others(GLOBAL); release_as_others(GLOBAL)
    od
}
#endif

#ifdef FORCED
bool force_may_be_used = true;
#endif

/* A user releases the lock of somebody else, who may be about to commit. */
inline force_release(key) {
    atomic {
        force_may_be_used && lock[key].holder != NOBODY ->
        force_may_be_used = false;
#ifdef FORCE_BY_DELETE
        remove(key)
#else
        abandon(key)
#endif
    }
}

active proctype World() {
#ifdef FOREIGN
    atomic { run Client(1); run Client(2); run Foreign(3) }
#else
    atomic { run Client(1); run Client(2); run Client(3) }
#endif
end:
    do
    :: idles
#ifdef BESIDE
    :: upload(1)
    :: upload(2)
    :: upload(3)
#endif
#ifdef TIMELY
    :: crashes(1)
#endif
    :: atomic {
           late != 0 ->
           if
           :: index_known & bit(LATE) -> apply(late); index_known = 0
           :: else
           fi;
           late = 0
       }
#ifdef FORCED
    :: force_release(MODEL)
    :: force_release(GLOBAL)
#endif
    od
}

#ifdef LIVENESS
ltl nobody_waits_for_ever { <> everybody_ended }
#endif
