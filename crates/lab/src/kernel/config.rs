// SPDX-License-Identifier: GPL-2.0-only
//! Kernel configurations: reads the fragments in `kernel/configs`, adds the topics' symbols, writes a
//! `.config` and checks that every request took effect.

use fs_err as fs;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use walkdir::WalkDir;

use crate::context::Context;
use crate::host;
use crate::kernel::kinds::Variant;
use crate::kernel::make::make;
use crate::kernel::series;
use crate::kernel::topics::Topic;

/// Requests for the topics' symbols, and for their KUnit tests in the variants that have them.
pub(super) fn topic_requests(topics: &[Topic], variant: Variant) -> Vec<Request> {
    let tested = match variant {
        Variant::Debug | Variant::Kunit | Variant::Kcsan | Variant::Rt => true,
        Variant::Slim | Variant::Faceoff => false,
    };
    let kunit = topics.iter().filter(|_| tested).filter_map(|topic| topic.kunit.as_ref());
    let symbols = topics.iter().filter_map(|topic| topic.kconfig.as_ref()).chain(kunit);
    symbols.map(|symbol| Request::new(symbol, "y", "kernel/topics.toml")).collect()
}

/// Returns the requests of the variant's fragments, of these topics and of `more`, a fragment that overrides
/// them; one per symbol.
///
/// # Errors
/// When a fragment cannot be read or has a bad line.
pub(super) fn requests(ctx: &Context, topics: &[Topic], variant: Variant, more: Option<&str>) -> Result<Vec<Request>> {
    let mut requests = fragment_requests(ctx, variant)?;
    requests.extend(topic_requests(topics, variant));
    if let Some(file) = more {
        requests.extend(read_fragment(ctx, file)?);
    }
    Ok(merge(requests))
}

/// A symbol and the value that it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The name without `CONFIG_`.
    symbol: String,
    /// `y`, `n`, a number or a quoted string.
    value: String,
    /// Where the request comes from: `file:line`.
    origin: String,
}

impl Request {
    fn new(symbol: &str, value: &str, origin: &str) -> Self {
        Self { symbol: symbol.to_owned(), value: value.to_owned(), origin: origin.to_owned() }
    }

    /// Whether it is of a fragment of the user's, which are named by their absolute paths.
    fn is_users(&self) -> bool {
        !self.origin.starts_with("kernel/")
    }

    /// Whether a tree with these symbols can grant it. The lab's own may also turn off what is not there.
    fn is_known(&self, defined: &HashSet<String>) -> bool {
        defined.contains(&self.symbol) || (self.value == "n" && !self.is_users())
    }
}

/// Returns the symbols of a fragment of the user's that are among `missing`.
pub(super) fn users_among(requests: &[Request], missing: &str) -> Vec<String> {
    let is_missing = |request: &&Request| missing.split(' ').any(|symbol| symbol == request.symbol);
    requests.iter().filter(|r| r.is_users()).filter(is_missing).map(|r| r.symbol.clone()).collect()
}

/// Returns the requests of the variant's fragments, and what the series changes of them.
pub(super) fn fragment_requests(ctx: &Context, variant: Variant) -> Result<Vec<Request>> {
    let series = &ctx.series;
    let origin = series::file(&series.name);
    // First, as what the variants other than slim ask for overrides them.
    let mut requests: Vec<Request> =
        series.config.iter().map(|(symbol, value)| Request::new(symbol, value, &origin)).collect();
    for name in variant.fragments().iter().chain(ctx.arch.fragments()) {
        requests.extend(read_fragment(ctx, &format!("kernel/configs/{name}.config"))?);
    }
    requests.retain(|request| !series.gone.contains(&request.symbol));
    Ok(requests)
}

fn read_fragment(ctx: &Context, file: &str) -> Result<Vec<Request>> {
    let text = fs::read_to_string(ctx.in_repo(file)).with_context(|| format!("cannot read {file}"))?;
    parse_fragment(&text, file)
}

