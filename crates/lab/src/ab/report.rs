// SPDX-License-Identifier: GPL-2.0-only
//! `report.html`: a single file, without scripts, fonts or external links, that shows every boot.
//!
//! The page has a sentence per scenario, what is worse, the number of metrics per verdict, a table of all
//! metrics, a plot per metric grouped by scenario and case, and the conditions and method of the measurement. No
//! meaning depends on colour alone: arms differ in shape, verdicts in words.

use std::fmt::Write as _;

use crate::ab::picture;
use crate::ab::results::{ArmRole, Metric, Results, Run, Verdict};
use crate::ab::sentence::{self, sentences};
use crate::ab::stats::{MIN_PAIRS, median};
use crate::ab::table::explanation;
use crate::format::{self, counted, interval, number, p_value, percent};
use crate::html::{self, escape, factor};
use crate::svg::{Scale, Svg};
use scenarios::Mode;

/// The width of a plot in SVG units, which are CSS pixels at the usual width of a card.
const PLOT_WIDTH: f64 = 380.0;
/// The left end of a plot's scale. The names of the arms are to the left of it.
const PLOT_LEFT: f64 = 80.0;
/// The right end of a plot's scale.
const PLOT_RIGHT: f64 = PLOT_WIDTH - 14.0;
/// The height of an arm's row.
const ROW_HEIGHT: f64 = 32.0;
/// The height over which the marks of a row are spread, in the order of the pairs.
const ROW_SPREAD: f64 = 16.0;
/// The largest ratio on the scale of the overview. A larger one is drawn as an arrow.
const OVERVIEW_MAX_RATIO: f64 = 4.0;

/// Renders the page.
pub fn html(results: &Results) -> String {
    let meta = &results.meta;
    let title = format!("{} against {}", meta.changed(), meta.base());
    let mut page = html::begin(&format!("{title}: Linux {}", meta.kernels()), &title, "");
    page += &format!(
        "<p class=\"soft\">Linux {} · QEMU {} · {}{} of boots · {}</p>\n",
        escape(&meta.kernels()),
        escape(&meta.accelerator),
        if meta.partial { "up to " } else { "" },
        counted(meta.pairs, "pair"),
        escape(&meta.date)
    );
    page += &headline(results);
    page += "</header>\n<main>\n";
    page += &pictures(results);
    page += &overview(results);
    page += &plots(results);
    page += &method(results);
    page + html::END
}

fn headline(results: &Results) -> String {
    let mut out = String::new();
    if results.meta.partial {
        out += "<p class=\"alarm\">This run was interrupted: there are no verdicts.</p>\n";
    } else if results.meta.pairs < MIN_PAIRS {
        out += &format!("<p class=\"alarm\">Verdicts need {MIN_PAIRS} pairs.</p>\n");
    }
    for repeated in &results.meta.repeated {
        out += &format!("<p class=\"alarm\">Failed: {}</p>\n", escape(&repeated.to_string()));
    }
    for said in sentences(results) {
        out += &format!(
            "<p class=\"lead\">{}: <a href=\"#m{}\">{}</a>.</p>\n",
            escape(&said.text),
            index_of(results, said.main),
            escape(&sentence::verdict(said.main).replace('x', "×"))
        );
    }
    let worse = results.metrics().filter(|(_, metric)| metric.verdict == Verdict::Worse);
    let worse: Vec<String> = worse.map(|(_, metric)| mention(results, metric)).collect();
    if !worse.is_empty() {
        out += &format!("<p class=\"lead alarm\">Worse: {}.</p>\n", worse.join("; "));
    }
    let alarms = results.aa_controls().filter(|aa| aa.verdict.is_difference()).count();
    let control = match (results.aa_controls().count(), alarms) {
        (0, _) => ("none", "none", "A/A control"),
        (_, 0) => ("clean", "better", "A/A control: no difference seen"),
        (..) => ("not clean", "worse", "A/A control: shows differences"),
    };
    let tile = |verdict: Verdict| match results.count(verdict) {
        0 => ("0".to_owned(), "none", verdict.to_string()),
        n => (n.to_string(), class(verdict), verdict.to_string()),
    };
    out += "<ul class=\"tiles\">\n";
    for (number, class, what) in [Verdict::Better, Verdict::Worse, Verdict::Same, Verdict::None]
        .map(tile)
        .into_iter()
        .chain([(control.0.to_owned(), control.1, control.2.to_owned())])
    {
        out += &format!("<li class=\"{class}\"><b>{number}</b> {what}</li>\n");
    }
    out + "</ul>\n"
}

