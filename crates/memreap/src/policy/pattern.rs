// SPDX-License-Identifier: GPL-2.0-only
//! Patterns for names, command lines and cgroups: `*`, `?` and, for cgroups, `**`.
//!
//! There is no way to escape: the names of systemd's units have backslashes of their own, and `?`
//! fits a `*`.

/// The longest pattern: with it a match takes some microseconds at most.
const MAX_PATTERN_BYTES: usize = 256;

/// How much of a process's name the kernel keeps.
const COMM_BYTES: usize = 15;

/// A pattern that a text fits or does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<[u8]>,
    /// How many bytes at its beginning are literal. Most processes are distinguished by these, and there are
    /// many processes and patterns.
    head: usize,
    syntax: Syntax,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    Name,
    CommandLine,
    Path,
}

impl Pattern {
    /// For a process's name (comm). Only what the kernel keeps of a name is compared, so a pattern
    /// that says more than that fits, too.
    ///
    /// # Errors
    /// Text for the user: when it is empty, longer than 256 bytes or for longer names than there are.
    pub fn name(text: &str) -> Result<Self, String> {
        if text.contains(['/', '|']) || text.starts_with('^') || text.ends_with('$') {
            return Err(format!(
                "fits no name: '{text}' looks like a path or a regular expression; give the last component \
                 of the path, with '*' for any text, and a list for several names"
            ));
        }
        let text = text.as_bytes();
        let kept = text.get(..COMM_BYTES).filter(|start| !start.contains(&b'*')).unwrap_or(text);
        if kept.iter().filter(|b| **b != b'*').count() > COMM_BYTES {
            return Err(format!("fits no name: the kernel keeps {COMM_BYTES} bytes of one; write '*' for the rest"));
        }
        Self::new(kept, Syntax::Name)
    }

    /// For a command line: arguments that are separated by NUL, each of which a space fits.
    ///
    /// # Errors
    /// As [`Pattern::name`].
    pub fn command_line(text: &str) -> Result<Self, String> {
        Self::new(without_padding(text.as_bytes()), Syntax::CommandLine)
    }

    /// For a cgroup's path: `*` and `?` stay within a component, the component `**` stands for any
    /// number of them, also none. Without any of these, what is below the cgroup fits, too: services and users'
    /// managers keep their processes there. But "/" is the root alone.
    ///
    /// # Errors
    /// As [`Pattern::name`]; when it does not start with `/`, or is a path of the file system; when `**` is only a
    /// part of a component.
    pub fn cgroup(text: &str) -> Result<Self, String> {
        if let Some(path) = below(text, "/sys/fs/cgroup") {
            // Where v1 and v2 are mounted together.
            let path = below(path, "/unified").unwrap_or(path).trim_end_matches('/');
            let path = if path.is_empty() { "/**" } else { path };
            return Err(format!("begins with the folder in which cgroups are mounted; write '{path}'"));
        }
        let Some(components) = text.strip_prefix('/') else {
            return Err(format!("starts with a /, as '/{text}' or '/**/{text}' do"));
        };
        Self::components(components)?;
        let path = match text.trim_end_matches('/') {
            "" => "/".to_owned(),
            path if path.contains(['*', '?']) => path.to_owned(),
            path => path.to_owned() + "/**",
        };
        Self::new(path.as_bytes(), Syntax::Path)
    }

    /// For the path of an executable: `*`, `?` and `**` as for cgroups. Without any of these it is that file.
    ///
    /// # Errors
    /// As [`Pattern::name`]; when it does not start with `/`, or ends with it; when `**` is only a part of a
    /// component.
    pub fn exe(text: &str) -> Result<Self, String> {
        match text.strip_prefix('/') {
            Some(_) if text.ends_with('/') => {
                return Err(format!("fits no file; write '{}/**' for all in that folder", text.trim_end_matches('/')));
            }
            Some(components) => Self::components(components)?,
            None => return Err(format!("is no absolute path; write it in full, or '/**/{text}' for any folder")),
        }
        Self::new(text.as_bytes(), Syntax::Path)
    }

