//! choird's own part of `choirctl doctor`: what can only be seen from inside.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::{Caller, CoordinatorMsg};
use choir_messages::time::Timestamp;
use choir_persistence::store::inspect::{Inspection, Migrations, Pgvector};
use choir_persistence::{Store, StoreError};

use super::shared::Host;
use super::{database as store, disk};
use crate::control::views::Check;

/// A clock that shows less was never set: this program did not exist yet (2025-01-01, in milliseconds).
const EARLIEST: u64 = 1_735_689_600_000;

/// A clock that shows more was set wrongly (2100-01-01, in milliseconds).
const LATEST: u64 = 4_102_444_800_000;

/// How far this clock may be from the database's: what a question and its answer take, and NTP on two machines.
const SKEW: Duration = Duration::from_secs(5);

/// How long the Coordinator may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(super) async fn checks(host: &Arc<Host>) -> Vec<Check> {
    let mut checks = Vec::new();
    let inspected = match host.store() {
        None => Err(None),
        Some(store) => inspect(&store).await.map_err(Some),
    };
    checks.push(database(host, &inspected));
    checks.push(clock(Timestamp::now(), inspected.as_ref().ok()));
    if let Ok(found) = &inspected {
        checks.extend([pgvector(found.pgvector.as_ref()), migrations(&found.migrations)]);
    }
    checks.push(coordinator(host).await);
    checks.push(sandbox(host));
    checks.extend(disk::disks(&host.state, Some(&host.settings().config)).iter().map(disk::Disk::check));
    checks.extend(secrets(host));
    checks.extend(agents(host).await);
    checks
}

/// The server answers, and this is what it says of itself.
async fn inspect(store: &Store) -> Result<Inspection, StoreError> {
    store.ping().await?;
    store.inspect().await
}

fn database(host: &Host, inspected: &Result<Inspection, Option<StoreError>>) -> Check {
    let kind = if host.cluster.is_some() { "embedded" } else { "external" };
    let trouble = match inspected {
        Ok(found) => return Check::ok("database", format!("{kind}, PostgreSQL {}, answers", found.server)),
        Err(Some(error)) => store::trouble(host, error),
        Err(None) => host.health.borrow().trouble.clone().unwrap_or_else(|| "it is not open".into()),
    };
    let fix = if trouble.contains("full") {
        "free some space; it comes back by itself"
    } else {
        "see `choirctl logs choird`"
    };
    Check::fail("database", format!("{kind}: {trouble}"), fix)
}

/// The Coordinator carries out a call; that it refuses this one, about a workspace nobody has, is its answer.
async fn coordinator(host: &Host) -> Check {
    let params = serde_json::json!({ "workspace": "choirctl doctor" });
    let asked = host.coordinator.call(ANSWER_WITHIN, |reply| CoordinatorMsg::Ask {
        method: "workspace.describe".to_owned(),
        params,
        caller: Caller::anyone(),
        reply,
    });
    match asked.await {
        Ok(Ok(_)) => {
            Check::ok("coordinator", format!("answers on {}", host.state.coordinator_socket().display()))
        }
        Ok(Err(error)) => Check::fail("coordinator", error.to_string(), "see `choirctl logs choird`"),
        Err(error) => Check::fail("coordinator", error.to_string(), "see `choirctl logs choird`"),
    }
}

/// Whether this machine's clock can be believed: events carry its time, and leases and budgets count by it.
pub(crate) fn clock(now: Timestamp, found: Option<&Inspection>) -> Check {
    let fix = "set the clock (`timedatectl set-ntp true`); events carry its time";
    if !(EARLIEST..LATEST).contains(&now.millis()) {
        return Check::fail("clock", format!("it is {now}, which cannot be"), fix);
    }
    let Some(found) = found else { return Check::ok("clock", format!("it is {now}")) };
    if let Some(newest) = found.newest_event
        && newest.since(now) > SKEW
    {
        let evidence =
            format!("it is {now}, and the newest event was stored at {newest}: the clock went back");
        return Check::fail("clock", evidence, fix);
    }
    let skew = now.since(found.now).max(found.now.since(now));
    if skew > SKEW {
        let evidence = format!("it is {now} here and {} at the database", found.now);
        return Check::warn("clock", evidence, fix);
    }
    let newest = found.newest_event.map_or_else(String::new, |at| format!("; the newest event is of {at}"));
    Check::ok("clock", format!("it is {now}{newest}"))
}

fn pgvector(found: Option<&Pgvector>) -> Check {
    match found {
        Some(Pgvector { available, installed: Some(installed) }) if available == installed => {
            Check::ok("pgvector", format!("{installed} is installed"))
        }
        Some(Pgvector { available, installed: Some(installed) }) => Check::warn(
            "pgvector",
            format!("{installed} is installed, the server has {available}"),
            "`ALTER EXTENSION vector UPDATE` in the database, as its owner",
        ),
        Some(Pgvector { available, installed: None }) => Check::fail(
            "pgvector",
            format!("{available} is available and not installed"),
            "`CREATE EXTENSION vector` in the database, as its owner",
        ),
        None => Check::fail(
            "pgvector",
            "the server does not have it",
            "on Debian install postgresql-<version>-pgvector",
        ),
    }
}

