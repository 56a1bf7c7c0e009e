// SPDX-License-Identifier: GPL-2.0-only
/*
 * How the reapers of an address space share it.
 *
 * A session exists while at least one reaper works on an mm. It is in a fixed
 * table: nothing is allocated on the way to free memory, and mm_struct does not
 * grow. The reapers of a session share one cursor that moves down the address
 * space; they claim a chunk by moving it with a cmpxchg.
 */
#include "reap_session.h"

static DEFINE_SPINLOCK(reap_sessions_lock);
static struct reap_session reap_sessions[REAP_MAX_SESSIONS];

static void session_init(struct reap_session *session, struct mm_struct *mm)
{
	init_waitqueue_head(&session->idle);
	session->mm = mm;
	session->users = 0;
	session->failed = false;
	atomic_long_set(&session->next, ULONG_MAX);
	atomic_set(&session->working, 0);
}

/**
 * reap_session_join - become one of the reapers of an mm
 * @mm: the address space; the caller holds a reference until it has left
 * @own: used when the table is full; the caller then reaps alone
 *
 * The first to join starts a new pass from the top of the address space. So
 * does a reaper that retries after a failure, even if others have not left the
 * failed session yet: it has to walk everything again.
 *
 * Return: the session, to be passed to reap_session_finish() and then to
 * reap_session_leave().
 */
struct reap_session *reap_session_join(struct mm_struct *mm,
				       struct reap_session *own)
{
	struct reap_session *session = NULL;
	unsigned int i;

	spin_lock(&reap_sessions_lock);
	for (i = 0; i < REAP_MAX_SESSIONS; i++) {
		if (reap_sessions[i].mm == mm &&
		    !READ_ONCE(reap_sessions[i].failed)) {
			session = &reap_sessions[i];
			goto join;
		}
		if (!session && !reap_sessions[i].mm)
			session = &reap_sessions[i];
	}
	if (!session)
		session = own;
	session_init(session, mm);
join:
	session->users++;
	atomic_inc(&session->working);
	spin_unlock(&reap_sessions_lock);

	return session;
}

/**
 * reap_session_alone - reap an mm alone
 * @mm: the address space
 * @own: the session
 *
 * Claims of other reapers are ignored.
 *
 * Return: @own, to be used like a session that was joined.
 */
struct reap_session *reap_session_alone(struct mm_struct *mm,
					struct reap_session *own)
{
	session_init(own, mm);
	own->users = 1;
	atomic_set(&own->working, 1);

	return own;
}

/**
 * reap_session_leave - leave a session
 * @session: what reap_session_join() returned
 *
 * Return: true if no part of the address space had to be skipped so far.
 */
bool reap_session_leave(struct reap_session *session)
{
	bool complete;

	spin_lock(&reap_sessions_lock);
	complete = !READ_ONCE(session->failed);
	if (!--session->users)
		session->mm = NULL;
	spin_unlock(&reap_sessions_lock);

	return complete;
}

/**
 * reap_session_claim - take the highest unclaimed chunk
 * @session: the session
 * @below: finds the next reapable span
 * @arg: passed to @below
 * @chunk: set if true is returned; no other reaper gets any of it
 *
 * A chunk may hold several spans and the gaps between them; it never crosses
 * a multiple of REAP_CHUNK_SIZE.
 *
 * Return: false when there is nothing left to claim.
 */
bool reap_session_claim(struct reap_session *session, reap_below_fn below,
			void *arg, struct reap_span *chunk)
{
	long top = atomic_long_read(&session->next);

	while (top) {
		bool found = below(arg, top, chunk);

		chunk->start = found ?
			ALIGN_DOWN(chunk->end - 1, REAP_CHUNK_SIZE) : 0;
		if (atomic_long_try_cmpxchg(&session->next, &top, chunk->start))
			return found;
	}

	return false;
}

/**
 * reap_session_finish - the caller has no chunk and claims no more
 * @session: the session, which the caller has not left yet
 */
void reap_session_finish(struct reap_session *session)
{
	if (atomic_dec_and_test(&session->working))
		wake_up_all(&session->idle);
}

/**
 * reap_session_finished - check that no reaper is active
 * @session: the session, which the caller has not left yet
 *
 * With nothing left to claim this means that every chunk is done.
 */
bool reap_session_finished(struct reap_session *session)
{
	/* Makes writes visible that they did before, such as to failed. */
	return !atomic_read_acquire(&session->working);
}
