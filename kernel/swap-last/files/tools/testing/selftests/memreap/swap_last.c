// SPDX-License-Identifier: GPL-2.0-only
/*
 * Swap slots of dying processes: that they wait for the worker, that all are
 * released and no others, and that nobody who needs them waits for the worker,
 * which some tests keep from running.
 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "../kselftest_harness.h"
#include "region.h"
#include "trace.h"
#include "zram.h"

#define EVENTS		"memreap_swap_last"
#define SWITCH		"/sys/module/memreap/parameters/swap_last"
#define WORKER		"/sys/devices/virtual/workqueue/memreap_swap/cpumask"
#define SERVER		DEBUGFS "/sched/fair_server/cpu1/runtime"
#define RT_RUNTIME	"/proc/sys/kernel/sched_rt_runtime_us"
#define RCU_STALL	"/sys/module/rcupdate/parameters/rcu_cpu_stall_suppress"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		300
/* Attempts to swap pages out, 1 ms apart. */
#define PAGE_OUT_TRIES	1000

#define SWAP_SIZE	(64 * MIB)
#define SIZE		(4 * MIB)
#define PAGES		((long)(SIZE / PAGE))
/* Swap space that one victim fills: a page of it is the header. */
#define TIGHT_SIZE	(SIZE + MIB)

static struct region memory;
static struct victim victim;

/* --- Memory in swap --- */

static long vm_swap(void)
{
	return read_number("/proc/self/status", "VmSwap:") * 1024 / (long)PAGE;
}

static enum verdict page_out(void *mem, size_t size)
{
	long before = vm_swap();

	for (int i = 0; i < PAGE_OUT_TRIES; i++) {
		if (!madvise(mem, size, MADV_PAGEOUT) &&
		    vm_swap() - before >= (long)(size / PAGE))
			return GOOD;
		put_on_lru();
		usleep(1000);
	}
	dprintf(STDOUT_FILENO, "# %ld of %zu pages are in swap\n",
		vm_swap() - before, size / PAGE);

	return BAD;
}

static enum verdict swap_out(void *arg)
{
	struct region *r = arg;

	return region_fill(r) == GOOD ? page_out(r->mem, r->size) : BAD;
}

/* Private copies of a file's pages. */
static enum verdict swap_copies_out(void)
{
	int fd = memfd_create("file", MFD_CLOEXEC);
	void *mem;

	if (fd < 0 || ftruncate(fd, SIZE))
		return BAD;
	mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (mem == MAP_FAILED)
		return BAD;
	fill(mem, SIZE, 5);

	return page_out(mem, SIZE);
}

static const struct victim_ops in_swap = { &memory, swap_out, region_check };

static long waited(void)
{
	return read_number("/proc/vmstat", "swap_last_waited ");
}

static long helped(void)
{
	return read_number("/proc/vmstat", "swap_last_helped ");
}

static long waiting(void)
{
	return read_number("/proc/vmstat", "swap_last_waiting ");
}

/* --- Set-up and teardown --- */

/**
 * struct settings - before a test
 * @on: the switch
 * @worker: CPUs of the worker
 * @rt: sched_rt_runtime_us
 * @server: guarantee for ordinary tasks on CPU 1, in ns per second
 * @hog: keeps the worker from running
 */
struct settings {
	char on[8];
	char worker[32];
	char rt[16];
	char server[16];
	pid_t hog;
};

FIXTURE(swap) {
	struct cgroups cgroups;
	struct settings settings;
	long waited;
	long helped;
};

static void __attribute__((constructor)) begin(void)
{
	if (geteuid() || access(SWITCH, F_OK))
		return;
	trace_begin(EVENTS);
	zram_add();
}

FIXTURE_SETUP(swap)
{
	struct settings *s = &self->settings;
	const char *missing;

	if (access(SWITCH, F_OK))
		SKIP(return, "no memreap.swap_last in this kernel");
	if (geteuid())
		SKIP(return, "needs root");
	if (read_number("/proc/meminfo", "SwapTotal:"))
		SKIP(return, "there is swap in use, which the tests would disturb");
	if (access(zram_device(0), F_OK) || access(zram_device(1), F_OK))
		SKIP(return, "no two zram devices to swap to");
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP(return, "needs a CPU for the worker");
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
	ASSERT_TRUE(read_file(SWITCH, s->on, sizeof(s->on)));
	ASSERT_TRUE(write_file(SWITCH, "Y"));
	ASSERT_TRUE(read_file(WORKER, s->worker, sizeof(s->worker)));
	memory = (struct region){
		.size = SIZE, .seed = 1, .cgroup = self->cgroups.top
	};
	self->waited = waited();
	self->helped = helped();
}

