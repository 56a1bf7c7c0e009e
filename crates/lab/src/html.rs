// SPDX-License-Identifier: GPL-2.0-only
//! The common parts of the lab's HTML pages. A page is a single file without scripts, fonts or external
//! links.

use crate::format;

const STYLE: &str = include_str!("html.css");

/// The end of a page: closes the `<main>` that the caller opened and the document of [`begin`].
pub(crate) const END: &str = "</main>\n</body>\n</html>\n";

/// Returns the beginning of a page, up to the heading inside of `<header>`, which the caller closes. `style`
/// is added to the common style sheet.
pub(crate) fn begin(title: &str, heading: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n",
        escape(title),
        escape(heading)
    )
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // HTML does not allow control characters, not even as references.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Like [`format::ratio`], with a multiplication sign.
pub(crate) fn factor(value: f64) -> String {
    format::ratio(value).replace('x', "×")
}
