//! Which database: an external server where one is named, else the private cluster.

use std::path::Path;
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

use super::binaries::Binaries;
use super::cluster::ClusterConfig;
use super::error::ClusterError;

/// The environment variable that names an external server.
pub const DATABASE_URL_VAR: &str = "DATABASE_URL";

/// Where the database is.
#[derive(Debug, Clone)]
pub enum Source {
    /// Somebody else's server.
    External(Box<PgConnectOptions>),
    /// A private cluster.
    Embedded(ClusterConfig),
}

impl Source {
    /// Chooses in the order of DESIGN §6: [`DATABASE_URL_VAR`], the configuration's URL, native programs (in
    /// `binaries` or the usual places); else one error that names the command which fetches them.
    pub async fn find(
        url: Option<&str>,
        binaries: Option<&Path>,
        state: &Path,
    ) -> Result<Self, ClusterError> {
        let from_env = std::env::var(DATABASE_URL_VAR).ok().filter(|url| !url.is_empty());
        if let Some(url) = from_env {
            return Self::external(DATABASE_URL_VAR, &url);
        }
        if let Some(url) = url {
            return Self::external("the configuration's postgres.url", url);
        }
        let binaries = Binaries::find(binaries, state).await?;
        Ok(Self::Embedded(ClusterConfig::new(binaries, state)))
    }

    fn external(setting: &'static str, url: &str) -> Result<Self, ClusterError> {
        let bad = |why: String| ClusterError::BadUrl { setting, why };
        // The parser takes any scheme; a URL of another database must not end as a failed connection to this one's port.
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(bad("it starts otherwise".to_owned()));
        }
        let options = PgConnectOptions::from_str(url).map_err(|e| bad(e.to_string()))?;
        Ok(Self::External(Box::new(options)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_named_by_its_setting_and_never_shown() {
        let error = Source::external("X", "mysql://user:hunter2@h/d").unwrap_err().to_string();
        assert!(error.starts_with("X is not a usable") && !error.contains("hunter2"), "{error}");
        let error = Source::external("X", "postgres://u:hunter2@h:notaport/d").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
        assert!(matches!(Source::external("X", "postgres://u:p@localhost/d"), Ok(Source::External(_))));
    }
}
