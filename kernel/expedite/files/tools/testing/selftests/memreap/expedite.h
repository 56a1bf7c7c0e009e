/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kills that bring their own reclaim: ways to kill, ways to keep the victim
 * from helping itself, and what the kernel tells of what it did.
 */
#ifndef _SELFTESTS_MEMREAP_EXPEDITE_H
#define _SELFTESTS_MEMREAP_EXPEDITE_H

#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "cgroup.h"
#include "victim.h"

#ifndef __NR_pidfd_send_signal
#define __NR_pidfd_send_signal		424
#endif
#ifndef PIDFD_THREAD
#define PIDFD_THREAD			O_EXCL
#endif
#ifndef PIDFD_SIGNAL_THREAD
#define PIDFD_SIGNAL_THREAD		1U
#define PIDFD_SIGNAL_THREAD_GROUP	2U
#define PIDFD_SIGNAL_PROCESS_GROUP	4U
#endif
#ifndef PIDFD_SIGNAL_EXPEDITE
#define PIDFD_SIGNAL_EXPEDITE		0x80000000U
#endif

#define TRACEFS		"/sys/kernel/tracing"
#define INSTANCE	TRACEFS "/instances/memreap_expedite_selftest"
#define EVENTS		"/events/memreap_expedite"
#define KMEM		INSTANCE "/events/kmem"
#define SWITCH		"/sys/module/memreap/parameters/expedite"
#define MIN_KBYTES	"/proc/sys/vm/expedite_min_kbytes"
#define CPU_PERCENT	"/proc/sys/vm/expedite_cpu_percent"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		300
/* ms for what may take its time, as there. */
#define PATIENCE	30000
/* ms for what must not happen: a kernel that does it does it at once. */
#define WHILE		300
/* ns for which the kernel tries again, with room for timers. */
#define RETRY_NS	1900000000ULL
/* ns by which a small victim is done with, if nothing is waited for. */
#define AT_ONCE_NS	1000000000ULL

/* Below this much memory a victim is not worth it. */
#define MIN_SIZE	(1 * MIB)
#define SIZE		(4 * MIB)
/* What may be left of a victim that shares some pages with the test. */
#define SHARED_LEFT	(32 * (long)PAGE)

/* The most threads of a victim that can be parked. */
#define MAX_THREADS	16

/* --- Ways to kill: all give 0 or an errno --- */

static inline int send_signal(int pidfd, int sig, siginfo_t *info,
			      unsigned int flags)
{
	return syscall(__NR_pidfd_send_signal, pidfd, sig, info, flags) ?
	       errno : 0;
}

static inline int pidfd_of(pid_t pid, unsigned int flags)
{
	return syscall(__NR_pidfd_open, pid, flags);
}

static inline int kill_expedited(struct victim *v)
{
	return send_signal(v->pidfd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE);
}

static inline int kill_plain(struct victim *v)
{
	return kill(v->pid, SIGKILL) ? errno : 0;
}

static inline bool expedite_supported(void)
{
	return send_signal(-1, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE) == EBADF;
}

/* --- What the kernel tells --- */

/* A counter in /proc/vmstat, -1 if there is none. */
static inline long counter(const char *name)
{
	size_t len = strlen(name);
	char line[128];
	long value = -1;
	FILE *f;

	f = fopen("/proc/vmstat", "re");
	while (f && value < 0 && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, name, len) && line[len] == ' ')
			value = atol(line + len + 1);
	}
	if (f)
		fclose(f);

	return value;
}

/**
 * struct told - what the events say of one victim, or of all
 * @taken: kills that were queued
 * @merged: kills of an mm that was queued already
 * @full: kills that found the table full
 * @by: why the last one was queued
 * @done: victims that were done with
 * @freed: of these, those with that outcome
 * @gave_up: of these, those with neither that outcome nor gone by themselves
 * @early: of those, how many before the kernel's time was over
 * @outcome: of the last one
 * @bytes: freed by the workers, of all
 * @ns: from queued to done, of the last one
 * @workers: of the last one
 */
