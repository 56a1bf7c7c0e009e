// SPDX-License-Identifier: GPL-2.0-only
//! /sys/block/zram*: compressed block devices in memory, mostly used for swap.

use std::path::Path;
use std::{fs, io};

use crate::{Error, Result, Root, read, text};

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its size in bytes, before compression; 0 when it is not set up.
    pub disk_size: u64,
    /// What is in it.
    pub usage: Usage,
}

/// What /sys/block/zram*/mm_stat says, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What was written, before compression, without pages that are all one value.
    pub original: u64,
    /// Memory used in all.
    pub used: u64,
}

/// The devices there are, in no order; none when the kernel has no zram.
///
/// # Errors
/// When a file cannot be read or does not say what it should. A device that is removed
/// meanwhile is left out.
pub fn devices(root: &Root) -> Result<Vec<Device>> {
    let block = root.sys().join("block");
    let entries = match fs::read_dir(&block) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| Error::io(&block, e))?,
    };
    let mut devices = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| Error::io(&block, e))?.file_name();
        if let Some(name) = name.to_str().filter(|name| is_zram(name)) {
            devices.extend(device(&block.join(name))?);
        }
    }
    Ok(devices)
}

fn is_zram(name: &str) -> bool {
    name.strip_prefix("zram").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn device(dir: &Path) -> Result<Option<Device>> {
    let (size_path, usage_path) = (dir.join("disksize"), dir.join("mm_stat"));
    let size = read::file_if_there(&size_path, read::SMALL_FILE_BYTES)?;
    let usage = read::file_if_there(&usage_path, read::SMALL_FILE_BYTES)?;
    let (Some(size), Some(usage)) = (size, usage) else {
        return Ok(None);
    };
    Ok(Some(Device { disk_size: text::single_number(&size_path, &size)?, usage: Usage::parse(&usage_path, &usage)? }))
}

impl Usage {
    /// Parses /sys/block/zram*/mm_stat.
    ///
    /// # Errors
    /// When a field is missing or not in its range.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let line = text::single(path, bytes)?;
        let mut fields = line.fields();
        let mut next = || line.number(fields.next().ok_or_else(|| line.error("fields are missing"))?);
        let (original, _compressed, used) = (next()?, next()?, next()?);
        Ok(Self { original, used })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_tree() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(devices(&root).unwrap(), []);

        for name in ["zram0", "zram", "zramx", "vda", "zram7"] {
            fs::create_dir_all(root.sys().join("block").join(name)).unwrap();
        }
        let zram0 = root.sys().join("block/zram0");
        fs::write(zram0.join("disksize"), "1073741824\n").unwrap();
        fs::write(zram0.join("mm_stat"), "   1    2        3      0        5        6        7        8  9\n").unwrap();
        let found = devices(&root).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0], Device { disk_size: 1 << 30, usage: Usage { original: 1, used: 3 } });

        fs::write(zram0.join("mm_stat"), "1 2\n").unwrap();
        let error = devices(&root).unwrap_err().to_string();
        assert!(error.contains("zram0/mm_stat:1: fields are missing"), "{error}");
    }
}