/// Parses lines of `CONFIG_X=value` or `# CONFIG_X is not set`, comments and blank lines.
pub(super) fn parse_fragment(text: &str, file: &str) -> Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let origin = format!("{file}:{}", number + 1);
        let line = line.trim();
        let unset = line.strip_prefix("# CONFIG_").and_then(|l| l.strip_suffix(" is not set"));
        let (symbol, value) = match (unset, line.strip_prefix("CONFIG_")) {
            (Some(symbol), _) => (symbol, "n"),
            (None, Some(rest)) => rest.split_once('=').with_context(|| format!("{origin}: expected CONFIG_X=value"))?,
            (None, None) if line.is_empty() || line.starts_with('#') => continue,
            (None, None) => bail!("{origin}: expected CONFIG_X=value or a comment, found \"{line}\""),
        };
        if let Some(earlier) = requests.iter().find(|r| r.symbol == symbol) {
            bail!("{origin}: CONFIG_{symbol} is already set at {}", earlier.origin);
        }
        requests.push(Request::new(symbol, value, &origin));
    }
    Ok(requests)
}

/// Reduces the requests to one per symbol; the last one wins.
pub(super) fn merge(requests: Vec<Request>) -> Vec<Request> {
    let mut merged: Vec<Request> = Vec::new();
    for request in requests {
        match merged.iter_mut().find(|r| r.symbol == request.symbol) {
            Some(earlier) => *earlier = request,
            None => merged.push(request),
        }
    }
    merged
}

pub(super) fn fragment_text(requests: &[Request]) -> String {
    requests.iter().map(|r| format!("CONFIG_{}={}\n", r.symbol, r.value)).collect()
}

/// Returns the requests that do not hold in a finished `.config`, and what they became.
fn broken<'a>(requests: &'a [Request], config: &'a str) -> impl Iterator<Item = (&'a Request, &'a str)> {
    let granted: HashMap<&str, &str> =
        config.lines().filter_map(|l| l.strip_prefix("CONFIG_")?.split_once('=')).collect();
    let became = move |r: &'a Request| (r, granted.get(r.symbol.as_str()).copied().unwrap_or("n"));
    requests.iter().map(became).filter(|(request, value)| *value != request.value)
}

/// Returns a line for each request that does not hold in a finished `.config`.
pub(super) fn unmet(requests: &[Request], config: &str) -> Vec<String> {
    let told = |(r, value): (&Request, &str)| format!("{}: CONFIG_{}={} became {value}", r.origin, r.symbol, r.value);
    broken(requests, config).map(told).collect()
}

/// Writes `out/.config`, by `make` for that folder: allnoconfig plus the requests and what they select. Returns it.
///
/// # Errors
/// When make fails.
pub(super) fn write(mut make: Command, out: &Path, requests: &[Request], log: &Path) -> Result<String> {
    let fragment = out.join("memreap.fragment");
    fs::write(&fragment, fragment_text(requests))?;
    let status = host::run_logged(make.arg("allnoconfig").env("KCONFIG_ALLCONFIG", &fragment), log, |_| {})?;
    if !status.success() {
        bail!("configuring failed ({status}); the end of {}:\n{}", log.display(), host::tail(log, 30));
    }
    Ok(fs::read_to_string(out.join(".config"))?)
}

/// Like [`configure`], for a tree that need not have all that the lab's own fragments ask for. Returns the symbols that it
/// does not define, and those that did not take effect.
///
/// # Errors
/// When a Kconfig file cannot be read, make fails, or a request of a fragment of the user's for a symbol that the tree
/// has does not take effect.
pub(super) fn configure_any(
    ctx: &Context,
    tree: &Path,
    out: &Path,
    requests: &[Request],
    log: &Path,
) -> Result<Vec<String>> {
    let mut defined = HashSet::new();
    for entry in WalkDir::new(tree).into_iter().filter_entry(|entry| entry.path() != out) {
        let entry = entry?;
        if !entry.file_type().is_file() || !entry.file_name().to_string_lossy().starts_with("Kconfig") {
            continue;
        }
        for line in fs::read_to_string(entry.path())?.lines() {
            if let Some(("config" | "menuconfig", symbol)) = line.trim().split_once(char::is_whitespace) {
                defined.insert(symbol.trim().to_owned());
            }
        }
    }
    let (known, unknown): (Vec<Request>, Vec<Request>) = requests.iter().cloned().partition(|r| r.is_known(&defined));
    let config = write(make(ctx, tree, out), out, &known, log)?;
    let (asked, ours): (Vec<Request>, Vec<Request>) = known.into_iter().partition(Request::is_users);
    must_hold(&asked, &config)?;
    let broken = broken(&ours, &config).map(|(request, _)| request.symbol.clone());
    Ok(unknown.into_iter().map(|request| request.symbol).chain(broken).collect())
}

