// SPDX-License-Identifier: GPL-2.0-only

use std::fs;

use super::*;

#[test]
fn figures_of_memory() {
    let path = Path::new("memory.stat");
    let text = b"anon 8\nfile 99\ninactive_file 3\nactive_file 4\nslab_reclaimable 5\nanon_thp x\n";
    let stat = MemoryStat::parse(path, text).unwrap();
    assert_eq!(stat, MemoryStat { file: 7, slab_reclaimable: 5 });
    for wrong in [&b"active_file\n"[..], b"active_file x\n", b"active_file 1"] {
        assert!(MemoryStat::parse(path, wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(limit(path, b"max\n").unwrap(), None);
    assert_eq!(limit(path, b"4096\n").unwrap(), Some(4096));
    assert!(limit(path, b"maximum\n").is_err());
    assert_eq!(amount(path, b"1\n").unwrap(), 1);
}

#[test]
fn found_where_it_is_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::at(dir.path());
    fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    let mountinfo = dir.path().join("proc/self/mountinfo");
    fs::write(&mountinfo, "1 2 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n").unwrap();
    assert_eq!(Hierarchy::find(&root).unwrap(), None);

    fs::write(&mountinfo, "1 2 0:1 / /my\\040cgroups rw - cgroup2 cgroup2 rw\n").unwrap();
    let path = dir.path().join("my cgroups");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("cgroup.controllers"), "cpu mem\n").unwrap();
    assert!(!Hierarchy::find(&root).unwrap().unwrap().controls_memory);
    fs::write(path.join("cgroup.controllers"), "cpu memory\n").unwrap();
    let found = Hierarchy::find(&root).unwrap().unwrap();
    assert_eq!(found.path, path);
    assert!(found.controls_memory);
    assert_eq!(found.dir(Path::new("/a/b")), path.join("a/b"));
}

/// A tree in which we are in /kube/pod/ctr, with this mount, and told to be in that cgroup.
fn in_a_container(mounted: &str, told: &str) -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let own = Pid::own();
    write(
        "proc/self/mountinfo",
        &format!("1 2 0:1 /../x /own rw - cgroup2 cgroup2 rw\n3 2 0:1 {mounted} /cg rw - cgroup2 cgroup2 rw\n"),
    );
    write("cg/cgroup.controllers", "memory\n");
    write("own/cgroup.controllers", "memory\n");
    write("proc/self/cgroup", &format!("0::{told}\n"));
    write(&format!("proc/{own}/cgroup"), &format!("0::{told}\n"));
    for (group, members) in [
        ("", "1\n"),
        ("kube", ""),
        ("kube/other", "2\n"),
        ("kube/other/ctr", "3\n0\n"),
        ("kube/pod/ctr", &*format!("4\n{own}\n")),
        ("system", "5\n"),
    ] {
        write(&format!("cg/{group}/cgroup.procs"), members);
    }
    write("proc/1/cgroup", "0::/../../..\n");
    write("proc/5/cgroup", "0::/../../../system\n");
    let root = Root::at(dir.path());
    (dir, root)
}

fn resolved(namespace: &Namespace, told: &str) -> Option<String> {
    let parts = namespace.resolve(told.as_bytes())?;
    Some(String::from_utf8(parts.concat()).unwrap())
}

#[test]
fn paths_outside_of_a_private_namespace_are_those_of_the_host_where_that_is_mounted() {
    for (mounted, told) in [("/../../..", "/"), ("/../..", "/ctr"), ("/..", "/pod/ctr")] {
        let (_dir, root) = in_a_container(mounted, told);
        let found = Hierarchy::find(&root).unwrap().unwrap();
        let own = Process::open(&root, Pid::own()).unwrap();
        assert_eq!(found.cgroup_of(&own).unwrap().unwrap(), Path::new("/kube/pod/ctr"), "{mounted}");
    }
    let (_dir, root) = in_a_container("/../../..", "/");
    let found = Hierarchy::find(&root).unwrap().unwrap();
    assert_eq!(found.path, root.resolve(Path::new("/cg")));
    for (told, path) in [
        ("/", "/kube/pod/ctr"),
        ("/a", "/kube/pod/ctr/a"),
        ("/..", "/kube/pod"),
        ("/../..x", "/kube/pod/..x"),
        ("/../../other/ctr", "/kube/other/ctr"),
        ("/../../../system", "/system"),
        ("/../../..", "/"),
        ("", ""),
    ] {
        assert_eq!(resolved(&found.namespace, told).as_deref(), Some(path), "{told}");
    }
    assert_eq!(resolved(&found.namespace, "/../../../.."), None);
    assert_eq!(found.processes_outside(&root).unwrap(), 0);
}

#[test]
fn what_cannot_be_resolved_is_counted() {
    // The container's own, one that is not above us, and one in which we are not found.
    for (mounted, told) in [("/", "/"), ("/../../../a", "/"), ("/../..", "/")] {
        let (_dir, root) = in_a_container(mounted, told);
        let found = Hierarchy::find(&root).unwrap().unwrap();
        assert_eq!(resolved(&found.namespace, "/../../../system"), None, "{mounted}");
        assert!(found.processes_outside(&root).unwrap() >= 2, "{mounted}");
    }
    let whole = Namespace(Some(Vec::new()));
    for path in ["/", "/a/b", "/..a", ""] {
        assert_eq!(resolved(&whole, path).as_deref(), Some(path));
    }
    assert_eq!((resolved(&whole, "/.."), resolved(&whole, "/../a")), (None, None));
}