struct told {
	unsigned int taken;
	unsigned int merged;
	unsigned int full;
	char by[8];
	unsigned int done;
	unsigned int freed;
	unsigned int gave_up;
	unsigned int early;
	char outcome[8];
	unsigned long bytes;
	unsigned long long ns;
	unsigned int workers;
};

/* Of @pid, or of all if that is 0. */
static inline void listen_to(pid_t pid, struct told *told)
{
	char line[512], by[8], what[8];
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "memreap_expedite_");
		unsigned long long ns;
		unsigned int workers;
		unsigned long bytes;
		int who;

		if (!at)
			continue;
		at += strlen("memreap_expedite_");
		if (sscanf(at, "queue: pid=%d mm_id=%*u bytes=%lu by=%7s result=%7s",
			   &who, &bytes, by, what) == 4 &&
		    (!pid || who == pid)) {
			told->taken += !strcmp(what, "queued");
			told->merged += !strcmp(what, "merged");
			told->full += !strcmp(what, "full");
			snprintf(told->by, sizeof(told->by), "%s", by);
		}
		if (sscanf(at, "done: pid=%d mm_id=%*u bytes=%lu ns=%llu workers=%u outcome=%7s",
			   &who, &bytes, &ns, &workers, what) == 5 &&
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
			told->workers = workers;
		}
	}
	if (f)
		fclose(f);
}

static inline bool all_done(pid_t pid, struct told *told)
{
	listen_to(pid, told);

	return told->taken && told->done >= told->taken;
}

/* Wait until the kernel is done with all that it has taken on, at least one. */
static inline bool told_in_the_end(pid_t pid, struct told *told)
{
	return within(PATIENCE, all_done(pid, told));
}

/* Nothing was ever queued. */
static inline bool nothing_told(pid_t pid)
{
	struct told told;

	listen_to(pid, &told);

	return !told.taken && !told.merged && !told.full;
}

/**
 * struct exit_told - how a process that frees its memory itself went about it
 * @freed: pages
 * @early: of these, how many before it had unmapped the last one
 */
struct exit_told {
	unsigned long freed;
	unsigned long early;
};

/* From now on, for exit_told(). */
static inline bool listen_to_exit(pid_t pid)
{
	char filter[32];

	snprintf(filter, sizeof(filter), "common_pid == %d", pid);

	return write_file(KMEM "/filter", filter) &&
	       write_file(KMEM "/mm_page_free_batched/enable", "1") &&
	       write_file(KMEM "/rss_stat/enable", "1");
}

/* Of a process with one thread that has died, see listen_to_exit(). */
static inline void exit_told(struct exit_told *told)
{
	char line[512];
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (strstr(line, " mm_page_free_batched: "))
			told->freed++;
		else if (strstr(line, " rss_stat: ") &&
			 strstr(line, "type=MM_ANONPAGES"))
			told->early = told->freed;
	}
	if (f)
		fclose(f);
}

/* --- The kernel while a test runs --- */

/* Of the process that outlives the tests. */
static pid_t harness;
static int kmsg = -1;
static bool mounted;

/*
 * Once for all tests: to make an instance takes longer than most of them. Of
 * our own, so that other users of tracing are not disturbed.
 */
static void __attribute__((constructor)) trace_begin(void)
{
	harness = getpid();
	if (!expedite_supported())
		return;
	kmsg = kmsg_open();
	if (access(TRACEFS "/events", F_OK))
		mounted = !mount("tracefs", TRACEFS, "tracefs", 0, NULL);
	mkdir(INSTANCE, 0700);
}

static void __attribute__((destructor)) trace_end(void)
{
	if (getpid() != harness)
		return;
	rmdir(INSTANCE);
	if (mounted)
		umount(TRACEFS);
}

/**
 * struct watch - what is set for a test, and how it was before
 * @min_kbytes: the sysctl
 * @on: the switch, if the test is to use it
 */
struct watch {
	char min_kbytes[32];
	char on[8];
};

