/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kills with reclaim: ways to keep the victim from freeing its own memory, and
 * what the kernel reports.
 */
#ifndef _SELFTESTS_MEMREAP_EXPEDITE_H
#define _SELFTESTS_MEMREAP_EXPEDITE_H

#include <dirent.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "region.h"
#include "trace.h"

#ifndef PIDFD_THREAD
#define PIDFD_THREAD			O_EXCL
#endif
#ifndef PIDFD_SIGNAL_THREAD
#define PIDFD_SIGNAL_THREAD		1U
#define PIDFD_SIGNAL_THREAD_GROUP	2U
#define PIDFD_SIGNAL_PROCESS_GROUP	4U
#endif

#define EVENTS		"memreap_expedite"
#define KMEM		INSTANCE "/events/kmem"
#define SWITCH		"/sys/module/memreap/parameters/expedite"
#define REAP_SWITCH	"/sys/module/memreap/parameters/reap"
#define MIN_KBYTES	"/proc/sys/vm/expedite_min_kbytes"
#define CPU_PERCENT	"/proc/sys/vm/expedite_cpu_percent"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		300
/* ms to wait for violations: if it does, it happens immediately. */
#define NEVER_MS	300
/* ns for which the kernel retries, less a margin for timers. */
#define RETRY_NS	1900000000ULL
/* ns after which some attempts are left until RETRY_NS. */
#define EARLY_NS	500000000ULL

/* Victims with less memory are not expedited. */
#define MIN_SIZE	(1 * MIB)
#define SIZE		(4 * MIB)
/* For expect_hurry(): more than is freed together. */
#define HURRY_SIZE	(2 * SIZE)
/* Victims until no worker takes part in freeing one. */
#define ALONE_TRIES	10
/* What may remain of a victim that shares some pages with the test. */
#define SHARED_LEFT	(32 * (long)PAGE)
/*
 * Pages of an exited process that other CPUs may free later: 31 wait for the
 * LRU on each CPU where it has run.
 */
#define LEFT_BEHIND	(SIZE / PAGE / 4)

/* Threads that a victim may have, and those of a victim that can be parked. */
#define MAX_SEEN	2048
#define MAX_THREADS	(MAX_SEEN + 1)

/* --- What the kernel reports --- */

/* Returns a counter of /proc/vmstat, or -1. */
static inline long counter(const char *name)
{
	char key[64];

	snprintf(key, sizeof(key), "%s ", name);

	return read_number("/proc/vmstat", key);
}

/**
 * struct told - what the events say about one victim, or about all
 * @taken: kills that were queued
 * @by: why the last one was queued
 * @done: victims that are finished
 * @freed: of these, those with that outcome
 * @gave_up: of these, those with neither that outcome nor "exited"
 * @early: of those, the ones given up on before RETRY_NS
 * @outcome: of the last one
 * @bytes: freed by the workers, of all
 * @ns: from queued to finished, of the last one
 */
struct told {
	unsigned int taken;
	char by[8];
	unsigned int done;
	unsigned int freed;
	unsigned int gave_up;
	unsigned int early;
	char outcome[8];
	unsigned long bytes;
	unsigned long long ns;
};

/* About @pid, or about all if that is 0. */
static inline void read_events(pid_t pid, struct told *told)
{
	char line[512], by[8], what[8];
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "memreap_expedite_");
		unsigned long long ns;
		unsigned long bytes;
		int who;

		if (!at)
			continue;
		at += strlen("memreap_expedite_");
		if (sscanf(at, "queue: pid=%d mm_id=%*u bytes=%lu by=%7s",
			   &who, &bytes, by) == 3 && (!pid || who == pid)) {
			told->taken++;
			snprintf(told->by, sizeof(told->by), "%s", by);
		}
		if (sscanf(at, "done: pid=%d mm_id=%*u bytes=%lu ns=%llu outcome=%7s",
			   &who, &bytes, &ns, what) == 4 &&
		    (!pid || who == pid)) {
			told->done++;
			told->freed += !strcmp(what, "freed");
			if (strcmp(what, "freed") && strcmp(what, "exited")) {
				told->gave_up++;
				told->early += ns < RETRY_NS;
			}
			snprintf(told->outcome, sizeof(told->outcome), "%s",
				 what);
			told->bytes += bytes;
			told->ns = ns;
		}
	}
	if (f)
		fclose(f);
}

static inline bool all_done(pid_t pid, struct told *told)
{
	read_events(pid, told);

	return told->taken && told->done >= told->taken;
}

/* Waits until all victims that were queued, at least one, are finished. */
static inline bool wait_all_done(pid_t pid, struct told *told)
{
	return within(PATIENCE, all_done(pid, told));
}

