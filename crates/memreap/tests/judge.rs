// SPDX-License-Identifier: GPL-2.0-only
//! Judging must not allocate: it happens when there is no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use linux::Pid;
use linux::cgroup::OomPreference;
use memreap::config::Config;
use memreap::policy::{Exe, Subject};

thread_local! {
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

struct Guarded;

// SAFETY: everything is the system allocator's; aborting instead of allocating is allowed.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if FORBIDDEN.get() {
            std::process::abort();
        }
        // SAFETY: as the caller of this one promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller of this one promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

#[test]
fn judging_does_not_allocate() {
    let text = "[[rule]]\ncommand_line = \"*x*y*\"\nuser = 7\nprotect = true\n\
                [[rule]]\nexe = \"/usr/lib/*/x\"\nnever = true\n";
    let config = Config::parse("test", text).unwrap();
    let subject = Subject {
        pid: Pid::new(4711).unwrap(),
        comm: b"Isolated Web Co",
        command_line: Some(b"/usr/lib/firefox/firefox-bin\0-contentproc\0x\0"),
        exe: Exe::Path(b"/usr/lib/firefox/firefox-bin"),
        uid: 7,
        cgroup: b"/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox-1234.scope",
        oom_score_adj: 167,
        preference: OomPreference::None,
    };
    FORBIDDEN.set(true);
    let verdict = config.policy.judge(&subject);
    let score = verdict.score(1 << 30);
    let rule = verdict.rule.map(|rule| config.policy.rule(rule).len());
    FORBIDDEN.set(false);
    assert_eq!((score, rule), (1 << 30, None));
}