static void release_worker(struct settings *s)
{
	kill_and_wait(s->hog);
	s->hog = 0;
	if (s->server[0])
		write_file(SERVER, s->server);
	if (s->rt[0]) {
		write_file(RT_RUNTIME, s->rt);
		write_file(RCU_STALL, "0");
		write_file(WORKER, s->worker);
	}
}

FIXTURE_TEARDOWN_PARENT(swap)
{
	if (!self->settings.on[0])
		return;
	release_worker(&self->settings);
	cgroups_end(&self->cgroups);
	EXPECT_TRUE(within(PATIENCE, !waiting()));
	/* With a lost slot, swapoff would never end. */
	EXPECT_TRUE(within(PATIENCE, !swap_used_of(NULL))) {
		TH_LOG("%ld slots are in use", swap_used_of(NULL));
	}
	if (!swap_used_of(NULL)) {
		swapoff(zram_device(0));
		swapoff(zram_device(1));
		within(PATIENCE, zram_reset(0) && zram_reset(1));
	}
	write_file(SWITCH, self->settings.on);
	EXPECT_NO_COMPLAINT(kmsg);
}

/* --- They wait, and are released --- */

static int by_cgroup(struct victim *v)
{
	return cgroup_write(memory.cgroup, "cgroup.kill", "1");
}

static void killed(struct __test_metadata *_metadata,
		   struct _test_data_swap *self, int (*how)(struct victim *v),
		   size_t size)
{
	struct region mine = { .size = SIZE, .seed = 2 };
	const struct victim_ops ops = { &mine, swap_out, region_check };
	struct victim neighbour;

	ASSERT_TRUE(zram_on(0, SWAP_SIZE, 5));
	/* Its slots are in the same clusters. */
	ASSERT_EQ(victim_start(&neighbour, &ops), GOOD);
	memory.size = size;
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	ASSERT_EQ(how(&victim), 0);
	EXPECT_EQ(victim_status(&victim), SIGKILL);
	EXPECT_TRUE(within(PATIENCE, !waiting()));
	/* A page that was locked meanwhile keeps its slot, as in stock. */
	EXPECT_GE(waited() - self->waited, (long)(size / PAGE));
	EXPECT_TRUE(within(PATIENCE, swap_used_of(NULL) == PAGES)) {
		TH_LOG("%ld slots are in use", swap_used_of(NULL));
	}
	EXPECT_EQ(victim_check(&neighbour), GOOD);
	victim_end(&neighbour);
}

TEST_F_TIMEOUT(swap, killed, LIMIT)
{
	killed(_metadata, self, kill_plain, SIZE);
}

TEST_F_TIMEOUT(swap, killed_with_its_cgroup, LIMIT)
{
	killed(_metadata, self, by_cgroup, 4 * SIZE);
}

TEST_F_TIMEOUT(swap, killed_with_one_page, LIMIT)
{
	killed(_metadata, self, kill_plain, PAGE);
}

/* Each slot is released by its exit or by a reaper beside it, and counted once. */
TEST_F_TIMEOUT(swap, reaped_meanwhile, LIMIT)
{
	struct stress stress = { .min_rounds = 4 };

	if (!mrelease_supported())
		SKIP(return, "no process_mrelease");
	ASSERT_TRUE(zram_on(0, SWAP_SIZE, 5));
	memory.size = 4 * SIZE;
	while (stress_continues(&stress)) {
		ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
		ASSERT_EQ(kill_plain(&victim), 0);
		while (!mrelease(victim.pidfd))
			;
		EXPECT_EQ(victim_status(&victim), SIGKILL);
		EXPECT_TRUE(within(PATIENCE, !swap_used_of(NULL) && !waiting()));
	}
}

