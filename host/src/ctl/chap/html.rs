//! The report as one self-contained page: no script, no font, no address but its own; it reads on a telephone, in the dark
//! and on paper.

use std::fmt::Write as _;

use choir_chap::report::{Group, Named, Overrides};

use super::report::{Unmet, percent};

/// Bars of one chart; the JSON has all.
const BARS: usize = 20;

/// Rows in the list of overrides; the newest.
const ROWS: usize = 500;

const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1c1b19;--bg:#fdfcfa;--dim:#6b675f;--line:#ddd8cf;--bar:#3b6ea5;--two:#b06f14}\
@media(prefers-color-scheme:dark){:root{--fg:#eceae6;--bg:#191817;--dim:#a39e95;--line:#3a3733;--bar:#7fb0e0;--two:#e0ae5f}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:74rem;padding:1.5rem 1rem 4rem;color:var(--fg);background:var(--bg);\
font:16px/1.5 system-ui,sans-serif}h1{font-size:1.6rem;margin:0 0 .25rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.5rem 0 .5rem}\
p{margin:.25rem 0;max-width:46rem}.dim{color:var(--dim)}\
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:1rem 1.5rem;margin:1.25rem 0}\
.figures b{display:block;font-size:1.7rem;line-height:1.2}.figures div{font-size:.92rem}\
.bars{display:grid;grid-template-columns:minmax(6rem,18rem) minmax(4rem,1fr);gap:.3rem .8rem;max-width:46rem;font-size:.92rem;align-items:center}\
.bars .name{overflow-wrap:anywhere}.bars .bar{display:flex;align-items:center;gap:.4rem}\
.bars i{display:block;height:.95rem;background:var(--bar);min-width:2px}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}th,td{text-align:left;padding:.35rem .7rem .35rem 0;\
border-bottom:1px solid var(--line);vertical-align:top}th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
td:first-child{overflow-wrap:anywhere;min-width:13rem}td.rate{white-space:nowrap}td.why{min-width:14rem}td.keep{white-space:nowrap}\
ul{margin:0;padding-left:1.1rem}svg{width:7.5rem;height:.9rem;vertical-align:middle}\
@media(max-width:46rem){.bars{grid-template-columns:1fr;gap:.1rem}.bars .bar{margin-bottom:.45rem}\
thead{display:none}table,tbody,tr,td{display:block}tr{border-bottom:1px solid var(--line);padding:.5rem 0}\
td,td.n{border:0;padding:.1rem 0;text-align:left;min-width:0!important;overflow-wrap:anywhere;white-space:normal!important}\
td:first-child{font-weight:600}td[data-l]::before{content:attr(data-l) \" \";color:var(--dim);font-weight:400}}";

/// The page.
pub(super) fn page(overrides: &Overrides, unmet: &[Unmet], workspace: Option<&str>) -> String {
    let mut out = String::with_capacity(32 * 1024);
    let title = workspace.map_or_else(|| "Overrides".to_owned(), |name| format!("Overrides in {name}"));
    let title = escape(&title);
    // A String takes whatever is written to it.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    if let Some((first, last)) = &overrides.window {
        let _ = writeln!(
            out,
            "<p class=\"dim\">{} to {}, {} entries, {} refused calls</p>",
            escape(&when(first)),
            escape(&when(last)),
            overrides.entries,
            overrides.refused
        );
    }
    figures(&mut out, overrides);
    out.push_str("<p class=\"dim\">An override that preserves intent says the same better; one that substitutes it says that the \
                  agent was wrong. The two ask for different cures. Intervals are 95 %: a rate of few cases says little.</p>\n");
    chart(&mut out, "Tags", &overrides.tags);
    breakdown(&mut out, "By agent version", &overrides.by_agent);
    breakdown(&mut out, "By task kind", &overrides.by_task_kind);
    breakdown(&mut out, "By mode", &overrides.by_mode);
    breakdown(&mut out, "By reviewer", &overrides.by_reviewer);
    chart(&mut out, "Policies named", &overrides.policies);
    chart(&mut out, "Why reviewers abstained", &overrides.abstain_categories);
    promotion(&mut out, overrides, unmet);
    list(&mut out, overrides);
    out.push_str("</body></html>\n");
    out
}

fn figures(out: &mut String, overrides: &Overrides) {
    let d = &overrides.total;
    let rate = &overrides.override_rate;
    let (share, interval) = match (rate.rate, rate.low, rate.high) {
        (Some(share), Some(low), Some(high)) => (
            format!("{:.1} %", share * 100.0),
            format!("override rate ({:.0} to {:.0} % at 95 %)", low * 100.0, high * 100.0),
        ),
        _ => ("-".to_owned(), "override rate".to_owned()),
    };
    let figures = [
        (share, interval.as_str()),
        (d.decided().to_string(), "reviews decided"),
        (overrides.reviewers.to_string(), "reviewers"),
        (d.approved.to_string(), "approvals"),
        (d.overridden.to_string(), "overrides"),
        (format!("{} / {}", d.intent_preserved, d.intent_substituted), "intent preserved / substituted"),
        (d.rejected.to_string(), "rejections"),
        (d.abstained.to_string(), "abstentions"),
    ];
    out.push_str("<div class=\"figures\">");
    for (figure, what) in figures {
        let _ = write!(out, "<div><b>{}</b>{}</div>", escape(&figure), escape(what));
    }
    out.push_str("</div>\n");
}

/// A bar for each name, longest first.
fn chart(out: &mut String, title: &str, list: &[Named]) {
    let Some(most) = list.iter().map(|named| named.count).max().filter(|most| *most > 0) else { return };
    let _ = write!(out, "<h2>{title}</h2>\n<div class=\"bars\">");
    for named in list.iter().take(BARS) {
        // The longest leaves room for its number.
        let _ = write!(
            out,
            "<span class=\"name\">{}</span><span class=\"bar\"><i style=\"width:{}%\"></i>{}</span>",
            escape(&cut(&named.name, 80)),
            named.count * 85 / most,
            named.count
        );
    }
    out.push_str("</div>\n");
    if list.len() > BARS {
        let _ = writeln!(out, "<p class=\"dim\">and {} more</p>", list.len() - BARS);
    }
}

/// The head of a table; a name that ends with `#` is of numbers.
fn table(out: &mut String, heads: &[&str]) {
    out.push_str("<div class=\"wide\"><table><thead><tr>");
    for head in heads {
        let _ = match head.strip_suffix('#') {
            Some(head) => write!(out, "<th class=\"n\">{head}</th>"),
            None => write!(out, "<th>{head}</th>"),
        };
    }
    out.push_str("</tr></thead><tbody>");
}

/// A cell: on a narrow screen its label stands before it.
fn cell(out: &mut String, class: &str, label: &str, html: &str) {
    let _ = write!(out, "<td class=\"{class}\" data-l=\"{label}\">{html}</td>");
}

const TABLE_ENDS: &str = "</tbody></table></div>\n";

/// What was decided, by group.
fn breakdown(out: &mut String, title: &str, groups: &[Group]) {
    if groups.is_empty() {
        return;
    }
    let _ = writeln!(out, "<h2>{title}</h2>");
    let heads = [
        "name",
        "approved#",
        "overridden#",
        "preserved#",
        "substituted#",
        "rejected#",
        "abstained#",
        "reviewers#",
        "override rate",
    ];
    table(out, &heads);
    for group in groups {
        let d = &group.decisions;
        let _ = write!(out, "<tr><td>{}</td>", escape(&group.name));
        for (label, count) in [
            ("approved", d.approved),
            ("overridden", d.overridden),
            ("preserved", d.intent_preserved),
            ("substituted", d.intent_substituted),
            ("rejected", d.rejected),
            ("abstained", d.abstained),
            ("reviewers", group.reviewers),
        ] {
            cell(out, "n", label, &count.to_string());
        }
        let rate = format!("{} {}", interval(group), escape(&percent(&group.override_rate)));
        cell(out, "rate", "override rate", &rate);
        out.push_str("</tr>");
    }
    out.push_str(TABLE_ENDS);
}

/// The rate as a dot within its interval, on a line from 0 to 100 %.
fn interval(group: &Group) -> String {
    let rate = &group.override_rate;
    let (Some(at), Some(low), Some(high)) = (rate.rate, rate.low, rate.high) else { return String::new() };
    let x = |share: f64| 4.0 + share * 112.0;
    format!(
        "<svg viewBox=\"0 0 120 14\" aria-hidden=\"true\">\
         <line x1=\"4\" x2=\"116\" y1=\"7\" y2=\"7\" stroke=\"var(--line)\"/>\
         <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"7\" y2=\"7\" stroke=\"var(--bar)\" stroke-width=\"4\"/>\
         <circle cx=\"{:.1}\" cy=\"7\" r=\"4\" fill=\"var(--two)\"/></svg>",
        x(low),
        x(high),
        x(at)
    )
}

fn promotion(out: &mut String, overrides: &Overrides, unmet: &[Unmet]) {
    if overrides.promotion.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Promotion</h2>\n<p class=\"dim\">What the log says for or against the next mode. A person signs it.</p>\n",
    );
    table(
        out,
        &[
            "agent",
            "mode",
            "tasks#",
            "overrides",
            "rejections",
            "abstentions",
            "median review#",
            "still asked for",
        ],
    );
    for (one, lacks) in overrides.promotion.iter().zip(unmet) {
        let median =
            one.review_median_ms.map_or_else(|| "-".to_owned(), |ms| format!("{} s", ms.div_ceil(1000)));
        let mut asked = String::new();
        for what in &lacks.unmet {
            let _ = write!(asked, "<li>{}</li>", escape(what));
        }
        let asked = if asked.is_empty() { "nothing".to_owned() } else { format!("<ul>{asked}</ul>") };
        let _ = write!(out, "<tr><td>{}</td>", escape(&one.agent));
        cell(out, "", "mode", &escape(&one.mode));
        cell(out, "n", "tasks", &one.tasks.to_string());
        for (label, rate) in [
            ("overrides", &one.override_rate),
            ("rejections", &one.rejection_rate),
            ("abstentions", &one.abstention_rate),
        ] {
            cell(out, "rate", label, &escape(&percent(rate)));
        }
        cell(out, "n keep", "median review", &median);
        cell(out, "why", "still asked for", &asked);
        out.push_str("</tr>");
    }
    out.push_str(TABLE_ENDS);
}

