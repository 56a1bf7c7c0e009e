// SPDX-License-Identifier: GPL-2.0-only

use std::fs;
use std::time::Instant;

use super::super::page_sample::Sizes;
use super::super::table::Counters;
use super::*;

/// A cgroup in a tree of files: anonymous memory, all memory and swap, in bytes.
fn cgroup(tree: &Path, path: &str, bytes: Option<(u64, u64, u64)>, procs: &str) {
    let dir = tree.join(path);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("cgroup.procs"), procs).unwrap();
    if let Some((anon, current, swap)) = bytes {
        fs::write(dir.join("memory.current"), format!("{current}\n")).unwrap();
        fs::write(dir.join("memory.stat"), format!("anon {anon}\nfile 7\nanon_thp 9\n")).unwrap();
        fs::write(dir.join("memory.swap.current"), format!("{swap}\n")).unwrap();
        fs::write(dir.join("memory.oom.group"), "1\n").unwrap();
    }
}

fn walked(tree: &Path) -> Groups {
    let mut groups = Groups::open(tree).unwrap();
    groups.walk(b"", &mut vec![MaybeUninit::uninit(); 8192]);
    groups
}

fn leaf(groups: &Groups, path: &str) -> Option<String> {
    let index = groups.leaf(hash(path.as_bytes()))?;
    Some(String::from_utf8_lossy(groups.nodes[index].full()).into_owned())
}

#[test]
fn a_leaf_counts_for_what_is_below_it_without_figures() {
    let tree = tempfile::tempdir().unwrap();
    let tree = tree.path();
    cgroup(tree, "a.slice", Some((0, 9, 0)), "");
    cgroup(tree, "a.slice/b.scope", Some((5, 9, 2)), "1\n2\n");
    cgroup(tree, "a.slice/b.scope/inner", None, "3\n0\n");
    cgroup(tree, "c", None, "4\n");
    let groups = walked(tree);
    let b = Some("/a.slice/b.scope".to_owned());
    assert_eq!(leaf(&groups, "/a.slice/b.scope"), b);
    assert_eq!(leaf(&groups, "/a.slice/b.scope/inner"), b);
    for none in ["/", "/a.slice", "/c", "/a.slice/x", ""] {
        assert_eq!(leaf(&groups, none), None, "{none}");
    }
    let index = groups.leaf(hash(b"/a.slice/b.scope")).unwrap();
    assert_eq!(groups.bytes(index, &mut [0; 4096]), Some((7, true)));
    assert_eq!(groups.bound(index), Some(11));
    let mut members = Vec::new();
    assert!(groups.members(index, &mut [0; 4096], |pid| members.push(pid.map(Pid::get))));
    members.sort_unstable();
    assert_eq!(members, [None, Some(1), Some(2), Some(3)]);
    // It vanishes.
    fs::remove_dir_all(tree.join("a.slice")).unwrap();
    assert_eq!((groups.bytes(index, &mut [0; 4096]), groups.bound(index)), (None, None));
    assert!(!groups.members(index, &mut [0; 4096], |_| panic!("it has no processes")));
}

#[test]
fn more_than_there_is_room_for_is_left_out() {
    let tree = tempfile::tempdir().unwrap();
    cgroup(tree.path(), "a", Some((1, 1, 1)), "");
    cgroup(tree.path(), &format!("a/{}", "x".repeat(255)), Some((1, 1, 1)), "");
    for i in 0..MAX_NODES {
        fs::create_dir(tree.path().join(i.to_string())).unwrap();
    }
    let groups = walked(tree.path());
    assert_eq!((groups.nodes.len(), groups.nodes.capacity()), (MAX_NODES, MAX_NODES));
    // What is below has a path that is too long: so it is no leaf.
    assert_eq!(leaf(&groups, "/a"), None);
}

#[test]
fn one_protected_member_protects_all() {
    let verdict = |factor| Verdict { factor, ..Verdict::PLAIN };
    let reading = |verdict| Reading { verdict, ..Reading::with(10, 0, Counters::UNKNOWN) };
    let tally = |readings: &[Reading]| {
        let mut tally = Tally::EMPTY;
        readings.iter().for_each(|reading| tally.count(reading));
        tally
    };
    let [plain, preferred, shell, session] = [1.0, 2.0, 0.1, 0.01].map(|factor| reading(verdict(factor)));
    let never = reading(Verdict { never: true, ..verdict(1.0) });
    let both = tally(&[plain, preferred]);
    assert_eq!((both.processes, both.expendable(), both.verdict.factor), (2, true, 2.0));
    // Anybody can ask to be preferred: that decides about a small process, and not about its group.
    let large = Reading { sizes: Sizes { anon: 300, ..preferred.sizes }, ..plain };
    assert_eq!(tally(&[large, preferred]).score(3100), 3200);
    // Nor does the largest about many that are nearly as large.
    let master = Reading { sizes: Sizes { anon: 11, ..plain.sizes }, ..reading(verdict(0.25)) };
    assert_eq!(tally(&[master, plain, plain, plain]).score(4100), 3200);
    assert_eq!(tally(&[master, plain]).verdict.score(400), 400, "a bound, whatever they have by then");
    assert!(!tally(&[plain, never]).expendable() && !tally(&[plain, session]).expendable());
    // `make -j` in a terminal; and a service, all of whose members count for less.
    let all = [tally(&[shell, plain, plain]), tally(&[shell, shell])];
    assert_eq!(all.map(|tally| (tally.expendable(), tally.verdict.factor)), [(true, 1.0), (true, 0.1)]);
    assert!(!tally(&[]).expendable());
    assert_eq!([15, 99].map(|charged| tally(&[shell, plain]).comes_back(charged)), [15, 20]);
    // A kernel thread or zombie, and one that is dying, need no protection.
    let dead = Reading { has_memory: false, ..never };
    let dying = Reading { dying_until: Some(Instant::now()), ..never };
    assert!(tally(&[dead, plain, dying]).expendable());
}