/*
 * Returns whether the kernel has been retrying all the time since @began,
 * before a kill. If the machine stalls for that long, a victim that is held up
 * does not show what the test is about: another one has to. A test that never
 * gets to see it times out.
 */
static inline bool still_tried(unsigned long long began, unsigned long long ns)
{
	unsigned long long took = now_ns() - began;

	if (took < ns)
		return true;
	ksft_print_msg("too late: the machine stalled, for %llu ms in all\n",
		       took / 1000000);

	return false;
}

static inline bool never_queued(pid_t pid)
{
	struct told told;

	read_events(pid, &told);

	return !told.taken;
}

/**
 * struct exit_told - how a process freed its own memory
 * @freed: pages
 * @early: of these, those freed before it had unmapped most of SIZE; a shared
 *         page that is unmapped later may have all freed before the last one
 */
struct exit_told {
	unsigned long freed;
	unsigned long early;
};

/* Starts to trace what exit_told() reads. */
static inline bool trace_exit(pid_t pid)
{
	char filter[32];

	snprintf(filter, sizeof(filter), "common_pid == %d", pid);

	return write_file(KMEM "/filter", filter) &&
	       write_file(KMEM "/mm_page_free_batched/enable", "1") &&
	       write_file(KMEM "/rss_stat/enable", "1");
}

/* About a process with one thread that exited, see trace_exit(). */
static inline void exit_told(struct exit_told *told)
{
	char line[512], *at;
	unsigned long left;
	bool most = false;
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (strstr(line, " mm_page_free_batched: ")) {
			told->freed++;
			told->early += !most;
			continue;
		}
		at = strstr(line, "type=MM_ANONPAGES");
		if (at && sscanf(at, "%*s size=%lu", &left) == 1 &&
		    left < SIZE / 4)
			most = true;
	}
	if (f)
		fclose(f);
}

/*
 * A process with MMF_MEMREAP_HURRY frees pages while it unmaps them. With a
 * worker beside it, it would do so anyway.
 */
static inline void expect_hurry(struct __test_metadata *_metadata,
				const struct told *told)
{
	struct exit_told exit;

	exit_told(&exit);
	TH_LOG("%lu pages, %lu of them early", exit.freed, exit.early);
	EXPECT_EQ(told->bytes, 0);
	EXPECT_GE(exit.freed, HURRY_SIZE / PAGE - LEFT_BEHIND);
	EXPECT_GE(exit.early, SIZE / PAGE / 4);
}

/* Without that topic, processes do not know that flag. */
static inline bool reap_is_off(void)
{
	char text[16];

	return read_file(REAP_SWITCH, text, sizeof(text)) && text[0] == 'N';
}

/* --- The kernel while a test runs --- */

static void __attribute__((constructor)) expedite_trace_begin(void)
{
	if (expedite_supported())
		trace_begin(EVENTS);
}

/**
 * struct watch - settings before the test
 * @min_kbytes: the sysctl
 * @percent: vm.expedite_cpu_percent
 * @on: the switch, if the test changes it
 */
struct watch {
	char min_kbytes[32];
	char percent[8];
	char on[8];
};

static inline void watch_restore(struct watch *w)
{
	if (w->on[0])
		write_file(SWITCH, w->on);
	if (w->min_kbytes[0])
		write_file(MIN_KBYTES, w->min_kbytes);
	if (w->percent[0])
		write_file(CPU_PERCENT, w->percent);
	write_file(INSTANCE "/events/enable", "0");
}

/* Sets the sysctl to 0. Returns NULL, or what is missing. */
static inline const char *watch_begin(struct watch *w)
{
	char text[16];

	memset(w, 0, sizeof(*w));
	if (!expedite_supported()) {
		if (read_file(SWITCH, text, sizeof(text)) && text[0] == 'N')
			return "switched off (memreap.expedite=0)";
		return "no PIDFD_SIGNAL_EXPEDITE in this kernel";
	}
	if (geteuid())
		return "needs root, for tracing and sysctls";
	if (access(INSTANCE, F_OK))
		return "no tracefs";
	trace_clear();
	if (!trace_enable(EVENTS, true))
		return "no memreap_expedite events";
	if (!read_file(MIN_KBYTES, w->min_kbytes, sizeof(w->min_kbytes)))
		return "no vm.expedite_min_kbytes";
	if (!read_file(CPU_PERCENT, w->percent, sizeof(w->percent)))
		return "no vm.expedite_cpu_percent";
	write_file(MIN_KBYTES, "0");
	/* To wait for orphaned children of victims. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	/* A victim that died unexpectedly does not answer. */
	signal(SIGPIPE, SIG_IGN);

	return NULL;
}

