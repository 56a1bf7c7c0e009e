// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/cgroup.

/// The path in the v2 hierarchy that /proc/PID/cgroup names; empty when it names none.
pub fn cgroup(bytes: &[u8]) -> &[u8] {
    bytes
        .split_inclusive(|&b| b == b'\n')
        .find_map(|line| line.strip_suffix(b"\n")?.strip_prefix(b"0::").filter(|path| path.starts_with(b"/")))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_line_of_the_v2_hierarchy_counts() {
        assert_eq!(cgroup(b"4:memory:/x\n0::/a b/c\n"), b"/a b/c");
        assert_eq!(cgroup(b"1:name=systemd:/0::/b\n0::/x:y \xff\n"), b"/x:y \xff");
        assert_eq!([&b"0::a\n"[..], b"0::/a", b"0::\n", b"4:memory:/x\n", b""].map(cgroup), [&b""[..]; 5]);
    }
}
