/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_LIST_H
#define _HOSTED_LINUX_LIST_H

#include "../../check.h"
#include "types.h"

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
	CHECK(before->next == behind && behind->prev == before);
	CHECK(entry != before && entry != behind);
	entry->prev = before;
	entry->next = behind;
	before->next = entry;
	behind->prev = entry;
}

static inline void hosted_list_remove(struct list_head *entry)
{
	CHECK(entry->prev->next == entry && entry->next->prev == entry);
	entry->prev->next = entry->next;
	entry->next->prev = entry->prev;
}

static inline void list_add(struct list_head *entry, struct list_head *head)
{
	hosted_list_insert(entry, head, head->next);
}

static inline void list_add_tail(struct list_head *entry,
				 struct list_head *head)
{
	hosted_list_insert(entry, head->prev, head);
}

/* Using the links of an entry that is in no list faults. */
static inline void list_del(struct list_head *entry)
{
	hosted_list_remove(entry);
	entry->next = NULL;
	entry->prev = NULL;
}

#define list_entry(ptr, type, member)					\
	((type *)((char *)(ptr) - offsetof(type, member)))
#define list_first_entry(head, type, member)				\
	list_entry((head)->next, type, member)
#define list_last_entry(head, type, member)				\
	list_entry((head)->prev, type, member)
#define list_first_entry_or_null(head, type, member)			\
	(list_empty(head) ? NULL : list_first_entry(head, type, member))
#define list_for_each_entry(pos, head, member)				\
	for ((pos) = list_entry((head)->next, __typeof__(*(pos)), member); \
	     &(pos)->member != (head);					\
	     (pos) = list_entry((pos)->member.next, __typeof__(*(pos)), member))

#endif /* _HOSTED_LINUX_LIST_H */