    /// Checks the components of a path.
    fn components(text: &str) -> Result<(), String> {
        if text.split('/').any(|c| c != "**" && c.contains("**")) {
            return Err("'**' stands for whole components: write it between slashes".to_owned());
        }
        let mut written = text.trim_end_matches('/').split('/');
        if written.any(|c| matches!(c, "" | "." | "..")) && !text.is_empty() {
            return Err("fits nothing: a path has no '//', '.' or '..' in it".to_owned());
        }
        Ok(())
    }

    fn new(text: &[u8], syntax: Syntax) -> Result<Self, String> {
        match text.len() {
            0 => Err("is empty; '*' fits everything".to_owned()),
            1..=MAX_PATTERN_BYTES => {
                let special = |b: &u8| matches!(b, b'*' | b'?') || (*b == b' ' && syntax == Syntax::CommandLine);
                let mut head = text.iter().position(special).unwrap_or(text.len());
                // Without any component, "/**" does not fit the slash either.
                if syntax == Syntax::Path && text[head..].starts_with(b"**") {
                    head -= 1;
                }
                Ok(Self { text: text.into(), head, syntax })
            }
            _ => Err(format!("has more than {MAX_PATTERN_BYTES} bytes; '*' can stand for some of them")),
        }
    }

    /// Whether all of `bytes` fits. Takes at most as many steps as both have bytes,
    /// multiplied.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        if !bytes.starts_with(&self.text[..self.head]) {
            return false;
        }
        match self.syntax {
            Syntax::Name => fits_bytes(&self.text, bytes, |p, b| p == b),
            Syntax::CommandLine => {
                fits_bytes(&self.text, without_padding(bytes), |p, b| p == b || (p == b' ' && b == 0))
            }
            Syntax::Path => fits_path(&self.text, bytes),
        }
    }
}

/// Returns a command line without the NUL at its end, and without what a program that has written another title over
/// it, as PostgreSQL does, has filled the rest with.
pub(crate) fn without_padding(command_line: &[u8]) -> &[u8] {
    let end = command_line.iter().rposition(|b| !matches!(b, 0 | b' '));
    &command_line[..end.map_or(0, |last| last + 1)]
}

/// The rest of a path after `folder`, if it is that or below it.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    path.strip_prefix(folder).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn fits_path(pattern: &[u8], path: &[u8]) -> bool {
    fn components(path: &[u8]) -> Option<impl Iterator<Item = &[u8]> + Clone> {
        Some(path.strip_prefix(b"/")?.split(|b| *b == b'/'))
    }
    let (Some(pattern), Some(path)) = (components(pattern), components(path)) else {
        return false;
    };
    wild(pattern, path, |p| p == b"**", |p, component| fits_bytes(p, component, |p, b| p == b))
}

fn fits_bytes(pattern: &[u8], bytes: &[u8], same: impl Fn(u8, u8) -> bool) -> bool {
    wild(pattern.iter().copied(), bytes.iter().copied(), |p| p == b'*', |p, b| p == b'?' || same(p, b))
}

/// Whether the items of `pattern` fit all of `text`, where one that is a `star` fits any number of
/// items.
///
/// When something does not fit, the last star takes one item more. An earlier star need not: what it
/// could take more of, the last one can take as well.
fn wild<P: Copy, T: Copy>(
    mut pattern: impl Iterator<Item = P> + Clone,
    mut text: impl Iterator<Item = T> + Clone,
    star: impl Fn(P) -> bool,
    fits: impl Fn(P, T) -> bool,
) -> bool {
    let mut last_star = None;
    loop {
        let mut rest = text.clone();
        match (pattern.next(), rest.next()) {
            (None, None) => return true,
            (Some(p), _) if star(p) => last_star = Some((pattern.clone(), text.clone())),
            (Some(p), Some(t)) if fits(p, t) => text = rest,
            _ => {
                let Some((after, from)) = &mut last_star else { return false };
                if from.next().is_none() {
                    return false;
                }
                (pattern, text) = (after.clone(), from.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
