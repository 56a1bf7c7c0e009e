// SPDX-License-Identifier: GPL-2.0-only
/*
 * PIDFD_SIGNAL_EXPEDITE: permissions and arguments, what is freed although the
 * victim cannot run, and what must be left alone.
 */
#define _GNU_SOURCE
#include <grp.h>

#include "../kselftest_harness.h"
#include "expedite.h"
#include "folios.h"

/* Of victims that are started by a fixture. */
static struct region memory;
static struct parking parking;

FIXTURE(flag) {
	struct watch watch;
	long kills;
};

FIXTURE_SETUP(flag)
{
	struct victim_ops ops = { &memory, region_fill, region_check };
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
	memory = (struct region){ .size = SIZE, .seed = 1, .threads = 1 };
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	/* A signal for its process group must not be one for ours. */
	ASSERT_EQ(setpgid(victim.pid, 0), 0);
	self->kills = counter("expedite_kill");
	ASSERT_GE(self->kills, 0);
}

FIXTURE_TEARDOWN_PARENT(flag)
{
	wait_alone();
	watch_end(_metadata, &self->watch);
}

/* The victim did not notice anything, and nothing was taken on. */
#define EXPECT_UNHARMED()						\
do {									\
	EXPECT_EQ(victim_check(&victim), GOOD);			\
	EXPECT_EQ(counter("expedite_kill"), self->kills);		\
	EXPECT_TRUE(never_queued(victim.pid));			\
} while (0)

/* --- Flag rules --- */

TEST_F_TIMEOUT(flag, harmless_probe, LIMIT)
{
	EXPECT_EQ(send_signal(-1, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE), EBADF);
	EXPECT_EQ(send_signal(-1, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE |
			      PIDFD_SIGNAL_THREAD_GROUP), EBADF);
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, other_signals, LIMIT)
{
	/* No signal, all there are, and some that there are not. */
	for (int sig = -1; sig <= SIGRTMAX + 1; sig++) {
		if (sig == SIGKILL)
			continue;
		ASSERT_EQ(send_signal(victim.pidfd, sig, NULL,
				      PIDFD_SIGNAL_EXPEDITE), EINVAL) {
			TH_LOG("signal %d", sig);
		}
	}
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, other_scopes, LIMIT)
{
	static const unsigned int scopes[] = {
		PIDFD_SIGNAL_THREAD,
		PIDFD_SIGNAL_PROCESS_GROUP,
		PIDFD_SIGNAL_THREAD | PIDFD_SIGNAL_THREAD_GROUP,
		PIDFD_SIGNAL_THREAD_GROUP | PIDFD_SIGNAL_PROCESS_GROUP,
	};
	int thread = pidfd_of(victim.pid, PIDFD_THREAD);

	ASSERT_GE(thread, 0);
	for (size_t i = 0; i < ARRAY_SIZE(scopes); i++) {
		ASSERT_EQ(send_signal(victim.pidfd, SIGKILL, NULL,
				      PIDFD_SIGNAL_EXPEDITE | scopes[i]),
			  EINVAL) {
			TH_LOG("scope %#x", scopes[i]);
		}
		ASSERT_EQ(send_signal(thread, SIGKILL, NULL,
				      PIDFD_SIGNAL_EXPEDITE | scopes[i]),
			  EINVAL) {
			TH_LOG("scope %#x", scopes[i]);
		}
	}
	/* The scope is that of the pidfd, a thread. */
	EXPECT_EQ(send_signal(thread, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE),
		  EINVAL);
	close(thread);
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, scopes_without_it, LIMIT)
{
	int thread = pidfd_of(victim.pid, PIDFD_THREAD);
	int pidfd = victim.pidfd;

	ASSERT_GE(thread, 0);
	EXPECT_EQ(send_signal(pidfd, 0, NULL, 0), 0);
	EXPECT_EQ(send_signal(thread, 0, NULL, 0), 0);
	EXPECT_EQ(send_signal(pidfd, 0, NULL, PIDFD_SIGNAL_THREAD), 0);
	EXPECT_EQ(send_signal(pidfd, 0, NULL, PIDFD_SIGNAL_THREAD_GROUP), 0);
	EXPECT_EQ(send_signal(pidfd, 0, NULL, PIDFD_SIGNAL_PROCESS_GROUP), 0);
	EXPECT_EQ(send_signal(pidfd, 0, NULL, PIDFD_SIGNAL_THREAD |
			      PIDFD_SIGNAL_PROCESS_GROUP), EINVAL);
	close(thread);
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, unknown_flags, LIMIT)
{
	for (int bit = 3; bit < 31; bit++) {
		ASSERT_EQ(send_signal(victim.pidfd, SIGKILL, NULL,
				      1U << bit), EINVAL) {
			TH_LOG("bit %d", bit);
		}
		ASSERT_EQ(send_signal(victim.pidfd, SIGKILL, NULL,
				      PIDFD_SIGNAL_EXPEDITE | 1U << bit),
			  EINVAL) {
			TH_LOG("bit %d", bit);
		}
	}
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, bad_descriptors, LIMIT)
{
	static const char * const files[] = {
		"/dev/null", "/proc/self/status", "/proc", "/",
	};
	int fd = dup(victim.pidfd);

	close(fd);
	EXPECT_EQ(send_signal(fd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE), EBADF);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		fd = open(files[i], O_RDONLY | O_CLOEXEC);
		ASSERT_GE(fd, 0);
		EXPECT_EQ(send_signal(fd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE),
			  EBADF) {
			TH_LOG("%s", files[i]);
		}
		close(fd);
	}
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, siginfo_by_the_usual_rules, LIMIT)
{
	siginfo_t info = { .si_signo = SIGTERM, .si_code = SI_QUEUE };
	int pidfd = victim.pidfd;

	/* Of another signal; of a kind that only the kernel sends; nowhere. */
	EXPECT_EQ(send_signal(pidfd, SIGKILL, &info, PIDFD_SIGNAL_EXPEDITE),
		  EINVAL);
	info.si_signo = SIGKILL;
	info.si_code = SI_USER;
	EXPECT_EQ(send_signal(pidfd, SIGKILL, &info, 0), EPERM);
	EXPECT_EQ(send_signal(pidfd, SIGKILL, &info, PIDFD_SIGNAL_EXPEDITE),
		  EPERM);
	info.si_code = SI_TKILL;
	EXPECT_EQ(send_signal(pidfd, SIGKILL, &info, PIDFD_SIGNAL_EXPEDITE),
		  EPERM);
	EXPECT_EQ(send_signal(pidfd, SIGKILL, (siginfo_t *)1,
			      PIDFD_SIGNAL_EXPEDITE), EFAULT);
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, switched_off, LIMIT)
{
	if (!watch_switch(&self->watch))
		SKIP(return, "cannot be switched off while running");
	ASSERT_TRUE(write_file(SWITCH, "N"));
	EXPECT_FALSE(expedite_supported());
	EXPECT_EQ(kill_expedited(&victim), EINVAL);
	EXPECT_EQ(send_signal(victim.pidfd, SIGKILL, NULL,
			      PIDFD_SIGNAL_EXPEDITE |
			      PIDFD_SIGNAL_THREAD_GROUP), EINVAL);
	EXPECT_EQ(send_signal(victim.pidfd, 0, NULL, 0), 0);
	EXPECT_UNHARMED();

	ASSERT_TRUE(write_file(SWITCH, "Y"));
	EXPECT_TRUE(expedite_supported());
	EXPECT_EQ(victim_check(&victim), GOOD);
	EXPECT_EQ(kill_expedited(&victim), 0);
	EXPECT_TRUE(dies(&victim));
}

