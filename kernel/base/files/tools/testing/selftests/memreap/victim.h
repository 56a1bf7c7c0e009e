/* SPDX-License-Identifier: GPL-2.0-only */
/* Processes to be killed and reaped, and what is left of their memory. */
#ifndef _SELFTESTS_MEMREAP_VICTIM_H
#define _SELFTESTS_MEMREAP_VICTIM_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "util.h"

#ifndef __NR_pidfd_send_signal
#define __NR_pidfd_send_signal	424
#endif
#ifndef __NR_pidfd_open
#define __NR_pidfd_open		434
#endif
#ifndef __NR_process_mrelease
#define __NR_process_mrelease	448
#endif
#ifndef PIDFD_SIGNAL_EXPEDITE
#define PIDFD_SIGNAL_EXPEDITE	0x80000000U
#endif

/* Attempts, 1 ms apart, while process_mrelease(2) fails with EAGAIN. */
#define MRELEASE_TRIES	5000

/* Size of the stack of a clone()d child. */
#define STACK_SIZE	(64 * 1024UL)

static inline int sys_process_mrelease(int pidfd)
{
	return syscall(__NR_process_mrelease, pidfd, 0);
}

static inline bool mrelease_supported(void)
{
	return sys_process_mrelease(-1) && errno != ENOSYS;
}

/* Repeats it on EAGAIN. Returns 0 or an errno. */
static inline int mrelease(int pidfd)
{
	int err = EAGAIN;

	for (int i = 0; i < MRELEASE_TRIES && err == EAGAIN; i++) {
		if (i)
			usleep(1000);
		err = sys_process_mrelease(pidfd) ? errno : 0;
	}

	return err;
}

/* Gives every page a content of its own, and none that of a zero page. */
static inline void fill(void *mem, size_t size, unsigned long seed)
{
	for (size_t i = 0; i < size; i += PAGE) {
		unsigned long *page = mem + i;

		page[0] = seed + i;
		page[PAGE / sizeof(*page) - 1] = ~(seed + i);
	}
}

static inline bool filled(const void *mem, size_t size, unsigned long seed)
{
	for (size_t i = 0; i < size; i += PAGE) {
		const unsigned long *first = mem + i;
		const unsigned long *last = mem + i + PAGE - sizeof(*last);

		/* Read again each time: others may free the page. */
		if (__atomic_load_n(first, __ATOMIC_RELAXED) != seed + i ||
		    __atomic_load_n(last, __ATOMIC_RELAXED) != ~(seed + i))
			return false;
	}

	return true;
}

static inline void *map(size_t size, int flags)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 flags | MAP_ANONYMOUS, -1, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

static inline int pidfd_of(pid_t pid, unsigned int flags)
{
	return syscall(__NR_pidfd_open, pid, flags);
}

/* Returns 0 or an errno. */
static inline int send_signal(int pidfd, int sig, siginfo_t *info,
			      unsigned int flags)
{
	return syscall(__NR_pidfd_send_signal, pidfd, sig, info, flags) ?
	       errno : 0;
}

static inline bool expedite_supported(void)
{
	return send_signal(-1, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE) == EBADF;
}

/**
 * enum verdict - one byte that a victim sends to the test
 * @GOOD: its memory is set up, or unchanged
 * @BAD: it is not
 * @UNSUPPORTED: this kernel or machine cannot do that
 */
enum verdict { GOOD = 'g', BAD = 'b', UNSUPPORTED = 'u' };

/**
 * struct victim_ops - what a victim does
 * @arg: for the functions
 * @prepare: sets its memory up
 * @check: on request, checks that memory
 * @run: called after @prepare instead of waiting for requests
 */
struct victim_ops {
	void *arg;
	enum verdict (*prepare)(void *arg);
	enum verdict (*check)(void *arg);
	void (*run)(void *arg);
};

/**
 * struct victim - a process to be killed
 * @pid: 0 if there is none
 * @pidfd: of @pid
 * @talk: socket for requests and answers
 * @parked: killed, but stopped before it gives up its memory
 */
struct victim {
	pid_t pid;
	int pidfd;
	int talk;
	bool parked;
};

static inline void victim_main(const struct victim_ops *ops, int talk)
{
	char byte;

	/* It must not outlive the test, however that ends. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	byte = ops->prepare ? ops->prepare(ops->arg) : GOOD;
	if (write(talk, &byte, 1) != 1)
		_exit(1);
	if (ops->run)
		ops->run(ops->arg);
	while (read(talk, &byte, 1) == 1) {
		byte = ops->check ? ops->check(ops->arg) : GOOD;
		if (write(talk, &byte, 1) != 1)
			break;
	}
	_exit(0);
}

/* Forgets a process that has been waited for. */
static inline void victim_close(struct victim *v)
{
	close(v->pidfd);
	close(v->talk);
	memset(v, 0, sizeof(*v));
}

/* Continues a parked victim, or kills it, and waits for it. */
static inline void victim_end(struct victim *v)
{
	int status;

	if (!v->pid)
		return;
	if (v->parked)
		ptrace(PTRACE_CONT, v->pid, NULL, NULL);
	else
		kill(v->pid, SIGKILL);
	while (waitpid(v->pid, &status, __WALL) == v->pid) {
		if (WIFEXITED(status) || WIFSIGNALED(status))
			break;
		ptrace(PTRACE_CONT, v->pid, NULL, NULL);
	}
	victim_close(v);
}

/* Starts a victim and waits until its memory is set up. */
static inline enum verdict victim_start(struct victim *v,
					const struct victim_ops *ops)
{
	char verdict;
	int talk[2];

	memset(v, 0, sizeof(*v));
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, talk))
		return BAD;
	v->pid = fork();
	if (!v->pid) {
		close(talk[0]);
		victim_main(ops, talk[1]);
	}
	close(talk[1]);
	v->talk = talk[0];
	v->pidfd = -1;
	if (v->pid < 0) {
		v->pid = 0;
		close(v->talk);
		return BAD;
	}
	v->pidfd = pidfd_of(v->pid, 0);
	if (v->pidfd < 0 || read(v->talk, &verdict, 1) != 1)
		verdict = BAD;
	if (verdict != GOOD)
		victim_end(v);

	return verdict;
}