static inline void watch_restore(struct watch *w)
{
	if (w->on[0])
		write_file(SWITCH, w->on);
	if (w->min_kbytes[0])
		write_file(MIN_KBYTES, w->min_kbytes);
	write_file(INSTANCE "/events/enable", "0");
}

/* Returns NULL, or what is missing. The sysctl is 0 from now on. */
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
	/* What is in it is of another test. */
	close(open(INSTANCE "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC));
	if (!write_file(INSTANCE EVENTS "/enable", "1"))
		return "no memreap_expedite events";
	if (!read_file(MIN_KBYTES, w->min_kbytes, sizeof(w->min_kbytes)))
		return "no vm.expedite_min_kbytes";
	write_file(MIN_KBYTES, "0");
	/* Children of victims become ours, to be waited for. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	/* A victim that should live and does not is told by its silence. */
	signal(SIGPIPE, SIG_IGN);

	return NULL;
}

/* For a test that switches all of it off, and on again. */
static inline bool watch_switch(struct watch *w)
{
	return read_file(SWITCH, w->on, sizeof(w->on)) &&
	       !access(SWITCH, W_OK);
}

/* For teardown, after the victims: no complaints, and all is as it was. */
static inline void watch_end(struct __test_metadata *_metadata,
			     struct watch *w)
{
	char line[1024];

	watch_restore(w);
	if (kmsg < 0)
		return;
	if (!kernel_complained(kmsg, line, sizeof(line)))
		line[0] = 0;
	EXPECT_STREQ(line, "");
}

/* --- Victims --- */

/**
 * struct region - memory of a victim, or of those beside it
 * @mem: where it is
 * @size: its size
 * @seed: tells it from others
 * @cgroup: where to go first, so that it is charged there; or NULL
 * @threads: that do nothing, beside the first
 */
struct region {
	void *mem;
	size_t size;
	unsigned long seed;
	const char *cgroup;
	unsigned int threads;
};

static inline void *idle_fn(void *arg)
{
	for (;;)
		pause();

	return NULL;
}

static inline enum verdict region_fill(void *arg)
{
	struct region *region = arg;
	pthread_t thread;

	if (region->cgroup && !cgroup_enter(region->cgroup))
		return BAD;
	region->mem = map(region->size, MAP_PRIVATE | MAP_POPULATE);
	if (!region->mem)
		return BAD;
	fill(region->mem, region->size, region->seed);
	for (unsigned int i = 0; i < region->threads; i++) {
		if (pthread_create(&thread, NULL, idle_fn, NULL))
			return BAD;
	}

	return GOOD;
}

static inline enum verdict region_check(void *arg)
{
	struct region *region = arg;

	return filled(region->mem, region->size, region->seed) ? GOOD : BAD;
}

/**
 * struct parking - threads that are kept from letting their memory go
 * @nr: how many
 * @tids: which
 */
struct parking {
	unsigned int nr;
	pid_t tids[MAX_THREADS];
};

/* Have all threads of a victim stop when they die. */
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

		/* A leader that is gone cannot be seized any more. */
		if (tid > 0 && !ptrace(PTRACE_SEIZE, tid, NULL,
				       PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL))
			p->tids[p->nr++] = tid;
	}
	closedir(dir);

	return p->nr;
}

/* Wait for the stop of a thread that dies, whatever else it stops for before. */
static inline bool wait_parked(pid_t tid)
{
	int status;

	while (waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status)) {
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8))
			return true;
	}

	return false;
}

/*
 * Kill a victim by @how, and keep all of its threads on the threshold: see
 * victim_park(). Returns 0, what @how did, or ECHILD for one that got away.
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

/* The same for a victim of one thread, which then needs no unpark(). */
static inline int park(struct victim *v, int (*how)(struct victim *v))
{
	struct parking parking;

	return park_threads(&parking, v, how);
}

/* Let all go, parked or not, and wait until they are gone. */
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
 * The victim of a test. Not in a fixture: that is shared with the test's
 * parent, and so with victims, which begin as copies of the test.
 */
static struct victim victim;

