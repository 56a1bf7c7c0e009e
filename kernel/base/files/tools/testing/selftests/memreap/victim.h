/* SPDX-License-Identifier: GPL-2.0-only */
/* Processes to be killed and reaped, and looks at what is left of them. */
#ifndef _SELFTESTS_MEMREAP_VICTIM_H
#define _SELFTESTS_MEMREAP_VICTIM_H

#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "util.h"

#ifndef __NR_pidfd_open
#define __NR_pidfd_open		434
#endif
#ifndef __NR_process_mrelease
#define __NR_process_mrelease	448
#endif

/* How often to come back after EAGAIN, with 1 ms in between. */
#define MRELEASE_TRIES	5000

static inline int sys_process_mrelease(int pidfd)
{
	return syscall(__NR_process_mrelease, pidfd, 0);
}

static inline bool mrelease_supported(void)
{
	return sys_process_mrelease(-1) && errno != ENOSYS;
}

/* Until there is no need to try again. Returns 0 or an errno. */
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

/* Every page of its own, and none like a page of zeroes. */
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

		/* Looked at anew each time: others may take it away. */
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

/**
 * enum verdict - what a victim says about itself, one byte
 * @GOOD: memory is in place, or is still what it was
 * @BAD: it is not
 * @UNSUPPORTED: this kernel or machine cannot do that
 */
enum verdict { GOOD = 'g', BAD = 'b', UNSUPPORTED = 'u' };

/**
 * struct victim_ops - what a victim does
 * @arg: for the functions
 * @prepare: sets its memory up
 * @check: on request, looks whether that is still in place
 * @run: goes on after @prepare instead of waiting for requests
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
 * @talk: requests and answers
 * @parked: killed, but kept from letting its memory go
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

	/* Whatever becomes of the test, nothing of it stays behind. */
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

/* Let a parked victim go, or kill it, and wait until it is gone. */
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
	close(v->pidfd);
	close(v->talk);
	memset(v, 0, sizeof(*v));
}

/* Start a victim and wait until its memory is in place. */
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
	v->pidfd = syscall(__NR_pidfd_open, v->pid, 0);
	if (v->pidfd < 0 || read(v->talk, &verdict, 1) != 1)
		verdict = BAD;
	if (verdict != GOOD)
		victim_end(v);

	return verdict;
}

/* Ask a living victim whether its memory is still in place. */
static inline enum verdict victim_check(struct victim *v)
{
	char byte = 0;

	if (write(v->talk, &byte, 1) != 1 || read(v->talk, &byte, 1) != 1)
		return BAD;

	return byte;
}

/*
 * Kill a victim and keep it on the threshold: a traced process stops in
 * do_exit() before it lets go of its memory. So it is dying for
 * process_mrelease(), nothing else frees its memory, and /proc shows what is
 * left of it.
 */
static inline bool victim_park(struct victim *v)
{
	int status;

	if (ptrace(PTRACE_SEIZE, v->pid, NULL,
		   PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL))
		return false;
	if (kill(v->pid, SIGKILL) ||
	    waitpid(v->pid, &status, __WALL) != v->pid)
		return false;
	if (!WIFSTOPPED(status)) {
		/* It is gone already. */
		close(v->pidfd);
		close(v->talk);
		memset(v, 0, sizeof(*v));
		return false;
	}
	v->parked = status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8);

	return v->parked;
}

/*
 * The value of @field, in bytes, in /proc/PID/@file; of the mapping at @addr
 * if that is not NULL. -1 if there is none.
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

/* All memory of a process that is mapped, in bytes; hugetlb is not in it. */
static inline long rss(pid_t pid)
{
	return smaps_field(pid, "smaps_rollup", NULL, "Rss");
}

static inline long rss_at(pid_t pid, const void *addr)
{
	return smaps_field(pid, "smaps", addr, "Rss");
}

/* Memory in @nr places, one in every @distance bytes: many chunks, few pages. */
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
