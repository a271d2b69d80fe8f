//! Verifiable presentations (W3C VC Data Model 2.0) with `eddsa-jcs-2022` proofs: the holder proves its key to this
//! Coordinator now, and issuers whom the operator trusts say who the holder is.
//!
//! A presentation is judged in two steps, because a status list may have to be fetched between them:
//! [`verify_presentation`] checks every proof and gives a [`Presentation`], whose [`Presentation::status_lists`] are
//! addresses written by trusted issuers; [`Presentation::accept`] checks the lists and gives the [`Holder`].

mod data_integrity;
mod did;
mod presentation;
mod status;

#[cfg(test)]
mod test_documents;

pub use data_integrity::DataIntegrityError;
pub use did::{did_key, parse_did_key};
pub use presentation::{
    Credential, Freshness, Holder, Presentation, Rules, TrustedIssuer, VcError, presentation_digest,
    verify_presentation,
};
pub use status::{StatusError, StatusList, verify_status_list};
