// SPDX-License-Identifier: GPL-2.0-only
//! Names of users.

use std::fs;
use std::path::Path;

/// A larger /etc/passwd is not read.
const MAX_PASSWD_BYTES: u64 = 16 << 20;

/// Returns the name of a user, or the number where there is none.
///
/// Reads only /etc/passwd: other sources (LDAP and the like) need shared libraries, which a static program
/// cannot load, and a network that may not answer on a machine short of memory.
pub fn name(uid: u32) -> String {
    find(&table(), uid).unwrap_or_else(|| uid.to_string())
}

/// Returns the number of the user with this name, from /etc/passwd.
pub fn id(name: &str) -> Option<u32> {
    find_id(&table(), name)
}

fn table() -> Vec<u8> {
    let path = Path::new("/etc/passwd");
    let small = fs::metadata(path).is_ok_and(|meta| meta.len() <= MAX_PASSWD_BYTES);
    if small { fs::read(path).unwrap_or_default() } else { Vec::new() }
}

fn find(table: &[u8], uid: u32) -> Option<String> {
    users(table).find(|(_, id)| *id == uid).map(|(name, _)| linux::escape(name).to_string())
}

fn find_id(table: &[u8], name: &str) -> Option<u32> {
    let listed = users(table).find(|(known, _)| *known == name.as_bytes()).map(|(_, id)| id);
    // The image of a container need not have the file.
    listed.or((name == "root").then_some(0))
}

fn users(table: &[u8]) -> impl Iterator<Item = (&[u8], u32)> {
    table.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        let (name, _password, id) = (fields.next()?, fields.next()?, fields.next()?);
        let id = str::from_utf8(id).ok()?.parse().ok()?;
        (!name.is_empty()).then_some((name, id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_with_the_number_counts() {
        let table = b"root:x:0:0:root:/root:/bin/sh\n# no line\nbad:x:y:0\ndb:x:70:70::/:\nalias:x:70:70::/:\n";
        assert_eq!(find(table, 0).as_deref(), Some("root"));
        assert_eq!(find(table, 70).as_deref(), Some("db"));
        assert_eq!(find(table, 1), None);
        assert_eq!(find(b"", 0), None);
        assert_eq!(find_id(table, "alias"), Some(70));
        assert_eq!((find_id(table, "bad"), find_id(table, "")), (None, None));
        assert_eq!((find_id(b"", "root"), find_id(b"", "db")), (Some(0), None));
    }
}