/* The same, with cgroups. */
static inline const char *watch_begin_cgroups(struct watch *w,
					      struct cgroups *c)
{
	const char *missing = watch_begin(w);

	if (missing)
		return missing;
	missing = cgroups_begin(c, "+cpu +memory");
	if (missing)
		watch_restore(w);

	return missing;
}

/* For a test that changes the switch. */
static inline bool watch_switch(struct watch *w)
{
	return read_file(SWITCH, w->on, sizeof(w->on)) &&
	       !access(SWITCH, W_OK);
}

/* For teardown, after the victims. */
static inline void watch_end(struct __test_metadata *_metadata,
			     struct watch *w)
{
	watch_restore(w);
	EXPECT_NO_COMPLAINT(kmsg);
}

/* --- Victims --- */

/**
 * struct parking - threads that are parked, see victim_park()
 * @nr: entries in @tids
 * @tids: the threads
 */
struct parking {
	unsigned int nr;
	pid_t tids[MAX_THREADS];
};

/* Makes all threads of a victim stop in do_exit(). */
static inline bool seize_threads(struct parking *p, struct victim *v)
{
	struct dirent *entry;
	char path[64];
	DIR *dir;

	p->nr = 0;
	snprintf(path, sizeof(path), "/proc/%d/task", v->pid);
	dir = opendir(path);
	if (!dir)
		return false;
	while ((entry = readdir(dir)) && p->nr < MAX_THREADS) {
		pid_t tid = atoi(entry->d_name);

		/* A leader that exited cannot be seized. */
		if (tid > 0 && !ptrace(PTRACE_SEIZE, tid, NULL,
				       PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL))
			p->tids[p->nr++] = tid;
	}
	closedir(dir);

	return p->nr;
}

/*
 * Kills a victim by @how and parks all of its threads. Returns 0, what @how
 * returned, or ECHILD if a thread exited.
 */
static inline int park_threads(struct parking *p, struct victim *v,
			       int (*how)(struct victim *v))
{
	int err = ECHILD;

	if (seize_threads(p, v))
		err = how(v);
	if (err)
		return err;
	for (unsigned int i = 0; i < p->nr; i++) {
		if (!wait_parked(p->tids[i]))
			err = ECHILD;
		else if (p->tids[i] == v->pid)
			v->parked = true;
	}

	return err;
}

/* The same for a victim with one thread, which needs no unpark(). */
static inline int park(struct victim *v, int (*how)(struct victim *v))
{
	struct parking parking;

	return park_threads(&parking, v, how);
}

/* Continues all threads, parked or not, and waits until they are gone. */
static inline void unpark(struct parking *p, struct victim *v)
{
	int status;

	if (p->nr && v->pid)
		kill(v->pid, SIGKILL);
	for (unsigned int i = 0; i < p->nr; i++) {
		if (p->tids[i] != v->pid)
			ptrace(PTRACE_CONT, p->tids[i], NULL, NULL);
	}
	if (v->parked)
		ptrace(PTRACE_CONT, v->pid, NULL, NULL);
	for (unsigned int i = 0; i < p->nr; i++) {
		while (p->tids[i] != v->pid &&
		       waitpid(p->tids[i], &status, __WALL) == p->tids[i] &&
		       WIFSTOPPED(status))
			ptrace(PTRACE_CONT, p->tids[i], NULL, NULL);
	}
	p->nr = 0;
	victim_end(v);
}

/*
 * The victim of a test. Not in a fixture, which is memory shared with the
 * victim: that starts as a copy of the test.
 */
static struct victim victim;

/* Starts a victim as the init of a new PID namespace. */
static inline enum verdict start_init(struct victim *v,
				      const struct victim_ops *ops)
{
	int home = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	enum verdict verdict;

	if (home < 0 || unshare(CLONE_NEWPID))
		return UNSUPPORTED;
	verdict = victim_start(v, ops);
	if (setns(home, CLONE_NEWPID))
		verdict = BAD;
	close(home);

	return verdict;
}

/* Waits until the mapped memory of a thread is at most @left bytes. */
static inline bool memory_returns(pid_t tid, long left)
{
	long now;

	/* -1, if it is gone, is a failure. */
	return within(PATIENCE, (now = rss(tid)) >= 0 && now <= left);
}

/* The mapped memory of a thread does not shrink for a while. */
static inline bool memory_stays(pid_t tid, long size)
{
	return !within(NEVER_MS, rss(tid) < size);
}

/* Waits for a victim that is not parked to die of SIGKILL. */
static inline bool dies(struct victim *v)
{
	int status = victim_status(v);

	return status >= 0 && WIFSIGNALED(status) &&
	       WTERMSIG(status) == SIGKILL;
}

