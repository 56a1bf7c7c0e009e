// SPDX-License-Identifier: GPL-2.0-only

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

#[test]
fn names() {
    let fits = |pattern: &str, name: &str| Pattern::name(pattern).unwrap().fits(name.as_bytes());
    for (pattern, name) in [
        ("a", "a"),
        ("*", ""),
        ("*", "x/y"),
        ("systemd-*", "systemd-"),
        ("systemd-*", "systemd-journald"),
        ("*d", "addd"),
        ("a*b*c", "aXbbYcc"),
        ("?b", "ab"),
        ("a**b", "axb"),
        ("Web Content", "Web Content"),
        // The kernel keeps 15 bytes.
        ("gnome-session-binary", "gnome-session-b"),
        ("gnome-session-binary*", "gnome-session-b"),
        ("ääääääää", "ääääääää"),
    ] {
        let kept = &name.as_bytes()[..name.len().min(15)];
        assert!(Pattern::name(pattern).unwrap().fits(kept), "{pattern} {name}");
    }
    for (pattern, name) in [
        ("a", "ab"),
        ("a", "A"),
        ("ab", "a"),
        ("systemd-*", "systemd"),
        ("*d", "dx"),
        ("?", ""),
        ("a?", "a"),
        ("a*b*c", "acb"),
        ("[ab]", "a"),
        ("gnome-session-binary", "gnome-session"),
        ("gnome-*-binary", "gnome-session-b"),
    ] {
        assert!(!fits(pattern, name), "{pattern} {name}");
    }
    for longer in ["memory-*-test-process", "*very-long-notification-daemon"] {
        let problem = Pattern::name(longer).unwrap_err();
        assert!(problem.contains("the kernel keeps 15 bytes"), "{problem}");
    }
}

#[test]
fn command_lines() {
    let fits = |pattern: &str, line: &str| Pattern::command_line(pattern).unwrap().fits(line.as_bytes());
    assert!(fits("python3 *train.py*", "python3\0/home/x/train.py\0--fast\0"));
    assert!(fits("*/java * -jar x.jar", "/usr/bin/java\0-Xmx1g\0-jar\0x.jar\0"));
    assert!(!fits("python3", "python3\0x\0"));
    assert!(!fits("a b", "a\0\0b"));
    // PostgreSQL writes a title, a space, and NULs up to where its arguments have ended.
    for pattern in ["postgres: checkpointer", "postgres: checkpointer ", "postgres: *er"] {
        assert!(fits(pattern, "postgres: checkpointer \0\0\0\0\0"), "{pattern}");
    }
    assert!(!fits("a", "") && !fits("a", "\0") && fits("*", "\0"));
}

