// SPDX-License-Identifier: GPL-2.0-only
/*
 * A kill that starts the reclaim.
 *
 * A killed process frees its memory itself, at the speed of the slowest CPU
 * that it may run on and of its share of that CPU. Here a worker that its limits
 * do not apply to frees the memory, together with the process, from the moment
 * of the kill.
 *
 * The request is part of the process's signal_struct: nothing is allocated on
 * the way to free memory, no process can take another one's place, and one that
 * is killed again and again is still reaped once.
 *
 * This never makes a kill fail or wait: memory that cannot be freed early is
 * freed by its process as before.
 */
#include <linux/cgroup.h>
#include <linux/kernel_stat.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/memreap_compat.h>
#include <linux/memreap_expedite.h>
#include <linux/oom.h>
#include <linux/pid.h>
#include <linux/sched/coredump.h>
#include <linux/sched/cputime.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/sysctl.h>
#include <linux/timekeeping.h>
#include <linux/workqueue.h>

#include <uapi/linux/pidfd.h>

#include "charge.h"
#include "compat.h"
#include "expedite_futex.h"
#include "reap.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_expedite.h>

DEFINE_STATIC_KEY_TRUE(memreap_expedite_key);
DEFINE_STATIC_KEY_FALSE(memreap_expedite_size_key);

/* A process frees less before a worker can start. */
#define EXPEDITE_MIN_PAGES		(SZ_1M / PAGE_SIZE)

/* Workers at a time, if there are CPUs for them. */
#define EXPEDITE_MAX_WORKERS		8

/* The pause between attempts doubles from 1 ms; 2 s in total. */
#define EXPEDITE_RETRIES		11

/*
 * All threads are looked at in one go, by a worker that leaves others nothing
 * of its CPU. A process with more is left to itself until enough have exited.
 */
#define EXPEDITE_MAX_THREADS		2048

static_assert((MMF_DUMP_FILTER_MASK >> MMF_MEMREAP_SHARED) == 0);
static_assert((MMF_INIT_LEGACY_MASK & BIT(MMF_MEMREAP_SHARED)) == 0);

static struct workqueue_struct *expedite_wq;

/* vm.expedite_min_kbytes */
static unsigned long expedite_min_kbytes;

/* vm.expedite_cpu_percent, and its minimum: an exit may wait for a pause. */
static int expedite_cpu_percent = 75;
static const int expedite_min_percent = 10;

static atomic_long_t expedite_kills;
static atomic_long_t expedite_freed;
static atomic_long_t expedite_fails;

/*
 * The time that workers have used on this CPU since they last gave way, in ns:
 * many small victims are as much work as a large one.
 */
static DEFINE_PER_CPU(unsigned long, expedite_unpaid_ns);

/*
 * What freeing @mm would free: file pages stay in the page cache. All CPUs'
 * parts, as what the others have of a process with many threads is a lot.
 */
static unsigned long private_pages(struct mm_struct *mm)
{
	return get_mm_counter_sum(mm, MM_ANONPAGES) +
	       get_mm_counter_sum(mm, MM_SWAPENTS);
}

/* --- The reclaim --- */

/*
 * Returns whether a killed process writes a core dump, which reads its memory.
 * With the lock, all threads have the signal if one has.
 */
static bool dumps_core(struct task_struct *p)
{
	unsigned long flags;
	bool dumps;

	/* It has just gone, and may have left a dump to others: try again. */
	if (!lock_task_sighand(p, &flags))
		return true;
	dumps = p->signal->core_state;
	unlock_task_sighand(p, &flags);

	return dumps;
}

/*
 * Returns EXPEDITE_FREED if the memory may be freed, else the reason why not.
 * The caller holds the mmap_lock.
 *
 * Each thread holds a reference to its mm. If another process has ever used the
 * memory, it is taken to do so until the victim's threads hold all references;
 * as they are dying, nobody will any more. All processes are not searched for
 * who holds the others: that would be work for every kill of a process that
 * shares its memory.
 */
static enum expedite_outcome find_obstacle(struct memreap_expedite *e)
{
	/* Before the threads, which give up their mm before the reference. */
	int users = atomic_read_acquire(&e->mm->mm_users), own = 0;
	enum expedite_outcome obstacle = EXPEDITE_FREED;
	bool check_futexes, exiting, shared;
	bool dumps = false, futexes = false;
	struct mm_struct *mm = e->mm;
	struct task_struct *t;

