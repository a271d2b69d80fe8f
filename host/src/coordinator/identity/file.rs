//! What an operator says of identity ([`IdentitySection`]), ready for use: addresses and keys parsed, key files read.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use choir_identity::vc::TrustedIssuer;
use choir_identity::{Algorithm, Jwks, Provider, PublicJwk};
use url::Url;

use crate::config::{IdentitySection, OidcSection, VcSection, read_identity_section};

/// Largest file read: dozens of issuers with their keys.
const FILE_BYTES: u64 = 1024 * 1024;

/// Why identities cannot be verified as the operator says.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {why}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The identity file does not say what it should.
    #[error("{path}: {why}; `choird coordinator --help` shows an example")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong, by field.
        why: String,
    },
    /// A provider's key file holds no keys.
    #[error("{path}, jwks_file of {issuer}: {why}")]
    Keys {
        /// Which.
        path: PathBuf,
        /// Whose.
        issuer: String,
        /// What is wrong.
        why: String,
    },
    /// Providers cannot be reached over TLS from here.
    #[error("TLS cannot be used to reach identity providers: {0}")]
    Tls(String),
}

/// Whose tokens and credentials are believed, checked.
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

/// Reads an identity file, and the key files it names.
pub fn read_identity(path: &Path) -> Result<IdentityFile, IdentityError> {
    let section = read_identity_section(&bytes(path, FILE_BYTES)?).map_err(|problems| {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        IdentityError::Malformed { path: path.to_owned(), why: all.join("; ") }
    })?;
    IdentityFile::new(&section, path.parent().unwrap_or(Path::new("")))
}

impl IdentityFile {
    /// What the section says; key files are looked for beside `folder` unless they say where they are.
    pub(crate) fn new(section: &IdentitySection, folder: &Path) -> Result<Self, IdentityError> {
        let oidc = section.oidc.iter().map(|provider| OidcIssuer::new(provider, folder));
        Ok(Self {
            url: section.url.clone(),
            oidc: oidc.collect::<Result<_, _>>()?,
            vc: section.vc.as_ref().map(VcRules::new),
        })
    }

    /// Whether anything is fetched over https: status lists always may be.
    pub(super) fn reaches_the_network(&self) -> bool {
        let over_tls =
            |issuer: &OidcIssuer| matches!(&issuer.keys, KeySource::Web(url) if url.scheme() == "https");
        self.vc.is_some() || self.oidc.iter().any(over_tls)
    }
}

fn bytes(path: &Path, largest: u64) -> Result<Vec<u8>, IdentityError> {
    let unreadable = |why: String| IdentityError::Unreadable { path: path.to_owned(), why };
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(largest + 1).read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() as u64 > largest {
        return Err(unreadable(format!("it is larger than {largest} bytes")));
    }
    Ok(bytes)
}

impl OidcIssuer {
    fn new(says: &OidcSection, folder: &Path) -> Result<Self, IdentityError> {
        let keys = match (&says.jwks_uri, &says.jwks_file) {
            (Some(url), _) => KeySource::Web(url.clone()),
            (None, file) => {
                let path = folder.join(file.as_deref().unwrap_or(Path::new("")));
                let keys = Jwks::parse(&bytes(&path, choir_identity::limits::MAX_JWKS_BYTES as u64)?);
                KeySource::File(keys.map_err(|error| IdentityError::Keys {
                    path,
                    issuer: says.issuer.clone(),
                    why: error.to_string(),
                })?)
            }
        };
        Ok(Self {
            provider: Provider {
                issuer: says.issuer.clone(),
                audiences: says.audiences.clone(),
                authorised_parties: says.clients.clone(),
                algorithms: says.algorithms.iter().filter_map(|name| Algorithm::from_name(name)).collect(),
                max_age: says.max_age_sec.map(Duration::from_secs),
            },
            keys,
            require_dpop: says.require_dpop,
            require_participant: says.require_participant,
        })
    }
}

impl VcRules {
    fn new(says: &VcSection) -> Self {
        let key = |(method, jwk): (&String, &serde_json::Value)| match PublicJwk::from_json(jwk.as_object()?)
        {
            Ok(PublicJwk::Ed25519(key)) => Some((method.clone(), key)),
            _ => None,
        };
        let issuer = |issuer: &crate::config::VcIssuer| TrustedIssuer {
            id: issuer.id.clone(),
            keys: issuer.keys.iter().filter_map(key).collect(),
            types: issuer.types.clone(),
        };
        Self {
            domain: says.domain.clone(),
            issuers: says.issuers.iter().map(issuer).collect(),
            max_age: Duration::from_secs(says.max_age_sec),
            mirrors: says.mirrors.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

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
        assert_eq!(file.vc.unwrap().max_age, Duration::from_secs(300));
    }

    #[test]
    fn a_field_nobody_knows_is_refused_by_its_name() {
        for (path, told) in [
            ("/audience", "audience: unknown field"),
            ("/oidc/0/audience", "oidc[0].audience: unknown field; did you mean \"audiences\"?"),
            ("/vc/trusted", "vc.trusted: unknown field"),
            ("/vc/issuers/0/key", "vc.issuers[0].key: unknown field"),
        ] {
            let (parent, name) = path.rsplit_once('/').unwrap();
            let mut value = good();
            value.pointer_mut(parent).unwrap()[name] = json!("x");
            let error = read(&value).unwrap_err().to_string();
            assert!(error.contains(told), "{path}: {error}");
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
