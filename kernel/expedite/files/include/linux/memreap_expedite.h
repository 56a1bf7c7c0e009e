/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_EXPEDITE_H
#define _LINUX_MEMREAP_EXPEDITE_H

#include <linux/jump_label.h>
#include <linux/types.h>

struct kernel_siginfo;
struct mm_struct;
struct pid;
struct seq_file;
struct signal_struct;
struct task_struct;

/**
 * struct memreap_exiting - an address space that a thread is giving up
 * @node: among those that can be found
 * @signal: of the process
 * @mm: the address space, pinned; NULL if it is not worth it
 */
struct memreap_exiting {
	struct hlist_node node;
	const struct signal_struct *signal;
	struct mm_struct *mm;
};

#ifdef CONFIG_MEMREAP_EXPEDITE

DECLARE_STATIC_KEY_TRUE(memreap_expedite_key);
DECLARE_STATIC_KEY_FALSE(memreap_expedite_size_key);

/* The boot parameter memreap.expedite=0 brings the stock code back. */
static inline bool memreap_expedite_enabled(void)
{
	return static_branch_likely(&memreap_expedite_key);
}

bool memreap_expedite_flag(unsigned int *flags);
int memreap_expedite_kill(struct kernel_siginfo *info, struct pid *pid);
bool memreap_expedite_suffix(char *buf);
void memreap_expedite_cgroup_kill(struct task_struct *task);
void memreap_expedite_killed(struct task_struct *p);
void memreap_expedite_exit(struct memreap_exiting *e, struct mm_struct *mm);
void memreap_expedite_unlist(struct memreap_exiting *e);
void memreap_expedite_vmstat(struct seq_file *m);

/* In complete_signal(), for a process that dies of @sig from now on. */
static inline void memreap_expedite_signal(int sig, struct task_struct *p)
{
	if (static_branch_unlikely(&memreap_expedite_size_key) &&
	    sig == SIGKILL)
		memreap_expedite_killed(p);
}

/* In exit_mm(), before the thread gives up its mm... */
static inline void memreap_expedite_exiting(struct memreap_exiting *e,
					    struct mm_struct *mm)
{
	if (memreap_expedite_enabled())
		memreap_expedite_exit(e, mm);
	else
		e->mm = NULL;
}

/* ...and after mmput(). */
static inline void memreap_expedite_exited(struct memreap_exiting *e)
{
	if (e->mm)
		memreap_expedite_unlist(e);
}

#else

static inline bool memreap_expedite_flag(unsigned int *flags)
{
	return false;
}

static inline int memreap_expedite_kill(struct kernel_siginfo *info,
					struct pid *pid)
{
	return -EINVAL;
}

static inline bool memreap_expedite_suffix(char *buf)
{
	return false;
}

static inline void memreap_expedite_cgroup_kill(struct task_struct *task)
{
}

static inline void memreap_expedite_signal(int sig, struct task_struct *p)
{
}

static inline void memreap_expedite_exiting(struct memreap_exiting *e,
					    struct mm_struct *mm)
{
}

static inline void memreap_expedite_exited(struct memreap_exiting *e)
{
}

static inline void memreap_expedite_vmstat(struct seq_file *m)
{
}

#endif /* CONFIG_MEMREAP_EXPEDITE */

#endif /* _LINUX_MEMREAP_EXPEDITE_H */