fn list(out: &mut String, overrides: &Overrides) {
    if overrides.overrides.is_empty() {
        return;
    }
    out.push_str("<h2>Overrides</h2>\n");
    table(out, &["agent", "entry#", "when", "reviewer", "kind", "intent", "why", "tags"]);
    for row in overrides.overrides.iter().rev().take(ROWS) {
        let intent = match row.intent_preserved {
            Some(true) => "preserved",
            Some(false) => "substituted",
            None => "-",
        };
        let _ = write!(out, "<tr><td>{}</td>", escape(&row.agent));
        cell(out, "n", "entry", &row.seq.to_string());
        cell(out, "keep", "when", &escape(&when(&row.arrived)));
        cell(out, "", "reviewer", &escape(&row.reviewer));
        cell(out, "", "kind", &escape(&row.task_kind));
        cell(out, "", "intent", intent);
        cell(out, "why", "why", &escape(&cut(&row.rationale, 400)));
        cell(out, "", "tags", &escape(&row.tags.join(", ")));
        out.push_str("</tr>");
    }
    out.push_str(TABLE_ENDS);
    if overrides.overrides.len() > ROWS {
        let _ = writeln!(out, "<p class=\"dim\">the newest {ROWS} of {}</p>", overrides.overrides.len());
    }
}

