// SPDX-License-Identifier: GPL-2.0-only
//! Swap devices, one of which is switched off and on, and whether all of their space comes back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::disturbance::Disturbance;
use super::micros;
use super::victim::{DEATH_TIMEOUT, within};
use crate::memory::PAGE_BYTES;
use crate::memory::swap::{swapoff, swapon};
use crate::rng::Rng;
use crate::system::counters;

/// Size of each of the two swap devices: together less than there is to page out.
pub(super) const SWAP_BYTES: u64 = 48 << 20;
/// The swap device that is always on.
pub(super) const FIRST_SWAP: &str = "zram0";
/// Flags of swapon(2) for the second device: it has a higher priority, so it is used first.
const SWAPON_PREFERRED: libc::c_int = 0x8000 | 10;

/// Creates a second swap device of the same size, not switched on yet, and returns its name.
pub(super) fn second_swap() -> Result<String> {
    const ADD: &str = "/sys/class/zram-control/hot_add";
    // Reading creates a device.
    let number = fs::read_to_string(ADD).with_context(|| format!("{ADD} (CONFIG_ZRAM)"))?;
    let name = format!("zram{}", number.trim_end());
    let size = format!("/sys/block/{name}/disksize");
    fs::write(&size, SWAP_BYTES.to_string()).context(size)?;
    // A device of the same size has the same swap header.
    let mut header = vec![0; PAGE_BYTES];
    let (from, to) = (format!("/dev/{FIRST_SWAP}"), format!("/dev/{name}"));
    File::open(&from).and_then(|file| file.read_exact_at(&mut header, 0)).context(from)?;
    File::options().write(true).open(&to).and_then(|file| file.write_all_at(&header, 0)).context(to)?;
    Ok(name)
}

/// Switches a swap device on and off again.
pub(super) fn swapper(mut rng: Rng, device: &str) -> Result<Disturbance> {
    let path = format!("/dev/{device}");
    Disturbance::fork(move || {
        thread::sleep(micros(&mut rng, 50_000));
        // It is still on if there was no room elsewhere for what is in it.
        let _ = swapon(&path, SWAPON_PREFERRED);
        thread::sleep(micros(&mut rng, 200_000));
        swapoff(&path).is_ok()
    })
}

/// Checks that no swap entry waits to be released, and that all that ever did have been released. Returns how
/// many that were and a note with all counters; `None` for a kernel in which none wait.
pub(super) fn check_swap_is_released() -> Result<Option<(u64, String)>> {
    let mut last = counters::vmstat()?;
    // Of swap-defer, and of swap-last, which does not count releases.
    let Some(topic) = ["swap_defer_", "swap_last_"].into_iter().find(|topic| last.contains(topic)) else {
        return Ok(None);
    };
    let count = |text: &str, name| counters::value(text, &format!("{topic}{name} "));
    let done = within(DEATH_TIMEOUT, || {
        last = counters::vmstat().unwrap_or_default();
        count(&last, "waiting") == Some(0)
            && count(&last, "released").is_none_or(|released| Some(released) == count(&last, "queued"))
    });
    let ever = count(&last, "queued").or_else(|| count(&last, "waited"));
    let ever = ever.with_context(|| format!("no counters {topic}*"))?;
    let all: Vec<_> = last.lines().filter_map(|line| line.strip_prefix(topic)).collect();
    let all = all.join(", ");
    done.with_context(|| format!("swap entries are not released: {all}"))?;
    Ok(Some((ever, format!("swap entries: {all}"))))
}

/// Switches all swap off. That never ends if a slot leaked to which nothing refers.
pub(super) fn check_swap_comes_back(devices: &[&str]) -> Result<()> {
    const SWAPS: &str = "/proc/swaps";
    // In another process, which can be given up on.
    let switcher = Disturbance::fork(move || {
        thread::sleep(Duration::from_millis(10));
        devices.iter().filter(|name| swapoff(&format!("/dev/{name}")).is_ok()).count() > 0
    })?;
    let used = || fs::read_to_string(SWAPS).context(SWAPS);
    within(DEATH_TIMEOUT, || used().is_ok_and(|text| text.lines().count() == 1))
        .with_context(|| format!("swap space leaked: {}", used().unwrap_or_default()))?;
    switcher.end()?;
    for name in devices {
        let number = |file: &str, line: usize, field: usize| {
            let path = format!("/sys/block/{name}/{file}");
            let text = fs::read_to_string(&path).with_context(|| path.clone())?;
            let word = text.lines().nth(line).and_then(|line| line.split_whitespace().nth(field));
            word.and_then(|word| word.parse::<u64>().ok()).with_context(|| format!("{path}: {text}"))
        };
        // The header stays, and pages that were being read or written when their slots were freed.
        let (left, missed) = (number("mm_stat", 0, 0)?, number("debug_stat", 1, 1)?);
        ensure!(
            left <= (1 + missed) * PAGE_BYTES as u64,
            "{name}: {left} bytes are stored in no slot ({missed} could not be freed in time)"
        );
    }
    Ok(())
}
