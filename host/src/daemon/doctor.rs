//! choird's own part of `choirctl doctor`: what can only be seen from inside.

use std::sync::Arc;

use super::shared::Host;
use crate::control::views::Check;

/// Free space below which an operator should act, in MiB: logs and the journal grow.
const ROOM_MIB: u64 = 512;

pub(super) async fn checks(host: &Arc<Host>) -> Vec<Check> {
    let mut checks = vec![database(host).await, sandbox(host), room(host)];
    checks.extend(secrets(host));
    checks.extend(agents(host).await);
    checks
}

async fn database(host: &Host) -> Check {
    let kind = if host.embedded { "embedded" } else { "external" };
    match host.store() {
        None => {
            let why = host.health.borrow().trouble.clone().unwrap_or_else(|| "it is not open".into());
            Check::fail("database", format!("{kind}: {why}"), "see `choirctl logs choird`")
        }
        Some(store) => match store.ping().await {
            Ok(()) => Check::ok("database", format!("{kind}, answers")),
            Err(error) => Check::fail("database", format!("{kind}: {error}"), "see `choirctl logs choird`"),
        },
    }
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

fn room(host: &Host) -> Check {
    let path = host.state.root();
    match rustix::fs::statvfs(path) {
        Err(error) => Check::warn("disk", format!("{}: {error}", path.display()), "check the disk"),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize) / (1024 * 1024);
            let evidence = format!("{free} MiB free under {}", path.display());
            if free < ROOM_MIB {
                Check::warn("disk", evidence, "free some space: a full disk stops every agent")
            } else {
                Check::ok("disk", evidence)
            }
        }
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
