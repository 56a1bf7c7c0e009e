// SPDX-License-Identifier: GPL-2.0-only
//! Renders a comparison as a JUnit report, for CI systems.

use crate::ab::results::Results;
use crate::ab::verdict::Verdict;
use crate::format::{number, ratio};
use crate::html::escape;

/// Renders a test case per metric, which has failed if it got worse, and was skipped if
/// it has no verdict.
#[must_use]
pub fn render(results: &Results) -> String {
    let count = |verdict| results.metrics.iter().filter(|m| m.verdict == verdict).count();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"lab ab\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
        results.metrics.len(),
        count(Verdict::Worse),
        count(Verdict::None)
    );
    for metric in &results.metrics {
        let class = [Some(metric.scenario.as_str()), metric.mode.as_deref()].into_iter().flatten();
        let class = escape(&class.collect::<Vec<_>>().join("."));
        let what = format!(
            "{} -> {} {}, {} {}",
            number(metric.base_median()),
            number(metric.changed_median()),
            metric.unit,
            ratio(metric.ratio),
            metric.verdict
        );
        let inner = match metric.verdict {
            Verdict::Worse => format!("<failure message=\"{}\"/>", escape(&what)),
            Verdict::None => format!("<skipped message=\"{}\"/>", escape(&what)),
            Verdict::Better | Verdict::Same => format!("<system-out>{}</system-out>", escape(&what)),
        };
        let name = escape(&metric.metric);
        text.push_str(&format!("  <testcase classname=\"{class}\" name=\"{name}\">{inner}</testcase>\n"));
    }
    text + "</testsuite>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::fixture;

    #[test]
    fn golden_report() {
        fixture::golden("junit.xml", &render(&fixture::results()));
    }
}