/* Start a victim in a PID namespace of its own, as its init. */
static inline enum verdict start_init(struct victim *v,
				      const struct victim_ops *ops)
{
	int home = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	enum verdict verdict;

	if (home < 0 || unshare(CLONE_NEWPID))
		return UNSUPPORTED;
	verdict = victim_start(v, ops);
	/* The next one is to be born at home. */
	if (setns(home, CLONE_NEWPID))
		verdict = BAD;
	close(home);

	return verdict;
}

/* The memory of a thread comes down to @left bytes. */
static inline bool memory_returns(pid_t tid, long left)
{
	long now;

	/* -1: it is gone, and that is not what is asked for. */
	return within(PATIENCE, (now = rss(tid)) >= 0 && now <= left);
}

/* The memory of a thread stays, for a while. */
static inline bool memory_stays(pid_t tid, long size)
{
	return !within(WHILE, rss(tid) < size);
}

/* Wait for a victim that is not parked to die of SIGKILL. */
static inline bool dies(struct victim *v)
{
	struct pollfd fd = { .fd = v->pidfd, .events = POLLIN };
	int status;

	if (poll(&fd, 1, PATIENCE) != 1 ||
	    waitpid(v->pid, &status, __WALL) != v->pid)
		return false;
	close(v->pidfd);
	close(v->talk);
	memset(v, 0, sizeof(*v));

	return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* The letter by which /proc tells it; 0 if there is none such. */
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
 * A process of the test's process group that is no zombie, nor one of those
 * that run the test: after a failed assertion, teardown may be in the child.
 */
static inline pid_t next_of_group(void)
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
		/* Or gone by now, which is 0 and found as well. */
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
	pid_t pid = next_of_group();

	if (!pid)
		return true;
	kill(pid, SIGKILL);
	/* If it is parked, and by us. */
	ptrace(PTRACE_CONT, pid, NULL, NULL);

	return false;
}

/*
 * For teardown, which is the business of the test's parent: a failed test must
 * leave nothing behind either. Victims die with the test, and this waits until
 * they have, with all else that the test has started.
 */
static inline void wait_alone(void)
{
	within(PATIENCE, alone());
}

/* --- Others who use a victim's memory --- */

/**
 * struct sharer - a process that uses a victim's memory; shared with the test
 * @region: the memory
 * @pid: of the sharer
 * @alive: it has begun to look
 * @stop: to be told that it should end
 * @spoiled: the memory was not what it should be
 */
struct sharer {
	struct region region;
	pid_t pid;
	int alive;
	int stop;
	int spoiled;
};

static inline void sharer_look(struct sharer *s)
{
	if (region_check(&s->region) != GOOD)
		__atomic_store_n(&s->spoiled, 1, __ATOMIC_SEQ_CST);
}

/* Not much is safe here: libc takes this for the victim's own thread. */
static inline void sharer_watch(struct sharer *s)
{
	struct timespec ms = { .tv_nsec = 1000000 };

	__atomic_store_n(&s->alive, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&s->stop, __ATOMIC_SEQ_CST)) {
		sharer_look(s);
		syscall(__NR_nanosleep, &ms, NULL);
	}
	sharer_look(s);
}

static inline int sharer_fn(void *arg)
{
	sharer_watch(arg);
	syscall(__NR_exit_group, 0);

	return 0;
}

/* Start one in the calling process. */
static inline bool start_sharer(struct sharer *s)
{
	char *stack = map(64 * 1024, MAP_PRIVATE);

	if (!stack)
		return false;
	s->pid = clone(sharer_fn, stack + 64 * 1024, CLONE_VM | SIGCHLD, s);

	return s->pid > 0;
}

/* --- A program to go on with: this one, if told so by its environment --- */

#define EXEC_TARGET	"EXPEDITE_SELFTEST_TARGET"

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

static inline void exec_self(void)
{
	static char * const argv[] = { "target", NULL };
	static char * const envp[] = { EXEC_TARGET "=1", NULL };

	execve("/proc/self/exe", argv, envp);
	_exit(127);
}

#endif /* _SELFTESTS_MEMREAP_EXPEDITE_H */