/* --- Permissions --- */

/* Kills a victim without any privileges. Returns 0 or an errno. */
static int kill_as_nobody(struct victim *v)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (setgroups(0, NULL) || setresgid(65534, 65534, 65534) ||
		    setresuid(65534, 65534, 65534))
			_exit(255);
		_exit(kill_expedited(v));
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;

	return WEXITSTATUS(status);
}

TEST_F_TIMEOUT(flag, other_user, LIMIT)
{
	EXPECT_EQ(kill_as_nobody(&victim), EPERM);
	EXPECT_UNHARMED();
	EXPECT_TRUE(memory_stays(victim.pid, SIZE));
	EXPECT_UNHARMED();
}

/*
 * A process with MMF_MEMREAP_HURRY frees pages while it unmaps them, others only
 * after 38 MiB: that shows from outside whether the flag was set.
 */
#define EXPECT_NO_HURRY()						\
do {									\
	struct exit_told _told;						\
									\
	exit_told(&_told);						\
	EXPECT_GE(_told.freed, SIZE / PAGE - LEFT_BEHIND);		\
	EXPECT_LT(_told.early, SIZE / PAGE / 4);			\
} while (0)

TEST_F_TIMEOUT(flag, other_user_leaves_no_mark, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 4 };
	struct victim_ops ops = { &region, region_fill };
	struct victim single;

	ASSERT_EQ(victim_start(&single, &ops), GOOD);
	EXPECT_EQ(kill_as_nobody(&single), EPERM);
	ASSERT_TRUE(trace_exit(single.pid));
	victim_end(&single);
	EXPECT_NO_HURRY();
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(flag, init_killed_from_outside, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 2 };
	struct victim_ops ops = { &region, region_fill };
	struct told told;
	struct victim init;
	enum verdict verdict;

	verdict = start_init(&init, &ops);
	if (verdict == UNSUPPORTED)
		SKIP(return, "no PID namespaces");
	ASSERT_EQ(verdict, GOOD);
	ASSERT_EQ(park(&init, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(init.pid, 0));
	EXPECT_TRUE(wait_all_done(init.pid, &told));
	EXPECT_STREQ(told.outcome, "freed");
	victim_end(&init);
	EXPECT_EQ(victim_check(&victim), GOOD);
}

/* Memory and, beside it, a pidfd that is used from inside. */
struct insider {
	struct region region;
	int pidfd;
	int err;
};

static int kill_by(int pidfd)
{
	return send_signal(pidfd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE);
}