#[test]
fn cgroups() {
    let fits = |pattern: &str, path: &str| Pattern::cgroup(pattern).unwrap().fits(path.as_bytes());
    let shell = "/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@x.service";
    for (pattern, path) in [
        ("/", "/"),
        ("/**", "/"),
        ("/**", "/a/b"),
        ("/a/*", "/a/b"),
        ("/a/**", "/a"),
        ("/a/**", "/a/b/c"),
        ("/a/**/c", "/a/c"),
        ("/a/**/c", "/a/b/b/c/c"),
        ("/**/a*/**/c", "/x/a1/y/ab/z/c"),
        ("/user.slice/**/user@*.service/session.slice/**", shell),
        ("/**/*\\x2dd.mount", "/s/a\\x2dd.mount"),
        // The examples of the documentation.
        ("/**/postgresql@*.service/**", "/system.slice/system-postgresql.slice/postgresql@17-main.service"),
        ("/**/kubepods-besteffort*/**", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/x"),
        ("/**/*pod1a2b3c4d*/**", "/kubepods.slice/kubepods-pod1a2b3c4d_0001_4002.slice/cri-containerd-5.scope"),
        ("/**/*pod1a2b3c4d*/**", "/kubepods/burstable/pod1a2b3c4d-0001-4002/5"),
    ] {
        assert!(fits(pattern, path), "{pattern} {path}");
    }
    for (pattern, path) in [
        ("/", ""),
        ("/**", ""),
        ("/**", "a"),
        ("/a/*", "/a"),
        ("/a/*", "/a/b/c"),
        ("/a/?", "/a//"),
        ("/a/**", "/ab"),
        ("/a/**/c", "/a/bc"),
        ("/a*c", "/a/c"),
        ("/a?c", "/a/c"),
    ] {
        assert!(!fits(pattern, path), "{pattern} {path}");
    }
}

#[test]
fn a_cgroup_without_wildcards_is_all_of_it() {
    let fits = |pattern: &str, path: &str| Pattern::cgroup(pattern).unwrap().fits(path.as_bytes());
    for pattern in ["/a.slice", "/a.slice/", "/a.slice/**/"] {
        assert!(fits(pattern, "/a.slice") && fits(pattern, "/a.slice/b/c"), "{pattern}");
        assert!(!fits(pattern, "/a.slice.b") && !fits(pattern, "/b/a.slice"), "{pattern}");
    }
    for pattern in ["/a.slic?", "/a.slic*/"] {
        assert!(fits(pattern, "/a.slice") && !fits(pattern, "/a.slice/b"), "{pattern}");
    }
    // Nor does this protect everything.
    assert!(fits("/", "/") && !fits("/", "/a"));
}

#[test]
fn a_path_of_the_file_system_is_no_cgroup() {
    for (wrong, right) in [
        ("/sys/fs/cgroup/a.slice/b", "'/a.slice/b'"),
        ("/sys/fs/cgroup/unified/a.slice/**", "'/a.slice/**'"),
        ("/sys/fs/cgroup/", "'/**'"),
        ("/sys/fs/cgroup", "'/**'"),
        ("/sys/fs/cgroup/unified", "'/**'"),
    ] {
        let error = Pattern::cgroup(wrong).unwrap_err();
        assert!(error.ends_with(&format!("write {right}")), "{wrong}: {error}");
    }
    assert!(Pattern::cgroup("/sys/fs/cgroups").is_ok());
}

#[test]
fn what_is_no_pattern() {
    assert!(Pattern::name("").is_err());
    assert!(Pattern::command_line(&"x".repeat(257)).is_err());
    for bad in ["", "a", "system.slice/**", "/a**", "/**a/b", "/a/***"] {
        assert!(Pattern::cgroup(bad).is_err(), "{bad}");
    }
}

#[test]
fn nothing_takes_exponential_time() {
    let hostile = "*a".repeat(127) + "b";
    let text = "a".repeat(1 << 16);
    let began = Instant::now();
    assert!(!Pattern::command_line(&hostile).unwrap().fits(text.as_bytes()));
    let path = "/a".repeat(1 << 12);
    assert!(!Pattern::cgroup(&("/**/*a".repeat(40) + "/b")).unwrap().fits(path.as_bytes()));
    // Some 17 million steps, in a build without optimization, on a machine that may be busy.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// The definition, in as many steps as it takes.
fn naive(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|n| naive(rest, &text[n..])),
        ([b'?', p @ ..], [_, t @ ..]) => naive(p, t),
        ([a, p @ ..], [b, t @ ..]) => a == b && naive(p, t),
        _ => false,
    }
}

proptest! {
    #[test]
    fn as_by_definition(pattern in "[ab*?]{1,8}", text in "[ab]{0,10}") {
        prop_assert_eq!(
            Pattern::name(&pattern).unwrap().fits(text.as_bytes()),
            naive(pattern.as_bytes(), text.as_bytes())
        );
    }

    #[test]
    fn any_bytes_do_no_harm(pattern in ".{0,40}", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for make in [Pattern::name, Pattern::command_line, Pattern::cgroup] {
            if let Ok(pattern) = make(&pattern) {
                pattern.fits(&bytes);
            }
        }
    }
}
