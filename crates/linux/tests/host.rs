// SPDX-License-Identifier: GPL-2.0-only
//! The running system, with the crate `procfs` as the judge where it reads the same files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::fmt::Debug;

use linux::process::{State, pids};
use linux::psi::Pressure;
use linux::{Pid, Process, Root, cgroup, features, meminfo, mountinfo, release, swaps, vmstat, zram};
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
        (
            procfs::process::Process::new(pid).unwrap(),
            Process::open(&Root::system(), Pid::new(pid).unwrap()).unwrap(),
        )
    })
}

#[test]
fn stat() {
    for (judge, process) in processes() {
        let (theirs, ours) = at_one_moment(|| judge.stat().unwrap(), || process.stat().unwrap());
        assert_eq!(ours.pid.get(), theirs.pid);
        assert_eq!(ours.comm.as_bytes(), theirs.comm.as_bytes());
        assert_eq!(ours.state == State::Sleeping, theirs.state == 'S');
        assert_eq!(ours.state == State::Running, theirs.state == 'R');
        assert_eq!(ours.ppid.map_or(0, Pid::get), theirs.ppid);
        assert_eq!((ours.pgrp, ours.session), (theirs.pgrp, theirs.session));
        assert_eq!((ours.flags, ours.majflt), (theirs.flags, theirs.majflt));
        assert_eq!(i64::from(ours.nice), theirs.nice);
        assert_eq!(ours.start_time, theirs.starttime);
        assert_eq!(ours.rss, theirs.rss * procfs::page_size());
        assert_eq!(Some(ours.processor), theirs.processor);
        assert_eq!(Some(ours.policy), theirs.policy);
        assert!(!ours.is_kernel_thread());
    }
}

#[test]
fn status() {
    for (judge, process) in processes() {
        let (theirs, ours) = at_one_moment(|| judge.status().unwrap(), || process.status().unwrap());
        let kib = |size: Option<u64>| size.map(|kib| kib << 10);
        assert_eq!(ours.name.to_string(), theirs.name);
        assert_eq!((ours.tgid.get(), ours.pid.get()), (theirs.tgid, theirs.pid));
        assert_eq!(ours.ppid.map_or(0, Pid::get), theirs.ppid);
        assert_eq!(
            (ours.uid.real, ours.uid.effective, ours.uid.saved, ours.uid.fs),
            (theirs.ruid, theirs.euid, theirs.suid, theirs.fuid)
        );
        assert!(ours.has_memory);
        assert_eq!(Some(ours.vm_size), kib(theirs.vmsize));
        assert_eq!(Some(ours.rss), kib(theirs.vmrss));
        assert_eq!(Some(ours.rss_anon), kib(theirs.rssanon));
        assert_eq!(Some(ours.rss_file), kib(theirs.rssfile));
        assert_eq!(Some(ours.rss_shmem), kib(theirs.rssshmem));
        assert_eq!(Some(ours.swap), kib(theirs.vmswap));
        assert_eq!(Some(ours.core_dumping), theirs.core_dumping);
        assert_eq!(u64::from(ours.threads), theirs.threads);
        assert_eq!((ours.sig_pending, ours.shared_pending), (theirs.sigpnd, theirs.shdpnd));
        assert_eq!(
            (ours.sig_blocked, ours.sig_ignored, ours.sig_caught),
            (theirs.sigblk, theirs.sigign, theirs.sigcgt)
        );
        assert_eq!(ours.cap_effective, theirs.capeff);
    }
}