/* Init kills itself, and children of it kill init: all to no effect. */
static enum verdict init_is_immune(void *arg)
{
	struct insider *inside = arg;
	int pidfd = pidfd_of(1, 0);
	int status;
	pid_t pid;

	if (getpid() != 1 || pidfd < 0)
		return BAD;
	for (int i = 0; i < 10; i++) {
		inside->err = kill_by(pidfd);
		pid = fork();
		if (!pid)
			_exit(kill_by(pidfd));
		if (inside->err || waitpid(pid, &status, 0) != pid || status)
			return BAD;
	}
	close(pidfd);

	return region_check(&inside->region);
}

static enum verdict insider_prepare(void *arg)
{
	struct insider *inside = arg;

	return region_fill(&inside->region);
}

TEST_F_TIMEOUT(flag, init_immune_from_inside, LIMIT)
{
	struct insider inside = { { .size = SIZE, .seed = 3 } };
	struct victim_ops ops = { &inside, insider_prepare, init_is_immune };
	struct victim init;
	enum verdict verdict;

	verdict = start_init(&init, &ops);
	if (verdict == UNSUPPORTED)
		SKIP(return, "no PID namespaces");
	ASSERT_EQ(verdict, GOOD);
	EXPECT_EQ(victim_check(&init), GOOD);
	EXPECT_TRUE(memory_stays(init.pid, SIZE));
	EXPECT_TRUE(never_queued(init.pid));
	EXPECT_UNHARMED();
	/* It is alive, and does not have the flag when it exits. */
	EXPECT_EQ(victim_check(&init), GOOD);
	ASSERT_TRUE(trace_exit(init.pid));
	victim_end(&init);
	EXPECT_NO_HURRY();
}

static enum verdict outside_is_out_of_reach(void *arg)
{
	struct insider *inside = arg;

	return kill_by(inside->pidfd) == EINVAL ? GOOD : BAD;
}

TEST_F_TIMEOUT(flag, pidfd_from_outside_the_namespace, LIMIT)
{
	struct insider inside = { { .size = PAGE }, victim.pidfd };
	struct victim_ops ops = {
		&inside, insider_prepare, outside_is_out_of_reach
	};
	struct victim init;
	enum verdict verdict;

	verdict = start_init(&init, &ops);
	if (verdict == UNSUPPORTED)
		SKIP(return, "no PID namespaces");
	ASSERT_EQ(verdict, GOOD);
	EXPECT_EQ(victim_check(&init), GOOD);
	victim_end(&init);
	EXPECT_UNHARMED();
}

/* --- All ways to say it --- */

static int kill_thread_group(struct victim *v)
{
	return send_signal(v->pidfd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE |
			   PIDFD_SIGNAL_THREAD_GROUP);
}

static int kill_by_tid(pid_t tid)
{
	int pidfd = pidfd_of(tid, PIDFD_THREAD), err;

	if (pidfd < 0)
		return errno;
	err = send_signal(pidfd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE |
			  PIDFD_SIGNAL_THREAD_GROUP);
	close(pidfd);

	return err;
}

static int kill_by_leader(struct victim *v)
{
	return kill_by_tid(v->pid);
}

/* A thread that is not the leader; 0 if there is none. */
static pid_t other_thread(pid_t pid)
{
	struct dirent *entry;
	char path[64];
	pid_t tid = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)) && (tid <= 0 || tid == pid))
		tid = atoi(entry->d_name);
	if (dir)
		closedir(dir);

	return tid == pid ? 0 : tid;
}

static int kill_by_thread(struct victim *v)
{
	return kill_by_tid(other_thread(v->pid));
}

static int kill_by_proc(struct victim *v)
{
	char path[64];
	int fd, err;

	snprintf(path, sizeof(path), "/proc/%d", v->pid);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	err = send_signal(fd, SIGKILL, NULL, PIDFD_SIGNAL_EXPEDITE);
	close(fd);

	return err;
}

static int kill_with_info(struct victim *v)
{
	siginfo_t info = { .si_signo = SIGKILL, .si_code = SI_QUEUE };

	return send_signal(v->pidfd, SIGKILL, &info, PIDFD_SIGNAL_EXPEDITE);
}

/* One that has begun to die by itself, but keeps its memory. */
static int kill_late(struct victim *v)
{
	int err = kill_plain(v);

	return err ? err : kill_expedited(v);
}

FIXTURE(way) {
	struct watch watch;
};

FIXTURE_VARIANT(way) {
	int (*how)(struct victim *v);
};

FIXTURE_VARIANT_ADD(way, pidfd) { .how = kill_expedited };
FIXTURE_VARIANT_ADD(way, thread_group) { .how = kill_thread_group };
FIXTURE_VARIANT_ADD(way, leader) { .how = kill_by_leader };
FIXTURE_VARIANT_ADD(way, other_thread) { .how = kill_by_thread };
FIXTURE_VARIANT_ADD(way, proc_folder) { .how = kill_by_proc };
FIXTURE_VARIANT_ADD(way, siginfo) { .how = kill_with_info };
FIXTURE_VARIANT_ADD(way, late) { .how = kill_late };