/// An entry's time for people: to the minute, since its zone is always UTC.
fn when(arrived: &str) -> String {
    match (arrived.get(..10), arrived.get(11..16)) {
        (Some(day), Some(minute)) if arrived.ends_with('Z') => format!("{day} {minute} UTC"),
        _ => arrived.to_owned(),
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        text.to_owned()
    } else {
        text.chars().take(most - 1).chain(['…']).collect()
    }
}

/// Text that a stranger wrote, as text and nothing else.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_chap::report::Analysis;

    #[test]
    fn what_a_stranger_wrote_is_text_and_nothing_else() {
        assert_eq!(escape("<script>\"&'\u{1b}[0m"), "&lt;script&gt;&quot;&amp;&#39; [0m");
    }

    /// A log in which strangers named everything.
    fn hostile() -> choir_chap::report::Overrides {
        let evil = "<script>alert(1)</script>\"'&<img src=x onerror=y>";
        let mut analysis = Analysis::new();
        let mut take = |seq: u64, method: &str, params: serde_json::Value| {
            let envelope =
                serde_json::json!({"jsonrpc": "2.0", "id": seq, "method": method, "params": params});
            let entry =
                serde_json::json!({"seq": seq, "arrived": "2026-10-01T00:00:00.000Z", "envelope": envelope});
            match choir_chap::verify::read_line(&entry.to_string(), seq + 2) {
                Ok(choir_chap::verify::Line::Entry(entry)) => analysis.entry(&entry),
                other => panic!("{other:?}"),
            }
        };
        take(0, "task.complete", serde_json::json!({"from": evil, "task_id": evil}));
        take(
            1,
            "decide.override",
            serde_json::json!({
                "from": evil, "task_id": evil, "tags": [evil], "policy_refs": [evil], "rationale": evil, "diff": [],
            }),
        );
        take(2, "abstain.declare", serde_json::json!({"from": evil, "task_id": evil, "category": evil}));
        analysis.finish()
    }

    #[test]
    fn a_tag_named_script_and_everything_else_a_stranger_named_is_text_on_a_page_that_loads_nothing() {
        let overrides = hostile();
        let unmet = overrides.promotion.iter().map(|p| Unmet {
            agent: p.agent.clone(),
            mode: p.mode.clone(),
            unmet: vec!["<i>".into()],
        });
        let page = page(&overrides, &unmet.collect::<Vec<_>>(), Some("<script>"));
        for outlaw in
            ["<script", "<img", "onerror=y>", "src=", "href=", "url(", "@import", "://", "<link", "<i>"]
        {
            let text = page.replace("&lt;img src=x onerror=y&gt;", "");
            assert!(!text.contains(outlaw), "{outlaw}: {page}");
        }
        for title in [
            "Tags",
            "Policies named",
            "Why reviewers abstained",
            "By agent version",
            "By reviewer",
            "Promotion",
        ] {
            assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
        }
        assert!(page.matches("&lt;script&gt;alert(1)").count() >= 8, "{page}");
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn a_page_about_nothing_is_a_page() {
        let page = page(&Analysis::new().finish(), &[], Some("<w>"));
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(page.contains("Overrides in &lt;w&gt;") && !page.contains("<w>"));
    }
}
