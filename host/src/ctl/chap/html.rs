//! The report as one self-contained page: no script, no font, no address but its own; charts are plain SVG.

use std::fmt::Write as _;

use choir_chap::report::{Group, Named, Overrides};

use super::report::{Unmet, percent};

/// Bars of one chart; the JSON has all.
const BARS: usize = 20;

/// Rows in the list of overrides; the newest.
const ROWS: usize = 500;

const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1c1b19;--bg:#fdfcfa;--dim:#6b675f;--line:#ddd8cf;--bar:#3b6ea5;--two:#c0842d}\
@media(prefers-color-scheme:dark){:root{--fg:#eceae6;--bg:#191817;--dim:#a39e95;--line:#3a3733;--bar:#7fb0e0;--two:#dba759}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:68rem;padding:1.5rem 1rem 4rem;color:var(--fg);background:var(--bg);\
font:16px/1.5 system-ui,sans-serif}h1{font-size:1.6rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2.5rem 0 .5rem}\
p{margin:.25rem 0;max-width:46rem}.dim{color:var(--dim)}.figures{display:flex;flex-wrap:wrap;gap:1rem 2.5rem;margin:1.25rem 0}\
.figures div{min-width:7rem}.figures b{display:block;font-size:1.7rem;line-height:1.2}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}th,td{text-align:left;padding:.35rem .6rem .35rem 0;\
border-bottom:1px solid var(--line);vertical-align:top}th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
svg{width:100%;height:auto;max-width:46rem;display:block}svg text{fill:var(--fg);font:13px system-ui,sans-serif}";

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
            escape(first),
            escape(last),
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
    let figures = [
        (percent(&overrides.override_rate), "override rate (95 %)"),
        (d.decided().to_string(), "decisions"),
        (d.overridden.to_string(), "overrides"),
        (format!("{} / {}", d.intent_preserved, d.intent_substituted), "intent preserved / substituted"),
        (d.rejected.to_string(), "rejections"),
        (d.abstained.to_string(), "abstentions"),
    ];
    out.push_str("<div class=\"figures\">");
    for (figure, what) in figures {
        let _ = write!(out, "<div><b>{}</b>{what}</div>", escape(&figure));
    }
    out.push_str("</div>\n");
}

/// A bar for each name, longest first.
fn chart(out: &mut String, title: &str, list: &[Named]) {
    let Some(most) = list.iter().map(|named| named.count).max().filter(|most| *most > 0) else { return };
    let shown = &list[..list.len().min(BARS)];
    let height = 26 * shown.len();
    let _ = write!(
        out,
        "<h2>{title}</h2>\n<svg viewBox=\"0 0 720 {height}\" role=\"img\" aria-label=\"{title}\">"
    );
    for (row, named) in shown.iter().enumerate() {
        let (y, width) = (26 * row, named.count * 380 / most);
        let _ = write!(
            out,
            "<text x=\"0\" y=\"{}\">{}</text><rect x=\"270\" y=\"{}\" width=\"{}\" height=\"16\" fill=\"var(--bar)\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            y + 17,
            escape(&cut(&named.name, 38)),
            y + 5,
            width.max(2),
            270 + width.max(2) + 6,
            y + 17,
            named.count
        );
    }
    out.push_str("</svg>\n");
    if list.len() > BARS {
        let _ = writeln!(out, "<p class=\"dim\">and {} more</p>", list.len() - BARS);
    }
}

/// A table with a bar of what was decided for each group.
fn breakdown(out: &mut String, title: &str, groups: &[Group]) {
    if groups.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<h2>{title}</h2>\n<div class=\"wide\"><table><thead><tr><th>name</th><th class=\"n\">approved</th>\
         <th class=\"n\">overridden</th><th class=\"n\">preserved</th><th class=\"n\">substituted</th>\
         <th class=\"n\">rejected</th><th class=\"n\">abstained</th><th>override rate</th></tr></thead><tbody>"
    );
    for group in groups {
        let d = &group.decisions;
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{} {}</td></tr>",
            escape(&group.name),
            d.approved,
            d.overridden,
            d.intent_preserved,
            d.intent_substituted,
            d.rejected,
            d.abstained,
            interval(group),
            escape(&percent(&group.override_rate))
        );
    }
    out.push_str("</tbody></table></div>\n");
}

/// The rate as a dot within its interval, on a line from 0 to 100 %.
fn interval(group: &Group) -> String {
    let rate = &group.override_rate;
    let (Some(at), Some(low), Some(high)) = (rate.rate, rate.low, rate.high) else { return String::new() };
    let x = |share: f64| 4.0 + share * 112.0;
    format!(
        "<svg viewBox=\"0 0 120 14\" style=\"width:7.5rem;display:inline-block;vertical-align:middle\" aria-hidden=\"true\">\
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
    out.push_str("<h2>Promotion</h2>\n<p class=\"dim\">What the log says for or against the next mode. A person signs it.</p>\n\
                  <div class=\"wide\"><table><thead><tr><th>agent</th><th>mode</th><th class=\"n\">tasks</th><th>overrides</th>\
                  <th>rejections</th><th>abstentions</th><th class=\"n\">median review</th><th>still asked for</th></tr></thead><tbody>");
    for (one, lacks) in overrides.promotion.iter().zip(unmet) {
        let median =
            one.review_median_ms.map_or_else(|| "-".to_owned(), |ms| format!("{} s", ms.div_ceil(1000)));
        let asked = if lacks.unmet.is_empty() { "nothing".to_owned() } else { lacks.unmet.join("; ") };
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{median}</td><td>{}</td></tr>",
            escape(&one.agent),
            escape(&one.mode),
            one.tasks,
            escape(&percent(&one.override_rate)),
            escape(&percent(&one.rejection_rate)),
            escape(&percent(&one.abstention_rate)),
            escape(&asked)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn list(out: &mut String, overrides: &Overrides) {
    if overrides.overrides.is_empty() {
        return;
    }
    out.push_str("<h2>Overrides</h2>\n<div class=\"wide\"><table><thead><tr><th class=\"n\">seq</th><th>when</th><th>agent</th>\
                  <th>reviewer</th><th>kind</th><th>intent</th><th>why</th><th>tags</th></tr></thead><tbody>");
    for row in overrides.overrides.iter().rev().take(ROWS) {
        let intent = match row.intent_preserved {
            Some(true) => "preserved",
            Some(false) => "substituted",
            None => "-",
        };
        let _ = write!(
            out,
            "<tr><td class=\"n\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{intent}</td><td>{}</td><td>{}</td></tr>",
            row.seq,
            escape(&row.arrived),
            escape(&row.agent),
            escape(&row.reviewer),
            escape(&row.task_kind),
            escape(&cut(&row.rationale, 400)),
            escape(&row.tags.join(", "))
        );
    }
    out.push_str("</tbody></table></div>\n");
    if overrides.overrides.len() > ROWS {
        let _ = writeln!(out, "<p class=\"dim\">the newest {ROWS} of {}</p>", overrides.overrides.len());
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

    #[test]
    fn a_page_about_nothing_is_a_page() {
        let page = page(&Analysis::new().finish(), &[], Some("<w>"));
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(page.contains("Overrides in &lt;w&gt;") && !page.contains("<w>"));
    }
}