FIXTURE_SETUP(way)
{
	struct victim_ops ops = { &memory, region_fill };
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
	memory = (struct region){ .size = SIZE, .seed = 5, .threads = 3 };
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
}

FIXTURE_TEARDOWN_PARENT(way)
{
	wait_alone();
	watch_end(_metadata, &self->watch);
}

TEST_F_TIMEOUT(way, frees_what_cannot_run, LIMIT)
{
	long kills = counter("expedite_kill"), pages = counter("expedite_pages");
	pid_t pid = victim.pid;
	struct told told;

	ASSERT_EQ(park_threads(&parking, &victim, variant->how), 0);
	EXPECT_EQ(parking.nr, 4);
	EXPECT_TRUE(memory_returns(pid, 0));
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_EQ(told.taken, 1);
	EXPECT_STREQ(told.by, "flag");
	EXPECT_STREQ(told.outcome, "freed");
	EXPECT_GE(told.bytes, SIZE);
	TH_LOG("after %llu us", told.ns / 1000);
	EXPECT_EQ(counter("expedite_kill"), kills + 1);
	EXPECT_GE(counter("expedite_pages"), pages + SIZE / PAGE);
}

TEST_F_TIMEOUT(way, kills, LIMIT)
{
	EXPECT_EQ(variant->how(&victim), 0);
	EXPECT_TRUE(dies(&victim));
}

/* --- Kinds of memory, and how much of it --- */

FIXTURE(kill) {
	struct watch watch;
};

FIXTURE_SETUP(kill)
{
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(kill)
{
	wait_alone();
	watch_end(_metadata, &self->watch);
}

static enum verdict fill_sparse(void *arg)
{
	return map_sparse(48, 16 * PAGE, 32 * MIB) ? GOOD : BAD;
}

TEST_F_TIMEOUT(kill, far_apart, LIMIT)
{
	struct victim_ops ops = { .prepare = fill_sparse };
	struct told told;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(victim.pid, 0));
	ASSERT_TRUE(wait_all_done(victim.pid, &told));
	EXPECT_STREQ(told.outcome, "freed");
	EXPECT_GE(told.bytes, 48 * 16 * PAGE);
}

#define HUGE		(64 * MIB)

/* What a huge page counts for is what it holds. */
TEST_F_TIMEOUT(kill, huge_pages, LIMIT)
{
	const struct folios folios = { .kib = FOLIO_PMD };
	struct region region = {
		.size = HUGE, .seed = 1, .folio_kib = folios.kib
	};
	struct victim_ops ops = { &region, region_fill };
	long pages = counter("expedite_pages");
	struct folio_settings settings;
	enum verdict verdict;
	const char *missing;
	struct told told;

	missing = folios_begin(&settings, &folios);
	if (missing)
		SKIP(return, "%s", missing);
	verdict = victim_start(&victim, &ops);
	folios_end(&settings);
	ASSERT_EQ(verdict, GOOD);
	ASSERT_GE(smaps_field(victim.pid, "smaps_rollup", NULL,
			      "AnonHugePages"), (long)HUGE / 2);
	/* It frees nothing itself. */
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(victim.pid, 0));
	ASSERT_TRUE(wait_all_done(victim.pid, &told));
	EXPECT_STREQ(told.outcome, "freed");
	EXPECT_GE(told.bytes, HUGE / 10 * 9);
	EXPECT_GE(counter("expedite_pages"), pages + HUGE / PAGE / 10 * 9);
}

TEST_F_TIMEOUT(kill, small_ones_just_die, LIMIT)
{
	struct region region = { .size = MIN_SIZE / 4, .seed = 9 };
	struct victim_ops ops = { &region, region_fill };
	long kills = counter("expedite_kill");

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_LT(smaps_field(victim.pid, "smaps_rollup", NULL,
			      "Anonymous"), MIN_SIZE * 3 / 4);
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_stays(victim.pid, region.size));
	EXPECT_TRUE(never_queued(victim.pid));
	EXPECT_EQ(counter("expedite_kill"), kills);
}

static void park_with_threads(struct __test_metadata *_metadata,
			      unsigned int threads, struct told *told)
{
	struct region region = {
		.size = SIZE, .seed = 10, .threads = threads - 1
	};
	struct victim_ops ops = { &region, region_fill };
	pid_t pid;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pid = victim.pid;
	ASSERT_EQ(park_threads(&parking, &victim, kill_plain), 0);
	ASSERT_EQ(parking.nr, threads);
	EXPECT_EQ(kill_expedited(&victim), 0);
	ASSERT_TRUE(wait_all_done(pid, told));
	TH_LOG("%u threads: after %llu us", threads, told->ns / 1000);
	unpark(&parking, &victim);
}

TEST_F_TIMEOUT(kill, many_threads, LIMIT)
{
	struct told told;

	park_with_threads(_metadata, 1, &told);
	park_with_threads(_metadata, MAX_SEEN, &told);
	EXPECT_STREQ(told.outcome, "freed");
	EXPECT_GE(told.bytes, SIZE);
}