/* Ways to kill; both return 0 or an errno. */
static inline int kill_expedited(struct victim *v)
{
	return send_signal(v->pidfd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE);
}

static inline int kill_plain(struct victim *v)
{
	return kill(v->pid, SIGKILL) ? errno : 0;
}

/* Asks a live victim to check its memory. */
static inline enum verdict victim_check(struct victim *v)
{
	char byte = 0;

	if (write(v->talk, &byte, 1) != 1 || read(v->talk, &byte, 1) != 1)
		return BAD;

	return byte;
}

/* Waits until a traced thread stops in do_exit(), whatever stops it before. */
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
 * Kills a victim and parks it: a traced process stops in do_exit() before it
 * gives up its memory. So it is dying for process_mrelease(), nothing else
 * frees its memory, and /proc shows what remains of it.
 */
static inline bool victim_park(struct victim *v)
{
	if (ptrace(PTRACE_SEIZE, v->pid, NULL,
		   PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL) ||
	    kill(v->pid, SIGKILL))
		return false;
	v->parked = wait_parked(v->pid);
	/* It exited already. */
	if (!v->parked)
		victim_close(v);

	return v->parked;
}

/* Kills a child. */
static inline void kill_and_wait(pid_t pid)
{
	if (pid <= 0)
		return;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, __WALL);
}

/* Waits for a child. Returns whether it exited with status 0. */
static inline bool exits_cleanly(pid_t pid)
{
	int status;

	return pid > 0 && waitpid(pid, &status, __WALL) == pid && !status;
}

/* Waits at most @ms for a process to exit; its memory is free then. */
static inline bool pidfd_exits(int pidfd, int ms)
{
	struct pollfd fd = { .fd = pidfd, .events = POLLIN };

	return poll(&fd, 1, ms) == 1;
}

/* Waits for a victim that is not parked. Returns its status, -1 if none. */
static inline int victim_status(struct victim *v)
{
	int status;

	if (!pidfd_exits(v->pidfd, PATIENCE) ||
	    waitpid(v->pid, &status, __WALL) != v->pid)
		return -1;
	victim_close(v);

	return status;
}

/* Starts a child that shares the caller's memory. Returns its PID or -1. */
static inline pid_t clone_vm(int (*fn)(void *arg), void *arg)
{
	char *stack = map(STACK_SIZE, MAP_PRIVATE);

	return stack ? clone(fn, stack + STACK_SIZE, CLONE_VM | SIGCHLD, arg) :
		       -1;
}

/* @pid: 0 for the caller. */
static inline bool set_oom_score_adj(pid_t pid, int adj)
{
	char path[64], text[16];

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj",
		 pid ? pid : getpid());
	snprintf(text, sizeof(text), "%d", adj);

	return write_file(path, text);
}

/*
 * Programs that execute themselves: a constructor of theirs finds this variable
 * set and does not return.
 */
#define EXEC_TARGET	"MEMREAP_SELFTEST_TARGET"

static char * const exec_argv[] = { "target", NULL };

static inline char **exec_env(const char *what)
{
	static char setting[64], *envp[] = { setting, NULL };

	snprintf(setting, sizeof(setting), EXEC_TARGET "=%s", what);

	return envp;
}

static inline void exec_self(const char *what)
{
	execve("/proc/self/exe", exec_argv, exec_env(what));
	_exit(127);
}

/*
 * Returns the value of @field in /proc/PID/@file, in bytes; of the mapping at
 * @addr if that is not NULL; or -1.
 */
static inline long smaps_field(pid_t pid, const char *file, const void *addr,
			       const char *field)
{
	bool here = !addr;
	char line[256];
	long value = -1;
	FILE *f;

	snprintf(line, sizeof(line), "/proc/%d/%s", pid, file);
	f = fopen(line, "re");
	if (!f)
		return -1;
	while (value < 0 && fgets(line, sizeof(line), f)) {
		unsigned long start, end;
		size_t len = strlen(field);

		if (addr && sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start <= (unsigned long)addr &&
			       (unsigned long)addr < end;
		else if (here && !strncmp(line, field, len) &&
			 line[len] == ':')
			value = atol(line + len + 1) * 1024;
	}
	fclose(f);

	return value;
}

/* Returns how much memory a process has mapped, in bytes, without hugetlb. */
static inline long rss(pid_t pid)
{
	return smaps_field(pid, "smaps_rollup", NULL, "Rss");
}

static inline long rss_at(pid_t pid, const void *addr)
{
	return smaps_field(pid, "smaps", addr, "Rss");
}

/* Fills @nr places, one in every @distance bytes: many chunks, few pages. */
static inline bool map_sparse(unsigned int nr, size_t size, size_t distance)
{
	char *mem = mmap(NULL, nr * distance, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (mem == MAP_FAILED)
		return false;
	for (unsigned int i = 0; i < nr; i++)
		fill(mem + i * distance, size, i + 1);

	return true;
}

#endif /* _SELFTESTS_MEMREAP_VICTIM_H */
