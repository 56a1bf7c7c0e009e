// SPDX-License-Identifier: GPL-2.0-only
/*
 * A kill that starts the reclaim.
 *
 * A killed process frees its memory itself, at the speed of the slowest CPU
 * that it may run on and of its share of that CPU. Here workers that its limits
 * do not apply to free the memory, together with the process, from the moment
 * of the kill.
 *
 * This never makes a kill fail or wait: an address space that cannot be queued,
 * or cannot be freed early, is freed by its process as before.
 */
#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/memreap_expedite.h>
#include <linux/oom.h>
#include <linux/pid.h>
#include <linux/sched/coredump.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/sysctl.h>
#include <linux/timekeeping.h>
#include <linux/workqueue.h>

#include <uapi/linux/pidfd.h>

#include "expedite_futex.h"
#include "expedite_queue.h"
#include "reap.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_expedite.h>

DEFINE_STATIC_KEY_TRUE(memreap_expedite_key);
DEFINE_STATIC_KEY_FALSE(memreap_expedite_size_key);

/* A process frees less before a worker can start. */
#define EXPEDITE_MIN_PAGES		(SZ_1M / PAGE_SIZE)

/* Workers at a time, if there are CPUs for them. */
#define EXPEDITE_MAX_WORKERS	8

/* How often, and at which interval in us, a worker checks a running thread. */
#define EXPEDITE_FUTEX_CHECKS		10
#define EXPEDITE_FUTEX_US	50

static struct expedite_queue expedite_queue;
static struct workqueue_struct *expedite_wq;
static struct work_struct expedite_works[EXPEDITE_MAX_WORKERS];
static struct delayed_work expedite_retry;
static DEFINE_MUTEX(expedite_turns);

/* One bit for each of expedite_works that is queued or runs. */
static unsigned long expedite_active;

/* vm.expedite_min_kbytes */
static unsigned long expedite_min_kbytes;

/* vm.expedite_cpu_percent, and its minimum: an exit may wait for a pause. */
static int expedite_cpu_percent = 100;
static const int expedite_min_percent = 10;

static atomic_long_t expedite_kills;
static atomic_long_t expedite_freed;
static atomic_long_t expedite_fails;

/* --- Address spaces that are being torn down --- */

/*
 * Once a thread has given up its mm, the process no longer refers to the memory
 * that it is freeing. So the thread adds itself to a list before that, until it
 * has finished.
 */
#define EXITING_BITS		6

/* Every exit uses these: they should not contend for one lock. */
static struct exiting_bucket {
	spinlock_t lock;	/* protects the list */
	struct hlist_head list;
} ____cacheline_aligned_in_smp exiting_mms[1 << EXITING_BITS];

static struct exiting_bucket *exiting_bucket(const struct signal_struct *signal)
{
	return &exiting_mms[hash_ptr(signal, EXITING_BITS)];
}

static struct mm_struct *exiting_mm(const struct signal_struct *signal)
{
	struct exiting_bucket *bucket = exiting_bucket(signal);
	struct mm_struct *mm = NULL;
	struct memreap_exiting *e;

	spin_lock(&bucket->lock);
	hlist_for_each_entry(e, &bucket->list, node) {
		if (e->signal == signal) {
			mm = e->mm;
			mmgrab(mm);
			break;
		}
	}
	spin_unlock(&bucket->lock);

	return mm;
}

/* What freeing @mm would free: file pages stay in the page cache. */
static unsigned long private_pages(struct mm_struct *mm)
{
	return get_mm_counter(mm, MM_ANONPAGES) +
	       get_mm_counter(mm, MM_SWAPENTS);
}

/* --- Workers --- */

/*
 * Half of the CPUs: the tasks that wait for the memory need to run, too, and
 * the dying processes free memory themselves.
 */
static unsigned int max_workers(void)
{
	return clamp(num_online_cpus() / 2, 1U, EXPEDITE_MAX_WORKERS);
}

/* Wakes a worker if one is idle. */
static void wake_worker(void)
{
	for (unsigned int i = 0; i < max_workers(); i++) {
		if (!test_and_set_bit(i, &expedite_active)) {
			queue_work(expedite_wq, &expedite_works[i]);
			return;
		}
	}
}

