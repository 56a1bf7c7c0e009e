// SPDX-License-Identifier: GPL-2.0-only
//! The running system, with the crate `procfs` as the judge where it reads the same files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::fmt::Debug;

use linux::process::{State, pids};
use linux::psi::Pressure;
use linux::{Pid, Process, Root, cgroup, features, meminfo, mountinfo, release, vmstat, zram};
use procfs::Current as _;

/// What both say of the same moment: read between two readings of the judge's that agree.
fn at_one_moment<A: Debug, B>(judge: impl Fn() -> A, ours: impl Fn() -> B) -> (A, B) {
    for _ in 0..1000 {
        let before = judge();
        let mine = ours();
        if format!("{before:?}") == format!("{:?}", judge()) {
            return (before, mine);
        }
    }
    panic!("the system does not hold still");
}

fn processes() -> impl Iterator<Item = (procfs::process::Process, Process)> {
    [1, Pid::own().get()].into_iter().map(|pid| {
        (procfs::process::Process::new(pid).unwrap(), Process::open(&Root::system(), Pid::new(pid).unwrap()).unwrap())
    })
}

#[test]
fn stat() {
    for (judge, process) in processes() {
        let (theirs, ours) = at_one_moment(|| judge.stat().unwrap(), || process.stat().unwrap());
        assert_eq!(ours.comm.as_bytes(), theirs.comm.as_bytes());
        assert_eq!(ours.state, State::Other(theirs.state.try_into().unwrap()));
        assert_eq!(ours.ppid.map_or(0, Pid::get), theirs.ppid);
        assert_eq!((ours.flags, ours.majflt), (theirs.flags, theirs.majflt));
        assert_eq!(i64::from(ours.nice), theirs.nice);
        assert_eq!(ours.start_time, theirs.starttime);
        assert_eq!(Some(ours.policy), theirs.policy);
        assert!(!ours.is_kernel_thread());
    }
}

#[test]
fn status() {
    for (judge, process) in processes() {
        let (theirs, ours) = at_one_moment(|| judge.status().unwrap(), || process.status().unwrap());
        let kib = |size: Option<u64>| size.map(|kib| kib << 10);
        assert_eq!(ours.comm.to_string(), theirs.name);
        assert_eq!(ours.tgid.get(), theirs.tgid);
        assert_eq!(ours.ppid.map_or(0, Pid::get), theirs.ppid);
        assert_eq!((ours.uid, ours.effective_uid), (theirs.ruid, theirs.euid));
        assert!(ours.has_memory);
        assert_eq!(Some(ours.vm_size), kib(theirs.vmsize));
        assert_eq!(Some(ours.rss_anon), kib(theirs.rssanon));
        assert_eq!(Some(ours.rss_shmem), kib(theirs.rssshmem));
        assert_eq!(Some(ours.swap), kib(theirs.vmswap));
        assert_eq!(Some(ours.core_dumping), theirs.core_dumping);
        assert_eq!(u64::from(ours.threads), theirs.threads);
    }
}

#[test]
fn statm() {
    for (judge, process) in processes() {
        let (theirs, ours) = at_one_moment(|| judge.statm().unwrap(), || process.statm().unwrap());
        assert_eq!(ours.resident, theirs.resident * procfs::page_size());
    }
}

#[test]
fn smaps_rollup() {
    for (judge, process) in processes() {
        let ours = || match process.smaps_rollup() {
            Err(e) if e.is_denied() => None,
            ours => Some(ours.unwrap()),
        };
        if ours().is_none() {
            // Process 1 may be traced by hardly anyone. The judge cannot read it, either.
            assert_ne!(process.pid(), Pid::own());
            judge.smaps_rollup().unwrap_err();
            continue;
        }
        let rollup = || judge.smaps_rollup().unwrap().memory_map_rollup.0.remove(0).extension.map;
        // What the judge gives is in bytes, in a map whose order changes.
        let (theirs, ours) =
            at_one_moment(|| rollup().into_iter().collect::<std::collections::BTreeMap<_, _>>(), || ours().unwrap());
        for (key, value) in [
            ("Rss", ours.rss),
            ("Pss_Anon", ours.pss_anon),
            ("Pss_File", ours.pss_file),
            ("Pss_Shmem", ours.pss_shmem),
            ("Private_Clean", ours.private_clean),
            ("Private_Dirty", ours.private_dirty),
            ("Anonymous", ours.anonymous),
            ("SwapPss", ours.swap_pss),
        ] {
            assert_eq!(theirs.get(key), Some(&value), "{key}");
        }
    }
}

