//! Verifiable presentations, and the status lists that their credentials depend on.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use choir_chap::{Refusal, VcSubject, codes};
use choir_identity::ReplayCache;
use choir_identity::limits::{CLOCK_SKEW, MAX_STATUS_DOCUMENT_BYTES};
use choir_identity::vc::{Freshness, Rules, StatusList, VcError, verify_presentation, verify_status_list};
use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use serde_json::Value;
use url::Url;

use super::fetch::Web;
use super::file::VcRules;
use super::locked;

/// How long a status list is believed: how late a revocation may be seen.
const LIST_AGE: Duration = Duration::from_secs(60);

/// How long a list that could not be had is not asked for again.
const LIST_PAUSE: Duration = Duration::from_secs(5);

/// Lists kept; each may have a megabyte.
const LISTS: usize = 32;

pub(super) struct Presentations {
    says: VcRules,
    web: Web,
    shown: Mutex<ReplayCache>,
    lists: Mutex<HashMap<String, Arc<Slot>>>,
}

/// One list: whoever finds it too old fetches it, and the others wait for that.
#[derive(Default)]
struct Slot(tokio::sync::Mutex<Held>);

#[derive(Default)]
struct Held {
    list: Option<StatusList>,
    /// When it is asked for again.
    until: Option<Timestamp>,
}

fn refused(error: VcError) -> Refusal {
    Refusal::new(error.code(), format!("VC presentation invalid: {error}"))
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(time.millis().saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}

impl Presentations {
    pub(super) fn new(says: &VcRules, web: Web) -> Self {
        Self {
            says: says.clone(),
            web,
            shown: Mutex::new(ReplayCache::new()),
            lists: Mutex::new(HashMap::new()),
        }
    }

    fn rules(&self, now: Timestamp) -> Rules<'_> {
        let freshness = Freshness::Recent(self.says.max_age);
        Rules { issuers: &self.says.issuers, domain: &self.says.domain, freshness, now }
    }

    /// Who presents, if all of it holds and it was not shown before.
    pub(super) async fn subject(&self, shown: &Value, now: Timestamp) -> Result<VcSubject, Refusal> {
        let presentation = verify_presentation(shown, &self.rules(now)).map_err(refused)?;
        let mut lists = BTreeMap::new();
        for url in presentation.status_lists() {
            // One that cannot be had is left out, which refuses whatever depends on it.
            if let Some(list) = self.list(url, now).await {
                lists.insert(url.to_owned(), list);
            }
        }
        let holder = presentation.accept(&lists, now).map_err(refused)?;
        let until = later(now, self.says.max_age.saturating_add(CLOCK_SKEW.saturating_mul(2)));
        let (owner, proof) = (Digest::of(holder.key.bytes()), Digest::of(holder.digest.as_bytes()));
        locked(&self.shown).admit(owner, proof, until, now).map_err(|error| {
            Refusal::new(codes::VC_PRESENTATION_INVALID, format!("VC presentation invalid: {error}"))
        })?;
        Ok(VcSubject { holder: Some(holder.holder), cnf_jwk: Some(holder.cnf_jwk) })
    }

    async fn list(&self, url: &str, now: Timestamp) -> Option<StatusList> {
        let slot = {
            let mut lists = locked(&self.lists);
            if lists.len() >= LISTS
                && !lists.contains_key(url)
                && let Some(other) = lists.keys().next().cloned()
            {
                lists.remove(&other);
            }
            Arc::clone(lists.entry(url.to_owned()).or_default())
        };
        let mut held = slot.0.lock().await;
        let fresh = held.until.is_some_and(|until| now < until && until <= later(now, LIST_AGE));
        if !fresh {
            let fetched = self.fetch(url, now).await;
            if let Err(why) = &fetched {
                tracing::warn!(list = url, why, "a status list was not had");
            }
            let age = if fetched.is_ok() { LIST_AGE } else { LIST_PAUSE };
            let ends = fetched.as_ref().ok().and_then(StatusList::until);
            held.until = Some(ends.map_or(later(now, age), |ends| ends.min(later(now, age))));
            held.list = fetched.ok();
        }
        held.list.clone()
    }

    async fn fetch(&self, url: &str, now: Timestamp) -> Result<StatusList, String> {
        let from = match self.says.mirrors.get(url) {
            Some(mirror) => mirror.clone(),
            None => Url::parse(url).map_err(|_| "its address is no URL".to_owned())?,
        };
        let document = self.web.get(&from, MAX_STATUS_DOCUMENT_BYTES).await?;
        let document: Value =
            serde_json::from_slice(&document.bytes).map_err(|_| "it is no JSON".to_owned())?;
        verify_status_list(url, &document, &self.rules(now)).map_err(|error| error.to_string())
    }
}