fn migrations(found: &Migrations) -> Check {
    let list = |numbers: &[i64]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if !found.unknown.is_empty() {
        let evidence = format!("a newer choird has applied {}", list(&found.unknown));
        return Check::fail("migrations", evidence, "start the newer choird, or restore a backup");
    }
    if !found.pending.is_empty() {
        let evidence = format!("not applied: {}", list(&found.pending));
        return Check::fail("migrations", evidence, "restart choird, which applies them first");
    }
    Check::ok("migrations", format!("{} applied, none pending", found.applied.len()))
}

fn sandbox(host: &Host) -> Check {
    let in_use = host.sandbox.borrow().clone();
    let name = in_use.sandbox.name();
    match in_use.warning {
        Some(warning) => Check::warn(
            "sandbox",
            warning,
            "install it with `apt-get install bubblewrap`, then restart choird",
        ),
        None => Check::ok("sandbox", format!("{name}, isolates files and processes")),
    }
}

fn secrets(host: &Host) -> Vec<Check> {
    let settings = host.settings();
    let missing: Vec<_> =
        settings.config.secret_names.iter().filter(|name| settings.secrets.get(name).is_none()).collect();
    if missing.is_empty() {
        return vec![Check::ok("secrets-in-force", format!("{} in force", settings.secrets.names().count()))];
    }
    let check = |name: &&String| {
        let fix = format!("`choirctl secret set {name}`, then `choirctl secret apply`");
        Check::warn("secrets-in-force", format!("\"{name}\" is referred to and not set"), fix)
    };
    missing.iter().map(check).collect()
}

async fn agents(host: &Host) -> Vec<Check> {
    let mut checks = Vec::new();
    for handle in host.roster.all() {
        let id = format!("agent-{}", handle.agent);
        checks.push(match super::ops::view(&handle).await {
            Err(error) => Check::fail(&id, error.what, "see `choirctl tree`"),
            Ok(view) if view.state == "failed" => {
                let why = view.trouble.unwrap_or_default();
                Check::fail(
                    &id,
                    why,
                    format!("`choirctl logs {0}`, then `choirctl agent start {0}`", handle.agent),
                )
            }
            Ok(view) => match view.trouble {
                Some(trouble) => Check::warn(
                    &id,
                    format!("{}: {trouble}", view.state),
                    format!("`choirctl logs {}`", handle.agent),
                ),
                None => Check::ok(&id, view.state),
            },
        });
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::views::CheckStatus;

    fn found(now: u64, newest_event: Option<u64>) -> Inspection {
        Inspection {
            server: "18.1".into(),
            now: Timestamp::from_millis(now),
            newest_event: newest_event.map(Timestamp::from_millis),
            pgvector: None,
            migrations: Migrations::default(),
        }
    }

    #[test]
    fn a_clock_that_cannot_be_or_that_went_back_is_said() {
        let now = EARLIEST + 1_000_000;
        for (millis, found, status, says) in [
            (0, None, CheckStatus::Fail, "1970"),
            (LATEST, None, CheckStatus::Fail, "2100"),
            (now, None, CheckStatus::Ok, "it is 2025"),
            (now, Some(found(now, Some(now - 5))), CheckStatus::Ok, "the newest event is of 2025"),
            (now, Some(found(now, Some(now + 60_000))), CheckStatus::Fail, "went back"),
            (now, Some(found(now - 60_000, None)), CheckStatus::Warn, "at the database"),
            (now, Some(found(now + 60_000, None)), CheckStatus::Warn, "at the database"),
        ] {
            let check = clock(Timestamp::from_millis(millis), found.as_ref());
            assert!(check.status == status && check.evidence.contains(says), "{check:?}");
            assert_eq!(check.fix.is_some(), status != CheckStatus::Ok);
        }
    }

    #[test]
    fn versions_of_pgvector_and_migrations_are_said_with_what_to_do() {
        let vector = |installed: Option<&str>| Pgvector {
            available: "0.8.1".into(),
            installed: installed.map(str::to_owned),
        };
        assert_eq!(pgvector(Some(&vector(Some("0.8.1")))).status, CheckStatus::Ok);
        let old = pgvector(Some(&vector(Some("0.7.0"))));
        assert!(old.status == CheckStatus::Warn && old.fix.unwrap().contains("ALTER EXTENSION"));
        assert_eq!(pgvector(Some(&vector(None))).status, CheckStatus::Fail);
        assert_eq!(pgvector(None).status, CheckStatus::Fail);

        let of = |pending: &[i64], unknown: &[i64]| {
            let (pending, unknown) = (pending.to_vec(), unknown.to_vec());
            migrations(&Migrations { applied: vec![1], pending, unknown })
        };
        assert_eq!(of(&[], &[]).status, CheckStatus::Ok);
        assert!(of(&[2, 3], &[]).evidence.contains("2, 3"));
        assert!(of(&[], &[9]).fix.unwrap().contains("newer choird"));
    }
}