fn index_of(results: &Results, metric: &Metric) -> usize {
    results.metrics().position(|(_, m)| std::ptr::eq(m, metric)).unwrap_or_default()
}

/// Renders a metric as part of a sentence, with a link to its plot.
fn mention(results: &Results, metric: &Metric) -> String {
    let index = index_of(results, metric);
    format!(
        "<a href=\"#m{index}\"><code>{}</code></a>, {} to {} {}, <strong>{}</strong>",
        escape(&metric.metric),
        number(metric.base_median()),
        number(metric.changed_median()),
        escape(&metric.unit),
        factor(metric.ratio),
    )
}

/// Renders what happened over time in scenarios that say it: a picture of one guest of each, and a sentence.
fn pictures(results: &Results) -> String {
    let mut out = String::new();
    for (run, course) in results.pictures() {
        let Some(svg) = picture::svg(&results.meta, course) else { continue };
        let figures: Vec<String> = run.metrics.iter().map(|metric| mention(results, metric)).collect();
        out += &format!(
            "<section>\n<h2>{0}</h2>\n<p>{0}, {1}: {2}. Below, the first boot of each arm.</p>\n{svg}</section>\n",
            escape(&run.scenario),
            escape(&run.guest),
            figures.join("; ")
        );
    }
    out
}