static bool process_dying(struct task_struct *p)
{
	struct signal_struct *signal = p->signal;
	unsigned long flags;
	bool dying;

	/* With the lock, all threads have the signal if one has. */
	if (!lock_task_sighand(p, &flags))
		return true;
	if (signal->core_state)
		dying = false;
	else
		dying = signal->flags & SIGNAL_GROUP_EXIT ||
			(thread_group_empty(p) && p->flags & PF_EXITING);
	unlock_task_sighand(p, &flags);

	return dying;
}

/*
 * Returns EXPEDITE_FREED if the memory of @mm may be taken from a process that
 * uses it, else the reason why not. The caller holds the mmap_lock, under RCU.
 */
static enum expedite_outcome process_obstacle(struct task_struct *p,
					      struct mm_struct *mm,
					      bool may_retry)
{
	struct task_struct *t;

	/* As with the OOM reaper, no kthread_use_mm() user reads it. */
	if (p->flags & PF_KTHREAD || !process_shares_mm(p, mm))
		return EXPEDITE_FREED;
	if (!process_dying(p))
		return EXPEDITE_SHARED;
	if (!may_retry)
		return EXPEDITE_FREED;
	for_each_thread(p, t) {
		if (READ_ONCE(t->mm) == mm && memreap_owns_futexes(t, mm))
			return EXPEDITE_FUTEX;
	}

	return EXPEDITE_FREED;
}

/*
 * Returns EXPEDITE_FREED if the memory of @req may be freed, else the reason
 * why not. A dying process starts no other, so an address space without live
 * users never gets one.
 */
static enum expedite_outcome find_obstacle(struct expedite_request *req,
					   bool may_retry)
{
	enum expedite_outcome obstacle = EXPEDITE_FREED;
	struct mm_struct *mm = req->mm;
	struct task_struct *p;

	/* A reaper is already active: there is no point in waiting. */
	if (test_bit(MMF_UNSTABLE, &mm->flags))
		may_retry = false;
	rcu_read_lock();
	/* Usually there is no other user, and no need to check all. */
	if (atomic_read(&mm->mm_users) == 1 &&
	    thread_group_leader(req->victim) &&
	    process_shares_mm(req->victim, mm)) {
		obstacle = process_obstacle(req->victim, mm, may_retry);
	} else if (atomic_read(&mm->mm_users)) {
		for_each_process(p) {
			obstacle = process_obstacle(p, mm, may_retry);
			if (obstacle != EXPEDITE_FREED)
				break;
		}
	}
	rcu_read_unlock();

	return obstacle;
}

/*
 * One attempt at a request, as its first worker or as one that joins.
 *
 * Return: the outcome, for expedite_queue_put().
 */
static enum expedite_outcome expedite_try(const struct expedite_turn *turn,
					  struct reap_pace *pace,
					  unsigned long *freed)
{
	struct expedite_request *req = turn->req;
	struct mm_struct *mm = req->mm;
	enum expedite_outcome outcome;
	bool locked = true;

	/* The holder of the lock may wait for memory. */
	if (!mmap_read_trylock(mm))
		return EXPEDITE_LOCK;

	/*
	 * exit_mmap() has freed the VMAs, with the lock held for writing.
	 * MMF_OOM_SKIP does not tell: the OOM reaper may have given up.
	 */
	outcome = EXPEDITE_EXITED;
	if (mtree_empty(&mm->mm_mt))
		goto unlock;

	if (turn->first) {
		outcome = find_obstacle(req, turn->may_retry);
		if (outcome != EXPEDITE_FREED)
			goto unlock;
		if (expedite_queue_open(&expedite_queue, req))
			wake_worker();
	}
	if (memreap_reap_mm(mm, REAP_WORKER, &locked, freed, pace))
		outcome = EXPEDITE_FREED;
	else
		outcome = locked ? EXPEDITE_FAILED : EXPEDITE_LOCK;
unlock:
	if (locked)
		mmap_read_unlock(mm);

	return outcome;
}

static void expedite_one(const struct expedite_turn *turn,
			 struct reap_pace *pace)
{
	struct expedite_request over;
	enum expedite_outcome outcome;
	unsigned long freed = 0;

