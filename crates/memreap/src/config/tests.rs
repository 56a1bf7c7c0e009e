// SPDX-License-Identifier: GPL-2.0-only

use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use linux::Pid;
use linux::cgroup::OomPreference;
use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;
use crate::policy::{Exe, Policy, Subject, Verdict};

fn parse(text: &str) -> Config {
    Config::parse("c", text).unwrap()
}

fn share(share: f64) -> Level {
    Level { share, most: u64::MAX }
}

fn errors(text: &str) -> Vec<String> {
    Config::parse("c", text).map(|_| ()).unwrap_err().0
}

fn judge(config: &Config, comm: &str, uid: u32, cgroup: &str) -> (Verdict, String) {
    judge_exe(config, Exe::Unread, comm, uid, cgroup)
}

fn judge_exe(config: &Config, exe: Exe<'_>, comm: &str, uid: u32, cgroup: &str) -> (Verdict, String) {
    let verdict = config.policy.judge(&Subject {
        pid: Pid::new(4711).unwrap(),
        comm: comm.as_bytes(),
        command_line: Some(b""),
        exe,
        uid,
        cgroup: cgroup.as_bytes(),
        oom_score_adj: 0,
        preference: OomPreference::None,
    });
    (verdict, verdict.rule.map_or("", |rule| config.policy.rule(rule)).to_owned())
}

#[test]
fn the_built_in_file_says_the_defaults() {
    let config = parse(BUILT_IN);
    assert_eq!(config.act, Act::default());
    assert_eq!(config.kill, Kill::default());
    assert_eq!(config.warn, Warn::default());
    assert_eq!(config.record, Record::default());
    // A file that says nothing means the same, with the rules.
    assert_eq!(parse("").policy, config.policy);
    assert!(!config.policy.needs_command_line() && !config.policy.needs_exe());
    let keys = "act.low act.critical act.stall act.cgroups \
                kill.signal_first kill.grace kill.deadline kill.by_cgroup kill.whole_cgroup \
                kill.before kill.before_limit kill.before_when_critical \
                act.polite act.polite_interval warn.desktop warn.command warn.time_limit \
                record.history record.metrics policy.defaults";
    let table: toml::Table = BUILT_IN.parse().unwrap();
    let given: Vec<_> = keys.split_whitespace().map(|key| key.split_once('.').unwrap()).collect();
    for (section, key) in &given {
        assert!(table[*section].get(key).is_some(), "{section}.{key} is not shown");
    }
    let there: usize = table.values().filter_map(|v| Some(v.as_table()?.len())).sum();
    assert_eq!(there, given.len(), "a key is not in the list of this test");
    // Every key that a rule can have is explained.
    for key in ["name", "command_line", "exe", "user", "cgroup", "oom_score_adj", "label"] {
        assert!(BUILT_IN.contains(&format!("\n#   {key} ")), "{key}");
    }
    for key in ["never", "protect", "prefer", "weight", "up_to", "signal_first", "grace"] {
        let explained = |line: &str| line.starts_with("#   ") && line.contains(&format!("  {key} = "));
        assert!(BUILT_IN.lines().any(explained), "{key}");
    }
    // It is to be read.
    assert!(BUILT_IN.lines().count() <= 120 && BUILT_IN.lines().all(|line| line.chars().count() <= 120));
}

#[test]
fn all_keys_of_the_parser_are_in_the_built_in_file() {
    // An unknown key makes the parser list those it knows.
    for section in ["act", "kill", "warn", "record", "policy"] {
        let error = errors(&format!("[{section}]\nx = 1\n")).remove(0);
        let (_, known) = error.split_once("there are ").unwrap();
        for key in known.split(", ") {
            assert!(BUILT_IN.contains(&format!("\n{key} = ")), "{section}.{key}");
        }
    }
    assert_eq!(errors("x = 1"), ["c:1: x: there is no such key; there are act, kill, warn, record, policy, rule"]);
}

