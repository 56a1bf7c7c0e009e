// SPDX-License-Identifier: GPL-2.0-only

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use linux::Dir;
use linux::cgroup::Cgroup;
use linux::process::Comm;

use super::super::result::{Cost, Group, Pool, Precision};
use super::*;

/// A process that can be chosen.
struct Process(Child);

impl Process {
    fn start() -> Self {
        Self(Command::new("sleep").arg("100").spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::new(self.0.id().cast_signed()).unwrap()
    }

    fn choice(&self) -> Choice {
        Choice {
            pidfd: PidFd::open(self.pid()).unwrap(),
            oom_score_adj: File::open(format!("/proc/{}/oom_score_adj", self.pid())).ok().map(Into::into),
            pid: self.pid(),
            comm: Comm::new(b"sleep").unwrap(),
            uid: 0,
            cgroup: CgroupPath::new(),
            bytes: 1 << 20,
            precision: Precision::Exact,
            pool: Pool::new(),
            vm_size: 0,
            core_dumping: false,
            group: Some(Group { bytes: 2 << 20, processes: 2, expendable: true, oom_group: true, shares: false }),
            leaf: None,
            parent: None,
            command_line: CommandLine::new(),
            rule: None,
            cost: Cost::default(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const BY_PROCESS: Grouping = Grouping { by_cgroup: false, whole: true };

/// A thread that answers what it is sent, and waits for that.
fn start(timeout: Duration) -> (ChooserThread, Sender<Option<Choice>>) {
    let settings = Settings { policy: Arc::default(), grouping: BY_PROCESS, version: 0 };
    let state = State { work: Work::None, settings, ahead: None, killed: Killed::new(), findings: Findings::default() };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    let worker = Arc::clone(&shared);
    let (answers, to_give) = channel();
    thread::spawn(move || {
        worker.work(|_, _, _| (to_give.recv().unwrap_or(None), Findings { processes: 1, holder: None }))
    });
    (ChooserThread { shared, timeout }, answers)
}

fn pid(choice: Result<Choice, NoVictim>) -> Result<Pid, NoVictim> {
    choice.map(|choice| choice.pid)
}

fn wait_for(chooser: &ChooserThread) {
    while !matches!(chooser.shared.lock().work, Work::None) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Asks until the thread has begun with that, and waits for the test.
fn ask_in_vain(chooser: &ChooserThread) {
    while !matches!(chooser.shared.lock().work, Work::Running { .. }) {
        assert_eq!(pid(chooser.choose(None, 0)), Err(NoVictim::Late));
    }
}

#[test]
fn an_answer_in_time_is_used() {
    let (chooser, answers) = start(Duration::from_secs(60));
    let process = Process::start();
    answers.send(None).unwrap();
    assert_eq!(pid(chooser.choose(None, 0)), Err(NoVictim::None));
    answers.send(Some(process.choice())).unwrap();
    assert_eq!(pid(chooser.choose(None, 0)), Ok(process.pid()));
}

#[test]
fn a_late_answer_is_good_for_the_next_time_once() {
    let (chooser, answers) = start(Duration::from_millis(10));
    let process = Process::start();
    ask_in_vain(&chooser);
    assert_eq!(pid(chooser.choose(None, 0)), Err(NoVictim::Late));
    answers.send(Some(process.choice())).unwrap();
    wait_for(&chooser);
    assert_eq!(pid(chooser.choose(None, 0)), Ok(process.pid()));
    assert_eq!(pid(chooser.choose(None, 0)), Err(NoVictim::Late));
    // Not by another policy: it may be one that must not be killed.
    ask_in_vain(&chooser);
    chooser.reconfigure(Arc::default(), BY_PROCESS);
    answers.send(Some(process.choice())).unwrap();
    wait_for(&chooser);
    assert_eq!(pid(chooser.choose(None, 0)), Err(NoVictim::Late));
}

#[test]
fn a_late_answer_is_of_no_use_when_that_process_was_killed() {
    let (chooser, answers) = start(Duration::from_millis(10));
    let process = Process::start();
    ask_in_vain(&chooser);
    chooser.note_kill(process.pid());
    answers.send(Some(process.choice())).unwrap();
    wait_for(&chooser);
    assert_eq!(pid(chooser.choose(None, 0)), Err(NoVictim::Late));
}

#[test]
fn a_warning_waits_for_no_choice() {
    let (chooser, answers) = start(Duration::from_secs(60));
    let process = Process::start();
    assert!(chooser.take_ahead().is_none());
    answers.send(Some(process.choice())).unwrap();
    chooser.refresh(Duration::ZERO, Danger::Possible, 0);
    wait_for(&chooser);
    // The thread waits for the kernel from here on.
    chooser.refresh(Duration::ZERO, Danger::Imminent, 0);
    let (when, choice) = chooser.take_ahead().unwrap();
    assert_eq!(choice.pid, process.pid());
    chooser.keep_ahead(when, choice);
    assert_eq!(chooser.take_ahead().map(|(same, _)| same), Some(when));
}

#[test]
fn others_may_have_joined_the_group_of_an_older_choice() {
    let (chooser, answers) = start(Duration::from_millis(10));
    let process = Process::start();
    let tree = tempfile::tempdir().unwrap();
    if !Dir::open(tree.path()).unwrap().is_leaf() {
        testing::skipped("the file system of temporary files does not count the links of directories");
        return;
    }
    let members = [process.pid(), Pid::own()];
    let listed = |pids: &[Pid]| {
        let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        std::fs::write(tree.path().join("cgroup.procs"), text).unwrap();
    };
    let is_whole = |age, meanwhile: &dyn Fn()| {
        let cgroup = Cgroup::open(&Dir::open(tree.path()).unwrap(), b"").unwrap();
        let choice = Choice { leaf: Some(Leaf::new(cgroup, &members)), ..process.choice() };
        meanwhile();
        chooser.keep_ahead(Instant::now() - age, choice);
        chooser.choose(None, 0).unwrap().group.unwrap().expendable
    };
    let second = Duration::from_secs(1);
    listed(&members);
    assert!(!is_whole(5 * second, &|| {}));
    std::fs::remove_file(tree.path().join("cgroup.procs")).unwrap();
    // There is another one than it was made with.
    assert!(!is_whole(second, &|| listed(&members)));
    assert!(is_whole(second, &|| {}));
    assert!(is_whole(second, &|| listed(&[members[1], members[0]])));
    assert!(!is_whole(second, &|| listed(&members[..1])));
    listed(&members);
    assert!(!is_whole(second, &|| listed(&[members[0], members[1], Pid::new(1).unwrap()])));
    listed(&members);
    assert!(is_whole(Duration::ZERO, &|| listed(&[])));
    listed(&members);
    assert!(!is_whole(second, &|| std::fs::create_dir(tree.path().join("below")).unwrap()));
    drop(answers);
}

#[test]
fn expensive_choices_in_advance_are_made_more_seldom() {
    let ms = Duration::from_millis;
    let imminent = [1, 50, 500].map(|took| interval(Danger::Imminent, ms(took)));
    assert_eq!(imminent, [ms(250), ms(1000), ms(2000)]);
    assert_eq!(interval(Danger::Possible, ms(1)), ms(2000));
}

#[test]
fn what_was_chosen_in_advance_is_used_only_if_it_may_be() {
    // Returns what is chosen after `meanwhile`, when the thread has chosen in advance and does not answer.
    let choose = |below: Option<CgroupPath>, min_bytes, meanwhile: fn(&ChooserThread, &mut Process)| {
        let (chooser, answers) = start(Duration::from_millis(10));
        let mut process = Process::start();
        answers.send(Some(process.choice())).unwrap();
        chooser.refresh(Duration::ZERO, Danger::Imminent, 0);
        wait_for(&chooser);
        meanwhile(&chooser, &mut process);
        chooser.choose(below, min_bytes).map(|choice| assert_eq!(choice.pid, process.pid()))
    };
    assert_eq!(choose(None, 0, |_, _| {}), Ok(()));
    // All of its group.
    assert_eq!(choose(None, 2 << 20, |_, _| {}), Ok(()));
    assert_eq!(choose(None, 3 << 20, |_, _| {}), Err(NoVictim::Late));
    assert_eq!(choose(Some(CgroupPath::new()), 0, |_, _| {}), Err(NoVictim::Late));
    let late_for_a_cgroup = |chooser: &ChooserThread, _: &mut Process| {
        assert_eq!(pid(chooser.choose(Some(CgroupPath::new()), 0)), Err(NoVictim::Late));
    };
    assert_eq!(choose(None, 0, late_for_a_cgroup), Ok(()));
    assert_eq!(
        choose(None, 0, |chooser, _| chooser.reconfigure(Arc::default(), Grouping { by_cgroup: true, ..BY_PROCESS })),
        Err(NoVictim::Late)
    );
    // The shortage is over, or the process.
    assert_eq!(choose(None, 0, |chooser, _| chooser.refresh(Duration::ZERO, Danger::None, 0)), Err(NoVictim::Late));
    let end = |_: &ChooserThread, process: &mut Process| {
        process.0.kill().unwrap();
        process.0.wait().unwrap();
    };
    assert_eq!(choose(None, 0, end), Err(NoVictim::Late));
    let exempt = |chooser: &ChooserThread, _: &mut Process| {
        let (when, mut choice) = chooser.take_ahead().unwrap();
        // Only who has CAP_SYS_RESOURCE can make it so in /proc.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"-1000\n").unwrap();
        choice.oom_score_adj = Some(file.into());
        chooser.keep_ahead(when, choice);
    };
    assert_eq!(choose(None, 0, exempt), Err(NoVictim::Late));
}
