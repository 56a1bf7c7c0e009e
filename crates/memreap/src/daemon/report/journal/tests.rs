// SPDX-License-Identifier: GPL-2.0-only

use std::io::Read as _;
use std::time::Duration;

use super::super::record::tests::kill;
use super::*;

/// A journal and its reader.
fn journald() -> (Journal, UnixDatagram, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let reader = UnixDatagram::bind(&path).unwrap();
    reader.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    (Journal { output: Output::Journald(connect(&path).unwrap()), lost: 0 }, reader, dir)
}

/// Reads an entry as journald does.
fn entry(reader: &UnixDatagram) -> Vec<(String, Vec<u8>)> {
    let mut buffer = vec![0; 2 * MAX_ENTRY_BYTES];
    let len = reader.recv(&mut buffer).unwrap();
    let mut rest = &buffer[..len];
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|b| *b == b'\n').expect("a field without an end");
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        if let Some(equals) = line.iter().position(|b| *b == b'=') {
            fields.push((line[..equals].to_vec(), line[equals + 1..].to_vec()));
            rest = after;
        } else {
            let (len, after) = after.split_first_chunk::<8>().unwrap();
            let len = usize::try_from(u64::from_le_bytes(*len)).unwrap();
            fields.push((line.to_vec(), after[..len].to_vec()));
            assert_eq!(after[len], b'\n');
            rest = &after[len + 1..];
        }
    }
    fields.into_iter().map(|(name, value)| (String::from_utf8(name).unwrap(), value)).collect()
}

fn value<'a>(entry: &'a [(String, Vec<u8>)], name: &str) -> &'a [u8] {
    let mut found = entry.iter().filter(|(other, _)| other == name);
    let value = &found.next().unwrap_or_else(|| panic!("no {name}")).1;
    assert!(found.next().is_none(), "{name} twice");
    value
}

#[test]
fn an_entry_has_fields_for_machines() {
    let (mut journal, reader, _dir) = journald();
    journal.killed(&kill("hog"));
    let entry = entry(&reader);
    assert!(value(&entry, "MESSAGE").starts_with(b"killed 4711 (hog)"));
    assert_eq!(value(&entry, "MESSAGE_ID"), EntryKind::Killed.id().as_bytes());
    assert_eq!(value(&entry, "PRIORITY"), b"4");
    assert_eq!(value(&entry, "MEMREAP_PID"), b"4711");
    assert_eq!(value(&entry, "MEMREAP_UNIT"), b"a.scope");
    assert_eq!(value(&entry, "MEMREAP_PARENT"), b"17");
    assert_eq!(value(&entry, "MEMREAP_PARENT_COMM"), b"make");
    assert_eq!(value(&entry, "MEMREAP_BYTES"), b"1288490188");
    assert_eq!(value(&entry, "MEMREAP_REASON"), b"stall");
    assert_eq!(value(&entry, "MEMREAP_METHOD"), b"mrelease");
    assert_eq!(value(&entry, "MEMREAP_TOOK_US"), b"41000");
    assert_eq!(journal.lost(), 0);
}

#[test]
fn a_name_cannot_forge_a_field_or_a_line() {
    let (mut journal, reader, _dir) = journald();
    let mut evil = kill("a\nPRIORITY=0\n");
    evil.cgroup.clear();
    evil.cgroup.try_extend_from_slice(b"/x\nMESSAGE=fine\n/y").unwrap();
    evil.processes = 2;
    journal.killed(&evil);
    let entry = entry(&reader);
    assert_eq!(value(&entry, "PRIORITY"), b"4");
    assert_eq!(value(&entry, "MEMREAP_COMM"), b"a\nPRIORITY=0\n");
    assert_eq!(value(&entry, "MEMREAP_CGROUP"), b"/x\nMESSAGE=fine\n/y");
    assert!(!value(&entry, "MESSAGE").contains(&b'\n'));
}

#[test]
fn what_does_not_fit_leaves_the_rest_valid() {
    let (mut journal, reader, _dir) = journald();
    journal.write(EntryKind::Trouble, Priority::Error, &Text::of("x"), |entry| {
        entry.bytes("MEMREAP_BIG", &[b'x'; 2 * MAX_ENTRY_BYTES]);
        entry.field("MEMREAP_PID", 1);
    });
    let entry = entry(&reader);
    assert_eq!(value(&entry, "MEMREAP_PID"), b"1");
    assert!(entry.iter().all(|(name, _)| name != "MEMREAP_BIG"));
}

#[test]
fn a_journal_that_does_not_read_is_not_waited_for() {
    let (mut journal, _reader, _dir) = journald();
    for _ in 0..10_000 {
        journal.log(EntryKind::Started, Priority::Info, format_args!("x"));
    }
    assert!(journal.lost() > 0);
}

#[test]
fn lines_have_a_priority_and_one_end() {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut journal = Journal { output: Output::Lines { fd: writer.into(), socket: false, prefix: true }, lost: 0 };
    journal.log(EntryKind::Reloaded, Priority::Error, format_args!("wrong\n<0>config"));
    journal.log(EntryKind::Reloaded, Priority::Error, format_args!("{:2000}", 1));
    // Nothing is read: once the pipe is full, lines are lost.
    for _ in 0..1000 {
        journal.log(EntryKind::Started, Priority::Info, format_args!("{:900}", 1));
    }
    assert!(journal.lost() > 0);
    drop(journal);
    let mut lines = String::new();
    reader.read_to_string(&mut lines).unwrap();
    let mut lines = lines.lines();
    assert_eq!(lines.next(), Some("<3>memreap: wrong <0>config"));
    assert!(lines.all(|line| line.starts_with("<3>memreap: ") || line.starts_with("<6>memreap: ")));
}

#[test]
fn the_journal_is_used_only_for_our_own_standard_error() {
    assert!(!stderr_is_journal(None));
    assert!(!stderr_is_journal(Some("1:2")));
    assert!(!stderr_is_journal(Some("x")));
    let stat = rustix::fs::fstat(stderr()).unwrap();
    assert!(stderr_is_journal(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
}