	/* Approximate: threads leave at any time. */
	if (data_race(get_nr_threads(e->victim)) > EXPEDITE_MAX_THREADS)
		return EXPEDITE_THREADS;

	/* If a reaper is already active, there is no point in waiting. */
	check_futexes = !mm_flags_test(MMF_UNSTABLE, mm);
	shared = mm_flags_test(MMF_MEMREAP_SHARED, mm);
	rcu_read_lock();
	for_each_thread(e->victim, t) {
		if (READ_ONCE(t->mm) != mm)
			continue;
		/* First: then all of them have the signal. */
		if (!own++)
			dumps = dumps_core(t);
		if (check_futexes && !futexes)
			futexes = memreap_owns_futexes(t, mm);
	}
	/*
	 * A thread is exiting from before it gives up its mm until it has
	 * dropped the reference, see memreap_expedite_exit().
	 */
	smp_rmb();
	/* Changed under siglock. */
	exiting = data_race(READ_ONCE(e->nr_exiting));
	if ((shared && own != users) || dumps) {
		obstacle = EXPEDITE_SHARED;
	} else if (shared && !users && !exiting) {
		/* Of several that shared it, a worker helps the last one. */
		obstacle = EXPEDITE_EXITED;
	} else if (futexes) {
		obstacle = EXPEDITE_FUTEX;
	}
	rcu_read_unlock();
	/* The victim is gone, and others have the memory: final. */
	smp_rmb();
	if (obstacle == EXPEDITE_SHARED && !own && !exiting &&
	    atomic_read(&mm->mm_users))
		e->tries = EXPEDITE_RETRIES;

	return obstacle;
}

static enum expedite_outcome expedite_try(struct memreap_expedite *e,
					  struct reap_pace *pace)
{
	enum expedite_outcome outcome = EXPEDITE_EXITED;
	struct mm_struct *mm = e->mm;
	bool locked = true;

	/* The holder of the lock may wait for memory. */
	if (!mmap_read_trylock(mm))
		return EXPEDITE_LOCK;

	/*
	 * exit_mmap() frees the VMAs with the lock held for writing.
	 * MMF_OOM_SKIP does not tell: the OOM reaper may have given up.
	 */
	if (!mtree_empty(&mm->mm_mt))
		outcome = find_obstacle(e);
	/* A reaper sets MMF_UNSTABLE, which does the same. */
	if (outcome == EXPEDITE_SHARED)
		mm_flags_clear(MMF_MEMREAP_HURRY, mm);
	else if (outcome == EXPEDITE_FUTEX)
		mm_flags_set(MMF_MEMREAP_HURRY, mm);
	if (outcome == EXPEDITE_FREED &&
	    !memreap_reap_mm(mm, false, &locked, &e->freed, pace))
		outcome = locked ? EXPEDITE_FAILED : EXPEDITE_LOCK;
	if (locked)
		mmap_read_unlock(mm);

	return outcome;
}

static void charge_victim(struct task_struct *victim, u64 ns)
{
#ifdef CONFIG_CGROUPS
	rcu_read_lock();
	memreap_charge_cpu(task_dfl_cgroup(victim), ns);
	rcu_read_unlock();
#endif
}

static void expedite_work(struct work_struct *work)
{
	struct memreap_expedite *e = container_of(to_delayed_work(work),
						  struct memreap_expedite,
						  work);
	struct reap_pace pace = {
		.percent = READ_ONCE(expedite_cpu_percent),
		.since = ktime_get_ns() - this_cpu_xchg(expedite_unpaid_ns, 0),
	};
	u64 runtime = task_sched_runtime(current);
	struct task_struct *victim = e->victim;
	unsigned long freed = e->freed;
	enum expedite_outcome outcome;

	outcome = expedite_try(e, &pace);
	atomic_long_add(e->freed - freed, &expedite_freed);
	charge_victim(victim, task_sched_runtime(current) - runtime);

	if (outcome > EXPEDITE_FREED) {
		if (e->tries < EXPEDITE_RETRIES) {
			queue_delayed_work(expedite_wq, &e->work,
					   msecs_to_jiffies(1 << e->tries++));
			goto pause;
		}
		atomic_long_inc(&expedite_fails);
	}
	trace_memreap_expedite_done(e, outcome, ktime_get_ns() - e->queued);
	mmdrop(e->mm);
	/* With it goes the request. */
	put_task_struct(victim);
pause:
	memreap_reap_pause(&pace);
	this_cpu_add(expedite_unpaid_ns, ktime_get_ns() - pace.since);
}

