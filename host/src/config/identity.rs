//! Whose ID tokens and credentials a Coordinator believes: the section `coordinator.identity`, and the file of
//! `choird coordinator --identity`, in one form. It holds public keys and addresses, no secrets. What is read here is
//! checked as far as that goes without opening another file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use choir_identity::{Algorithm, PublicJwk};
use serde::{Serialize, Serializer};
use serde_json::Value;
use url::Url;

use super::reader::{At, Object, Problems};

/// Most providers, and most issuers of credentials.
const ISSUERS: usize = 256;

/// How old a presentation may be unless the section says otherwise, in seconds: time to make it and to send it.
const PRESENTATION_SECONDS: u64 = 300;

/// Oldest presentation that may be allowed, in seconds; all shown in that time are remembered.
const PRESENTATION_SECONDS_MOST: u64 = 3600;

/// Oldest login that a provider's tokens may tell of, in seconds: a year.
const LOGIN_SECONDS_MOST: u64 = 366 * 24 * 3600;

/// Whose ID tokens and credentials are believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdentitySection {
    /// Where clients post calls: DPoP proofs are made for it.
    #[serde(serialize_with = "one")]
    pub url: Option<Url>,
    /// Providers of ID tokens.
    pub oidc: Vec<OidcSection>,
    /// Issuers of credentials.
    pub vc: Option<VcSection>,
}

/// A provider of ID tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OidcSection {
    /// As its tokens name it.
    pub issuer: String,
    /// The names of this Coordinator in them.
    pub audiences: Vec<String>,
    /// Clients whose tokens are taken; empty for any.
    pub clients: Vec<String>,
    /// JOSE names of algorithms.
    pub algorithms: Vec<String>,
    /// Where its keys are fetched.
    #[serde(serialize_with = "one")]
    pub jwks_uri: Option<Url>,
    /// Or the file they are in.
    pub jwks_file: Option<PathBuf>,
    /// Oldest login, in seconds.
    pub max_age_sec: Option<u64>,
    /// Whether a DPoP proof must come along.
    pub require_dpop: bool,
    /// Whether a token must say which participant it is for.
    pub require_participant: bool,
}

/// Whose credentials are believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VcSection {
    /// The name that presentations are made for.
    pub domain: String,
    /// The issuers.
    pub issuers: Vec<VcIssuer>,
    /// Oldest presentation, in seconds.
    pub max_age_sec: u64,
    /// Where to fetch a status list, by the address its issuer gives it.
    #[serde(serialize_with = "many")]
    pub mirrors: BTreeMap<String, Url>,
}

/// An issuer of credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VcIssuer {
    /// Its id.
    pub id: String,
    /// Verification method to Ed25519 JWK; empty for a did:key, which is one itself.
    pub keys: BTreeMap<String, Value>,
    /// Types of credentials it is believed for; empty for all.
    pub types: Vec<String>,
}

fn one<S: Serializer>(url: &Option<Url>, to: S) -> Result<S::Ok, S::Error> {
    url.as_ref().map(Url::as_str).serialize(to)
}

fn many<S: Serializer>(urls: &BTreeMap<String, Url>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(urls.iter().map(|(name, url)| (name, url.as_str())))
}

/// Reads the section or the file.
pub(crate) fn read(at: &At<'_>, problems: &mut Problems) -> Option<IdentitySection> {
    let mut fields = at.object(problems)?;
    let url = fields.some("url").and_then(|at| any_url(&at, problems));
    let mut oidc: Vec<OidcSection> = Vec::new();
    let listed = fields.some("oidc").and_then(|at| few(&at, problems)).unwrap_or_default();
    let named_none = listed.is_empty();
    for at in listed {
        let Some(provider) = provider(&at, url.is_some(), problems) else { continue };
        if oidc.iter().any(|other| other.issuer == provider.issuer) {
            problems.add(format!("{}.issuer", at.path), format!("{} stands there twice", provider.issuer));
        }
        oidc.push(provider);
    }
    let vc = fields.some("vc");
    if named_none && vc.is_none() {
        problems.add(at.path.clone(), "names neither an `oidc` provider nor `vc` issuers");
    }
    let vc = vc.and_then(|at| credentials(&at, problems));
    fields.finish(problems);
    Some(IdentitySection { url, oidc, vc })
}

/// The elements of a list of issuers.
fn few<'a>(at: &At<'a>, problems: &mut Problems) -> Option<Vec<At<'a>>> {
    let list = at.list(problems)?;
    if list.len() > ISSUERS {
        problems.add(at.path.clone(), format!("must name at most {ISSUERS}"));
    }
    Some(list)
}

fn any_url(at: &At<'_>, problems: &mut Problems) -> Option<Url> {
    let url = Url::parse(&at.text(problems)?).ok().filter(Url::has_host);
    if url.is_none() {
        problems.add(at.path.clone(), "must be a URL such as \"https://chap.example/chap\"");
    }
    url
}