/* To look at all of them would keep others off a CPU for too long. */
TEST_F_TIMEOUT(kill, too_many_threads, LIMIT)
{
	struct told told;

	park_with_threads(_metadata, MAX_SEEN + 1, &told);
	EXPECT_STREQ(told.outcome, "threads");
	EXPECT_EQ(told.bytes, 0);
	EXPECT_EQ(told.early, 0);
}

TEST_F_TIMEOUT(kill, memory_of_others_stays, LIMIT)
{
	struct region shared = { .size = 3 * MIB, .seed = 11 };
	struct region cow = { .size = 3 * MIB, .seed = 12 };
	struct region own = { .size = 3 * MIB, .seed = 13 };
	struct victim_ops ops = { &own, region_fill };

	shared.mem = map(shared.size, MAP_SHARED);
	ASSERT_NE(shared.mem, NULL);
	fill(shared.mem, shared.size, shared.seed);
	ASSERT_EQ(region_fill(&cow), GOOD);
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(victim.pid, SHARED_LEFT));
	EXPECT_EQ(region_check(&shared), GOOD);
	EXPECT_EQ(region_check(&cow), GOOD);
	victim_end(&victim);
	EXPECT_EQ(region_check(&shared), GOOD);
	EXPECT_EQ(region_check(&cow), GOOD);
}

/* --- States of the victim --- */

TEST_F_TIMEOUT(kill, already_dying, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 15 };
	struct victim_ops ops = { &region, region_fill };
	struct told told;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(park(&victim, kill_plain), 0);
	ASSERT_TRUE(memory_stays(victim.pid, SIZE));
	EXPECT_EQ(kill_expedited(&victim), 0);
	EXPECT_TRUE(memory_returns(victim.pid, 0));
	ASSERT_TRUE(wait_all_done(victim.pid, &told));
	EXPECT_STREQ(told.outcome, "freed");
	/* Once more: it is as dead as can be, and that is no error. */
	EXPECT_EQ(kill_expedited(&victim), 0);
}

/* In memory shared with the test: it may exit now. */
static int *go;

static void exit_run(void *arg)
{
	while (!__atomic_load_n(go, __ATOMIC_SEQ_CST))
		usleep(1000);
	_exit(0);
}

/* It exits by itself: it never got a signal and cannot take one. */
TEST_F_TIMEOUT(kill, already_exiting, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 16 };
	struct victim_ops ops = { &region, region_fill, .run = exit_run };
	struct parking parking;

	go = map(PAGE, MAP_SHARED);
	ASSERT_NE(go, NULL);
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_TRUE(seize_threads(&parking, &victim));
	__atomic_store_n(go, 1, __ATOMIC_SEQ_CST);
	victim.parked = wait_parked(victim.pid);
	ASSERT_TRUE(victim.parked);
	ASSERT_TRUE(memory_stays(victim.pid, SIZE));
	EXPECT_EQ(kill_expedited(&victim), 0);
	EXPECT_TRUE(memory_returns(victim.pid, SHARED_LEFT));
}

TEST_F_TIMEOUT(kill, stopped, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 17 };
	struct victim_ops ops = { &region, region_fill };
	int status;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(kill(victim.pid, SIGSTOP), 0);
	ASSERT_EQ(waitpid(victim.pid, &status, WUNTRACED),
		  victim.pid);
	ASSERT_TRUE(WIFSTOPPED(status));
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(victim.pid, 0));
	victim_end(&victim);

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(kill(victim.pid, SIGSTOP), 0);
	EXPECT_EQ(kill_expedited(&victim), 0);
	EXPECT_TRUE(dies(&victim));
}

TEST_F_TIMEOUT(kill, stopped_by_a_tracer, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 18 };
	struct victim_ops ops = { &region, region_fill };
	pid_t pid;
	int status;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pid = victim.pid;
	ASSERT_EQ(ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXIT |
			 PTRACE_O_EXITKILL), 0);
	ASSERT_EQ(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL), 0);
	ASSERT_EQ(waitpid(pid, &status, __WALL), pid);
	ASSERT_TRUE(WIFSTOPPED(status));
	ASSERT_EQ(kill_expedited(&victim), 0);
	ASSERT_TRUE(wait_parked(pid));
	victim.parked = true;
	EXPECT_TRUE(memory_returns(pid, 0));
}

static void leave_run(void *arg)
{
	/* The thread alone: the process lives on in the others. */
	syscall(__NR_exit, 0);
}

TEST_F_TIMEOUT(kill, leader_has_left, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 19, .threads = 1 };
	struct victim_ops ops = { &region, region_fill, .run = leave_run };
	struct parking parking;
	struct told told;
	pid_t pid, tid;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pid = victim.pid;
	/* Not just without its memory: until then it could be parked. */
	ASSERT_TRUE(within(PATIENCE, is_zombie(pid)));
	tid = other_thread(pid);
	ASSERT_GT(tid, 0);
	ASSERT_GE(rss(tid), SIZE);
	ASSERT_EQ(park_threads(&parking, &victim, kill_expedited), 0);
	ASSERT_EQ(parking.nr, 1);
	EXPECT_TRUE(memory_returns(tid, 0));
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_STREQ(told.outcome, "freed");
	unpark(&parking, &victim);
}