/* What others also refer to stays as it is. */
TEST_F_TIMEOUT(swap, a_child_keeps_its_slots, LIMIT)
{
	int talk[2], status;
	pid_t parent;
	char byte;

	ASSERT_TRUE(zram_on(0, SWAP_SIZE, 5));
	ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, talk), 0);
	parent = fork();
	ASSERT_GE(parent, 0);
	if (!parent) {
		if (swap_out(&memory) != GOOD)
			_exit(1);
		if (fork())
			_exit(0);
		/* Until the parent is gone. */
		if (read(talk[1], &byte, 1) != 1)
			_exit(1);
		byte = region_check(&memory);
		_exit(write(talk[1], &byte, 1) != 1);
	}
	close(talk[1]);
	ASSERT_EQ(waitpid(parent, &status, 0), parent);
	ASSERT_EQ(status, 0);
	EXPECT_TRUE(within(PATIENCE, waited() - self->waited >= PAGES &&
				     !waiting()));
	EXPECT_EQ(swap_used_of(NULL), PAGES);
	ASSERT_EQ(write(talk[0], "x", 1), 1);
	ASSERT_EQ(read(talk[0], &byte, 1), 1);
	EXPECT_EQ(byte, GOOD);
	close(talk[0]);
	EXPECT_TRUE(within(PATIENCE, !swap_used_of(NULL)));
}

/* Nothing waits of what is alive, or while it is switched off. */
TEST_F_TIMEOUT(swap, released_at_once, LIMIT)
{
	pid_t pid;

	ASSERT_TRUE(zram_on(0, SWAP_SIZE, 5));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(swap_out(&memory) != GOOD ||
		      munmap(memory.mem, memory.size) ||
		      swap_used_of(NULL) > PAGES / 2);
	EXPECT_TRUE(exits_cleanly(pid));
	EXPECT_EQ(waited(), self->waited);

	ASSERT_TRUE(write_file(SWITCH, "N"));
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	victim_end(&victim);
	EXPECT_EQ(waited(), self->waited);
	EXPECT_EQ(swap_used_of(NULL), 0);
}

/* Nor of files: khugepaged may free a page table of theirs beside an exit. */
TEST_F_TIMEOUT(swap, copies_of_a_file, LIMIT)
{
	pid_t pid;

	ASSERT_TRUE(zram_on(0, SWAP_SIZE, 5));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(swap_copies_out() != GOOD);
	EXPECT_TRUE(exits_cleanly(pid));
	EXPECT_EQ(waited(), self->waited);
	EXPECT_EQ(swap_used_of(NULL), 0);
}

/* --- Nobody waits for the worker --- */

static void hog_main(void)
{
	struct sched_param param = { .sched_priority = 1 };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(LIMIT);
	if (!run_on(1) || sched_setscheduler(0, SCHED_FIFO, &param))
		_exit(1);
	for (;;)
		;
}

/* Keeps the worker from running: CPU 1, the only one it may use, is busy. */
static bool hold_worker(struct settings *s)
{
	pid_t pid;

	mount_debugfs(DEBUGFS "/sched");
	if (!read_file(RT_RUNTIME, s->rt, sizeof(s->rt)) ||
	    !write_file(RT_RUNTIME, "-1") || !write_file(WORKER, "2") ||
	    !run_on(0))
		return false;
	write_file(RCU_STALL, "1");
	/* Without that file there is no such guarantee. */
	if (read_file(SERVER, s->server, sizeof(s->server)))
		write_file(SERVER, "0");
	/* It shares the settings. */
	pid = fork();
	if (!pid)
		hog_main();
	s->hog = pid;
	usleep(50000);

	return pid > 0 && !waitpid(pid, NULL, WNOHANG);
}

/* Kills a victim whose slots wait until somebody needs them. */
static bool leave_slots_waiting(struct _test_data_swap *self, size_t size)
{
	return zram_on(0, size, 10) &&
	       victim_start(&victim, &in_swap) == GOOD &&
	       hold_worker(&self->settings) && !kill_plain(&victim) &&
	       victim_status(&victim) == SIGKILL && waiting() >= PAGES;
}

TEST_F_TIMEOUT(swap, swapoff_releases_them, LIMIT)
{
	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	EXPECT_EQ(swapoff(zram_device(0)), 0);
	EXPECT_EQ(waiting(), 0);
}