#[test]
fn statm() {
    for (judge, process) in processes() {
        let (theirs, ours) = at_one_moment(|| judge.statm().unwrap(), || process.statm().unwrap());
        let pages = [theirs.size, theirs.resident, theirs.shared, theirs.text, theirs.data];
        assert_eq!(
            [ours.size, ours.resident, ours.shared, ours.text, ours.data],
            pages.map(|p| p * procfs::page_size())
        );
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
            println!("skipped for process {}: it may not be traced", process.pid());
            continue;
        }
        let rollup = || judge.smaps_rollup().unwrap().memory_map_rollup.0.remove(0).extension.map;
        // What the judge gives is in bytes, in a map whose order changes.
        let (theirs, ours) = at_one_moment(
            || rollup().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            || ours().unwrap(),
        );
        for (key, value) in [
            ("Rss", ours.rss),
            ("Pss", ours.pss),
            ("Pss_Anon", ours.pss_anon),
            ("Pss_File", ours.pss_file),
            ("Pss_Shmem", ours.pss_shmem),
            ("Private_Clean", ours.private_clean),
            ("Private_Dirty", ours.private_dirty),
            ("Anonymous", ours.anonymous),
            ("Swap", ours.swap),
            ("SwapPss", ours.swap_pss),
            ("Locked", ours.locked),
        ] {
            assert_eq!(theirs.get(key), Some(&value), "{key}");
        }
    }
}

#[test]
fn the_other_files_of_a_process() {
    for (judge, process) in processes() {
        let cmdline: Vec<_> =
            process.cmdline().unwrap().into_iter().map(|arg| arg.into_string().unwrap()).collect();
        assert_eq!(cmdline, judge.cmdline().unwrap());
        assert_eq!(process.oom_score_adj().unwrap(), judge.oom_score_adj().unwrap());
        let (theirs, ours) = at_one_moment(|| judge.oom_score().unwrap(), || process.oom_score().unwrap());
        assert_eq!(ours, u32::from(theirs));
        let theirs =
            judge.cgroups().unwrap().0.into_iter().find(|c| c.hierarchy == 0).map(|c| c.pathname.into());
        assert_eq!(process.cgroup().unwrap(), theirs);
        match process.exe() {
            Err(e) if e.is_denied() => println!("skipped: {e} is not for us"),
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
        Some(e) if !e.is_gone() && !e.is_denied() && !matches!(e, linux::Error::NoMemory { .. }) => {
            panic!("{e:?}")
        }
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
    let (theirs, ours) = at_one_moment(
        || procfs::Meminfo::current().unwrap(),
        || meminfo::MemInfo::read(&Root::system()).unwrap(),
    );
    assert_eq!((ours.total, ours.free), (theirs.mem_total, theirs.mem_free));
    assert_eq!(Some(ours.available), theirs.mem_available);
    assert_eq!(
        (ours.buffers, ours.cached, ours.swap_cached),
        (theirs.buffers, theirs.cached, theirs.swap_cached)
    );
    assert_eq!((ours.swap_total, ours.swap_free), (theirs.swap_total, theirs.swap_free));
    assert_eq!(ours.dirty, theirs.dirty);
    assert_eq!((Some(ours.anon), ours.mapped), (theirs.anon_pages, theirs.mapped));
    assert_eq!(Some(ours.shmem), theirs.shmem);
    assert_eq!(Some(ours.slab_reclaimable), theirs.s_reclaimable);
    assert_eq!(Some(ours.slab_unreclaimable), theirs.s_unreclaim);
    assert_eq!(Some(ours.page_tables), theirs.page_tables);
    assert_eq!(ours.zswap, theirs.z_swap);
}

#[test]
fn counters() {
    let root = Root::system();
    let all = vmstat::all(&root).unwrap();
    let theirs = procfs::vmstat().unwrap();
    assert_eq!(all.keys().collect::<std::collections::BTreeSet<_>>(), theirs.keys().collect());
    let [oom_kill, none] = vmstat::counters(&root, ["oom_kill", "no_such_counter"]).unwrap();
    assert!(oom_kill >= all.get("oom_kill").copied() && oom_kill.is_some());
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
        // No source is "none" for the kernel and None for the judge.
        assert_eq!(ours.source.to_str(), theirs.mount_source.as_deref().or(Some("none")));
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
    assert_eq!(
        (release.major, release.minor, release.patch),
        (u32::from(version.major), u32::from(version.minor), u32::from(version.patch))
    );
    swaps::read(&root).unwrap();
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
        Err(e) if e.is_unsupported() => println!("skipped: no PSI here"),
        pressure => {
            let pressure = pressure.unwrap();
            assert!((0.0..=100.0).contains(&pressure.some.avg10));
            // Where all tasks wait, some do.
            assert!(pressure.full.is_none_or(|full| full.total <= pressure.some.total));
        }
    }
}
