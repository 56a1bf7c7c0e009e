// SPDX-License-Identifier: GPL-2.0-only

use std::fs;
use std::os::unix::fs::symlink;

use super::super::record::tests::kill;
use super::*;
use crate::choice::Parent;

#[test]
fn kills_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/history.jsonl");
    assert_eq!(read(&path, 10).unwrap(), []);
    assert!(History::open(&path).unwrap_err().to_string().ends_with("/state: make it"));
    fs::create_dir(dir.path().join("state")).unwrap();
    History::open(&path).unwrap().append(&kill("one")).unwrap();
    let mut history = History::open(&path).unwrap();
    history.append(&kill("two")).unwrap();
    history.append(&kill("three")).unwrap();
    let names = |n| read(&path, n).unwrap().into_iter().map(|e| e.comm).collect::<Vec<_>>();
    assert_eq!(names(10), ["one", "two", "three"]);
    assert_eq!(names(2), ["two", "three"]);
    let entry = read(&path, 1).unwrap().remove(0);
    assert_eq!((entry.pid, entry.bytes, entry.took_us), (4711, 1_288_490_188, 41_000));
    assert_eq!((entry.reason.as_str(), entry.ending.as_str()), ("stall", "back"));
}

#[test]
fn the_longest_names_fit_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut kill = kill(&"\x1b".repeat(64));
    kill.parent = kill.parent.map(|parent| Parent { comm: kill.comm, ..parent });
    kill.command_line = std::iter::repeat_n(b'\n', 200).collect();
    kill.cgroup = std::iter::repeat_n(b'\n', crate::choice::MAX_CGROUP_PATH_BYTES).collect();
    kill.because = "\x01".repeat(160).as_str().try_into().unwrap();
    kill.rule = "\x01".repeat(64).as_str().try_into().unwrap();
    let mut history = History::open(&path).unwrap();
    history.append(&kill).unwrap();
    let entry = read(&path, 1).unwrap().remove(0);
    assert_eq!(entry.comm, r"\u{1b}".repeat(64));
    assert_eq!(entry.because, "\x01".repeat(160));
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
}

#[test]
fn a_line_that_was_cut_off_costs_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    History::open(&path).unwrap().append(&kill("one")).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], &whole[..whole.len() / 2]].concat()).unwrap();
    History::open(&path).unwrap().append(&kill("two")).unwrap();
    let names: Vec<_> = read(&path, 9).unwrap().into_iter().map(|e| e.comm).collect();
    assert_eq!(names, ["one", "two"]);
}

#[test]
fn a_large_file_is_rotated_and_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut history = History::open(&path).unwrap();
    history.append(&kill("first")).unwrap();
    while history.file.metadata().unwrap().len() < ROTATE_AT_BYTES {
        history.append(&kill("filler")).unwrap();
    }
    history.append(&kill("last")).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 1024);
    let all = read(&path, usize::MAX).unwrap();
    assert_eq!((all[0].comm.as_str(), all.last().unwrap().comm.as_str()), ("first", "last"));
    assert_eq!(read(&path, 1).unwrap()[0].comm, "last");
}

#[test]
fn what_was_removed_or_renamed_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let names = || read(&path, 9).unwrap().into_iter().map(|e| e.comm).collect::<Vec<_>>();
    let mut history = History::open(&path).unwrap();
    history.append(&kill("one")).unwrap();
    fs::remove_file(&path).unwrap();
    history.append(&kill("two")).unwrap();
    assert_eq!(names(), ["two"]);
    // As another daemon does with a large file.
    let mut other = History::open(&path).unwrap();
    fs::rename(&path, rotated(&path)).unwrap();
    other.append(&kill("three")).unwrap();
    history.append(&kill("four")).unwrap();
    assert_eq!(names(), ["two", "three", "four"]);
}

#[test]
fn two_daemons_rotate_a_file_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut histories = [(); 2].map(|()| History::open(&path).unwrap());
    histories[0].append(&kill("first")).unwrap();
    while histories[0].file.metadata().unwrap().len() < ROTATE_AT_BYTES {
        histories[0].append(&kill("filler")).unwrap();
    }
    histories.iter_mut().for_each(|history| history.append(&kill("last")).unwrap());
    let all = read(&path, usize::MAX).unwrap();
    let last: Vec<_> = all.iter().rev().take(3).map(|entry| entry.comm.as_str()).collect();
    assert_eq!((all[0].comm.as_str(), &last[..]), ("first", &["last", "last", "filler"][..]));
}

#[test]
fn what_is_no_kill_is_skipped_and_what_is_no_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    assert!(read(&path, 9).unwrap().is_empty());
    History::open(&path).unwrap().append(&kill("one")).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [b"\n\xff\n\"no kill\"\n{}\n", &whole[..], b"\n[1]\n"].concat()).unwrap();
    assert_eq!(read(&path, 9).unwrap().len(), 1);
    // However long it is: what is cut off at the beginning of what is read is no kill.
    let long = " ".repeat(usize::try_from(MAX_READ_BYTES).unwrap()).into_bytes();
    fs::write(&path, [&long[..], b"\n", &whole].concat()).unwrap();
    assert_eq!(read(&path, 9).unwrap().len(), 1);
    assert!(read(&path, 0).unwrap().is_empty());
    for no_file in ["/dev/zero", "/"] {
        assert!(read(Path::new(no_file), 1).is_err(), "{no_file}");
    }
}

#[test]
fn nothing_but_a_regular_file_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink(dir.path().join("elsewhere"), &link).unwrap();
    assert!(History::open(&link).is_err());
    assert!(!dir.path().join("elsewhere").exists());
    let pipe = dir.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: `name` ends with a NUL and lives.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(History::open(&pipe).is_err());
}
