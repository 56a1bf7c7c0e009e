/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What expedite_queue.c needs of the kernel, in user space. The Makefile
 * includes this file first; it shares the guard of the kernel's file of the
 * same name, which is therefore left out.
 */
#ifndef _MM_MEMREAP_EXPEDITE_INTERNAL_H
#define _MM_MEMREAP_EXPEDITE_INTERNAL_H

#include "hosted.h"

#define U64_MAX			(~0ULL)
#define SZ_64M			0x4000000
#define NSEC_PER_MSEC		1000000L
#define NSEC_PER_SEC		1000000000L

#define max(a, b)							\
({									\
	__auto_type max_a_ = (a);					\
	__auto_type max_b_ = (b);					\
									\
	max_a_ > max_b_ ? max_a_ : max_b_;				\
})

#define min(a, b)							\
({									\
	__auto_type min_a_ = (a);					\
	__auto_type min_b_ = (b);					\
									\
	min_a_ < min_b_ ? min_a_ : min_b_;				\
})

/* A ring through the head; an empty one is the head alone. */
struct list_head {
	struct list_head *next;
	struct list_head *prev;
};

static inline void INIT_LIST_HEAD(struct list_head *head)
{
	head->next = head;
	head->prev = head;
}

static inline bool list_empty(const struct list_head *head)
{
	return head->next == head;
}

/* Between two that are neighbours. */
static inline void hosted_list_insert(struct list_head *entry,
				      struct list_head *before,
				      struct list_head *behind)
{
	entry->prev = before;
	entry->next = behind;
	before->next = entry;
	behind->prev = entry;
}

static inline void hosted_list_remove(struct list_head *entry)
{
	entry->prev->next = entry->next;
	entry->next->prev = entry->prev;
}

static inline void list_add_tail(struct list_head *entry,
				 struct list_head *head)
{
	hosted_list_insert(entry, head->prev, head);
}

static inline void list_move(struct list_head *entry, struct list_head *head)
{
	hosted_list_remove(entry);
	hosted_list_insert(entry, head, head->next);
}

static inline void list_move_tail(struct list_head *entry,
				  struct list_head *head)
{
	hosted_list_remove(entry);
	hosted_list_insert(entry, head->prev, head);
}

#define list_entry(ptr, type, member)					\
	((type *)((char *)(ptr) - offsetof(type, member)))
#define list_first_entry(head, type, member)				\
	list_entry((head)->next, type, member)
#define list_for_each_entry(pos, head, member)				\
	for ((pos) = list_entry((head)->next, __typeof__(*(pos)), member); \
	     &(pos)->member != (head);					\
	     (pos) = list_entry((pos)->member.next, __typeof__(*(pos)), member))

#endif /* _MM_MEMREAP_EXPEDITE_INTERNAL_H */