/// An address that something is fetched from.
fn source(at: &At<'_>, problems: &mut Problems) -> Option<Url> {
    let url = Url::parse(&at.text(problems)?).ok().filter(crate::coordinator::may_fetch);
    if url.is_none() {
        problems.add(at.path.clone(), "must be an https URL, or http on loopback");
    }
    url
}

fn flag(fields: &mut Object<'_>, name: &'static str, problems: &mut Problems) -> bool {
    fields.some(name).and_then(|at| at.boolean(problems)).unwrap_or(false)
}

fn provider(at: &At<'_>, has_url: bool, problems: &mut Problems) -> Option<OidcSection> {
    let mut fields = at.object(problems)?;
    let issuer = fields.must("issuer", problems).and_then(|at| at.text(problems));
    let audiences = fields.must("audiences", problems).and_then(|at| {
        let names = at.texts(problems)?;
        if names.is_empty() {
            problems.add(at.path, "must name this Coordinator as the provider's tokens do");
        }
        Some(names)
    });
    let clients = fields.some("clients").and_then(|at| at.texts(problems)).unwrap_or_default();
    let algorithms = match fields.some("algorithms") {
        None => Algorithm::ALL.iter().map(|algorithm| algorithm.as_str().to_owned()).collect(),
        Some(at) => {
            let names = at.texts(problems).unwrap_or_default();
            if names.is_empty() || names.iter().any(|name| Algorithm::from_name(name).is_none()) {
                problems.add(at.path, "must be some of \"RS256\", \"ES256\" and \"EdDSA\"");
            }
            names
        }
    };
    let (uri, file) = (fields.some("jwks_uri"), fields.some("jwks_file"));
    match (&uri, &file) {
        (Some(_), Some(at)) => problems.add(at.path.clone(), "stands beside jwks_uri; keep one"),
        (None, None) => problems.add(at.path.clone(), "needs jwks_uri or jwks_file"),
        _ => {}
    }
    let jwks_uri = uri.and_then(|at| source(&at, problems));
    let jwks_file = file.and_then(|at| at.text(problems)).map(PathBuf::from);
    let max_age_sec = fields.some("max_age_sec").and_then(|at| at.whole(1..=LOGIN_SECONDS_MOST, problems));
    let require_dpop = flag(&mut fields, "require_dpop", problems);
    if require_dpop && !has_url {
        let what = "needs `url` beside `oidc`: the address that proofs are made for";
        problems.add(format!("{}.require_dpop", at.path), what);
    }
    let require_participant = flag(&mut fields, "require_participant", problems);
    fields.finish(problems);
    Some(OidcSection {
        issuer: issuer?,
        audiences: audiences?,
        clients,
        algorithms,
        jwks_uri,
        jwks_file,
        max_age_sec,
        require_dpop,
        require_participant,
    })
}

fn credentials(at: &At<'_>, problems: &mut Problems) -> Option<VcSection> {
    let mut fields = at.object(problems)?;
    let domain = fields.must("domain", problems).and_then(|at| at.text(problems));
    let issuers = fields.must("issuers", problems).and_then(|at| {
        let list = few(&at, problems)?;
        if list.is_empty() {
            problems.add(at.path, "must name somebody");
        }
        list.iter().map(|at| vc_issuer(at, problems)).collect::<Option<Vec<_>>>()
    });
    let max_age_sec =
        fields.some("max_age_sec").and_then(|at| at.whole(1..=PRESENTATION_SECONDS_MOST, problems));
    let mut mirrors = BTreeMap::new();
    if let Some(lists) = fields.some("mirrors").and_then(|at| at.object(problems)) {
        for (list, at) in lists.each() {
            mirrors.extend(source(&at, problems).map(|url| (list.to_owned(), url)));
        }
    }
    fields.finish(problems);
    let max_age_sec = max_age_sec.unwrap_or(PRESENTATION_SECONDS);
    Some(VcSection { domain: domain?, issuers: issuers?, max_age_sec, mirrors })
}

fn vc_issuer(at: &At<'_>, problems: &mut Problems) -> Option<VcIssuer> {
    let mut fields = at.object(problems)?;
    let id = fields.must("id", problems).and_then(|at| at.text(problems));
    let mut keys = BTreeMap::new();
    if let Some(methods) = fields.some("keys").and_then(|at| at.object(problems)) {
        for (method, at) in methods.each() {
            let jwk = at.free(problems);
            let public = jwk.as_object().map(PublicJwk::from_json);
            if !matches!(public, Some(Ok(PublicJwk::Ed25519(_)))) {
                problems.add(at.path.clone(), "must be a public Ed25519 JWK");
            }
            keys.insert(method.to_owned(), jwk);
        }
    }
    let types = fields.some("types").and_then(|at| at.texts(problems)).unwrap_or_default();
    fields.finish(problems);
    let id = id?;
    if keys.is_empty() && choir_identity::vc::parse_did_key(&id).is_none() {
        problems.add(format!("{}.keys", at.path), "is missing: an issuer that is no did:key needs its keys");
    }
    Some(VcIssuer { id, keys, types })
}
