//! The identity file: whose tokens and credentials are believed. It holds public keys and addresses, no secrets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use choir_identity::vc::TrustedIssuer;
use choir_identity::{Algorithm, Jwks, Provider, PublicJwk};
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use super::fetch::may_fetch;

/// Largest file read: dozens of issuers with their keys.
const FILE_BYTES: u64 = 1024 * 1024;

/// Most providers, and most issuers of credentials.
const ISSUERS: usize = 256;

/// How old a presentation may be unless the file says otherwise: time to make it and to send it.
const PRESENTATION_AGE: Duration = Duration::from_secs(300);

/// Oldest presentation that a file may allow; all shown in that time are remembered.
const PRESENTATION_AGE_MAX: u64 = 3600;

/// Why an identity file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It, or a file it names, cannot be read.
    #[error("{path} cannot be read: {why}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It does not say what it should.
    #[error("{path}: {why}; `choird coordinator --help` shows an example")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Providers cannot be reached over TLS from here.
    #[error("TLS cannot be used to reach identity providers: {0}")]
    Tls(String),
}

/// What an identity file says, checked.
#[derive(Debug, Clone)]
pub struct IdentityFile {
    /// Where clients send calls, as DPoP proofs name it.
    pub(super) url: Option<Url>,
    pub(super) oidc: Vec<OidcIssuer>,
    pub(super) vc: Option<VcRules>,
}

/// A provider of ID tokens.
#[derive(Debug, Clone)]
pub(super) struct OidcIssuer {
    pub(super) provider: Provider,
    pub(super) keys: KeySource,
    pub(super) require_dpop: bool,
    pub(super) require_participant: bool,
}

/// Where a provider's keys come from.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    File(Jwks),
    Web(Url),
}

