// SPDX-License-Identifier: GPL-2.0-only

use std::thread;
use std::time::Instant;

use super::super::record::tests::kill;
use super::*;
use crate::daemon::decide::reason::Ending;

fn hook(dir: &Path, body: &str) -> Vec<String> {
    let path = dir.join("hook");
    fs::write(&path, format!("cd {}\n{body}\n", dir.display())).unwrap();
    // Not by itself: while a process that another test has just forked still has it open for writing,
    // it cannot be executed.
    ["/bin/sh", path.to_str().unwrap(), "first argument"].map(str::to_owned).to_vec()
}

fn warner(command: Vec<String>, time_limit: Duration) -> Warner {
    let warner = Warner::start().unwrap();
    warner.configure(&config::Warn { desktop: false, command: Some(command), time_limit }).unwrap();
    warner
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the helper has done all it was told, and is gone.
fn end(warner: Warner) {
    let pid = rustix::process::Pid::from_raw(warner.pid().get()).unwrap();
    drop(warner);
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
}

#[test]
fn the_command_gets_the_victim_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let command =
        hook(dir.path(), "echo \"$1\" > arg; env | sort > $MEMREAP_EVENT; cat /proc/self/oom_score_adj > adj");
    let mut warner = warner(command, Duration::from_secs(10));
    let kill = kill("evil\nMEMREAP_UID=0");
    warner.warn(&Warning {
        pid: kill.pid,
        comm: kill.comm,
        uid: kill.uid,
        cgroup: &kill.cgroup,
        bytes: kill.expected,
        because: &kill.because,
    });
    let refused = KillRecord { ending: Ending::Refused(libc::EPERM), ..kill.clone() };
    let late = KillRecord { ending: Ending::Late, freed: None, ..kill.clone() };
    assert_eq!((refused.back(), late.back()), (0, 0));
    warner.killed(&kill);
    assert_eq!(warner.dropped(), 0);
    end(warner);
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(read("arg"), "first argument\n");
    assert_eq!(read("adj"), "0\n");
    for line in [
        "MEMREAP_EVENT=killed",
        "MEMREAP_PID=4711",
        r"MEMREAP_COMM=evil\nMEMREAP_UID=0",
        "MEMREAP_UID=1000",
        "MEMREAP_BYTES=1288490188",
        "MEMREAP_REASON=stall",
        "MEMREAP_METHOD=mrelease",
        "MEMREAP_CGROUP=/user.slice/a.scope",
        "MEMREAP_UNIT=a.scope",
        "MEMREAP_POD=",
        "MEMREAP_PARENT=17",
        "MEMREAP_PARENT_COMM=make",
    ] {
        assert!(read("killed").lines().any(|l| l == line), "no {line} in {}", read("killed"));
    }
    assert!(!read("killed").contains("CARGO"), "the daemon's environment is its own");
    assert!(!read("warn").contains("MEMREAP_REASON"), "it is not known yet");
    assert!(
        read("warn").contains(r"MEMREAP_MESSAGE=about to kill 4711 (evil\nMEMREAP_UID=0), user 1000, for 1.2 GiB; 80")
    );
}

#[test]
fn a_program_of_a_user_writes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let mut command = Command::new("sh");
    command.args(["-c", "echo > /dev/null && echo > \"$0\""]).arg(&file);
    forbid_files(&mut command);
    assert!(!command.status().unwrap().success());
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn a_command_that_hangs_is_killed_with_what_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let command = hook(dir.path(), "sleep 1000 & echo $! > new; mv new child; wait");
    // Long enough for a shell to start on a busy machine.
    let mut warner = warner(command, Duration::from_secs(3));
    warner.killed(&kill("hog"));
    let child = dir.path().join("child");
    wait_for("the hook starts", || child.exists());
    let child = fs::read_to_string(child).unwrap();
    wait_for("what the hook started is killed", || {
        // In a container without an init no process waits for it.
        fs::read_to_string(format!("/proc/{}/stat", child.trim())).map_or(true, |stat| stat.contains(") Z "))
    });
    end(warner);
}

#[test]
fn a_helper_that_is_behind_costs_messages_and_no_time() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing is done before all has been sent: who waited for it would not return.
    let wait = "while ! [ -e go ]; do sleep 0.01; done";
    let body = format!("mkdir alone || touch together; {wait}; rmdir alone; echo >> count");
    let mut warner = warner(hook(dir.path(), &body), Duration::from_secs(600));
    for _ in 0..500 {
        warner.killed(&kill("hog"));
    }
    fs::write(dir.path().join("go"), "").unwrap();
    assert!(warner.dropped() > 400, "{}", warner.dropped());
    let sent = 500 - warner.dropped();
    end(warner);
    assert_eq!(fs::read(dir.path().join("count")).unwrap().len() as u64, sent);
    assert!(!dir.path().join("together").exists(), "two at a time");
}

#[test]
fn without_a_helper_messages_are_counted() {
    let mut warner = Warner::start().unwrap();
    let pid = rustix::process::Pid::from_raw(warner.pid().get()).unwrap();
    // Our own child, and not waited for yet.
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    warner.killed(&kill("hog"));
    assert_eq!(warner.dropped(), 1);
    assert!(warner.configure(&config::Warn::default()).is_err());
}

#[test]
fn configurations_survive_the_way() {
    for command in [None, Some(vec!["/a b".to_owned(), String::new(), "c".to_owned()])] {
        let warn = config::Warn { desktop: true, command, time_limit: Duration::from_millis(1500) };
        let mut message = vec![b'1'];
        message.extend(b"1500");
        for argument in warn.command.iter().flatten() {
            message.push(0);
            message.extend(argument.as_bytes());
        }
        assert_eq!(configuration(&message), Some(warn));
    }
    assert_eq!(configuration(b""), None);
    let long = config::Warn { command: Some(vec!["x".repeat(MAX_MESSAGE_BYTES)]), ..Default::default() };
    let warner = Warner::start().unwrap();
    assert!(warner.configure(&long).is_err());
    end(warner);
}

#[test]
fn notifications_go_to_the_users_own_bus() {
    let command = notification(User { uid: 1234, gid: 5 }, "-title", "-x; $(reboot) <a>&");
    assert_eq!(command.get_args().last().unwrap(), "-x; $(reboot) &lt;a&gt;&amp;");
    let bus = command.get_envs().find(|(name, _)| *name == "DBUS_SESSION_BUS_ADDRESS").unwrap().1;
    assert_eq!(bus.unwrap(), "unix:path=/run/user/1234/bus");
}