/* --- Kills --- */

/*
 * Requests that the memory of a process be freed, once, unless the process was
 * immune: the init of a PID namespace does not get a signal from inside, which
 * is no error. All others have SIGNAL_GROUP_EXIT as soon as the signal is sent,
 * and never lose it. The caller holds references to @mm and @victim. May be
 * called with interrupts disabled, under siglock.
 */
static void expedite_request(struct mm_struct *mm, struct task_struct *victim,
			     enum memreap_expedite_by by)
{
	struct memreap_expedite *e = &victim->signal->expedite;

	if (!(READ_ONCE(victim->signal->flags) & SIGNAL_GROUP_EXIT) ||
	    test_and_set_bit(EXPEDITE_REQUESTED, &e->flags))
		return;

	/*
	 * The victim may exit before a worker starts. Other users of its memory
	 * may live on, and must not pay for it: then a worker finds out.
	 */
	if (!mm_flags_test(MMF_MEMREAP_SHARED, mm))
		mm_flags_set(MMF_MEMREAP_HURRY, mm);
	mmgrab(mm);
	e->mm = mm;
	e->victim = get_task_struct(victim);
	e->queued = ktime_get_ns();
	trace_memreap_expedite_queue(e, by);
	atomic_long_inc(&expedite_kills);
	INIT_DELAYED_WORK(&e->work, expedite_work);
	queue_delayed_work(expedite_wq, &e->work, 0);
}

/* What the last threads of a process are giving up, with a reference. */
static struct mm_struct *grab_exiting_mm(struct task_struct *task)
{
	struct mm_struct *mm = NULL;
	unsigned long flags;

	if (!lock_task_sighand(task, &flags))
		return NULL;
	mm = task->signal->expedite.exiting;
	if (mm)
		mmgrab(mm);
	unlock_task_sighand(task, &flags);

	return mm;
}

/* The mm of a locked task, of which a kernel thread only borrows one. */
static struct mm_struct *grab_used_mm(struct task_struct *p)
{
	if (!p->mm || p->flags & PF_KTHREAD)
		return NULL;
	mmgrab(p->mm);

	return p->mm;
}

/*
 * Requests that the memory of a process be freed that has been sent SIGKILL, if
 * it is worth it. Not before the signal: only then is it known that the caller
 * may kill it, and until then it may exec, which makes another address space of
 * what it fills. It does not matter that the process may be exiting already:
 * what it gives up is found until it is torn down.
 */
static void expedite_task(struct task_struct *task,
			  enum memreap_expedite_by by)
{
	struct mm_struct *mm = NULL;
	struct task_struct *p = NULL;

	if (by == EXPEDITE_BY_CGROUP) {
		/* All threads are visited: no search for each of them. */
		task_lock(task);
		mm = grab_used_mm(task);
		task_unlock(task);
	} else {
		p = find_lock_task_mm(task);
	}
	if (p) {
		/* For sparse: find_lock_task_mm() is not annotated. */
		__acquire(&p->alloc_lock);
		mm = grab_used_mm(p);
		task_unlock(p);
	}
	if (!mm)
		mm = grab_exiting_mm(task);
	if (!mm)
		return;
	if (private_pages(mm) >= EXPEDITE_MIN_PAGES)
		expedite_request(mm, task, by);
	mmdrop(mm);
}

/**
 * memreap_expedite_flag - clear the flag in those of pidfd_send_signal(2)
 * @flags: from user space; unchanged, and so refused, if disabled
 *
 * Return: true if it was set.
 */
bool memreap_expedite_flag(unsigned int *flags)
{
	if (!memreap_expedite_enabled() || !(*flags & PIDFD_SIGNAL_EXPEDITE))
		return false;
	*flags &= ~PIDFD_SIGNAL_EXPEDITE;

	return true;
}

/**
 * memreap_expedite_kill - send SIGKILL to a process and free its memory
 * @info: of the signal
 * @pid: of the process or one of its threads
 *
 * Return: what kill_pid_info() returns, whether memory is freed or not.
 */
