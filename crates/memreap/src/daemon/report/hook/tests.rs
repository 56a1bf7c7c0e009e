// SPDX-License-Identifier: GPL-2.0-only

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use super::super::record::tests::kill;
use super::*;

/// Long enough for a shell to start on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn hook(dir: &Path, body: &str) -> Hook {
    let path = dir.join("hook");
    fs::write(&path, format!("cd {}\n{body}\n", dir.display())).unwrap();
    let command = ["/bin/sh", path.to_str().unwrap()].map(str::to_owned).to_vec();
    Hook::start(&config::Kill { before: Some(command), ..config::Kill::default() }).unwrap()
}

fn answer_to(hook: &mut Hook, ticket: u32) -> Before {
    let began = Instant::now();
    loop {
        if let Some(answer) = hook.answer(ticket) {
            return answer;
        }
        assert!(began.elapsed() < LONG);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn its_exit_code_says_what_is_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut hook = hook(dir.path(), "kill -$(cat signal) $$; exit $(cat code)");
    fs::write(dir.path().join("signal"), "0").unwrap();
    for (code, expected) in [(0, Before::Passed), (10, Before::Freed), (1, Before::Failed), (138, Before::Failed)] {
        fs::write(dir.path().join("code"), code.to_string()).unwrap();
        let ticket = hook.ask(&kill("hog"), LONG).unwrap();
        assert_eq!(answer_to(&mut hook, ticket), expected, "{code}");
        assert_eq!(hook.answer(ticket), None, "once");
    }
    fs::write(dir.path().join("signal"), "TERM").unwrap();
    let ticket = hook.ask(&kill("hog"), LONG).unwrap();
    assert_eq!(answer_to(&mut hook, ticket), Before::Failed);
}

#[test]
fn it_knows_what_the_record_will_say() {
    let dir = tempfile::tempdir().unwrap();
    let mut hook = hook(dir.path(), "env > env");
    let mut kill = kill("evil\nMEMREAP_UID=0");
    kill.rule.push_str("browsers");
    let ticket = hook.ask(&kill, LONG).unwrap();
    assert_eq!(answer_to(&mut hook, ticket), Before::Passed);
    let env = fs::read_to_string(dir.path().join("env")).unwrap();
    for line in [
        "MEMREAP_EVENT=before",
        "MEMREAP_PID=4711",
        r"MEMREAP_COMM=evil\nMEMREAP_UID=0",
        "MEMREAP_UID=1000",
        "MEMREAP_BYTES=1288490188",
        "MEMREAP_EXACT=1",
        "MEMREAP_REASON=stall",
        "MEMREAP_BECAUSE=80 MiB of 2.0 GiB were available, gone in 0.3 s at 400 MiB/s",
        "MEMREAP_RULE=browsers",
        "MEMREAP_CGROUP=/user.slice/a.scope",
        "MEMREAP_UNIT=a.scope",
        "MEMREAP_PARENT_COMM=make",
        "MEMREAP_COMMAND_LINE=hog --size 1.2",
        "MEMREAP_PROCESSES=1",
        "MEMREAP_AVAILABLE_BEFORE=83886080",
        "MEMREAP_CHOICE_US=3000",
    ] {
        assert!(env.lines().any(|l| l == line), "no {line} in {env}");
    }
    assert!(!env.contains("MEMREAP_ENDING"), "it is not known yet");
}

#[test]
fn one_that_hangs_is_ended_and_the_next_is_not_late_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut hook = hook(dir.path(), "test -e quick || sleep 1000");
    let stuck = hook.ask(&kill("hog"), Duration::from_millis(50)).unwrap();
    // Its time is over before the helper comes to it: it is not run at all.
    let late = hook.ask(&kill("hog"), Duration::from_millis(1)).unwrap();
    assert_eq!([answer_to(&mut hook, stuck), answer_to(&mut hook, late)], [Before::TimedOut; 2]);
    fs::write(dir.path().join("quick"), "").unwrap();
    // Of answers that nobody has asked for, the latest are kept.
    let tickets: Vec<u32> = (0..2 * MAX_ANSWERS).map_while(|_| hook.ask(&kill("hog"), LONG)).collect();
    let last = *tickets.last().unwrap();
    assert_eq!((answer_to(&mut hook, last), hook.answers.len() < MAX_ANSWERS), (Before::Passed, true));
}

#[test]
fn what_cannot_be_run_has_failed() {
    let command = vec!["/no/such/program".to_owned()];
    let mut hook = Hook::start(&config::Kill { before: Some(command), ..config::Kill::default() }).unwrap();
    let ticket = hook.ask(&kill("hog"), LONG).unwrap();
    assert_eq!(answer_to(&mut hook, ticket), Before::Failed);
    // When there is no time it is not even tried, as in the rehearsal.
    let ticket = hook.ask(&kill("hog"), Duration::ZERO).unwrap();
    assert_eq!(answer_to(&mut hook, ticket), Before::TimedOut);
    // Nor a helper that is gone.
    let ticket = hook.last_ticket + 1;
    let pid = rustix::process::Pid::from_raw(hook.helper.pid().get()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    assert_eq!((hook.answer(ticket), hook.ask(&kill("hog"), LONG)), (Some(Before::Failed), None));
}