TEST_F_TIMEOUT(swap, reclaim_releases_them, LIMIT)
{
	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	/* What is less than a batch adds up. */
	EXPECT_TRUE(within(PATIENCE,
			   write_file("/proc/sys/vm/drop_caches", "2") &&
			   !waiting()));
	EXPECT_EQ(swap_used_of(NULL), 0);
}

/* A full device has room for whoever swaps out. */
TEST_F_TIMEOUT(swap, a_full_device, LIMIT)
{
	ASSERT_TRUE(leave_slots_waiting(self, TIGHT_SIZE));
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	EXPECT_GE(helped() - self->helped, PAGES / 2);
	EXPECT_EQ(victim_check(&victim), GOOD);
	victim_end(&victim);
}

/* Nor does one fail that is at its limit. */
TEST_F_TIMEOUT(swap, a_device_at_its_limit, LIMIT)
{
	char text[256], limit[32];

	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	/* orig_data_size compr_data_size mem_used_total ... */
	ASSERT_TRUE(read_file("/sys/block/zram0/mm_stat", text, sizeof(text)));
	ASSERT_TRUE(sscanf(text, "%*d %*d %31s", limit) == 1);
	ASSERT_TRUE(zram_write(0, "mem_limit", limit));
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	EXPECT_GE(helped() - self->helped, PAGES / 2);
	EXPECT_EQ(victim_check(&victim), GOOD);
	victim_end(&victim);
}

/* Live pages go to no slower device for their sake. */
TEST_F_TIMEOUT(swap, the_faster_device, LIMIT)
{
	ASSERT_TRUE(zram_on(1, SWAP_SIZE, 5));
	ASSERT_TRUE(leave_slots_waiting(self, TIGHT_SIZE));
	EXPECT_EQ(swap_used_of(zram_device(1)), 0);
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	EXPECT_EQ(swap_used_of(zram_device(1)), 0);
	victim_end(&victim);
}

/* One allocation does not release all that is on a slower one. */
TEST_F_TIMEOUT(swap, the_slower_device, LIMIT)
{
	struct region live = { .size = 2 * SIZE, .seed = 2 };
	const struct victim_ops ops = { &live, swap_out, region_check };
	struct victim neighbour;

	if (PAGE > 4096)
		SKIP(return, "all of it is in one page table");
	ASSERT_TRUE(zram_on(1, SWAP_SIZE, 5));
	ASSERT_TRUE(zram_on(0, TIGHT_SIZE, 10));
	/* Fills the faster one. */
	ASSERT_EQ(victim_start(&neighbour, &ops), GOOD);
	memory.size = 4 * SIZE;
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	ASSERT_TRUE(hold_worker(&self->settings));
	ASSERT_EQ(kill_plain(&victim), 0);
	ASSERT_EQ(victim_status(&victim), SIGKILL);
	ASSERT_GE(waiting(), 4 * PAGES);
	memory.size = PAGE;
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	EXPECT_GE(waiting(), 2 * PAGES);
	victim_end(&victim);
	victim_end(&neighbour);
}

/* They are charged until they are released, which a limit does not forbid. */
TEST_F_TIMEOUT(swap, the_limit_of_a_cgroup, LIMIT)
{
	const char *cgroup = self->cgroups.top;

	ASSERT_EQ(cgroup_write_number(cgroup, "memory.swap.max", TIGHT_SIZE), 0);
	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	ASSERT_EQ(victim_start(&victim, &in_swap), GOOD);
	EXPECT_GE(helped() - self->helped, PAGES / 2);
	/* Nothing has failed. */
	EXPECT_EQ(cgroup_read(cgroup, "memory.swap.events", "max "), 0);
	EXPECT_EQ(cgroup_read(cgroup, "memory.swap.events", "fail "), 0);
	victim_end(&victim);
}

/* The OOM killer of a cgroup kills nobody while slots wait. */
TEST_F_TIMEOUT(swap, a_cgroup_out_of_memory, LIMIT)
{
	const char *cgroup = self->cgroups.top;
	struct region more = { .size = 15 * MIB, .seed = 3, .cgroup = cgroup };
	const struct victim_ops ops = { &more, region_fill, region_check };

	ASSERT_EQ(cgroup_write_number(cgroup, "memory.swap.max", TIGHT_SIZE), 0);
	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max", 12 * MIB), 0);
	/* It fits with what the victim leaves behind, and not without. */
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	EXPECT_EQ(cgroup_read(cgroup, "memory.events", "oom_kill "), 0);
	EXPECT_EQ(victim_check(&victim), GOOD);
	victim_end(&victim);
}

