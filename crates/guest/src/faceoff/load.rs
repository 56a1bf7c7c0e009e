//! The variants: who appears, and when the load is over.

use std::os::fd::OwnedFd;
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use protocol::faceoff::{Variant, Who};

use super::desktop::{ADJ, APP_FILE, Actor, Scope};
use super::recorder::{BoxFiles, has_ended};
use super::verdict::CALM;
use super::workload::{MIB, Role};
use crate::memory::region::PAGE;

/// How much of the compressible hog's pages is random, in thousandths.
const THIRD: usize = 333;
/// The leak: 1:1.3.
const LEAK_RANDOM: usize = 770;
const LEAK_RATE: usize = 50;
const FORKS: usize = 200;
const FORK_MIB: usize = 24;
/// What the limited group may have in memory and in swap, in MiB.
const BOX_MIB: u64 = 512;
const BOX_SWAP_MIB: u64 = 256;
/// The innocent process, in MiB: shared with another one, and its own.
const SHARED_MIB: usize = 600;
const OWN_MIB: usize = 100;
const APPS: usize = 15;
const APP_MIB: usize = 70;
/// Apps compress 4:3, so that all of them and the camera do not fit.
const APP_RANDOM: usize = 750;
/// What a phone gives apps that nobody looks at.
const APP_ADJ: i32 = 900;
const CAMERA_MIB: usize = 800;
/// How long a machine is watched after the camera has its memory.
const CAMERA_AFTER: u64 = 3 * CALM;

/// The processes of a variant, ready to begin.
pub struct Load {
    variant: Variant,
    /// The last one is who begins.
    pub actors: Vec<Actor>,
    /// The processes that the last one started, in order.
    hands: Vec<OwnedFd>,
    /// The group that the load is limited to.
    pub boxed: Option<BoxFiles>,
}

impl Load {
    /// Brings everybody in. The calling thread must outlive them.
    ///
    /// # Errors
    /// When there is no memory for somebody, or a control group refuses them.
    pub fn prepare(variant: Variant, seed: u64) -> Result<Self> {
        let seed = |n: u64| seed.wrapping_mul(1000) + n;
        let hog = |random, rate| {
            let role = Role::Grow { mib: 0, random, rate };
            Actor::start(Who::Hog, "hog", &Scope::app("hog")?, ADJ, seed(0), &role)
        };
        let mut boxed = None;
        let actors = match variant {
            Variant::Hog => vec![hog(1000, 0)?],
            Variant::Compressible => vec![hog(THIRD, 0)?],
            Variant::Leak => vec![hog(LEAK_RANDOM, LEAK_RATE)?],
            Variant::Forks => {
                let role = Role::Fork { count: FORKS, mib: FORK_MIB };
                vec![Actor::start(Who::Hog, "hog", &Scope::app("hog")?, ADJ, seed(0), &role)?]
            }
            Variant::Limit => {
                let scope = Scope::boxed("box", "boxapp")?;
                let group = scope.parent();
                group.set("memory.max", &(BOX_MIB << 20).to_string())?;
                group.set("memory.swap.max", &(BOX_SWAP_MIB << 20).to_string())?;
                boxed = Some(BoxFiles::open(&group, BOX_MIB << 10)?);
                let app = Role::Frames { mib: 120, file: APP_FILE.into() };
                let hog = Role::Grow { mib: 0, random: 1000, rate: 0 };
                vec![
                    Actor::start(Who::Foreground, "boxapp", &scope, ADJ, seed(1), &app)?,
                    Actor::start(Who::Hog, "hog", &Scope::boxed("box", "hog")?, ADJ, seed(0), &hog)?,
                ]
            }
            Variant::Innocent => {
                let role = Role::Share { shared: SHARED_MIB, mib: OWN_MIB };
                let scope = Scope::app("innocent")?;
                let innocent = Actor::start(Who::Innocent, "innocent", &scope, ADJ, seed(1), &role)?;
                vec![innocent, hog(1000, 0)?]
            }
            Variant::Apps => {
                let mut actors =
                    (1..=APPS).map(|n| start_app(n, seed(n as u64))).collect::<Result<Vec<_>>>()?;
                let camera = Role::Grow { mib: CAMERA_MIB, random: 1000, rate: 0 };
                actors.push(Actor::start(
                    Who::Camera,
                    "camera",
                    &Scope::app("camera")?,
                    0,
                    seed(0),
                    &camera,
                )?);
                actors
            }
            Variant::Idle => Vec::new(),
        };
        let hands = match variant {
            Variant::Forks => actors[0].sheet.hands().map(hand).collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        Ok(Self { variant, actors, hands, boxed })
    }

    /// Who begins.
    fn lead(&self) -> Option<&Actor> {
        self.actors.last()
    }

    /// Lets it begin.
    pub fn go(&self) {
        if let Some(lead) = self.lead() {
            lead.sheet.go();
        }
    }

    /// Whether nobody wants more memory: hogs are dead or have grown, the camera has all or is dead.
    pub fn is_over(&self) -> bool {
        let Some(lead) = self.lead() else { return true };
        match self.variant {
            Variant::Forks => {
                self.hands.iter().enumerate().all(|(i, pidfd)| lead.sheet.is_grown(i) || has_ended(pidfd))
            }
            _ => lead.sheet.served().is_some() || has_ended(&lead.pidfd),
        }
    }

    /// How long to go on when the load is over, where that is not until memory has recovered: the
    /// camera keeps what it has.
    pub fn after(&self) -> Option<u64> {
        (self.variant == Variant::Apps).then_some(CAMERA_AFTER)
    }

    /// The app whose frames count, if it is one of the load's.
    pub fn foreground(&self) -> Option<&Actor> {
        self.actors.iter().find(|actor| actor.who == Who::Foreground)
    }

    /// The app that waits for its memory.
    pub fn camera(&self) -> Option<&Actor> {
        self.actors.iter().find(|actor| actor.who == Who::Camera)
    }

    /// How many kills it takes, where that is known: one hog, one kill.
    pub fn needed_kills(&self) -> Option<u64> {
        (!matches!(self.variant, Variant::Forks | Variant::Apps | Variant::Idle)).then_some(1)
    }

    /// Ends everybody who is left, so that there is memory for what follows.
    ///
    /// # Errors
    /// When a control group refuses that.
    pub fn clear(&self) -> Result<()> {
        self.actors.iter().try_for_each(|actor| actor.scope.set("cgroup.kill", "1"))
    }
}

fn hand(pid: i32) -> Result<OwnedFd> {
    let pid = Pid::from_raw(pid).context("a pid that is none")?;
    pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")
}

/// An app that was used once, and has been swapped out since.
fn start_app(n: usize, seed: u64) -> Result<Actor> {
    let scope = Scope::app(&format!("bgapp{n}"))?;
    let role = Role::Keep { mib: APP_MIB, random: APP_RANDOM, touched: 0 };
    let actor = Actor::start(Who::Background, &format!("bgapp{n}"), &scope, APP_ADJ, seed, &role)?;
    swap_out(&scope)?;
    Ok(actor)
}

/// Has the kernel take back what it can of a group's memory.
fn swap_out(scope: &Scope) -> Result<()> {
    const TRIES: usize = 5;
    const PAUSE: Duration = Duration::from_millis(10);
    let bytes = (APP_MIB * MIB * PAGE).to_string();
    for _ in 0..TRIES {
        match scope.set("memory.reclaim", &bytes) {
            Ok(()) => break,
            // It took back less than that, as it must: the process needs some to live.
            Err(e)
                if e.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) == Some(libc::EAGAIN) => {}
            Err(e) => return Err(e),
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