/* Returns the letter of its state in /proc, or 0. */
static inline char state_of(pid_t pid)
{
	char path[64], text[512], *end;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	/* 1 (name) R ... */
	end = read_file(path, text, sizeof(text)) ? strrchr(text, ')') : NULL;

	return end ? end[2] : 0;
}

static inline bool is_zombie(pid_t pid)
{
	return state_of(pid) == 'Z';
}

/*
 * Finds a process in the test's process group that is neither a zombie nor one
 * of those that run the test: after a failed assertion, teardown may run in the
 * child.
 */
static inline pid_t find_leftover(void)
{
	struct dirent *entry;
	pid_t found = 0;
	DIR *dir;

	dir = opendir("/proc");
	while (dir && !found && (entry = readdir(dir))) {
		pid_t pid = atoi(entry->d_name);

		if (pid <= 0 || pid == getpid() || pid == getppid() ||
		    getpgid(pid) != getpgrp())
			continue;
		/* 0, for one that is gone, is found, too. */
		if (strchr("ZX", state_of(pid)))
			continue;
		found = pid;
	}
	if (dir)
		closedir(dir);

	return found;
}

static inline bool alone(void)
{
	pid_t pid = find_leftover();

	if (!pid)
		return true;
	kill(pid, SIGKILL);
	/* In case it is parked, and by this process. */
	ptrace(PTRACE_CONT, pid, NULL, NULL);

	return false;
}

/*
 * For teardown in the test's parent: nothing may be left of a failed test,
 * either. Victims die with the test. This waits for them and for everything
 * else that the test started.
 */
static inline void wait_alone(void)
{
	within(PATIENCE, alone());
}

/* --- Processes that share a victim's memory --- */

/**
 * struct sharer - a process that shares a victim's memory; mapped shared
 * @region: the memory
 * @pid: of the sharer
 * @alive: it has started
 * @stop: it shall exit
 * @spoiled: the memory had another content
 */
struct sharer {
	struct region region;
	pid_t pid;
	int alive;
	int stop;
	int spoiled;
};

static inline void sharer_check(struct sharer *s)
{
	if (region_check(&s->region) != GOOD)
		__atomic_store_n(&s->spoiled, 1, __ATOMIC_SEQ_CST);
}

/* Little is safe here: libc takes this for the victim's thread. */
static inline void sharer_watch(struct sharer *s)
{
	struct timespec ms = { .tv_nsec = 1000000 };

	__atomic_store_n(&s->alive, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&s->stop, __ATOMIC_SEQ_CST)) {
		sharer_check(s);
		syscall(__NR_nanosleep, &ms, NULL);
	}
	sharer_check(s);
}

static inline int sharer_fn(void *arg)
{
	sharer_watch(arg);
	syscall(__NR_exit_group, 0);

	return 0;
}

/* Starts one that shares the caller's memory. */
static inline bool start_sharer(struct sharer *s)
{
	s->pid = clone_vm(sharer_fn, s);

	return s->pid > 0;
}

/**
 * struct stuck - a thread of the test that is held up in a system call
 * @call: makes it with @page, which nobody provides
 * @fd: for @call
 * @thread: itself
 * @page: where it gets stuck
 * @uffd: for as long as this is open
 */
struct stuck {
	long (*call)(struct stuck *s);
	int fd;
	pthread_t thread;
	void *page;
	int uffd;
};

static inline void *stuck_fn(void *arg)
{
	struct stuck *s = arg;

	return (void *)s->call(s);
}

static inline bool stuck_start(struct stuck *s)
{
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_api api = { .api = UFFD_API };
	struct pollfd fault = { .events = POLLIN };

	s->page = map(PAGE, MAP_PRIVATE);
	s->uffd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	reg.range.start = (unsigned long)s->page;
	reg.range.len = PAGE;
	if (!s->page || s->uffd < 0 || ioctl(s->uffd, UFFDIO_API, &api) ||
	    ioctl(s->uffd, UFFDIO_REGISTER, &reg) ||
	    pthread_create(&s->thread, NULL, stuck_fn, s))
		return false;
	fault.fd = s->uffd;

	return poll(&fault, 1, PATIENCE) == 1 && fault.revents == POLLIN;
}

/* --- The program that exec_self() executes --- */

static void __attribute__((constructor)) exec_target(void)
{
	struct region region = { .size = 2 * MIB, .seed = 31 };

	if (!getenv(EXEC_TARGET))
		return;
	if (region_fill(&region) != GOOD)
		_exit(2);
	usleep(2000);
	_exit(region_check(&region) == GOOD ? 0 : 1);
}

#endif /* _SELFTESTS_MEMREAP_EXPEDITE_H */