TEST_F_TIMEOUT(kill, itself, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 21 };
	pid_t pid = fork();
	int status;

	ASSERT_GE(pid, 0);
	if (!pid) {
		region_fill(&region);
		kill_by(pidfd_of(getpid(), 0));
		_exit(1);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F_TIMEOUT(kill, zombie, LIMIT)
{
	struct victim_ops ops = {};
	int pidfd;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pidfd = dup(victim.pidfd);
	ASSERT_GE(pidfd, 0);
	ASSERT_EQ(kill_plain(&victim), 0);
	ASSERT_EQ(waitid(P_PID, victim.pid, NULL, WEXITED | WNOWAIT), 0);
	/* As without the flag. */
	EXPECT_EQ(send_signal(pidfd, SIGKILL, NULL, 0), 0);
	EXPECT_EQ(kill_by(pidfd), 0);
	victim_end(&victim);
	EXPECT_EQ(send_signal(pidfd, SIGKILL, NULL, 0), ESRCH);
	EXPECT_EQ(kill_by(pidfd), ESRCH);
	close(pidfd);
}

TEST_F_TIMEOUT(kill, kernel_thread, LIMIT)
{
	long kills = counter("expedite_kill");
	char comm[32];
	int pidfd;

	if (!read_file("/proc/2/comm", comm, sizeof(comm)) ||
	    strcmp(comm, "kthreadd\n"))
		SKIP(return, "kthreadd is not to be seen from here");
	pidfd = pidfd_of(2, 0);
	ASSERT_GE(pidfd, 0);
	EXPECT_EQ(send_signal(pidfd, SIGKILL, NULL, 0), 0);
	EXPECT_EQ(kill_by(pidfd), 0);
	EXPECT_EQ(counter("expedite_kill"), kills);
	EXPECT_TRUE(never_queued(2));
	close(pidfd);
	usleep(NEVER_MS * 1000);
	EXPECT_EQ(kill(2, 0), 0);
}

/* The kernel keeps the address space while it copies to us. */
static long read_pagemap(struct stuck *s)
{
	return pread(s->fd, s->page, 8, 0);
}

/* It dies, but another task reads its memory, and holds it for as long as it likes. */
TEST_F_TIMEOUT(kill, held_by_a_reader, LIMIT)
{
	struct region region = { .size = SIZE, .seed = 25 };
	struct victim_ops ops = { &region, region_fill };
	struct stuck reader = { .call = read_pagemap };
	struct told told;
	void *result;
	char path[64];
	pid_t pid;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pid = victim.pid;
	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	reader.fd = open(path, O_RDONLY | O_CLOEXEC);
	if (reader.fd < 0 || !stuck_start(&reader))
		SKIP(return, "no userfaultfd, or no pagemap");
	EXPECT_EQ(kill_expedited(&victim), 0);
	EXPECT_TRUE(dies(&victim));
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_STREQ(told.outcome, "freed");
	EXPECT_GE(told.bytes, SIZE);
	/* It was there all the time, and can end now. */
	EXPECT_EQ(pthread_tryjoin_np(reader.thread, NULL), EBUSY);
	close(reader.uffd);
	EXPECT_EQ(pthread_join(reader.thread, &result), 0);
	EXPECT_EQ((long)result, 8);
	close(reader.fd);
}

/* --- Before a worker starts --- */

#define WORKQUEUE	"/sys/devices/virtual/workqueue/memreap_expedite"
#define WORKER_CPUS	WORKQUEUE "/cpumask"
/* ns for which a task with a real-time priority has a CPU to itself. */
#define HOG_NS		800000000ULL

static bool hog_runs;
static bool hog_stop;

/* Keeps everything else off the only CPU that workers may use. */
static void *hog_fn(void *arg)
{
	struct sched_param param = { .sched_priority = 1 };
	unsigned long long end = now_ns() + HOG_NS;

	if (!run_on(0) || sched_setscheduler(0, SCHED_FIFO, &param))
		return NULL;
	__atomic_store_n(&hog_runs, true, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&hog_stop, __ATOMIC_SEQ_CST) && now_ns() < end)
		;

	return NULL;
}

FIXTURE(no_worker) {
	struct watch watch;
	char cpus[256];
};

FIXTURE_SETUP(no_worker)
{
	const char *missing;

	if (reap_is_off())
		SKIP(return, "switched off (memreap.reap=0)");
	/* Victims, too, run there. */
	if (!run_on(1))
		SKIP(return, "needs two CPUs");
	missing = watch_begin(&self->watch);
	if (missing)
		SKIP(return, "%s", missing);
	ASSERT_TRUE(read_file(WORKER_CPUS, self->cpus, sizeof(self->cpus)));
}