#[test]
fn values_are_taken() {
    let config = parse(
        r#"
        act = { low = 20, critical = "5 %", stall = "12.5%", cgroups = false, polite = 7.5, polite_interval = "1m" }
        [kill]
        signal_first = "term"
        grace = "250ms"
        deadline = "1m"
        by_cgroup = false
        whole_cgroup = "auto"
        before = ["/bin/drop", "cache"]
        before_limit = "1s"
        before_when_critical = false
        [warn]
        desktop = true
        command = ["/bin/logger", "-t", "x y"]
        time_limit = 1
        [record]
        history = false
        metrics = "[::1]:9105"
        [[rule]]
        name = "postgres"
        weight = 1
        signal_first = "INT"
        grace = "5s"
        [[rule]]
        name = "a"
        weight = 1
        grace = "5s"
        [[rule]]
        name = "b"
        weight = 1
        signal_first = "INT"
        [[rule]]
        name = "c"
        weight = 1
        signal_first = false
        "#,
    );
    let of_rule = |rule| config.policy.signal_first(rule, config.kill.signal_first);
    let said = [Some(0), Some(1), Some(2), Some(4), None].map(|rule| {
        let first = of_rule(rule).unwrap();
        (first.signal.to_string(), first.grace.as_millis())
    });
    let said = said.each_ref().map(|(signal, grace)| (signal.as_str(), *grace));
    assert_eq!(said[..3], [("SIGINT", 5000), ("SIGTERM", 5000), ("SIGINT", 250)]);
    assert_eq!(said[3..], [("SIGTERM", 250); 2]);
    assert_eq!(of_rule(Some(3)), None);
    let act = Act {
        low: share(20.0),
        critical: share(5.0),
        stall: 12.5,
        early_reclaim: false,
        cgroups: false,
        polite: Some(share(7.5)),
        polite_interval: Duration::from_secs(60),
    };
    assert_eq!(config.act, act);
    assert_eq!(config.kill.deadline, Duration::from_secs(60));
    assert_eq!((config.kill.by_cgroup, config.kill.whole_cgroup), (false, WholeCgroup::Auto));
    let before = ["/bin/drop", "cache"].map(str::to_owned).to_vec();
    assert_eq!((config.kill.before, config.kill.before_limit), (Some(before), Duration::from_secs(1)));
    assert!(!config.kill.before_when_critical);
    let command = ["/bin/logger", "-t", "x y"].map(str::to_owned).to_vec();
    let time_limit = Duration::from_secs(1);
    assert_eq!(config.warn, Warn { desktop: true, command: Some(command), time_limit });
    assert_eq!(config.record, Record { history: None, metrics: Some("[::1]:9105".to_owned()) });
}