int memreap_expedite_kill(struct kernel_siginfo *info, struct pid *pid)
{
	struct task_struct *task = get_pid_task(pid, PIDTYPE_PID);
	int ret = kill_pid_info(SIGKILL, info, pid);

	if (task) {
		if (!ret)
			expedite_task(task, EXPEDITE_BY_FLAG);
		put_task_struct(task);
	}

	return ret;
}

/**
 * memreap_expedite_suffix - strip "expedite" from a write to cgroup.kill
 * @buf: a string without space at its ends; shortened if true is returned
 *
 * Return: true if it was there, behind something else and space.
 */
bool memreap_expedite_suffix(char *buf)
{
	char *space = strpbrk(buf, " \t");

	if (!memreap_expedite_enabled() || !space ||
	    strcmp(skip_spaces(space), "expedite"))
		return false;
	*space = '\0';

	return true;
}

/**
 * memreap_expedite_cgroup_kill - kill a task of a cgroup and free its memory
 * @task: a thread of a user process, which may already be dying
 */
void memreap_expedite_cgroup_kill(struct task_struct *task)
{
	/* For each thread: one that dumps core may have been left out. */
	if (!__fatal_signal_pending(task) && send_sig(SIGKILL, task, 0))
		return;
	/* Once for a process, which may have very many threads. */
	if (!test_bit(EXPEDITE_REQUESTED, &task->signal->expedite.flags))
		expedite_task(task, EXPEDITE_BY_CGROUP);
}

/* Returns whether @mm is large enough for vm.expedite_min_kbytes. */
static bool large_enough(struct mm_struct *mm)
{
	unsigned long min = READ_ONCE(expedite_min_kbytes) >>
			    (PAGE_SHIFT - 10);

	min = max(min, EXPEDITE_MIN_PAGES);

	return READ_ONCE(mm->total_vm) >= min && private_pages(mm) >= min;
}

/**
 * memreap_expedite_killed - SIGKILL has just been sent to a process
 * @p: a thread of it, its siglock held
 *
 * May be called in an interrupt, or with the task_lock() of @p held: if the
 * trylock fails for all threads, exit_mm() queues the mm.
 */
void memreap_expedite_killed(struct task_struct *p)
{
	struct task_struct *t;
	bool found = false;

	lockdep_assert_held(&p->sighand->siglock);

	__for_each_thread(p->signal, t) {
		if (!spin_trylock(&t->alloc_lock))
			continue;
		found = t->mm && !(t->flags & PF_KTHREAD);
		if (found && large_enough(t->mm))
			expedite_request(t->mm, p, EXPEDITE_BY_SIZE);
		spin_unlock(&t->alloc_lock);
		if (found)
			break;
	}
}

/**
 * memreap_expedite_exit - the current thread is about to give up its mm
 * @mm: its address space
 *
 * A kill of the process from now on finds @mm in its signal_struct, for as long
 * as one of its threads may be the one to free it, which is most of an exit.
 * Not if the process was not dying yet, and another thread was left, that
 * overtakes this one: to note each exit of a thread would take siglock for it.
 *
 * Return: true if memreap_expedite_unlist() has to be called afterwards.
 */
bool memreap_expedite_exit(struct mm_struct *mm)
{
	struct signal_struct *signal = current->signal;
	bool group = READ_ONCE(signal->flags) & SIGNAL_GROUP_EXIT;
	struct memreap_expedite *e = &signal->expedite;
	unsigned long flags;

	/* Approximate: a sum over all CPUs would be much for a small process. */
	if ((!group && atomic_read(&signal->live)) ||
	    get_mm_counter(mm, MM_ANONPAGES) + get_mm_counter(mm, MM_SWAPENTS) <
	    EXPEDITE_MIN_PAGES)
		return false;

	if (static_branch_unlikely(&memreap_expedite_size_key) && group &&
	    READ_ONCE(signal->group_exit_code) == SIGKILL &&
	    !test_bit(EXPEDITE_REQUESTED, &e->flags) && large_enough(mm))
		expedite_request(mm, current, EXPEDITE_BY_SIZE);

	/* Never fails for a thread that is still in do_exit(). */
	if (!lock_task_sighand(current, &flags))
		return false;
	if (!e->nr_exiting++) {
		mmgrab(mm);
		e->exiting = mm;
	}
	unlock_task_sighand(current, &flags);

	return true;
}

