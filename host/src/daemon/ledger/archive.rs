//! The verifier beside a running trace, and where its reports are kept.

use choir_ledger::id::{ReportId, TraceId};
use choir_ledger::verify::{self, Folder, Options, Reading};
use choir_ledger_roles::driver::Report;
use choir_ledger_roles::run::{Archive, Boxed};
use choir_ledger_roles::task::Profile;
use choir_ledger_store::Home;
use serde_json::Value;

/// One trace's archive.
pub(super) struct TraceArchive {
    pub(super) home: Home,
    pub(super) trace: TraceId,
    pub(super) profile: Profile,
}

/// The same profile by the verifier's name.
pub(crate) const fn profile(profile: Profile) -> verify::Profile {
    match profile {
        Profile::Strict => verify::Profile::Strict,
        Profile::Default => verify::Profile::Default,
        Profile::Lenient => verify::Profile::Lenient,
    }
}

impl Archive for TraceArchive {
    fn verify(&self) -> Boxed<Result<Report, String>> {
        let (home, trace) = (self.home.clone(), self.trace);
        let profile = profile(self.profile);
        let options = Options { reading: Reading::Strict, profile, awaiting_verdict: true };
        let verify = move || {
            let report = verify::verify(&Folder::new(home.root()), trace, options);
            Report {
                status: report.verification_status.as_str().to_owned(),
                id: report.report_id.to_string(),
                json: serde_json::to_string(&report).unwrap_or_default(),
                text: report.to_text(),
            }
        };
        Box::pin(async move { tokio::task::spawn_blocking(verify).await.map_err(|error| error.to_string()) })
    }

    fn keep(&self, report: Report) -> Boxed<()> {
        let (home, trace) = (self.home.clone(), self.trace);
        let keep = move || -> Result<(), String> {
            let id: ReportId =
                report.id.parse().map_err(|error: choir_ledger::id::IdError| error.to_string())?;
            let json: Value = serde_json::from_str(&report.json).map_err(|error| error.to_string())?;
            home.save_report(trace, id, &json, &report.text).map(drop).map_err(|error| error.to_string())
        };
        Box::pin(async move {
            let kept = tokio::task::spawn_blocking(keep).await;
            if let Err(error) = kept.map_err(|error| error.to_string()).and_then(|kept| kept) {
                // The report is an artefact of the trace in any case.
                tracing::warn!(%trace, error, "the report could not be kept beside the trace");
            }
        })
    }
}