	outcome = expedite_try(turn, pace, &freed);
	/* An exiting thread soon passes that point. */
	for (int i = 0; i < EXPEDITE_FUTEX_CHECKS &&
	     outcome == EXPEDITE_FUTEX; i++) {
		usleep_range(EXPEDITE_FUTEX_US, 2 * EXPEDITE_FUTEX_US);
		outcome = expedite_try(turn, pace, &freed);
	}
	atomic_long_add(freed, &expedite_freed);
	if (!expedite_queue_put(&expedite_queue, turn->req, freed, outcome,
				ktime_get_ns(), &over))
		return;

	if (over.outcome > EXPEDITE_FREED)
		atomic_long_inc(&expedite_fails);
	trace_memreap_expedite_done(&over, ktime_get_ns() - over.queued);
	mmdrop(over.mm);
	put_task_struct(over.victim);
}

/*
 * Takes a request, or sets the timer for the next one. One worker at a time:
 * the last one to set the timer must be the last one to have looked.
 */
static bool next_turn(struct expedite_turn *turn)
{
	u64 now;
	bool found;

	mutex_lock(&expedite_turns);
	now = ktime_get_ns();
	found = expedite_queue_take(&expedite_queue, now, turn);
	if (!found && turn->next != EXPEDITE_NEVER)
		mod_delayed_work(expedite_wq, &expedite_retry,
				 nsecs_to_jiffies(turn->next - now) + 1);
	mutex_unlock(&expedite_turns);

	return found;
}

static void expedite_work(struct work_struct *work)
{
	unsigned int me = work - expedite_works;
	struct reap_pace pace = { .since = ktime_get_ns() };
	struct expedite_turn turn;

again:
	while (next_turn(&turn)) {
		pace.percent = READ_ONCE(expedite_cpu_percent);
		if (turn.more)
			wake_worker();
		expedite_one(&turn, &pace);
		memreap_reap_pause(&pace);
		cond_resched();
	}

	clear_bit(me, &expedite_active);
	/*
	 * A task that queues a request and finds all workers active relies on
	 * them: either it sees the bit clear, or this sees the request.
	 */
	smp_mb__after_atomic();
	if (expedite_queue_ready(&expedite_queue, ktime_get_ns()) &&
	    !test_and_set_bit(me, &expedite_active))
		goto again;
}

static void expedite_retry_work(struct work_struct *work)
{
	wake_worker();
}

/* --- Kills --- */

/*
 * Queues an address space whose process has been killed, unless the process was
 * immune: the init of a PID namespace does not get a signal from inside, which
 * is no error. All others have SIGNAL_GROUP_EXIT as soon as the signal is sent,
 * and never lose it. The caller holds references to @mm and @victim. May be
 * called with interrupts disabled, under siglock.
 */
static void expedite_add(struct mm_struct *mm, struct task_struct *victim,
			 enum memreap_expedite_by by)
{
	unsigned long pages = private_pages(mm);
	enum expedite_added added;

	if (!(READ_ONCE(victim->signal->flags) & SIGNAL_GROUP_EXIT))
		return;

	set_bit(MMF_MEMREAP_HURRY, &mm->flags);
	mmgrab(mm);
	get_task_struct(victim);
	added = expedite_queue_add(&expedite_queue, mm, victim, pages,
				   ktime_get_ns());
	trace_memreap_expedite_queue(mm, victim, pages, by, added);
	switch (added) {
	case EXPEDITE_QUEUED:
		atomic_long_inc(&expedite_kills);
		wake_worker();
		break;
	case EXPEDITE_FULL:
		atomic_long_inc(&expedite_fails);
		fallthrough;
	case EXPEDITE_MERGED:
		/* Never the last reference: the caller holds one. */
		mmdrop(mm);
		put_task_struct(victim);
		break;
	}
}

/*
 * Returns the address space of a process that is going to be killed, with a
 * reference, or NULL if it is too small. Taken before the signal is sent:
 * afterwards the process may be gone at any time. Whether the caller may kill
 * it is checked only then: until then, nothing is done to it. If the process
 * execs in between, its new address space is still small.
 */
static struct mm_struct *grab_victim_mm(struct task_struct *task)
{
	struct mm_struct *mm = NULL;
	struct task_struct *p;

	p = find_lock_task_mm(task);
	if (!p) {
		mm = exiting_mm(task->signal);
	} else {
		/* For sparse: find_lock_task_mm() is not annotated. */
		__acquire(&p->alloc_lock);
		/* A kernel thread only borrows an mm. */
		if (!(p->flags & PF_KTHREAD)) {
			mm = p->mm;
			mmgrab(mm);
		}
		task_unlock(p);
	}
	if (mm && private_pages(mm) < EXPEDITE_MIN_PAGES) {
		mmdrop(mm);
		mm = NULL;
	}