#[test]
fn all_errors_are_told_with_line_and_key() {
    let text = r#"
[act]
low = "5%"
critical = 7
stall = "0%"
thresh = "1s"

[kill]
signal_first = "KILL"
grace = "5 parsecs"
whole_cgroup = "perhaps"
[warn]
desktop = "yes"
command = "echo"
[record]
history = "x"
metrics = "localhost:9105"
[[rule]]
name = "x"
[[rule]]
never = true
prefer = 0.5
user = -1
cgroup = "system.slice"
oom_score_adj = "< x"
[extra]
"#;
    let found = errors(text);
    let expected = [
        "c:4: act.critical: 7 % is not less than act.low, 5 %; below `low` memory is short, \
         below `critical` it is gone",
        "c:5: act.stall: 0 % is out of range; give 1 to 100 %",
        "c:6: act.thresh: there is no such key; there are low, critical, stall, cgroups, \
         polite, polite_interval",
        "c:9: kill.signal_first: SIGKILL does not ask a process to end; \
         leave the option out, or use SIGTERM",
        "c:10: kill.grace: ' parsecs' is no unit of time; there are ms, s, m and h",
        "c:11: kill.whole_cgroup: \"perhaps\" is none of \"auto\", \"oom-group\", \"always\", \"never\"",
        "c:13: warn.desktop: is a string; give true or false",
        "c:14: warn.command: is a string; give a list: [\"...\", \"...\"]",
        "c:16: record.history: \"x\" is no absolute path; write it in full",
        "c:17: record.metrics: \"localhost:9105\" is neither the absolute path of a Unix socket nor \
         an address with a port, such as \"127.0.0.1:9105\"",
        "c:18: rule: says not what to do; give one of never, protect, prefer, weight",
        "c:20: rule: says more than one thing to do; give one of never, protect, prefer, weight",
        "c:22: rule.prefer: 0.5 is out of range; give 1 to 1000000",
        "c:23: rule.user: is no user's number; those have 32 bits",
        "c:24: rule.cgroup: starts with a /, as '/system.slice' or '/**/system.slice' do",
        "c:25: rule.oom_score_adj: is no range; give a number from -1000 to 1000 \
         or a comparison such as \"<= -900\"",
        "c:26: extra: there is no such key; there are act, kill, warn, record, policy, rule",
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn the_polite_level_is_above_the_critical_one() {
    let wrong = |text: &str| errors(&format!("[act]\n{text}")).remove(0);
    let no_time = "is not more than act.critical, 1 % and at most 256 MiB; below that there is no time";
    for polite in ["1", "['5%', '200M']"] {
        let found = wrong(&format!("polite = {polite}"));
        assert!(found.starts_with("c:2: act.polite: ") && found.ends_with(no_time), "{found}");
    }
    assert_eq!(wrong("polite = true"), "c:2: act.polite: is true; give false or a value");
    assert_eq!(
        wrong("polite_interval = '1ms'"),
        "c:2: act.polite_interval: 1.0 ms is out of range; give 1.00 s to 600.0 s"
    );
    let polite = |text: &str| {
        let polite = parse(text).kill.polite;
        (polite.signal.to_string(), polite.grace.as_secs())
    };
    assert_eq!(polite("act.polite = false"), ("SIGTERM".to_owned(), 2));
    assert_eq!(polite("kill = { signal_first = 'INT', grace = 5 }"), ("SIGINT".to_owned(), 5));
    assert_eq!(polite("kill.grace = 7"), ("SIGTERM".to_owned(), 7));
}

#[test]
fn the_path_of_an_executable_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    fs::write(dir.join("program"), "").unwrap();
    std::os::unix::fs::symlink(dir.join("program"), dir.join("link")).unwrap();
    let path = |name| dir.join(name).display().to_string();
    let text = |exe: &str| format!("[[rule]]\nweight = 1\nexe = {exe:?}\n");
    let wrong = |exe: &str| errors(&text(exe)).remove(0);
    let unmet = |exe: &str| parse(&text(exe)).unmet.remove(0);
    assert_eq!(
        unmet(&path("link")),
        format!("c:3: rule.exe: \"{0}\" is \"{1}\" to the kernel; write \"{1}\"", path("link"), path("program"))
    );
    fs::create_dir(dir.join("folder")).unwrap();
    std::os::unix::fs::symlink("folder", dir.join("folder-link")).unwrap();
    for (exe, told) in [
        (path("folder"), format!("\"{0}\" is a folder; write \"{0}/**\" for all in it", path("folder"))),
        (path("folder-link/*"), format!("write \"{}/*\"", path("folder"))),
        (path("folder-link/**/x?"), format!("write \"{}/**/x?\"", path("folder"))),
    ] {
        assert!(unmet(&exe).contains(&told), "{}", unmet(&exe));
    }
    for name in ["folder", "program"] {
        let path = path(name);
        assert!(wrong(&(path.clone() + "/")).contains(&format!("fits no file; write '{path}/**'")));
    }
    let no_path = "c:3: rule.exe: is no absolute path; write it in full, or '/**/postgres' for any folder";
    assert_eq!(wrong("postgres"), no_path);
    assert_eq!(wrong("/a**/b"), "c:3: rule.exe: '**' stands for whole components: write it between slashes");
    for exe in [&path("program"), &path("fold*"), &path("folder/**"), "/**/x", "/no/such/program", "/usr/lib/*/bin/**"]
    {
        assert!(parse(&format!("rule = [{{ exe = {exe:?}, weight = 1 }}]")).policy.needs_exe(), "{exe}");
    }
}

#[test]
fn what_this_system_does_not_have_changes_no_other_rule() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    fs::write(dir.join("program"), "").unwrap();
    std::os::unix::fs::symlink("program", dir.join("link")).unwrap();
    let text = format!(
        "policy.defaults = false\n[[rule]]\nuser = ['removed']\nnever = true\n[[rule]]\nexe = '{0}/link'\nweight = 3\n",
        dir.display()
    );
    let config = parse(&text);
    assert_eq!(
        config.unmet[0],
        "c:3: rule.user: there is no user \"removed\" in /etc/passwd; give the number, or remove the rule"
    );
    assert!(config.unmet[1].starts_with("c:6: rule.exe: ") && config.unmet.len() == 2, "{:?}", config.unmet);
    // Nobody is spared for the sake of one who is not there, and a link stands for what it names.
    let program = dir.join("program");
    let verdict = judge_exe(&config, Exe::Path(program.as_os_str().as_bytes()), "x", 0, "/").0;
    assert!(!verdict.never && verdict.factor == 3.0, "{verdict:?}");
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let rule = |text: &str| errors(&format!("[[rule]]\nname = 'x'\n{text}")).remove(0);
    for key in ["signal_first = 'INT'", "grace = 1"] {
        assert!(rule(&format!("never = true\n{key}")).ends_with("is for a victim, and this rule says never"), "{key}");
    }
    assert!(rule("weight = 2\nuser = 4294967295").starts_with("c:4: rule.user: is no user's number"));
}