#[test]
fn the_other_files_of_a_process() {
    for (judge, process) in processes() {
        let cmdline: Vec<_> = process.cmdline().unwrap().into_iter().map(|arg| arg.into_string().unwrap()).collect();
        assert_eq!(cmdline, judge.cmdline().unwrap());
        let theirs = judge.cgroups().unwrap().0.into_iter().find(|c| c.hierarchy == 0).map(|c| c.pathname.into());
        assert_eq!(process.cgroup().unwrap(), theirs);
        match process.exe() {
            Err(e) if e.is_denied() && process.pid() != Pid::own() => drop(judge.exe().unwrap_err()),
            exe => assert_eq!(exe.unwrap(), judge.exe().ok()),
        }
    }
}

#[test]
fn the_list_of_processes() {
    let (theirs, ours) = at_one_moment(
        || {
            let mut pids: Vec<_> =
                procfs::process::all_processes().unwrap().filter_map(|p| p.ok().map(|p| p.pid)).collect();
            pids.sort_unstable();
            pids
        },
        || pids(&Root::system()).unwrap().map(Pid::get).collect::<Vec<_>>(),
    );
    assert_eq!(ours, theirs);
}

#[test]
fn every_process_can_be_read_or_says_why_not() {
    let fine = |error: Option<linux::Error>| match error {
        // ESRCH: without memory.
        Some(e) if !e.is_gone() && !e.is_denied() && e.raw_os_error() != Some(libc::ESRCH) => panic!("{e:?}"),
        _ => (),
    };
    for pid in pids(&Root::system()).unwrap() {
        match Process::open(&Root::system(), pid) {
            Err(e) => fine(Some(e)),
            Ok(p) => {
                fine(p.stat().err());
                fine(p.status().err());
                fine(p.statm().err());
                fine(p.cmdline().err());
                fine(p.comm().err());
                fine(p.cgroup().err());
                fine(p.exe().err());
                fine(p.smaps_rollup().err());
            }
        }
    }
}

#[test]
fn memory() {
    let (theirs, ours) =
        at_one_moment(|| procfs::Meminfo::current().unwrap(), || meminfo::MemInfo::read(&Root::system()).unwrap());
    assert_eq!((ours.total, ours.free), (theirs.mem_total, theirs.mem_free));
    assert_eq!(Some(ours.available), theirs.mem_available);
    assert_eq!((ours.buffers, ours.cached, ours.swap_cached), (theirs.buffers, theirs.cached, theirs.swap_cached));
    assert_eq!((ours.swap_total, ours.swap_free), (theirs.swap_total, theirs.swap_free));
    assert_eq!(Some(ours.anon), theirs.anon_pages);
    assert_eq!(Some(ours.shmem), theirs.shmem);
    assert_eq!(Some(ours.slab_reclaimable), theirs.s_reclaimable);
    assert_eq!(Some(ours.slab_unreclaimable), theirs.s_unreclaim);
    assert_eq!(Some(ours.page_tables), theirs.page_tables);
}

#[test]
fn counters() {
    let path = std::path::Path::new("/proc/vmstat");
    let read = || {
        let names = ["oom_kill", "no_such_counter"];
        vmstat::parse(path, &std::fs::read(path).unwrap(), names).unwrap()
    };
    let (theirs, [oom_kill, none]) = at_one_moment(|| procfs::vmstat().unwrap()["oom_kill"], read);
    assert_eq!(oom_kill.map(u64::cast_signed), Some(theirs));
    assert_eq!(none, None);
}

#[test]
fn mounts() {
    let theirs = procfs::process::Process::myself().unwrap().mountinfo().unwrap().0;
    let ours = mountinfo::own(&Root::system()).unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours.mount_point, theirs.mount_point);
        assert_eq!(ours.root, std::path::Path::new(&theirs.root));
        assert_eq!(ours.fs_type.to_str(), Some(theirs.fs_type.as_str()));
    }
    if let Some(v2) = cgroup::Hierarchy::find(&Root::system()).unwrap() {
        assert!(v2.path.join("cgroup.procs").exists());
    }
}

#[test]
fn the_rest_of_what_doctor_asks() {
    let root = Root::system();
    let release = release::Release::read(&root).unwrap();
    let uname = rustix::system::uname();
    assert_eq!(release.text, uname.release().to_str().unwrap());
    let version = procfs::KernelVersion::current().unwrap();
    assert_eq!((release.major, release.minor), (u32::from(version.major), u32::from(version.minor)));
    zram::devices(&root).unwrap();
    for topic in features::Topic::ALL {
        topic.is_on(&root).unwrap();
    }
    features::expedite_min_kbytes(&root).unwrap();
    features::expedite_cpu_percent(&root).unwrap();
}

#[test]
fn pressure() {
    let root = Root::system();
    match Pressure::read(&root) {
        Err(e) if e.is_unsupported() => testing::skipped("no PSI here"),
        pressure => {
            let pressure = pressure.unwrap();
            assert!((0.0..=100.0).contains(&pressure.some.avg10));
            // Where all tasks wait, some do.
            assert!(pressure.full.is_none_or(|full| full.total <= pressure.some.total));
        }
    }
}
