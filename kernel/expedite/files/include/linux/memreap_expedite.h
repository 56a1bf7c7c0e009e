/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_EXPEDITE_H
#define _LINUX_MEMREAP_EXPEDITE_H

#include <linux/jump_label.h>
#include <linux/sched/mm.h>
#include <linux/types.h>

struct kernel_siginfo;
struct mm_struct;
struct pid;
struct seq_file;
struct task_struct;

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
void memreap_expedite_mmput(struct mm_struct *mm);
void memreap_expedite_vmstat(struct seq_file *m);

/* In complete_signal(), for a process that dies of @sig from now on. */
static inline void memreap_expedite_signal(int sig, struct task_struct *p)
{
	if (static_branch_unlikely(&memreap_expedite_size_key) &&
	    sig == SIGKILL)
		memreap_expedite_killed(p);
}

/* In place of the mmput() in exit_mm(). */
static inline void memreap_expedite_exit_mm(struct mm_struct *mm)
{
	if (memreap_expedite_enabled())
		memreap_expedite_mmput(mm);
	else
		mmput(mm);
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

static inline void memreap_expedite_exit_mm(struct mm_struct *mm)
{
	mmput(mm);
}

static inline void memreap_expedite_vmstat(struct seq_file *m)
{
}

#endif /* CONFIG_MEMREAP_EXPEDITE */

#endif /* _LINUX_MEMREAP_EXPEDITE_H */
