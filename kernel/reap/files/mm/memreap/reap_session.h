/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_REAP_SESSION_H
#define _MM_MEMREAP_REAP_SESSION_H

#include "reap_internal.h"

struct mm_struct;

/**
 * struct reap_span - a range of a user address space
 * @start: first byte, page aligned
 * @end: first byte after it, page aligned
 */
struct reap_span {
	unsigned long start;
	unsigned long end;
};

/**
 * struct reap_session - what the reapers of one mm share
 * @mm: the address space, or NULL while the slot is free
 * @next: everything from this address up is claimed; 0: everything
 * @users: reapers that have not left; protected by reap_sessions_lock
 * @working: reapers that may still hold a claimed chunk
 * @idle: where finished reapers wait for @working to become 0
 * @failed: a part could not be reaped, the caller should try again
 *
 * Reapers claim from the top because exit_mmap() frees from the bottom: they
 * meet once, instead of following each other from page table to page table.
 */
struct reap_session {
	struct mm_struct *mm;
	atomic_long_t next;
	unsigned int users;
	atomic_t working;
	wait_queue_head_t idle;
	bool failed;
};

/*
 * The unit of claims. Aligned, so that it splits no huge page; small enough
 * that reapers finish at about the same time; large enough that the cost of a
 * claim is negligible.
 */
#define REAP_CHUNK_SIZE		(16 * PMD_SIZE)

/* Address spaces that can have more than one reaper at a time. */
#define REAP_MAX_SESSIONS	16

/**
 * typedef reap_below_fn - find the highest reapable span below an address
 * @arg: the searcher's state
 * @top: exclusive upper bound, not 0
 * @span: set when true is returned; @span->end is at most @top
 */
typedef bool (*reap_below_fn)(void *arg, unsigned long top,
			      struct reap_span *span);

struct reap_session *reap_session_join(struct mm_struct *mm,
				       struct reap_session *own);
struct reap_session *reap_session_alone(struct mm_struct *mm,
					struct reap_session *own);
bool reap_session_leave(struct reap_session *session);
bool reap_session_claim(struct reap_session *session, reap_below_fn below,
			void *arg, struct reap_span *chunk);
void reap_session_finish(struct reap_session *session);
bool reap_session_finished(struct reap_session *session);

#endif /* _MM_MEMREAP_REAP_SESSION_H */
