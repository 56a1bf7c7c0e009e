// SPDX-License-Identifier: GPL-2.0-only
//! The system calls that the daemon may make once it has started (seccomp).

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// System calls that are made after the start, in any of the daemon's threads.
///
/// Without those that start programs, make sockets or trace, and without kill(2): signals are sent through
/// pidfds only.
const ALLOWED_CALLS: &[i64] = &[
    // The kill itself.
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_mrelease,
    libc::SYS_sched_setscheduler,
    libc::SYS_setpriority,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpriority,
    // Files.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_fgetxattr,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_signalfd4,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_waitid,
    libc::SYS_wait4,
    // Sockets that are there.
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlock,
    // Threads.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_membarrier,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Who and where we are.
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_capget,
];

/// The forms of some of them that only older architectures have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD_CALLS: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD_CALLS: &[i64] = &[];

/// Has all other system calls fail with EPERM and be logged, in all threads. They do not end the daemon: a
/// call that is missing in the list, or that a library makes only when memory is short, would otherwise do so
/// exactly when the daemon is needed.
pub(super) fn restrict_calls() -> io::Result<()> {
    // glibc starts threads by clone3, whose flags are in memory, where a filter cannot see them. After this
    // error it uses clone, as on an old kernel.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let errno = |errno: i32| SeccompAction::Errno(errno.cast_unsigned());
    load(&compile(clone3, SeccompAction::Allow, errno(libc::ENOSYS))?)?;
    load(&compile(allowed()?, errno(libc::EPERM), SeccompAction::Allow)?)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn allowed() -> io::Result<Rules> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let condition = |argument, op, value| {
        let condition =
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value).map_err(io::Error::other)?;
        SeccompRule::new(vec![condition]).map_err(io::Error::other)
    };
    let number = |constant: i32| u64::from(constant.cast_unsigned());
    let mut rules: Rules = ALLOWED_CALLS.iter().chain(ALLOWED_OLD_CALLS).map(|call| (*call, Vec::new())).collect();
    let thread = number(libc::CLONE_THREAD);
    rules.extend([
        // Decided by the first filter.
        (libc::SYS_clone3, Vec::new()),
        (libc::SYS_clone, vec![condition(0, MaskedEq(thread), thread)?]),
        // For abort(3); not for signals to other processes by their IDs.
        (libc::SYS_tgkill, vec![condition(0, Eq, number(linux::Pid::own().get()))?]),
        // Never new code.
        (libc::SYS_mmap, vec![condition(2, MaskedEq(number(libc::PROT_EXEC)), 0)?]),
        (libc::SYS_mprotect, vec![condition(2, MaskedEq(number(libc::PROT_EXEC)), 0)?]),
        // Limits are read, of this process only; a new one (argument 2) is never set.
        (
            libc::SYS_prlimit64,
            vec![
                SeccompRule::new(vec![
                    SeccompCondition::new(0, SeccompCmpArgLen::Dword, Eq, 0).map_err(io::Error::other)?,
                    SeccompCondition::new(2, SeccompCmpArgLen::Qword, Eq, 0).map_err(io::Error::other)?,
                ])
                .map_err(io::Error::other)?,
            ],
        ),
        (
            libc::SYS_prctl,
            [libc::PR_SET_NAME, libc::PR_SET_TIMERSLACK, libc::PR_SET_VMA]
                .into_iter()
                .map(|option| condition(0, Eq, number(option)))
                .collect::<Result<_, _>>()?,
        ),
    ]);
    Ok(rules)
}

fn compile(rules: Rules, other: SeccompAction, listed: SeccompAction) -> io::Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, other, listed, arch).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

/// Loads a filter for all threads.
fn load(program: &BpfProgram) -> io::Result<()> {
    let instructions = program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k });
    linux::seccomp::load_filter(&instructions.collect::<Vec<_>>())
}