/// Like [`write`], for a build of the lab.
///
/// # Errors
/// When make fails, or a request does not take effect.
pub(super) fn configure(ctx: &Context, tree: &Path, out: &Path, requests: &[Request], log: &Path) -> Result<()> {
    must_hold(requests, &write(make(ctx, tree, out), out, requests, log)?)
}

fn must_hold(requests: &[Request], config: &str) -> Result<()> {
    let unmet = unmet(requests, config);
    if !unmet.is_empty() {
        bail!(
            "these symbols did not take effect; a dependency is missing or this kernel does not have them:\n  {}",
            unmet.join("\n  ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::topics;

    fn parsed(text: &str) -> Vec<Request> {
        parse_fragment(text, "f").unwrap()
    }

    #[test]
    fn fragments_are_read_and_merged() {
        let slim = parsed("# slim\n\nCONFIG_A=y\nCONFIG_S=\"a=b\"\n# CONFIG_B is not set\n# CONFIG_A explained\n");
        let debug = parsed("CONFIG_A=n\nCONFIG_N=64\n");
        let merged = merge(slim.into_iter().chain(debug).collect());
        assert_eq!(fragment_text(&merged), "CONFIG_A=n\nCONFIG_S=\"a=b\"\nCONFIG_B=n\nCONFIG_N=64\n");
    }

    #[test]
    fn the_kernels_that_look_for_faults_have_the_topics_tests() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let ctx = Context { repo: repo.clone(), ..Context::below(Path::new("/nowhere")) };
        let topics = topics::load(&repo, &ctx.series).unwrap();
        for (variant, has_them) in [
            (Variant::Slim, false),
            (Variant::Debug, true),
            (Variant::Kunit, true),
            (Variant::Kcsan, true),
            (Variant::Rt, true),
            (Variant::Faceoff, false),
        ] {
            let mut requests = fragment_requests(&ctx, variant).unwrap();
            requests.extend(topic_requests(&topics, variant));
            let wanted = |symbol: &str| requests.iter().any(|r| r.symbol == symbol && r.value == "y");
            assert_eq!(wanted("KUNIT"), has_them, "{variant}");
            for test in topics.iter().filter_map(|t| t.kunit.as_deref()) {
                assert_eq!(wanted(test), has_them, "{variant}: {test}");
            }
        }
    }

    #[test]
    fn bad_fragment_lines_are_named() {
        let error = |text| parse_fragment(text, "f.config").unwrap_err().to_string();
        assert_eq!(error("\nA=y"), "f.config:2: expected CONFIG_X=value or a comment, found \"A=y\"");
        assert_eq!(error("CONFIG_A"), "f.config:1: expected CONFIG_X=value");
        assert_eq!(error("CONFIG_A=y\nCONFIG_A=n"), "f.config:2: CONFIG_A is already set at f.config:1");
    }

    #[test]
    fn a_symbol_of_the_users_that_no_kconfig_has_is_missing() {
        let defined = HashSet::from(["A".to_owned()]);
        let unknown = |file| {
            let requests = parse_fragment("CONFIG_A=y\nCONFIG_TYPO=y\n# CONFIG_TPYO is not set\n", file).unwrap();
            let unknown: Vec<&str> =
                requests.iter().filter(|r| !r.is_known(&defined)).map(|r| r.symbol.as_str()).collect();
            (unknown.join(" "), users_among(&requests, &unknown.join(" ")).join(" "))
        };
        assert_eq!(unknown("/home/me/my.config"), ("TYPO TPYO".to_owned(), "TYPO TPYO".to_owned()));
        assert_eq!(unknown("kernel/configs/slim.config"), ("TYPO".to_owned(), String::new()));
    }

    #[test]
    fn every_request_must_take_effect() {
        let wanted = parsed("CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=n\nCONFIG_D=64\nCONFIG_E=n\nCONFIG_F=\"x\"\n");
        let config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=y\nCONFIG_D=32\nCONFIG_F=\"x\"\nCONFIG_AB=y\n";
        assert_eq!(
            unmet(&wanted, config),
            ["f:2: CONFIG_B=y became n", "f:3: CONFIG_C=n became y", "f:4: CONFIG_D=64 became 32"]
        );
    }
}
