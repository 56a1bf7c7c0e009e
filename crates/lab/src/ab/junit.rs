// SPDX-License-Identifier: GPL-2.0-only
//! Renders a comparison as a JUnit report, for CI systems.

use crate::ab::results::{Results, Verdict};
use crate::format::{number, ratio};
use crate::html::escape;

/// Renders a test case per metric, which has failed if it got worse, and was skipped if
/// it has no verdict; and one per boot that failed and was repeated, an error.
pub fn render(results: &Results) -> String {
    let repeated = &results.meta.repeated;
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"lab ab\" tests=\"{}\" errors=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
        results.metrics().count() + repeated.len(),
        repeated.len(),
        results.count(Verdict::Worse),
        results.count(Verdict::None)
    );
    for (run, metric) in results.metrics() {
        let class = escape(&format!("{}.{}", run.scenario, run.guest));
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
    for boot in repeated {
        let (name, what) = (escape(&boot.boot), escape(&boot.what));
        text.push_str(&format!(
            "  <testcase classname=\"boots\" name=\"{name}\"><error message=\"{what}\"/></testcase>\n"
        ));
    }
    text + "</testsuite>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::{RepeatedBoot, fixture};

    #[test]
    fn golden_report() {
        let mut results = fixture::results();
        results.runs[1].guest = "icount-64".into();
        results.meta.repeated.push(RepeatedBoot {
            boot: "pair 2/8, memreap, reap/multi".into(),
            what: "the guest hung: killed after 180 s".into(),
            logs: "boots/reap-multi/02-memreap.failed".into(),
            exit_code: 4,
        });
        fixture::golden("junit.xml", &render(&results));
    }
}
