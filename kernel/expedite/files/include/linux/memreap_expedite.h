/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_EXPEDITE_H
#define _LINUX_MEMREAP_EXPEDITE_H

#include <linux/bitops.h>
#include <linux/jump_label.h>
#include <linux/mm_types.h>
#include <linux/types.h>
#include <linux/workqueue.h>

#include <uapi/linux/sched.h>

struct kernel_siginfo;
struct pid;
struct seq_file;
struct task_struct;

/**
 * struct memreap_expedite - part of a signal_struct: the reclaim of its memory
 * @exiting: what threads of the process are giving up, pinned, or NULL
 * @nr_exiting: how many of them; both under siglock
 * @flags: EXPEDITE_REQUESTED, and then the rest is valid
 * @tries: attempts that were followed by a pause
 * @mm: the memory, pinned
 * @victim: a thread of the process, pinned, and with it this structure
 * @queued: when it was requested, ktime in ns
 * @freed: pages that workers have freed
 * @work: the next attempt
 */
struct memreap_expedite {
	struct mm_struct *exiting;
	unsigned int nr_exiting;
	unsigned int tries;
	unsigned long flags;
	struct mm_struct *mm;
	struct task_struct *victim;
	u64 queued;
	unsigned long freed;
	struct delayed_work work;
};

/* In memreap_expedite.flags, never cleared. */
#define EXPEDITE_REQUESTED	0

/*
 * In mm_struct.flags, never cleared: another process has used the memory, if only
 * from vfork() to execve().
 */
#define MMF_MEMREAP_SHARED	14

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
bool memreap_expedite_exit(struct mm_struct *mm);
void memreap_expedite_unlist(void);
void memreap_expedite_shared(struct mm_struct *mm);
void memreap_expedite_vmstat(struct seq_file *m);

/* In complete_signal(), for a process that dies of @sig from now on. */
static inline void memreap_expedite_signal(int sig, struct task_struct *p)
{
	if (static_branch_unlikely(&memreap_expedite_size_key) &&
	    sig == SIGKILL)
		memreap_expedite_killed(p);
}

/* In copy_mm(), for a new task. */
static inline void memreap_expedite_share(struct mm_struct *mm,
					  u64 clone_flags)
{
	if ((clone_flags & (CLONE_VM | CLONE_THREAD)) == CLONE_VM)
		memreap_expedite_shared(mm);
}

/* In exit_mm(), before the thread gives up its mm... */
static inline bool memreap_expedite_exiting(struct mm_struct *mm)
{
	return memreap_expedite_enabled() && memreap_expedite_exit(mm);
}

/* ...and after mmput(), with the result. */
static inline void memreap_expedite_exited(bool listed)
{
	if (listed)
		memreap_expedite_unlist();
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

static inline void memreap_expedite_share(struct mm_struct *mm,
					  u64 clone_flags)
{
}

static inline bool memreap_expedite_exiting(struct mm_struct *mm)
{
	return false;
}

static inline void memreap_expedite_exited(bool listed)
{
}

static inline void memreap_expedite_vmstat(struct seq_file *m)
{
}

#endif /* CONFIG_MEMREAP_EXPEDITE */

#endif /* _LINUX_MEMREAP_EXPEDITE_H */
