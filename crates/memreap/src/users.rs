//! Names of users.

use std::fs;
use std::path::Path;

/// The largest /etc/passwd that is looked at.
const LIMIT: u64 = 16 << 20;

/// The name of a user, or the number where there is none.
///
/// Looks only at /etc/passwd: the other sources (LDAP and the like) are asked through shared
/// libraries, which a static program cannot load, and over a network that may not answer on a
/// machine short of memory.
pub fn name(uid: u32) -> String {
    let path = Path::new("/etc/passwd");
    let small = fs::metadata(path).is_ok_and(|meta| meta.len() <= LIMIT);
    let table = if small { fs::read(path).unwrap_or_default() } else { Vec::new() };
    find(&table, uid).unwrap_or_else(|| uid.to_string())
}

fn find(table: &[u8], uid: u32) -> Option<String> {
    table.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        let (name, _password, id) = (fields.next()?, fields.next()?, fields.next()?);
        let id: u32 = str::from_utf8(id).ok()?.parse().ok()?;
        (id == uid && !name.is_empty()).then(|| linux::escape(name).to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_with_the_number_counts() {
        let table =
            b"root:x:0:0:root:/root:/bin/sh\n# no line\nbad:x:y:0\ndb:x:70:70::/:\nalias:x:70:70::/:\n";
        assert_eq!(find(table, 0).as_deref(), Some("root"));
        assert_eq!(find(table, 70).as_deref(), Some("db"));
        assert_eq!(find(table, 1), None);
        assert_eq!(find(b"", 0), None);
    }
}
