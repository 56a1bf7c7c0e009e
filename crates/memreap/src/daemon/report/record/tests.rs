// SPDX-License-Identifier: GPL-2.0-only

use super::*;

/// A kill whose memory came back.
pub(crate) fn kill(comm: &str) -> KillRecord {
    let mut cgroup = CgroupPath::new();
    cgroup.try_extend_from_slice(b"/user.slice/a.scope").unwrap();
    KillRecord {
        unix_ms: 1_700_000_000_123,
        pid: Pid::new(4711).unwrap(),
        comm: Comm::new(comm.as_bytes()).unwrap(),
        uid: 1000,
        cgroup,
        parent: Some(Parent { pid: Pid::new(17).unwrap(), comm: Comm::new(b"make").unwrap() }),
        command_line: b"hog --size 1.2".iter().copied().collect(),
        processes: 1,
        sharers: 0,
        whole: false,
        expected: 1_288_490_188,
        freed: Some(1_300_000_000),
        exact: true,
        reason: Reason::Stall,
        because: ArrayString::from("80 MiB of 2.0 GiB were available, gone in 0.3 s at 400 MiB/s").unwrap(),
        rule: ArrayString::new(),
        before: Before::None,
        method: Method::Mrelease,
        ending: Ending::Back,
        available: [80 << 20, 1300 << 20],
        took: Duration::from_millis(41),
        choice_took: Duration::from_millis(3),
    }
}

#[test]
fn one_line_says_who_what_came_back_and_why() {
    let mut kill = kill("hog");
    assert_eq!(
        kill.to_string(),
        "killed 4711 (hog), user 1000: 1.2 GiB back in 41 ms by mrelease; 80 MiB of 2.0 GiB were available, \
         gone in 0.3 s at 400 MiB/s; parent 17 (make); command line \"hog --size 1.2\""
    );
    kill.freed = Some(6 << 20);
    let text = kill.to_string();
    assert!(text.contains(": 6.0 MiB of 1.2 GiB back in 41 ms by mrelease; "), "{text}");
    kill.freed = None;
    kill.because.clear();
    kill.parent = None;
    kill.command_line.clear();
    kill.rule.push_str("browser");
    kill.exact = false;
    let mut line = |ending| {
        kill.ending = ending;
        kill.to_string()
    };
    let rule = "; rule \"browser\"";
    assert_eq!(line(Ending::Late), format!("killed 4711 (hog), user 1000: about 1.2 GiB not back after 41 ms{rule}"));
    assert_eq!(line(Ending::Gone), format!("4711 (hog), user 1000, was gone before the signal{rule}"));
    assert_eq!(line(Ending::DryRun), format!("would kill 4711 (hog), user 1000: about 1.2 GiB would come back{rule}"));
    assert_eq!(
        line(Ending::Refused(libc::EPERM)),
        format!("could not kill 4711 (hog), user 1000: not permitted (CAP_KILL){rule}")
    );
    kill.before = Before::Freed;
    kill.ending = Ending::Averted;
    assert_eq!(
        kill.to_string(),
        format!("spared 4711 (hog), user 1000: the reason to kill is gone{rule}; the command before it: freed")
    );
    kill.before = Before::None;
    kill.ending = Ending::Exited;
    assert_eq!(
        kill.to_string(),
        format!("asked 4711 (hog), user 1000, to end, and it did: it held about 1.2 GiB{rule}")
    );
    kill.processes = 12;
    kill.ending = Ending::Back;
    kill.sharers = 11;
    let text = kill.to_string();
    assert!(text.starts_with("killed 4711 (hog), user 1000, and 11 more that share its memory: "), "{text}");
    for (sharers, whole, words) in [
        (0, false, "11 more of /user.slice/a.scope"),
        (8, false, "8 more that share its memory, and 3 more of /user.slice/a.scope"),
        (8, true, "all of /user.slice/a.scope, 12 processes"),
    ] {
        (kill.sharers, kill.whole) = (sharers, whole);
        let text = kill.to_string();
        assert!(text.starts_with(&format!("killed 4711 (hog), user 1000, and {words}: ")), "{text}");
    }
}
