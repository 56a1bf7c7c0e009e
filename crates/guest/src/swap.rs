//! Compressed swap in memory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};

use crate::ksm::PAGE;

const DEVICE: &str = "/dev/zram0";
const DISKSIZE: &str = "/sys/block/zram0/disksize";

/// Swap space on zram, switched on. It stays so until the guest ends.
///
/// # Errors
/// When the kernel has no zram, or does not take it as swap.
pub fn on(bytes: u64) -> Result<()> {
    fs::write(DISKSIZE, bytes.to_string()).with_context(|| format!("{DISKSIZE} (CONFIG_ZRAM)"))?;
    let device = File::options().write(true).open(DEVICE).context(DEVICE)?;
    device.write_all_at(&header(bytes / PAGE as u64)?, 0).context(DEVICE)?;
    drop(device);
    // SAFETY: the path is a C string.
    let ret = unsafe { libc::swapon(c"/dev/zram0".as_ptr(), 0) };
    ensure!(ret == 0, "swapon {DEVICE}: {}", io::Error::last_os_error());
    Ok(())
}

/// The first page of swap space: a version, the number of the last page, no bad pages.
fn header(pages: u64) -> Result<Vec<u8>> {
    const SIGNATURE: &[u8] = b"SWAPSPACE2";
    let last = u32::try_from(pages.saturating_sub(1)).context("so much swap space has no number")?;
    let mut page = vec![0; PAGE];
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last.to_ne_bytes());
    page[PAGE - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_mkswap() {
        let page = header(64).unwrap();
        assert_eq!(page.len(), PAGE);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!((page[1024], page[1028]), (1, 63));
        assert!(header(1 << 40).is_err());
    }
}