/* Nor does a limit that is lowered. */
TEST_F_TIMEOUT(swap, a_limit_is_lowered, LIMIT)
{
	const char *cgroup = self->cgroups.top;
	struct region more = { .size = 15 * MIB, .seed = 3, .cgroup = cgroup };
	const struct victim_ops ops = { &more, region_fill, region_check };

	ASSERT_EQ(cgroup_write_number(cgroup, "memory.swap.max", TIGHT_SIZE), 0);
	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	/* All of it is used by what waits. */
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.swap.max", SIZE), 0);
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max", 12 * MIB), 0);
	EXPECT_EQ(cgroup_read(cgroup, "memory.events", "oom_kill "), 0);
	EXPECT_EQ(victim_check(&victim), GOOD);
	victim_end(&victim);
}

static void ignore_signal(int signal)
{
}

/* Has this task get a signal once it releases slots. Returns false if it cannot. */
static bool signal_when_released(int signal)
{
	const char *id = TRACEFS "/events/" EVENTS "/memreap_swap_release/id";
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.sample_period = 1,
	};
	int fd;

	attr.config = read_number(id, "");
	fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1,
		     PERF_FLAG_FD_CLOEXEC);

	return fd >= 0 && !fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK) &&
	       !fcntl(fd, F_SETSIG, signal) &&
	       !fcntl(fd, F_SETOWN, getpid()) &&
	       !ioctl(fd, PERF_EVENT_IOC_REFRESH, 1);
}

/* A signal stops who lowers a limit, and nobody dies for it. */
TEST_F_TIMEOUT(swap, a_limit_that_a_signal_stops, LIMIT)
{
	const char *cgroup = self->cgroups.top;
	struct region more = { .size = 15 * MIB, .seed = 3, .cgroup = cgroup };
	const struct victim_ops ops = { &more, region_fill, region_check };
	const struct sigaction ignore = { .sa_handler = ignore_signal };

	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.swap.max", 0), 0);
	ASSERT_EQ(sigaction(SIGUSR1, &ignore, NULL), 0);
	ASSERT_TRUE(signal_when_released(SIGUSR1));
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max", 12 * MIB), 0);
	EXPECT_GT(helped(), self->helped);
	EXPECT_EQ(cgroup_read(cgroup, "memory.events", "oom_kill "), 0);
	EXPECT_EQ(victim_check(&victim), GOOD);
	victim_end(&victim);
}

/* Processes that leave slots behind, one after the other. */
static void exit_again_and_again(void)
{
	struct region shared = { .size = 16 * PAGE, .seed = 4 };
	pid_t pid;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (swap_out(&shared) != GOOD)
		_exit(1);
	for (;;) {
		pid = fork();
		if (!pid)
			_exit(0);
		waitpid(pid, NULL, 0);
	}
}

/* What others leave behind puts off no kill for long. */
TEST_F_TIMEOUT(swap, exits_of_others, LIMIT)
{
	const char *cgroup = self->cgroups.top;
	struct region more = { .size = 15 * MIB, .seed = 3, .cgroup = cgroup };
	const struct victim_ops ops = { &more, region_fill, region_check };
	long before;
	pid_t others;

	ASSERT_TRUE(leave_slots_waiting(self, SWAP_SIZE));
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.swap.max", 0), 0);
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max", 12 * MIB), 0);
	before = waited();
	others = fork();
	if (!others)
		exit_again_and_again();
	EXPECT_TRUE(within(PATIENCE, waited() - before >= 3 * 16));
	EXPECT_NE(victim_start(&victim, &ops), GOOD);
	EXPECT_EQ(cgroup_read(cgroup, "memory.events", "oom_kill "), 1);
	EXPECT_EQ(waitpid(others, NULL, WNOHANG), 0);
	kill(others, SIGKILL);
	waitpid(others, NULL, 0);
	victim_end(&victim);
}

TEST_HARNESS_MAIN
