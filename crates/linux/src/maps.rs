// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/maps: the mappings of a process.

/// One line of /proc/PID/maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// The first address.
    pub start: usize,
    /// The address after the last.
    pub end: usize,
    /// Permissions as in "r-xp".
    pub mode: &'a str,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// The file's device, as in "fe:00".
    pub device: &'a str,
    /// The file's inode; 0 for anonymous memory.
    pub inode: u64,
    /// The file's path, or a name such as `[stack]`; empty for none. Only up to the first space.
    pub name: &'a str,
}

impl<'a> Mapping<'a> {
    /// Parses a line without its end; `None` when it is not one.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (range, mode) = (fields.next()?, fields.next()?);
        let (offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?);
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        (start < end).then_some(Self {
            start,
            end,
            mode,
            offset: u64::from_str_radix(offset, 16).ok()?,
            device,
            inode: inode.parse().ok()?,
            name: fields.next().unwrap_or(""),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_mapping() {
        let line = b"7f00-9f00 r-xp 00002000 fe:00 77   /usr/lib/x y";
        let expected = Mapping {
            start: 0x7f00,
            end: 0x9f00,
            mode: "r-xp",
            offset: 0x2000,
            device: "fe:00",
            inode: 77,
            name: "/usr/lib/x",
        };
        assert_eq!(Mapping::parse(line), Some(expected));
        assert_eq!(Mapping::parse(b"1-2 rw-p 0 0 0").unwrap().name, "");
        for wrong in [&b""[..], b"\xff", b"1-2", b"9-1 rw-p 0 0 0", b"x-y rw-p 0 0 0", b"1-2 rw-p 0 0 x"] {
            assert_eq!(Mapping::parse(wrong), None);
        }
    }
}