/// Whose credentials are believed.
#[derive(Debug, Clone)]
pub(super) struct VcRules {
    pub(super) domain: String,
    pub(super) issuers: Vec<TrustedIssuer>,
    pub(super) max_age: Duration,
    /// Where to fetch a status list, by the address its issuer gives it.
    pub(super) mirrors: BTreeMap<String, Url>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    oidc: Vec<OidcText>,
    #[serde(default)]
    vc: Option<VcText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OidcText {
    issuer: String,
    audiences: Vec<String>,
    #[serde(default)]
    clients: Vec<String>,
    #[serde(default)]
    algorithms: Option<Vec<String>>,
    #[serde(default)]
    jwks_uri: Option<String>,
    #[serde(default)]
    jwks_file: Option<PathBuf>,
    #[serde(default)]
    max_age_sec: Option<u64>,
    #[serde(default)]
    require_dpop: bool,
    #[serde(default)]
    require_participant: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VcText {
    domain: String,
    issuers: Vec<IssuerText>,
    #[serde(default)]
    max_age_sec: Option<u64>,
    #[serde(default)]
    mirrors: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IssuerText {
    id: String,
    /// Verification method to Ed25519 JWK.
    #[serde(default)]
    keys: BTreeMap<String, Map<String, Value>>,
    #[serde(default)]
    types: Vec<String>,
}

/// Reads an identity file, and the key files it names.
pub fn read_identity(path: &Path) -> Result<IdentityFile, IdentityError> {
    let malformed = |why: String| IdentityError::Malformed { path: path.to_owned(), why };
    let text: Text =
        serde_json::from_slice(&bytes(path, FILE_BYTES)?).map_err(|error| malformed(error.to_string()))?;
    if text.oidc.is_empty() && text.vc.is_none() {
        return Err(malformed("it names neither an `oidc` provider nor `vc` issuers".into()));
    }
    if text.oidc.len() > ISSUERS || text.vc.as_ref().is_some_and(|vc| vc.issuers.len() > ISSUERS) {
        return Err(malformed(format!("it names more than {ISSUERS} issuers")));
    }
    let url =
        text.url.map(|url| Url::parse(&url).map_err(|_| malformed("`url` is no URL".into()))).transpose()?;
    let mut oidc: Vec<OidcIssuer> = Vec::with_capacity(text.oidc.len());
    for line in text.oidc {
        let issuer = provider(path, line)?;
        if oidc.iter().any(|other| other.provider.issuer == issuer.provider.issuer) {
            return Err(malformed(format!("oidc: {} stands there twice", issuer.provider.issuer)));
        }
        if issuer.require_dpop && url.is_none() {
            return Err(malformed("`require_dpop` needs `url`, the address that proofs are made for".into()));
        }
        oidc.push(issuer);
    }
    let vc = text.vc.map(|vc| credentials(vc).map_err(malformed)).transpose()?;
    Ok(IdentityFile { url, oidc, vc })
}

impl IdentityFile {
    /// Whether anything is fetched over https: status lists always may be.
    pub(super) fn reaches_the_network(&self) -> bool {
        let over_tls =
            |issuer: &OidcIssuer| matches!(&issuer.keys, KeySource::Web(url) if url.scheme() == "https");
        self.vc.is_some() || self.oidc.iter().any(over_tls)
    }
}

fn bytes(path: &Path, largest: u64) -> Result<Vec<u8>, IdentityError> {
    let unreadable = |why: String| IdentityError::Unreadable { path: path.to_owned(), why };
    let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if size > largest {
        return Err(unreadable(format!("it is larger than {largest} bytes")));
    }
    std::fs::read(path).map_err(|error| unreadable(error.to_string()))
}

fn provider(path: &Path, text: OidcText) -> Result<OidcIssuer, IdentityError> {
    let issuer = text.issuer.clone();
    let malformed =
        |why: &str| IdentityError::Malformed { path: path.to_owned(), why: format!("oidc {issuer}: {why}") };
    if text.audiences.is_empty() || text.audiences.iter().any(String::is_empty) {
        return Err(malformed("`audiences` must name this Coordinator"));
    }
    let algorithms = match text.algorithms {
        None => Algorithm::ALL.to_vec(),
        Some(names) => names
            .iter()
            .map(|name| Algorithm::from_name(name))
            .collect::<Option<Vec<_>>>()
            .filter(|algorithms| !algorithms.is_empty())
            .ok_or_else(|| malformed("`algorithms` must be some of RS256, ES256 and EdDSA"))?,
    };
    let keys = match (text.jwks_uri, text.jwks_file) {
        (Some(uri), None) => {
            let url = Url::parse(&uri).ok().filter(may_fetch);
            KeySource::Web(
                url.ok_or_else(|| malformed("`jwks_uri` must be an https URL, or http on loopback"))?,
            )
        }
        (None, Some(file)) => {
            // Beside the identity file, unless it says where.
            let file = path.parent().map_or_else(|| file.clone(), |folder| folder.join(&file));
            let keys = Jwks::parse(&bytes(&file, choir_identity::limits::MAX_JWKS_BYTES as u64)?);
            KeySource::File(keys.map_err(|error| malformed(&format!("`jwks_file`: {error}")))?)
        }
        _ => return Err(malformed("give either `jwks_uri` or `jwks_file`")),
    };
    Ok(OidcIssuer {
        provider: Provider {
            issuer: text.issuer,
            audiences: text.audiences,
            authorised_parties: text.clients,
            algorithms,
            max_age: text.max_age_sec.map(Duration::from_secs),
        },
        keys,
        require_dpop: text.require_dpop,
        require_participant: text.require_participant,
    })
}

fn credentials(text: VcText) -> Result<VcRules, String> {
    if text.domain.is_empty() {
        return Err(
            "vc: `domain` is the name that presentations are made for; it must not be empty".to_owned()
        );
    }
    if text.issuers.is_empty() {
        return Err("vc: `issuers` must name somebody".to_owned());
    }
    let max_age = text.max_age_sec.map_or(PRESENTATION_AGE, Duration::from_secs);
    if max_age.is_zero() || max_age.as_secs() > PRESENTATION_AGE_MAX {
        return Err(format!("vc: `max_age_sec` must be from 1 to {PRESENTATION_AGE_MAX}"));
    }
    let issuers = text.issuers.into_iter().map(|issuer| {
        let key = |(method, jwk): (String, Map<String, Value>)| match PublicJwk::from_json(&jwk) {
            Ok(PublicJwk::Ed25519(key)) => Ok((method, key)),
            _ => Err(format!("vc {}: the key {method:?} is no public Ed25519 JWK", issuer.id)),
        };
        if issuer.keys.is_empty() && choir_identity::vc::parse_did_key(&issuer.id).is_none() {
            return Err(format!("vc {}: an issuer that is no did:key needs `keys`", issuer.id));
        }
        let keys = issuer.keys.into_iter().map(key).collect::<Result<_, _>>()?;
        Ok(TrustedIssuer { id: issuer.id, keys, types: issuer.types })
    });
    let mirror = |(list, from): (String, String)| match Url::parse(&from).ok().filter(may_fetch) {
        Some(url) => Ok((list, url)),
        None => Err(format!("vc: the mirror of {list} must be an https URL, or http on loopback")),
    };
    Ok(VcRules {
        domain: text.domain,
        issuers: issuers.collect::<Result<_, _>>()?,
        max_age,
        mirrors: text.mirrors.into_iter().map(mirror).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<IdentityFile, IdentityError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity.json");
        std::fs::write(&path, value.to_string()).unwrap();
        std::fs::write(folder.path().join("jwks.json"), r#"{"keys":[]}"#).unwrap();
        read_identity(&path)
    }

    fn good() -> Value {
        json!({
            "url": "https://chap.example/chap",
            "oidc": [{"issuer": "https://id.example", "audiences": ["chap"], "jwks_uri": "https://id.example/jwks"}],
            "vc": {"domain": "chap.example",
                "issuers": [{"id": "did:key:z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2"}]},
        })
    }

    #[test]
    fn a_file_with_a_provider_and_an_issuer_is_read() {
        let file = read(&good()).unwrap();
        assert_eq!(file.oidc.len(), 1);
        assert_eq!(file.vc.unwrap().max_age, PRESENTATION_AGE);
    }

    #[test]
    fn a_field_nobody_knows_is_refused_by_its_name() {
        for path in ["/audience", "/oidc/0/audience", "/vc/trusted", "/vc/issuers/0/key"] {
            let (parent, name) = path.rsplit_once('/').unwrap();
            let mut value = good();
            value.pointer_mut(parent).unwrap()[name] = json!("x");
            let error = read(&value).unwrap_err().to_string();
            assert!(error.contains(name), "{path}: {error}");
        }
    }

    #[test]
    fn a_file_that_would_believe_nobody_or_anybody_is_refused() {
        for (pointer, value) in [
            ("/oidc/0/audiences", json!([])),
            ("/oidc/0/jwks_uri", json!("http://id.example/jwks")),
            ("/oidc/0/jwks_uri", json!("file:///etc/passwd")),
            ("/oidc/0/jwks_uri", Value::Null),
            ("/vc/domain", json!("")),
            ("/vc/issuers", json!([])),
            ("/vc/issuers/0/id", json!("https://issuer.example")),
        ] {
            let mut file = good();
            *file.pointer_mut(pointer).unwrap() = value;
            assert!(read(&file).is_err(), "{pointer}");
        }
        let with = |name: &str, value: Value| {
            let mut file = good();
            file["oidc"][0][name] = value;
            read(&file)
        };
        assert!(with("algorithms", json!(["HS256"])).is_err());
        assert!(with("jwks_file", json!("jwks.json")).is_err(), "both sources");
        assert!(read(&json!({})).is_err());
        assert!(read(&json!({"oidc": [good()["oidc"][0], good()["oidc"][0]]})).is_err());
    }
}
