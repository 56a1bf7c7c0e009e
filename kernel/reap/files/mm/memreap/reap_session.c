// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who reaps which address space, and who takes the next piece of it.
 *
 * A session exists while at least one reaper works on an mm. It lives in a
 * fixed table: nothing is allocated on the way to free memory, and mm_struct
 * does not grow. The reapers of a session share one cursor that runs down the
 * address space; moving it with a cmpxchg is the whole protocol for claiming.
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
 * @own: used when the table is full, the caller then reaps without company
 *
 * The first to join starts a new pass from the top of the address space. So
 * does a reaper that comes back after a failure, even if others have yet to
 * leave the failed session: it has to see all of it again.
 *
 * Return: the session, to be given to reap_session_finish() and then to
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
 * reap_session_alone - reap an mm without company
 * @mm: the address space
 * @own: the session
 *
 * What others claim, or have claimed, does not count here.
 *
 * Return: @own, to be used as one that was joined.
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
 * reap_session_leave - give the session up
 * @session: what reap_session_join() returned
 *
 * Return: true if no part of the address space had to be passed over so far.
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
 * @chunk: the chunk if true is returned; nobody else gets any of it then
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
 * reap_session_finish - tell that the caller holds no chunk and takes none
 * @session: the session, which the caller has not left yet
 */
void reap_session_finish(struct reap_session *session)
{
	if (atomic_dec_and_test(&session->working))
		wake_up_all(&session->idle);
}

/**
 * reap_session_finished - is nobody at work?
 * @session: the session, which the caller has not left yet
 *
 * With nothing left to claim this means that every chunk is done.
 */
bool reap_session_finished(struct reap_session *session)
{
	/* What the others wrote before they finished, failed say, is seen. */
	return !atomic_read_acquire(&session->working);
}
