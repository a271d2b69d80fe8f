//! Where and how a server listens, and what is refused beforehand.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::auth::Auth;
use crate::front::FrontConfig;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// On this address; port 0 for any free one.
    Tcp(SocketAddr),
    /// On this Unix socket, in a folder that is its owner's alone.
    Unix(PathBuf),
}

/// Where a server's certificate chain and key are, as PEM. Read at each start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, the server's own first.
    pub certificates: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where.
    pub listen: Listen,
    /// With TLS 1.3, on these files.
    pub tls: Option<TlsFiles>,
    /// What is served, to whom.
    pub front: FrontConfig,
}

/// Why a configuration is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Off loopback without TLS.
    #[error(
        "{0} can be reached from other machines: give a certificate and key (TLS), or listen on 127.0.0.1"
    )]
    ClearText(SocketAddr),
    /// Off loopback for everyone.
    #[error("{0} can be reached from other machines: configure tokens, or listen on 127.0.0.1")]
    Unguarded(SocketAddr),
    /// Tokens that let nobody in.
    #[error("bearer tokens are wanted but none is configured: add one, or take the setting away")]
    NoTokens,
}

impl Config {
    /// On a loopback port, for everyone on this machine.
    #[must_use]
    pub fn loopback(port: u16) -> Self {
        let listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
        Self { listen, tls: None, front: FrontConfig::default() }
    }

    /// Whether this may be served at all.
    pub fn check(&self) -> Result<(), ConfigError> {
        if matches!(&self.front.auth, Auth::Bearer(grants) if grants.is_empty()) {
            return Err(ConfigError::NoTokens);
        }
        if let Listen::Tcp(address) = self.listen
            && !address.ip().to_canonical().is_loopback()
        {
            if self.tls.is_none() {
                return Err(ConfigError::ClearText(address));
            }
            if self.front.auth == Auth::None {
                return Err(ConfigError::Unguarded(address));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Grant, TokenDigest};

    fn at(address: &str, tls: bool, token: bool) -> Config {
        let files = TlsFiles { certificates: "cert.pem".into(), key: "key.pem".into() };
        let grant = Grant { digest: TokenDigest::of(b"t"), participants: None };
        let auth = if token { Auth::Bearer(vec![grant]) } else { Auth::None };
        Config {
            listen: Listen::Tcp(address.parse().unwrap()),
            tls: tls.then_some(files),
            front: FrontConfig { auth, ..FrontConfig::default() },
        }
    }

    #[test]
    fn off_loopback_nothing_is_served_without_tls_and_a_token() {
        for address in ["0.0.0.0:80", "10.1.2.3:0", "[::]:80", "[2001:db8::1]:80", "[::ffff:10.0.0.1]:80"] {
            assert!(matches!(at(address, false, true).check(), Err(ConfigError::ClearText(_))), "{address}");
            assert!(matches!(at(address, true, false).check(), Err(ConfigError::Unguarded(_))), "{address}");
            assert_eq!(at(address, true, true).check(), Ok(()));
        }
        for address in ["127.0.0.1:80", "127.9.9.9:0", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(at(address, false, false).check(), Ok(()), "{address}");
        }
    }

    #[test]
    fn an_empty_list_of_tokens_is_a_mistake() {
        let mut config = Config::loopback(0);
        config.front.auth = Auth::Bearer(Vec::new());
        assert_eq!(config.check(), Err(ConfigError::NoTokens));
    }
}