#[test]
fn what_runs_before_a_kill_is_checked() {
    let found = errors("[kill]\nbefore = ['drop']\nbefore_limit = '2s'\nbefore_when_critical = 1\nbefor = 1\n");
    assert_eq!(found[0], "c:2: kill.before: \"drop\" is no absolute path; write it in full");
    assert_eq!(found[1], "c:3: kill.before_limit: 2.00 s is out of range; give 10 ms to 1.00 s");
    assert_eq!(found[2], "c:4: kill.before_when_critical: is a number; give true or false");
    assert!(found[3].starts_with("c:5: kill.befor: there is no such key; there are "), "{found:?}");
    assert_eq!(parse("kill.before = []").kill.before, None);
    let long = format!("before = ['/bin/true', '{}']", "x".repeat(5000));
    assert_eq!(
        errors(&format!("[kill]\n{long}"))[0],
        "c:2: kill.before: has 5011 bytes, of 4032 at most; write a script"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    fs::write(&path, "kill.before = ['/bin/true']").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let refused = Config::load(Some(&path)).unwrap_err().to_string();
    assert!(refused.contains(": kill.before would run what other users write here: chmod go-w "), "{refused}");
}

#[test]
fn what_is_no_toml_is_told_with_its_lines() {
    let found = errors("[act]\nlow = \nlow = 1\n[kill\n");
    assert!(found.len() >= 2, "{found:?}");
    assert!(found[0].starts_with("c:2: this is no TOML: "), "{found:?}");
    let twice = errors("[act]\nlow = 1\nlow = 2\n");
    assert!(twice[0].starts_with("c:3: this is no TOML: duplicate key"), "{twice:?}");
    // However much is wrong.
    assert_eq!(errors(&"=\n".repeat(10_000)).len(), 51);
    assert!(Config::parse("c", &"[".repeat(100_000)).is_err());
    assert!(Config::parse("c", &format!("x = {}", "[".repeat(100_000))).is_err());
}

#[test]
fn no_file_takes_the_memory_that_a_daemon_may_have() {
    /// Set for the process in which this test limits its memory.
    const LIMITED: &str = "MEMREAP_TEST_LIMITED";
    if env::var_os(LIMITED).is_none() {
        let test = "config::tests::no_file_takes_the_memory_that_a_daemon_may_have";
        let mut command = Command::new(env::current_exe().unwrap());
        let output = command.args(["--exact", test]).env(LIMITED, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    // The daemon may have 64 MiB, and has 11 without this.
    let most = Some(48 << 20);
    setrlimit(Resource::Data, Rlimit { current: most, maximum: most }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    for (start, repeated) in
        [("", "=\n"), ("", "[[a]]\n"), ("", "[[rule]]\n"), ("a = [", "}}"), ("[kill]\nx = [", "[],")]
    {
        for bytes in [64 << 10, 256 << 10, 1 << 20] {
            let text = start.to_owned() + &repeated.repeat((bytes - start.len()) / repeated.len());
            fs::write(&path, text).unwrap();
            Config::load(Some(&path)).unwrap_err();
        }
    }
}

#[test]
fn rules_of_a_file_take_no_built_in_rule_away() {
    let rule = "[[rule]]\nuser = 7\nnever = true\n";
    let config = parse(&rule.repeat(Policy::MAX_RULES));
    assert!(judge(&config, "x", 7, "/").0.never);
    assert!(judge(&config, "sshd", 0, "/").0.never);
    let found = errors(&rule.repeat(Policy::MAX_RULES + 1));
    assert_eq!(found, ["c:3001: rule: more than 1000 rules; a rule can have lists"]);
}

#[test]
fn sections_of_another_kind_are_refused() {
    assert_eq!(
        errors("act = 1\nrule = 2\nkill = []"),
        [
            "c:1: act: is a number; write [act] on a line of its own",
            "c:2: rule: is a number; write [[rule]] on a line of its own",
            "c:3: kill: is a list; write [kill] on a line of its own",
        ]
    );
    assert_eq!(errors("rule = [1]"), ["c:1: rule: has a number; write [[rule]] on a line of its own"]);
}

#[test]
fn messages_cannot_act_on_a_terminal() {
    let found = errors("\"\\u001b[2J\" = 1\n[kill]\nwhole_cgroup = \"a\\u009bb\\n\"\n");
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|line| !line.contains(char::is_control)), "{found:?}");
}

#[test]
fn the_wrong_one_of_two_thresholds_is_named() {
    assert!(errors("[act]\ncritical = 10")[0].starts_with("c:2: act.critical: 10 % is not less than act.low, 10 %"));
    assert!(errors("[act]\nlow = 0.5")[0].starts_with("c:2: act.low: 0.5 % is not more than act.critical, 1 %"));
}

#[test]
fn a_level_is_what_it_says() {
    let Act { low, critical, .. } = Act::default();
    // The sizes of the built-in levels are for large machines.
    assert_eq!((low.of(2000), critical.of(2000)), (200, 20));
    assert_eq!([low.of(512 << 30), critical.of(512 << 30)], [8 << 30, 256 << 20]);
    assert_eq!(share(90.0).of(100 << 40), 90 << 40);
    let levels = |text: &str| {
        let act = parse(&format!("[act]\n{text}")).act;
        (act.low, act.critical)
    };
    let sized = |share, most| Level { share, most };
    assert_eq!(levels("low = 12"), (share(12.0), critical));
    // It would be more than a `low` with the built-in size, on a large machine.
    assert_eq!(levels("critical = '5%'"), (share(10.0), share(5.0)));
    assert_eq!(levels("critical = ['5%', '20 GiB']"), (sized(10.0, 20 << 30), sized(5.0, 20 << 30)));
    assert_eq!(levels("critical = [5, '1G']"), (low, sized(5.0, 1 << 30)));
    assert_eq!(levels("low = [80, '6G']\ncritical = [70, '6G']"), (sized(80.0, 6 << 30), sized(70.0, 6 << 30)));
    let wrong = |text: &str, expected: &str| {
        let found = errors(&format!("[act]\n{text}")).remove(0);
        assert!(found.starts_with(&format!("c:2: act.{expected}")), "{found}");
    };
    wrong(
        "low = [12, '200M']",
        "low: 12 % and at most 200 MiB is not more than act.critical, 1 % and at most 256 MiB;",
    );
    wrong("critical = 5\nlow = [12, '2G']", "critical: 5 % is not less than act.low, 12 % and at most 2.0 GiB;");
    wrong("low = '6 GiB'", "low: is a size alone; give a share, too: [\"10%\", \"6 GiB\"]");
    for list in ["[]", "[12]", "['2G']", "['2G', 12]", "[12, 13]", "[12, '2G', '3G']"] {
        wrong(&format!("low = {list}"), "low: ");
    }
    wrong("low = [12, '2 GB']", "low: 'GB' is no unit of size; there are KiB, MiB, GiB and TiB");
    wrong("low = [120, '2G']", "low: 120 % is out of range; give 0 to 100 %");
}

#[test]
fn own_rules_come_first_and_defaults_can_be_switched_off() {
    let text = r#"
        [[rule]]
        name = "sshd"
        prefer = true
        [[rule]]
        label = "mine"
        name = ["a", "b"]
        protect = 0.5
        "#;
    let config = parse(text);
    let (verdict, rule) = judge(&config, "sshd", 0, "/");
    assert_eq!((verdict.factor, rule.as_str()), (10.0, "10 x name sshd"));
    assert_eq!(judge(&config, "b", 0, "/").1, "mine");
    assert!(judge(&config, "login", 0, "/").0.never);
    let config = parse(&format!("policy.defaults = false\n{text}"));
    assert_eq!(judge(&config, "login", 0, "/").0.rule, None);
}

#[test]
fn rules_added_to_the_installed_file_decide() {
    let added = r#"
        [[rule]]
        name = "postgres"
        cgroup = "/system.slice/**"
        never = true
        "#;
    let installed = include_str!("../../../../packaging/etc/memreap.toml");
    let verdict = |text: &str| judge(&parse(text), "postgres", 0, "/system.slice/postgresql.service").0;
    assert!(verdict(&format!("{installed}{added}")).never);
    assert_eq!(verdict(installed).factor, 0.25);
}

#[test]
fn ranges_of_oom_score_adj() {
    for (text, fits, fits_not) in [
        ("\"<= -900\"", -900, -899),
        ("\"<0\"", -1, 0),
        ("\">= 300\"", 300, 299),
        ("\"> -5\"", -4, -5),
        ("\"= 7\"", 7, 8),
        ("0x10", 16, 0),
        ("-3", -3, 3),
    ] {
        let config = parse(&format!("policy.defaults = false\nrule = [{{ oom_score_adj = {text}, never = true }}]"));
        for (oom_score_adj, never) in [(fits, true), (fits_not, false)] {
            let verdict = config.policy.judge(&Subject {
                pid: Pid::new(2).unwrap(),
                comm: b"",
                command_line: Some(b""),
                exe: Exe::Unread,
                uid: 0,
                cgroup: b"",
                oom_score_adj,
                preference: OomPreference::None,
            });
            assert_eq!(verdict.never, never, "{text} {oom_score_adj}");
        }
    }
    for bad in
        ["\"<= 1001\"", "-1001", "\"\"", "\"!= 3\"", "\"<= --5\"", "3.5", "\"<= 5 \\n6\"", "99999999999999999999"]
    {
        assert!(!errors(&format!("rule = [{{ oom_score_adj = {bad}, never = true }}]")).is_empty(), "{bad}");
    }
}

#[test]
fn the_session_and_the_system_are_protected() {
    let config = Config::default();
    let session = "/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@wayland.service";
    let app = "/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope";
    for (comm, uid, cgroup, never, factor, rule) in [
        ("systemd-journal", 0, "/system.slice/systemd-journald.service", true, 0.0, "system machinery"),
        ("sshd", 0, "/", true, 0.0, "system machinery"),
        ("anything", 0, "/init.scope", true, 0.0, "init"),
        ("dbus-daemon", 101, "/system.slice/dbus.service", true, 0.0, "system machinery with a user of its own"),
        (
            "systemd-resolve",
            990,
            "/system.slice/systemd-resolved.service",
            true,
            0.0,
            "system machinery with a user of its own",
        ),
        (
            "systemd-coredum",
            998,
            r"/system.slice/system-systemd\x2dcoredump.slice/systemd-coredump@0-4-5.service",
            true,
            0.0,
            "system machinery with a user of its own",
        ),
        ("gnome-shell", 1000, session, false, 0.01, "session"),
        ("gsd-power", 1000, session, false, 0.01, "session"),
        ("kwin_wayland", 1000, app, false, 0.01, "display server"),
        ("sshd-session", 1000, "/user.slice/user-1000.slice/session-2.scope", false, 0.01, "session machinery"),
        ("bash", 1000, app, false, 0.1, "shell"),
        ("postgres", 70, "/system.slice/postgresql.service", false, 0.25, "system service"),
        // A name alone does not protect.
        ("systemd-x", 1000, app, false, 1.0, ""),
        // Nor does a service that runs what users want, nor a cgroup that one with a user of its own makes.
        ("systemd-x", 1000, "/system.slice/cron.service", false, 1.0, "users' jobs"),
        ("app", 1000, "/system.slice/atd.service", false, 1.0, "users' jobs"),
        ("app", 1000, "/system.slice/system-postfix.slice/postfix@-.service", false, 1.0, "users' jobs"),
        ("systemd-x", 1000, "/system.slice/ci.service/systemd-x.service", false, 0.25, "system service"),
        ("sshd", 0, "/system.slice/docker-ab12.scope", false, 1.0, "container"),
        ("firefox", 1000, app, false, 1.0, ""),
    ] {
        let (verdict, by) = judge(&config, comm, uid, cgroup);
        assert_eq!((verdict.never, verdict.factor, by.as_str()), (never, factor, rule), "{comm} {cgroup}");
    }
}

/// How much a process with so many bytes counts by the default rules, on a machine with so many.
fn score(total: u64, cgroup: &str, oom_score_adj: i16, bytes: u64) -> u64 {
    let mut config = Config::default();
    config.policy.set_total(total);
    let verdict = config.policy.judge(&Subject {
        pid: Pid::new(4711).unwrap(),
        comm: b"app",
        command_line: Some(b""),
        exe: Exe::Unread,
        uid: 1000,
        cgroup: cgroup.as_bytes(),
        oom_score_adj,
        preference: OomPreference::None,
    });
    verdict.score(bytes)
}

#[test]
fn a_leaking_best_effort_pod_comes_before_a_burstable_one_within_its_request() {
    const GIB: u64 = 1 << 30;
    // As systemd and cgroupfs name them, and in a node that is a container itself.
    for (folder, end) in
        [("/kubepods.slice/kubepods-", ".slice"), ("/kubepods/", ""), ("/kubelet.slice/kubepods-", ".slice")]
    {
        let score = |class: &str, oom_score_adj, bytes| {
            let cgroup = format!("{folder}{class}{end}/cri-containerd-1.scope");
            score(64 * GIB, &cgroup, oom_score_adj, bytes)
        };
        // What the kubelet sets: 1000 to best-effort pods, and 1000 less the share of memory that it
        // requests to a burstable one, here 6 of 64 GiB; at most 999.
        assert!(score("burstable", 906, 5 * GIB) < score("besteffort", 1000, 4 * GIB), "{folder}");
        assert!(score("burstable", 999, 5 * GIB) < score("besteffort", 1000, 4 * GIB), "{folder}");
    }
}

#[test]
fn background_apps_come_before_the_one_in_front() {
    const MIB: u64 = 1 << 20;
    let app = |oom_score_adj, mib| {
        score(3 << 30, "/user.slice/user-1000.slice/app.slice/app-1.scope", oom_score_adj, mib * MIB)
    };
    assert!(app(900, 70) > app(200, 150) && app(900, 70) > app(0, 800));
    // But not one that holds next to nothing before one that took all.
    assert!(app(900, 8) < app(0, 800));
}

#[test]
fn a_file_that_was_named_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    assert!(Config::load(Some(&path)).unwrap_err().0[0].contains("there is no such file"));
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(Config::load(Some(&path)).unwrap_err().0[0].contains(": is a link to a file that is not there"));
    fs::write(&path, "[act]\nlow = 12\n").unwrap();
    let config = Config::load(Some(&path)).unwrap();
    assert_eq!((config.act.low, config.path.as_deref()), (share(12.0), Some(&*path)));
    let parent = Pid::new(std::os::unix::process::parent_id().cast_signed()).unwrap();
    // Which may end, and another process get its ID.
    for (pid, spared) in [(Pid::own(), true), (parent, false)] {
        let verdict = config.policy.judge(&Subject {
            pid,
            comm: b"",
            command_line: None,
            exe: Exe::Unread,
            uid: 0,
            cgroup: b"",
            oom_score_adj: 1000,
            preference: OomPreference::None,
        });
        assert_eq!(verdict.never, spared, "{pid}");
    }
    fs::write(&path, "[act]\nlow = 120\n").unwrap();
    assert!(Config::load(Some(&path)).unwrap_err().to_string().contains("c.toml:2: act.low: 120 %"));
    assert!(Config::load(Some(dir.path())).is_err());
}

proptest! {
    #[test]
    fn no_bytes_do_harm(
        comm in prop::collection::vec(any::<u8>(), 0..20),
        command_line in prop::collection::vec(any::<u8>(), 0..200),
        cgroup in prop::collection::vec(any::<u8>(), 0..100),
        pid in 1..=i32::MAX,
        uid: u32,
        oom_score_adj: i16,
    ) {
        let config = Config::default();
        let subject = Subject {
            pid: Pid::new(pid).unwrap(),
            comm: &comm,
            command_line: Some(&command_line),
            exe: Exe::Unread,
            uid,
            cgroup: &cgroup,
            oom_score_adj,
            preference: OomPreference::None,
        };
        let verdict = config.policy.judge(&subject);
        prop_assert!(verdict.rule.is_none_or(|rule| config.policy.rule(rule) != "?"));
    }
}
