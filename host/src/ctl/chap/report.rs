//! `choirctl overrides report`: what a log says about overrides, as a table, JSON and an HTML page.

use std::path::Path;

use choir_chap::report::{Analysis, Group, Overrides, PromotionPolicy, Rate};
use choir_chap::verify::{self, Line};
use choir_chap_client::{Client, LogReader};
use serde::Serialize;

use super::super::print::plain;
use super::super::{Outcome, Printer};
use super::lines::Lines;
use super::{html, told};
use crate::control::{ControlError, ErrorCode};

/// Rows of each table on a terminal; JSON and HTML have all.
const ROWS: usize = 20;

/// Analyses a file.
pub(super) fn of_file(file: &Path) -> Result<Overrides, ControlError> {
    let mut lines = Lines::open(file, verify::LINE_BYTES)?;
    let (mut analysis, mut number) = (Analysis::new(), 0);
    while let Some(line) = lines.next()? {
        number += 1;
        let line = verify::read_line(&line, number).map_err(|error| {
            ControlError::new(ErrorCode::Runtime, format!("{}: {error}", file.display()))
                .next("choirctl workspace-log export <workspace>")
        })?;
        match line {
            Line::Entry(entry) => analysis.entry(&entry),
            Line::Task(task) => analysis.task(task),
            Line::Header(_) | Line::Trailer(_) => {}
        }
    }
    Ok(analysis.finish())
}

/// Analyses the log of a live Coordinator.
pub(super) async fn of_workspace(
    client: Client,
    workspace: &str,
    participant: Option<String>,
) -> Result<Overrides, ControlError> {
    let mut reader = LogReader::new(client.clone(), workspace, participant.clone());
    reader.describe().await.map_err(|error| told(&error))?;
    let (mut analysis, mut number) = (Analysis::new(), 1);
    let mut tasks = std::collections::BTreeSet::new();
    while let Some(page) = reader.page().await.map_err(|error| told(&error))? {
        for entry in page.entries {
            number += 1;
            super::export::collect(&entry, &mut tasks);
            if let Ok(Line::Entry(entry)) = verify::read_line(&entry.to_string(), number) {
                analysis.entry(&entry);
            }
        }
    }
    for task in tasks {
        if let Some(facts) = super::export::facts(&client, workspace, participant.as_deref(), &task).await? {
            analysis.task(facts);
        }
    }
    Ok(analysis.finish())
}

#[derive(Serialize)]
struct View<'a> {
    #[serde(flatten)]
    overrides: &'a Overrides,
    /// For each agent and mode: what a promotion would still need.
    promotion_unmet: Vec<Unmet>,
}

/// What one agent in one mode lacks for a promotion.
#[derive(Serialize)]
pub(super) struct Unmet {
    pub(super) agent: String,
    pub(super) mode: String,
    pub(super) unmet: Vec<String>,
}

pub(super) fn show(
    overrides: &Overrides,
    policy: &PromotionPolicy,
    page: Option<&Path>,
    workspace: Option<&str>,
    printer: &Printer,
) -> Outcome {
    let promotion_unmet: Vec<Unmet> = overrides
        .promotion
        .iter()
        .map(|p| Unmet { agent: p.agent.clone(), mode: p.mode.clone(), unmet: p.unmet(policy) })
        .collect();
    if let Some(path) = page {
        let text = html::page(overrides, &promotion_unmet, workspace);
        std::fs::write(path, text)
            .map_err(|error| ControlError::new(ErrorCode::Runtime, format!("{}: {error}", path.display())))?;
        printer.say(&format!("the page is in {}", path.display()));
    }
    let view = View { overrides, promotion_unmet };
    printer.show(&view, || render(overrides, &view.promotion_unmet));
    Ok(true)
}

/// A rate with its interval, for people.
pub(super) fn percent(rate: &Rate) -> String {
    match (rate.rate, rate.low, rate.high) {
        (Some(rate), Some(low), Some(high)) => {
            format!("{:.1} % ({:.0}-{:.0})", rate * 100.0, low * 100.0, high * 100.0)
        }
        _ => "-".into(),
    }
}

fn groups(text: &mut String, title: &str, groups: &[Group]) {
    if groups.is_empty() {
        return;
    }
    text.push_str(&format!(
        "\n{title:<36} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n",
        "approved", "override", "of which", "rejected", "abstain", "override rate (95 %)"
    ));
    text.push_str(&format!("{:<36} {:>8} {:>8} {:>8}\n", "", "", "", "intent"));
    for group in groups.iter().take(ROWS) {
        let d = &group.decisions;
        text.push_str(&format!(
            "{:<36} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n",
            short(&group.name, 36),
            d.approved,
            d.overridden,
            format!("{}/{}", d.intent_preserved, d.intent_substituted),
            d.rejected,
            d.abstained,
            percent(&group.override_rate)
        ));
    }
    if groups.len() > ROWS {
        text.push_str(&format!("  and {} more; --json has all\n", groups.len() - ROWS));
    }
}

fn short(text: &str, most: usize) -> String {
    let text = plain(text).replace('\n', " ");
    if text.chars().count() <= most { text } else { text.chars().take(most - 1).chain(['…']).collect() }
}

fn render(overrides: &Overrides, unmet: &[Unmet]) -> String {
    let d = &overrides.total;
    let mut text = format!(
        "{} entries, {} refused calls; {} answers of {} reviewers; {} reviews decided: {} approved, {} overridden \
         ({} intent preserved, {} substituted), {} rejected; {} abstained, {} escalated\noverride rate {}\n",
        overrides.entries,
        overrides.refused,
        overrides.answers,
        overrides.reviewers,
        d.decided(),
        d.approved,
        d.overridden,
        d.intent_preserved,
        d.intent_substituted,
        d.rejected,
        d.abstained,
        d.escalated,
        percent(&overrides.override_rate)
    );
    if let Some((first, last)) = &overrides.window {
        text.push_str(&format!("from {first} to {last}\n"));
    }
    groups(&mut text, "agent", &overrides.by_agent);
    groups(&mut text, "task kind", &overrides.by_task_kind);
    groups(&mut text, "mode", &overrides.by_mode);
    groups(&mut text, "reviewer", &overrides.by_reviewer);
    for (title, list) in [
        ("tags", &overrides.tags),
        ("policies", &overrides.policies),
        ("abstentions", &overrides.abstain_categories),
    ] {
        if !list.is_empty() {
            text.push_str(&format!("\n{title}\n"));
            for named in list.iter().take(ROWS) {
                text.push_str(&format!("{:>6}  {}\n", named.count, short(&named.name, 100)));
            }
        }
    }
    if !unmet.is_empty() {
        text.push_str("\npromotion (a person signs it, whatever stands here)\n");
        for one in unmet {
            let verdict =
                if one.unmet.is_empty() { "every bound is met".to_owned() } else { one.unmet.join("; ") };
            text.push_str(&format!("  {} in {}: {verdict}\n", short(&one.agent, 40), one.mode));
        }
    }
    text
}