/**
 * memreap_expedite_unlist - the current thread has given up its mm
 */
void memreap_expedite_unlist(void)
{
	struct memreap_expedite *e = &current->signal->expedite;
	struct mm_struct *mm = NULL;
	unsigned long flags;

	if (!lock_task_sighand(current, &flags))
		return;
	if (!--e->nr_exiting) {
		mm = e->exiting;
		e->exiting = NULL;
	}
	unlock_task_sighand(current, &flags);
	if (mm)
		mmdrop(mm);
}

/**
 * memreap_expedite_shared - another process is about to use an address space
 * @mm: it
 */
void memreap_expedite_shared(struct mm_struct *mm)
{
	/* Where it is set already, the cache line stays shared. */
	if (!mm_flags_test(MMF_MEMREAP_SHARED, mm))
		mm_flags_set(MMF_MEMREAP_SHARED, mm);
}

/* --- Settings and counters --- */

/**
 * memreap_expedite_vmstat - print this topic's lines of /proc/vmstat
 * @m: the file
 */
void memreap_expedite_vmstat(struct seq_file *m)
{
	seq_put_decimal_ull(m, "expedite_kill ",
			    atomic_long_read(&expedite_kills));
	seq_put_decimal_ull(m, "\nexpedite_pages ",
			    atomic_long_read(&expedite_freed));
	seq_put_decimal_ull(m, "\nexpedite_fail ",
			    atomic_long_read(&expedite_fails));
	seq_putc(m, '\n');
}

static DEFINE_MUTEX(expedite_settings);

/* Without a size, exits and signals must not pay for it. */
static void size_key_update(void)
{
	lockdep_assert_held(&expedite_settings);

	if (expedite_min_kbytes && memreap_expedite_enabled())
		static_branch_enable(&memreap_expedite_size_key);
	else
		static_branch_disable(&memreap_expedite_size_key);
}

static int expedite_min_handler(const struct ctl_table *table, int write,
				void *buffer, size_t *lenp, loff_t *ppos)
{
	int ret;

	mutex_lock(&expedite_settings);
	ret = proc_doulongvec_minmax(table, write, buffer, lenp, ppos);
	if (write && !ret)
		size_key_update();
	mutex_unlock(&expedite_settings);

	return ret;
}

static memreap_ctl_table expedite_sysctls[] = {
	{
		.procname	= "expedite_min_kbytes",
		.data		= &expedite_min_kbytes,
		.maxlen		= sizeof(expedite_min_kbytes),
		.mode		= 0644,
		.proc_handler	= expedite_min_handler,
	},
	{
		.procname	= "expedite_cpu_percent",
		.data		= &expedite_cpu_percent,
		.maxlen		= sizeof(expedite_cpu_percent),
		.mode		= 0644,
		.proc_handler	= proc_dointvec_minmax,
		.extra1		= (void *)&expedite_min_percent,
		.extra2		= SYSCTL_ONE_HUNDRED,
	},
};

static void expedite_switch_changed(void)
{
	mutex_lock(&expedite_settings);
	size_key_update();
	mutex_unlock(&expedite_settings);
}

static const struct memreap_switch expedite_switch = {
	.key = &memreap_expedite_key.key,
	.wq = &expedite_wq,
	.changed = expedite_switch_changed,
};

memreap_switch_param(expedite, &expedite_switch);
MODULE_PARM_DESC(expedite, "Kills can start the reclaim (default: Y)");

/*
 * Half of the CPUs: the tasks that wait for the memory need to run, too, and
 * the dying processes free memory themselves. Without a lower minimum, each
 * NUMA node would have that many workers.
 */
static int __init expedite_init(void)
{
	unsigned int workers = clamp(num_online_cpus() / 2, 1U,
				     EXPEDITE_MAX_WORKERS);

	expedite_wq = alloc_workqueue("memreap_expedite",
				      WQ_UNBOUND | WQ_HIGHPRI | WQ_FREEZABLE |
				      WQ_MEM_RECLAIM | WQ_SYSFS, workers);
	if (!expedite_wq) {
		static_branch_disable(&memreap_expedite_key);
		return -ENOMEM;
	}
	workqueue_set_min_active(expedite_wq, 1);
	register_sysctl_init("vm", expedite_sysctls);

	return 0;
}
subsys_initcall(expedite_init);