/// Renders the table of all metrics, with the ratios on a common scale.
fn overview(results: &Results) -> String {
    let meta = &results.meta;
    let controlled = results.aa_controls().next().is_some();
    let controls = results.control_names();
    let column = |arm: &str| format!("<th scope=\"col\" class=\"n wide\">{}</th>", escape(arm));
    let cell = |metric: &Metric, arm: &str| {
        let value = metric.median_on(ArmRole::Control(arm)).map_or("-".to_owned(), number);
        format!("<td class=\"n wide\">{value}</td>")
    };
    let reach = results
        .metrics()
        .flat_map(|(_, m)| m.ci95.unwrap_or([m.ratio; 2]).into_iter().chain([m.ratio]))
        .map(|r| r.max(1.0 / r))
        .fold(1.25, f64::max)
        .min(OVERVIEW_MAX_RATIO);
    let mut out = format!(
        "<section aria-labelledby=\"overview\">\n<h2 id=\"overview\">All metrics</h2>\n\
         <p class=\"soft\">Ratio: above 1 is an improvement. The bars share one logarithmic scale from {} to {}; \
         an arrow means a ratio beyond the scale. The grey band is the minimum effect.</p>\n\
         <div class=\"scroll\"><table class=\"overview\">\n<thead><tr><th scope=\"col\">metric</th>\
         <th scope=\"col\" class=\"n wide\">{}</th><th scope=\"col\" class=\"n wide\">{}</th>{}\
         <th scope=\"col\" class=\"wide\">unit</th><th scope=\"col\" class=\"bar c\">worse ← → better</th>\
         <th scope=\"col\" class=\"n\">ratio</th><th scope=\"col\" class=\"n wide\">95 %</th>\
         <th scope=\"col\" class=\"n wide\">p</th><th scope=\"col\">verdict</th>{}</tr></thead>\n<tbody>\n",
        factor(1.0 / reach),
        factor(reach),
        escape(meta.base()),
        escape(meta.changed()),
        controls.iter().map(|arm| column(arm)).collect::<String>(),
        if controlled { "<th scope=\"col\" class=\"n wide\">A/A</th>" } else { "" }
    );
    let mut group = String::new();
    for (index, (run, metric)) in results.metrics().enumerate() {
        let name = match metric.case() {
            "" => run.name(),
            case => format!("{} · {case}", run.name()),
        };
        if name != group {
            let columns = 9 + controls.len() + usize::from(controlled);
            out += &format!(
                "<tr class=\"group\"><th colspan=\"{columns}\" scope=\"colgroup\">{}</th></tr>\n",
                escape(&name)
            );
            group = name;
        }
        out += &format!(
            "<tr><td class=\"name\"><a href=\"#m{index}\"><code>{}</code></a></td>\
             <td class=\"n wide\">{}</td><td class=\"n wide\">{}</td>{}<td class=\"wide\">{}</td>\
             <td class=\"bar\">{}</td><td class=\"n\">{}</td><td class=\"n wide\">{}</td>\
             <td class=\"n wide\">{}</td><td>{}</td>",
            escape(metric.short_name()),
            number(metric.base_median()),
            number(metric.changed_median()),
            controls.iter().map(|arm| cell(metric, arm)).collect::<String>(),
            escape(&metric.unit),
            overview_bar(metric, reach, meta.min_effect),
            factor(metric.ratio),
            metric.ci95.map_or("-".to_owned(), interval),
            p_value(metric.p),
            verdict(metric.verdict),
        );
        if controlled {
            let cell = metric.aa.as_ref().map_or("-".to_owned(), |aa| match aa.verdict {
                alarm if alarm.is_difference() => format!("{} {}", factor(aa.ratio), verdict(alarm)),
                _ => factor(aa.ratio),
            });
            out += &format!("<td class=\"n wide soft\">{cell}</td>");
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></div>\n</section>\n"
}

fn overview_bar(metric: &Metric, reach: f64, min_effect: f64) -> String {
    const BAR_WIDTH: f64 = 240.0;
    const BAR_MARGIN: f64 = 8.0;
    let scale = Scale::log(1.0 / reach, reach, BAR_MARGIN, BAR_WIDTH - BAR_MARGIN);
    let at = |r: f64| scale.at(r.clamp(1.0 / reach, reach));
    let class = class(metric.verdict);
    // Hidden from screen readers: the neighbouring cells have the numbers.
    let head = format!("<svg viewBox=\"0 0 {BAR_WIDTH} 18\" preserveAspectRatio=\"none\" aria-hidden=\"true\">");
    let mut svg = Svg::with_head(head);
    band(&mut svg, &scale, min_effect, (0.0, 18.0));
    svg.path("one", (at(1.0), 0.0), "V18");
    let x = at(metric.ratio);
    svg.path(&format!("ratio {class} effect"), (at(1.0), 9.0), &format!("H{x:.1}"));
    if let Some([lo, hi]) = metric.ci95 {
        svg.path(&format!("ratio {class} whisker"), (at(lo), 9.0), &format!("H{:.1}", at(hi)));
    }
    // The factor keeps the largest ratio, which determined the scale, from becoming an arrow by rounding.
    if metric.ratio > reach * 1.0001 {
        svg.path(&format!("ratio {class}"), (x, 4.0), "l7 5l-7 5z");
    } else if metric.ratio < 0.9999 / reach {
        svg.path(&format!("ratio {class}"), (x, 4.0), "l-7 5l7 5z");
    } else {
        svg.add(&format!("<ellipse class=\"ratio {class}\" cx=\"{x:.1}\" cy=\"9\" rx=\"4\" ry=\"4\"/>"));
    }
    svg.end()
}

/// Renders a section per scenario and guest, with a heading per case and a card per metric.
fn plots(results: &Results) -> String {
    let controls = results.control_names().into_iter().map(|arm| format!(", ■ {}", escape(arm)));
    let mut out = format!(
        "<section aria-labelledby=\"boots\">\n<h2 id=\"boots\">Every boot</h2>\n\
         <p class=\"soft\">A mark is one boot: ● {0}, ◆ {1}, ○ {0} again (the A/A control){2}. Within a row the \
         pairs run from top to bottom in the order of time; lines join the boots of a pair; the thick \
         upright is the median. Below: the ratio with its 95 % interval, and that of the control (hollow); \
         the grey band is the minimum effect.</p>\n",
        escape(results.meta.base()),
        escape(results.meta.changed()),
        controls.collect::<String>()
    );
    let mut index = 0;
    for run in &results.runs {
        out += &format!("<h2>{}</h2>\n{}", escape(&run.name()), guest(run));
        for of_case in run.metrics.chunk_by(|a, b| a.case() == b.case()) {
            if !of_case[0].case().is_empty() {
                out += &format!("<h3>{}</h3>\n", escape(of_case[0].case()));
            }
            out += "<div class=\"cards\">\n";
            for metric in of_case {
                out += &card(results, metric, index);
                index += 1;
            }
            out += "</div>\n";
        }
    }
    out + "</section>\n"
}

fn guest(run: &Run) -> String {
    let time = match run.mode {
        Mode::Icount => "; time is counted in instructions",
        Mode::Multi if run.accelerator == "tcg" => "; one host thread per CPU",
        Mode::Multi => "",
    };
    format!("<p class=\"soft\">Guest: {}{time}</p>\n", escape(&machine(run)))
}

fn card(results: &Results, metric: &Metric, index: usize) -> String {
    let values = format!(
        "{} → {} {}, <strong>{}</strong>{}, p\u{a0}{}",
        number(metric.base_median()),
        number(metric.changed_median()),
        escape(&metric.unit),
        factor(metric.ratio),
        metric.ci95.map_or(String::new(), |ends| format!(" ({})", interval(ends))),
        p_value(metric.p),
    );
    format!(
        "<article class=\"card\" id=\"m{index}\" aria-labelledby=\"h{index}\">\n<div class=\"head\">\
         <h4 id=\"h{index}\">{}</h4>{}</div>\n<p class=\"values\">{values}</p>\n{}{}</article>\n",
        escape(metric.short_name()),
        verdict(metric.verdict),
        plot(results, metric, index),
        boots(results, metric),
    )
}

/// An arm's name, its class in plots, and its values.
type ArmValues<'a> = (String, &'static str, &'a [f64]);

/// Returns all arms, the second boots of the base arm before the first.
fn arms<'a>(results: &'a Results, metric: &'a Metric) -> Vec<ArmValues<'a>> {
    let (base, changed) = (results.meta.base(), results.meta.changed());
    let again = metric.aa.iter().map(|aa| (format!("{base} again"), "control", aa.base.as_slice()));
    let both =
        [(base.to_owned(), "base", metric.base.as_slice()), (changed.to_owned(), "changed", metric.changed.as_slice())];
    let controls = metric.controls.iter().map(|c| (c.arm.clone(), "control-kernel", c.values.as_slice()));
    again.chain(both).chain(controls).collect()
}

/// Renders the values of all boots as a table, for readers who do not use the plot.
fn boots(results: &Results, metric: &Metric) -> String {
    let mut arms = arms(results, metric);
    if metric.aa.is_some() {
        arms[..3].rotate_left(1);
    }
    let mut out = format!(
        "<details><summary>{} boots in {}</summary>\n<table><thead><tr><th scope=\"col\">pair</th>",
        arms.iter().map(|(_, _, values)| values.len()).sum::<usize>(),
        escape(&metric.unit)
    );
    for (name, ..) in &arms {
        out += &format!("<th scope=\"col\" class=\"n\">{}</th>", escape(name));
    }
    out += "</tr></thead><tbody>\n";
    for pair in 0..metric.base.len() {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", pair + 1);
        for value in arms.iter().filter_map(|(_, _, values)| values.get(pair)) {
            let _ = write!(out, "<td class=\"n\">{}</td>", number(*value));
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></details>\n"
}

/// The row of an arm in a plot.
struct Row<'a> {
    name: String,
    class: &'static str,
    values: &'a [f64],
    /// The middle of the row.
    y: f64,
}

impl Row<'_> {
    /// Returns the y coordinate of pair `i` in the row.
    fn y_of(&self, i: usize) -> f64 {
        let last = self.values.len().saturating_sub(1).max(1) as f64;
        self.y + ROW_SPREAD * (i as f64 / last - 0.5)
    }

    fn mark(&self, x: f64, i: usize, unit: &str) -> String {
        let (y, class) = (self.y_of(i), self.class);
        let title = format!(
            "<title>pair {}, {}: {} {}</title>",
            i + 1,
            escape(&self.name),
            number(self.values[i]),
            escape(unit)
        );
        match class {
            "changed" => format!(
                "<path class=\"{class}\" d=\"M{x:.1} {:.1}l4.2 4.2l-4.2 4.2l-4.2 -4.2z\">{title}</path>",
                y - 4.2
            ),
            "control-kernel" => format!(
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"6.4\" height=\"6.4\">{title}</rect>",
                x - 3.2,
                y - 3.2
            ),
            _ => format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\">{title}</circle>"),
        }
    }
}

fn plot(results: &Results, metric: &Metric, index: usize) -> String {
    let rows: Vec<Row<'_>> = arms(results, metric)
        .into_iter()
        .enumerate()
        .map(|(i, (name, class, values))| Row { name, class, values, y: 18.0 + ROW_HEIGHT * i as f64 })
        .collect();

    let floor = 18.0 + ROW_HEIGHT * (rows.len() as f64 - 0.5) + 2.0;
    let ratio_y = floor + 50.0;
    let height = ratio_y + 32.0;
    let mut svg = Svg::with_head(format!(
        "<svg viewBox=\"0 0 {PLOT_WIDTH} {height}\" role=\"img\" aria-labelledby=\"t{index} d{index}\">\n\
         <title id=\"t{index}\">{}</title>\n<desc id=\"d{index}\">{}</desc>\n",
        escape(&metric.metric),
        escape(&description(results, metric))
    ));

    let scale = Scale::of_values(rows.iter().flat_map(|row| row.values), PLOT_LEFT, PLOT_RIGHT);
    axis(&mut svg, &scale, floor);
    svg.text("", (PLOT_LEFT, floor + 28.0), &format!("{}, {} is better", metric.unit, metric.better));
    for two in rows.windows(2) {
        let class = match (two[0].class, two[1].class) {
            ("control", _) | (_, "control-kernel") => "pair aa",
            _ => "pair",
        };
        for (i, (a, b)) in two[0].values.iter().zip(two[1].values).enumerate() {
            svg.line(class, [(scale.at(*a), two[0].y_of(i)), (scale.at(*b), two[1].y_of(i))].into_iter());
        }
    }
    for row in &rows {
        svg.anchored("end", "arm", (PLOT_LEFT - 12.0, row.y + 4.0), &shortened(&row.name));
        for (i, value) in row.values.iter().enumerate() {
            svg.add(&row.mark(scale.at(*value), i, &metric.unit));
        }
        if !row.values.is_empty() {
            let top = (scale.at(median(row.values)), row.y - ROW_SPREAD / 2.0 - 4.0);
            svg.path(&format!("median {}", row.class), top, &format!("v{:.1}", ROW_SPREAD + 8.0));
        }
    }
    ratio_bar(&mut svg, metric, results.meta.min_effect, ratio_y);
    svg.end()
}

/// Returns a plot's content as text, for screen readers.
fn description(results: &Results, metric: &Metric) -> String {
    let meta = &results.meta;
    let controls = metric.controls.iter();
    let controls = controls.map(|b| format!("; {}: median {} {}", b.arm, number(median(&b.values)), metric.unit));
    format!(
        "{}: median {} {} over {} boots; {}: median {} {}{}; {} is better. Ratio {}{}; {}.",
        meta.base(),
        number(metric.base_median()),
        metric.unit,
        metric.base.len(),
        meta.changed(),
        number(metric.changed_median()),
        metric.unit,
        controls.collect::<String>(),
        metric.better,
        factor(metric.ratio),
        metric.ci95.map_or(String::new(), |ends| format!(", 95 % interval {}", interval(ends))),
        metric.verdict
    )
}

/// Renders the ratio and that of the A/A control, each with its interval, on a logarithmic scale.
fn ratio_bar(svg: &mut Svg, metric: &Metric, min_effect: f64, y: f64) {
    let aa = metric.aa.as_ref();
    let ends = |ratio: f64, ci: Option<[f64; 2]>| [ratio].into_iter().chain(ci.into_iter().flatten());
    let effect = 1.0 + min_effect.max(0.03);
    let shown: Vec<f64> = ends(metric.ratio, metric.ci95)
        .chain(aa.into_iter().flat_map(|aa| ends(aa.ratio, aa.ci95)))
        .chain([effect, 1.0 / effect])
        .collect();
    let lo = shown.iter().copied().fold(f64::INFINITY, f64::min);
    let hi = shown.iter().copied().fold(0.0, f64::max);
    let margin = (hi / lo).powf(0.06);
    let scale = Scale::log(lo / margin, hi * margin, PLOT_LEFT, PLOT_RIGHT);

    band(svg, &scale, min_effect, (y - 13.0, 23.0));
    svg.path("one", (scale.at(1.0), y - 13.0), "v23");
    svg.anchored("end", "arm", (PLOT_LEFT - 12.0, y + 2.0), "ratio");
    axis(svg, &scale, y + 10.0);
    let mut bar = |what: &str, class: &str, ratio: f64, ci: Option<[f64; 2]>, y: f64, r: f64| {
        let ci_text = ci.map_or(String::new(), |ends| format!(" ({})", interval(ends)));
        svg.add(&format!("<g><title>{what}: {}{ci_text}</title>", factor(ratio)));
        if let Some([lo, hi]) = ci {
            svg.path(&format!("ratio {class} whisker"), (scale.at(lo), y), &format!("H{:.1}", scale.at(hi)));
        }
        let x = scale.at(ratio);
        svg.add(&format!("<circle class=\"ratio {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"/></g>\n"));
    };
    if let Some(aa) = aa {
        bar("A/A control", "aa hollow", aa.ratio, aa.ci95, y + 4.5, 2.8);
        bar("ratio", class(metric.verdict), metric.ratio, metric.ci95, y - 6.0, 4.2);
    } else {
        bar("ratio", class(metric.verdict), metric.ratio, metric.ci95, y - 1.5, 4.2);
    }
}

/// Renders the band of the minimum effect around 1.
fn band(svg: &mut Svg, scale: &Scale, effect: f64, (y, height): (f64, f64)) {
    let (lo, hi) = (scale.at(1.0 / (1.0 + effect)), scale.at(1.0 + effect));
    svg.rect("band", (lo, y), (hi - lo, height));
}

fn axis(svg: &mut Svg, scale: &Scale, y: f64) {
    svg.path("axis", (PLOT_LEFT, y), &format!("H{PLOT_RIGHT}"));
    for tick in scale.ticks() {
        let x = scale.at(tick);
        svg.path("axis", (x, y), "v4");
        svg.anchored("middle", "", (x, y + 14.0), &format::round(tick));
    }
}

/// Renders the section about conditions and method.
fn method(results: &Results) -> String {
    let meta = &results.meta;
    let mut out =
        String::from("<section aria-labelledby=\"method\">\n<h2 id=\"method\">How this was measured</h2>\n<dl>\n");
    let mut entry = |name: &str, text: &str| {
        let _ = writeln!(out, "<dt>{}</dt><dd>{text}</dd>", escape(name));
    };
    entry("kernel", &format!("Linux {}", escape(&meta.kernels())));
    if let Some(source) = &meta.source {
        entry("source", &escape(source));
    }
    let why = meta.accelerator_reason.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    entry("accelerator", &escape(&format!("QEMU {}{why}", meta.accelerator)));
    for arm in &meta.arms {
        let release = arm.release.as_ref().map_or(String::new(), |r| format!("Linux {}, ", escape(r)));
        let parameters = match arm.cmdline.as_str() {
            "" => "no extra kernel parameters".to_owned(),
            cmdline => format!("extra kernel parameters <code>{}</code>", escape(cmdline)),
        };
        let text = format!("{release}<code>{}</code>, {parameters}", escape(&arm.bzimage));
        entry(&format!("arm {}", arm.name), &text);
    }
    for run in &results.runs {
        entry(&format!("guest {}", run.name()), &escape(&machine(run)));
    }
    let boots = if results.aa_controls().next().is_some() { "three" } else { "two" };
    let drawn = meta.seed.map_or(String::new(), |seed| format!(" drawn by seed {seed}"));
    entry("pairs", &format!("{}, each of {boots} boots, in balanced orders{drawn}", meta.pairs));
    entry("limits", &format!("minimum effect {}, alpha {}", percent(meta.min_effect), meta.alpha));
    entry("date", &escape(&meta.date));
    if let Some(host) = &meta.host {
        entry("host", &escape(host));
    }
    if let Some(command) = &meta.command {
        entry("command", &format!("<code>{}</code>", escape(command)));
    }
    out += "</dl>\n";
    out += "<p>A boot yields one number per metric; the boots of a pair follow each other directly. The \
            ratio is the geometric mean of the pairs' ratios. If the change had no effect, the boots of a pair \
            would be exchangeable; so all 2<sup>pairs</sup> ways to swap boots within pairs are enumerated, for \
            all metrics at once, and p is the share of them in which any metric that is not yet decided differs \
            at least as much as this one does here. That keeps the probability of one or more false claims \
            among all metrics at or below alpha. The interval consists of the ratios that the same test, for \
            this metric alone, does not reject.</p>\n";
    for line in explanation(results) {
        out += &format!("<p>{}</p>\n", escape(&line));
    }
    out + "</section>\n"
}

fn machine(run: &Run) -> String {
    let stolen = run.stolen.map_or(String::new(), |share| {
        format!("; at most {:.1} % of the host's CPU time was stolen in ten seconds", share * 100.0)
    });
    format!("{}, {} MiB, {}{stolen}", counted(run.cpus as usize, "CPU"), run.memory_mib, run.accelerator)
}

fn verdict(verdict: Verdict) -> String {
    let sign = match verdict {
        Verdict::Better => "▲ ",
        Verdict::Worse => "▼ ",
        Verdict::Same => "= ",
        Verdict::None => "",
    };
    format!("<span class=\"verdict {}\">{sign}{verdict}</span>", class(verdict))
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Same => "same",
        Verdict::None => "none",
    }
}

/// Shortens a name to the space left of its row.
fn shortened(name: &str) -> String {
    const MAX_CHARS: usize = 11;
    if name.chars().count() <= MAX_CHARS {
        return name.to_owned();
    }
    name.chars().take(MAX_CHARS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::fixture;

    #[test]
    fn every_boot_is_shown() {
        let results = fixture::results();
        let page = html(&results);
        for (_, metric) in results.metrics() {
            let title = format!("<title id=\"t0\">{}", results.runs[0].metrics[0].metric);
            assert!(page.contains(&title));
            assert!(page.contains(&escape(&description(&results, metric))));
        }
        let marks = page.matches("<title>pair ").count();
        assert_eq!(marks, results.metrics().count() * 3 * 8);
        assert_eq!(page.matches("class=\"median").count(), results.metrics().count() * 3);
    }

    #[test]
    fn the_page_begins_with_sentences_and_what_is_worse() {
        let page = html(&fixture::results());
        let (sentence, worse) = ("A killed process of 512 MiB gives", "Worse: <a href=\"#m2\">");
        let places = [sentence, worse, "class=\"tiles\""].map(|what| page.find(what).unwrap());
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn control_kernels_are_shown() {
        let (without, with) = (fixture::results(), fixture::results_with_control_kernel());
        let pages = [html(&without), html(&with)];
        let counts = |what: &str| [0, 1].map(|i| pages[i].matches(what).count());
        let of_two = without.metrics().count() * 3;
        assert_eq!(counts("<title>pair "), [of_two * 8, of_two * 8 + 3 * 8]);
        assert_eq!(counts("<rect class=\"control-kernel\""), [0, 3 * 8]);
        // A column in the overview and three plots' tables, a row in the plots, the legend.
        assert_eq!(counts("precise &lt;1&gt;</th>"), [0, 1 + 3]);
        assert_eq!(counts("■ precise &lt;1&gt;"), [0, 1]);
        assert!(!pages[1].contains("precise <1>"));
    }

    #[test]
    fn boots_that_were_repeated_are_shown() {
        let page = html(&fixture::results_with_repeated());
        let shown = "Failed: pair 2/8, memreap, reap/multi: the kernel panicked: &lt;no&gt;; repeated";
        assert!(page.contains(shown) && page.contains("QEMU failed"));
    }

    #[test]
    fn page_is_self_contained() {
        let page = html(&fixture::results());
        for foreign in ["http:", "https:", "src=", "<script", "@import", "url(", "<link"] {
            assert!(!page.contains(foreign), "{foreign} in the page");
        }
        assert!(page.matches("href=").count() == page.matches("href=\"#").count());
    }

    #[test]
    fn tags_are_balanced_and_ids_unique() {
        let page = html(&fixture::results_with_control_kernel());
        let tags = regex::Regex::new(r"<(/?)([a-z0-9]+)[^>]*?(/?)>").unwrap();
        let mut open = Vec::new();
        for tag in tags.captures_iter(&page) {
            match (&tag[1], &tag[2], &tag[3]) {
                (_, "meta", _) | ("", _, "/") => {}
                ("", name, _) => open.push(name.to_owned()),
                (_, name, _) => assert_eq!(open.pop().as_deref(), Some(name)),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        let ids = regex::Regex::new(r#" id="([^"]+)""#).unwrap();
        let mut ids: Vec<String> = ids.captures_iter(&page).map(|c| c[1].to_owned()).collect();
        let all = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all);
        assert!(!page.contains("NaN") && !page.contains("inf"), "a place is not finite");
    }

    #[test]
    fn whatever_comes_in_is_escaped() {
        let mut results = fixture::results();
        let evil = "<script>alert('x')</script>&\"\u{7}";
        results.meta.kernel = evil.into();
        results.meta.source = Some(evil.into());
        results.meta.command = Some(evil.into());
        results.meta.host = Some(evil.into());
        results.meta.arms[1].name = evil.into();
        results.meta.arms[1].cmdline = evil.into();
        let run = &mut results.runs[0];
        run.scenario = evil.into();
        (run.metrics[0].metric, run.metrics[0].unit) = (evil.into(), evil.into());
        let page = html(&results);
        assert!(!page.contains("<script") && !page.contains('\u{7}'));
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)"));
    }

    #[test]
    fn odd_results_still_make_a_page() {
        let mut results = fixture::results();
        results.meta.pairs = 1;
        for metric in results.metrics_mut() {
            metric.base = vec![0.0];
            metric.changed = vec![0.0];
            (metric.ci95, metric.aa, metric.ratio) = (None, None, 1.0);
        }
        let page = html(&results);
        assert!(!page.contains("NaN") && page.contains("Verdicts need 6 pairs"));
        results.runs.clear();
        assert!(html(&results).contains("All metrics"));
    }
}