FIXTURE_TEARDOWN_PARENT(no_worker)
{
	write_file(WORKER_CPUS, self->cpus);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

/* The victim need not wait for one to know that its memory is wanted. */
TEST_F_TIMEOUT(no_worker, victim_hurries, LIMIT)
{
	struct region region = { .size = HURRY_SIZE, .seed = 26 };
	struct victim_ops ops = { &region, region_fill };
	struct told told = {};

	ASSERT_TRUE(write_file(WORKER_CPUS, "1"));
	for (int i = 0; i < ALONE_TRIES; i++) {
		pthread_t hog;
		pid_t pid;

		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		pid = victim.pid;
		trace_clear();
		ASSERT_TRUE(trace_exit(pid));
		hog_runs = false;
		hog_stop = false;
		ASSERT_EQ(pthread_create(&hog, NULL, hog_fn, NULL), 0);
		ASSERT_TRUE(within(PATIENCE,
				   __atomic_load_n(&hog_runs,
						   __ATOMIC_SEQ_CST)));
		EXPECT_EQ(kill_expedited(&victim), 0);
		EXPECT_TRUE(dies(&victim));
		__atomic_store_n(&hog_stop, true, __ATOMIC_SEQ_CST);
		ASSERT_EQ(pthread_join(hog, NULL), 0);
		/* It had left its memory before the kernel looked. */
		if (never_queued(pid))
			continue;
		ASSERT_TRUE(wait_all_done(pid, &told));
		if (!told.bytes)
			break;
	}
	expect_hurry(_metadata, &told);
}

/* --- Other processes that use the memory --- */

static enum verdict sharer_prepare(void *arg)
{
	struct sharer *s = arg;

	if (region_fill(&s->region) != GOOD || !start_sharer(s))
		return BAD;

	return within(PATIENCE, __atomic_load_n(&s->alive, __ATOMIC_SEQ_CST)) ?
	       GOOD : BAD;
}

static struct sharer *new_sharer(void)
{
	struct sharer *s = map(PAGE, MAP_SHARED);

	if (s)
		s->region = (struct region){ .size = SIZE, .seed = 23 };

	return s;
}

/* It looked to the end, and has ended well. */
static bool sharer_ends_well(struct sharer *s)
{
	int status;

	__atomic_store_n(&s->stop, 1, __ATOMIC_SEQ_CST);

	return waitpid(s->pid, &status, __WALL) == s->pid && !status &&
	       !s->spoiled;
}

/* It keeps the memory, and once the victim is gone, no worker asks for it. */
TEST_F_TIMEOUT(kill, sharer_lives, LIMIT)
{
	unsigned long long began;
	struct told told;
	bool soon;

	do {
		struct sharer *s = new_sharer();
		struct victim_ops ops = { s, sharer_prepare };
		pid_t pid;

		ASSERT_NE(s, NULL);
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		pid = victim.pid;
		began = now_ns();
		EXPECT_EQ(kill_expedited(&victim), 0);
		EXPECT_TRUE(dies(&victim));
		read_events(pid, &told);
		if (!told.taken) {
			/* It had left its memory before that was looked up. */
			EXPECT_TRUE(sharer_ends_well(s));
			soon = false;
			continue;
		}
		/* Some attempts are left. */
		soon = still_tried(began, EARLY_NS);
		ASSERT_TRUE(wait_all_done(pid, &told));
		EXPECT_STREQ(told.outcome, "shared");
		EXPECT_EQ(told.bytes, 0);
		EXPECT_EQ(s->spoiled, 0);
		EXPECT_GE(rss(s->pid), SIZE);
		EXPECT_TRUE(sharer_ends_well(s));
	} while (!soon);
	EXPECT_EQ(told.early, 1);
}

static bool given_up_when_asked_again(long fails)
{
	return !kill_expedited(&victim) && counter("expedite_fail") > fails;
}

/* To ask again and again keeps the kernel trying no more than to ask once. */
TEST_F_TIMEOUT(kill, repeats_change_nothing, LIMIT)
{
	struct sharer *s = new_sharer();
	struct victim_ops ops = { s, sharer_prepare };
	long fails = counter("expedite_fail");
	struct told told;

	ASSERT_NE(s, NULL);
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(within(PATIENCE, given_up_when_asked_again(fails)));
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(kill_expedited(&victim), 0);
	read_events(victim.pid, &told);
	EXPECT_EQ(told.taken, 1);
	EXPECT_EQ(told.gave_up, 1);
	EXPECT_EQ(told.early, 0);
	EXPECT_EQ(told.bytes, 0);
	victim_end(&victim);
	EXPECT_TRUE(sharer_ends_well(s));
}

/*
 * Here and below, sharer_lives has shown that the memory stays: to wait for
 * that once more would use up the time for which the kernel tries.
 */
TEST_F_TIMEOUT(kill, sharer_dies_soon, LIMIT)
{
	struct told told;
	bool soon;

	do {
		struct sharer *s = new_sharer();
		struct victim_ops ops = { s, sharer_prepare };
		unsigned long long began;
		int sharer;

		ASSERT_NE(s, NULL);
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		sharer = pidfd_of(s->pid, 0);
		ASSERT_GE(sharer, 0);
		began = now_ns();
		ASSERT_EQ(park(&victim, kill_expedited), 0);
		EXPECT_GE(rss(victim.pid), SIZE);
		EXPECT_EQ(s->spoiled, 0);
		__atomic_store_n(&s->stop, 1, __ATOMIC_SEQ_CST);
		EXPECT_TRUE(pidfd_exits(sharer, PATIENCE));
		soon = still_tried(began, RETRY_NS);
		ASSERT_TRUE(wait_all_done(victim.pid, &told));
		EXPECT_EQ(s->spoiled, 0);
		close(sharer);
		victim_end(&victim);
	} while (!soon);
	EXPECT_STREQ(told.outcome, "freed");
	EXPECT_GE(told.bytes, SIZE);
}

/* Both are killed: as soon as one has left, the memory of the other is freed. */
TEST_F_TIMEOUT(kill, sharer_is_killed_too, LIMIT)
{
	struct told told;
	bool soon;

	do {
		struct sharer *s = new_sharer();
		struct victim_ops ops = { s, sharer_prepare };
		struct victim other = {};
		unsigned long long began;

		trace_clear();
		ASSERT_NE(s, NULL);
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		other.pid = s->pid;
		other.pidfd = pidfd_of(s->pid, 0);
		ASSERT_GE(other.pidfd, 0);
		other.talk = dup(other.pidfd);
		ASSERT_EQ(park(&other, kill_expedited), 0);
		began = now_ns();
		ASSERT_EQ(park(&victim, kill_expedited), 0);
		EXPECT_GE(rss(victim.pid), SIZE);
		EXPECT_EQ(s->spoiled, 0);
		victim_end(&other);
		soon = still_tried(began, RETRY_NS);
		ASSERT_TRUE(wait_all_done(0, &told));
		victim_end(&victim);
	} while (!soon);
	EXPECT_EQ(told.taken, 2);
	EXPECT_EQ(told.freed, 1);
	EXPECT_EQ(told.gave_up, 1);
}

/* As sharer_prepare(), but the child shares only until it execs. */
static void vfork_run(void *arg)
{
	struct sharer *s = arg;
	pid_t pid = vfork();

	if (!pid) {
		s->pid = syscall(__NR_getpid);
		sharer_watch(s);
		exec_self("1");
	}
}

static enum verdict vfork_prepare(void *arg)
{
	struct sharer *s = arg;

	return region_fill(&s->region);
}

static enum verdict vfork_check(void *arg)
{
	struct sharer *s = arg;

	return region_check(&s->region);
}

TEST_F_TIMEOUT(kill, parent_in_vfork, LIMIT)
{
	struct told told;
	struct sharer *s;
	pid_t pid;

	for (;;) {
		struct victim_ops ops = { .prepare = vfork_prepare,
					  .run = vfork_run };

		s = new_sharer();
		ASSERT_NE(s, NULL);
		ops.arg = s;
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		pid = victim.pid;
		ASSERT_TRUE(within(PATIENCE, __atomic_load_n(&s->alive,
							     __ATOMIC_SEQ_CST)));
		EXPECT_EQ(kill_expedited(&victim), 0);
		EXPECT_TRUE(dies(&victim));
		if (!never_queued(pid))
			break;
		/* It had left its memory before the kernel looked. */
		EXPECT_TRUE(sharer_ends_well(s));
	}
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_STREQ(told.outcome, "shared");
	EXPECT_EQ(told.bytes, 0);
	EXPECT_EQ(s->spoiled, 0);
	/* It can still exec, and what it then is ends well, too. */
	EXPECT_TRUE(sharer_ends_well(s));
}

TEST_F_TIMEOUT(kill, child_of_vfork, LIMIT)
{
	struct told told;
	struct sharer *s;

	for (;;) {
		struct victim_ops ops = { .prepare = vfork_prepare,
					  .check = vfork_check,
					  .run = vfork_run };
		struct victim child = {};

		s = new_sharer();
		ASSERT_NE(s, NULL);
		ops.arg = s;
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		ASSERT_TRUE(within(PATIENCE, __atomic_load_n(&s->alive,
							     __ATOMIC_SEQ_CST)));
		child.pid = s->pid;
		child.pidfd = pidfd_of(s->pid, 0);
		ASSERT_GE(child.pidfd, 0);
		EXPECT_EQ(kill_expedited(&child), 0);
		close(child.pidfd);
		/* The parent continues with its memory in place. */
		EXPECT_EQ(victim_check(&victim), GOOD);
		if (!never_queued(s->pid))
			break;
		/* It had left its memory before the kernel looked. */
		victim_end(&victim);
	}
	ASSERT_TRUE(wait_all_done(s->pid, &told));
	EXPECT_STREQ(told.outcome, "shared");
	EXPECT_EQ(told.bytes, 0);
	EXPECT_EQ(victim_check(&victim), GOOD);
	EXPECT_EQ(s->spoiled, 0);
	/* Nor does it have the flag when it exits. */
	ASSERT_TRUE(trace_exit(victim.pid));
	victim_end(&victim);
	EXPECT_NO_HURRY();
}

TEST_HARNESS_MAIN