	return mm;
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
	struct mm_struct *mm = task ? grab_victim_mm(task) : NULL;
	int ret = kill_pid_info(SIGKILL, info, pid);

	if (mm) {
		if (!ret)
			expedite_add(mm, task, EXPEDITE_BY_FLAG);
		mmdrop(mm);
	}
	if (task)
		put_task_struct(task);

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
	struct mm_struct *mm = grab_victim_mm(task);
	int ret = 0;

	if (!__fatal_signal_pending(task))
		ret = send_sig(SIGKILL, task, 0);
	if (mm) {
		if (!ret)
			expedite_add(mm, task, EXPEDITE_BY_CGROUP);
		mmdrop(mm);
	}
}

/* Returns whether @mm is large enough for vm.expedite_min_kbytes. */
static bool large_enough(struct mm_struct *mm)
{
	unsigned long min = READ_ONCE(expedite_min_kbytes) >>
			    (PAGE_SHIFT - 10);

	return private_pages(mm) >= max(min, EXPEDITE_MIN_PAGES);
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
			expedite_add(t->mm, p, EXPEDITE_BY_SIZE);
		spin_unlock(&t->alloc_lock);
		if (found)
			break;
	}
}

/**
 * memreap_expedite_exit - the current thread is about to give up its mm
 * @e: for memreap_expedite_exited(), on the stack of exit_mm()
 * @mm: its address space
 *
 * A kill of the process from now on finds @mm here, for as long as this thread
 * may be the one to free it, which is most of an exit.
 */
void memreap_expedite_exit(struct memreap_exiting *e, struct mm_struct *mm)
{
	struct signal_struct *signal = current->signal;
	bool group = signal->flags & SIGNAL_GROUP_EXIT;
	struct exiting_bucket *bucket = exiting_bucket(signal);

	e->mm = NULL;
	if ((!group && atomic_read(&signal->live)) ||
	    private_pages(mm) < EXPEDITE_MIN_PAGES)
		return;

	if (static_branch_unlikely(&memreap_expedite_size_key) && group &&
	    signal->group_exit_code == SIGKILL && large_enough(mm))
		expedite_add(mm, current, EXPEDITE_BY_SIZE);

	mmgrab(mm);
	e->mm = mm;
	e->signal = signal;
	spin_lock(&bucket->lock);
	hlist_add_head(&e->node, &bucket->list);
	spin_unlock(&bucket->lock);
}

/**
 * memreap_expedite_unlist - the current thread has given up its mm
 * @e: what memreap_expedite_exit() filled in, with an mm
 */
void memreap_expedite_unlist(struct memreap_exiting *e)
{
	struct exiting_bucket *bucket = exiting_bucket(e->signal);

	spin_lock(&bucket->lock);
	hlist_del(&e->node);
	spin_unlock(&bucket->lock);
	mmdrop(e->mm);
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

static struct ctl_table expedite_sysctls[] = {
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
	.keys = { &memreap_expedite_key.key },
	.wq = &expedite_wq,
	.changed = expedite_switch_changed,
};

memreap_switch_param(expedite, &expedite_switch);
MODULE_PARM_DESC(expedite, "Kills can start the reclaim (default: Y)");

/* Before the first process can exit. */
static int __init exiting_init(void)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(exiting_mms); i++)
		spin_lock_init(&exiting_mms[i].lock);

	return 0;
}
early_initcall(exiting_init);

static int __init expedite_init(void)
{
	expedite_queue_init(&expedite_queue);
	for (int i = 0; i < EXPEDITE_MAX_WORKERS; i++)
		INIT_WORK(&expedite_works[i], expedite_work);
	INIT_DELAYED_WORK(&expedite_retry, expedite_retry_work);
	expedite_wq = alloc_workqueue("memreap_expedite",
				      WQ_UNBOUND | WQ_HIGHPRI | WQ_FREEZABLE |
				      WQ_MEM_RECLAIM | WQ_SYSFS, 0);
	if (!expedite_wq) {
		static_branch_disable(&memreap_expedite_key);
		return -ENOMEM;
	}
	register_sysctl_init("vm", expedite_sysctls);

	return 0;
}
subsys_initcall(expedite_init);
