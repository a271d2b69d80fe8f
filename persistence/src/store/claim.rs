//! The claim on a database: one choird at a time. It lives in the committer's connection, so whoever has lost the claim
//! cannot write events either.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};

use crate::error::StoreError;
use crate::limits;

/// The advisory lock's key: the letters "choird" as a number. Locks are per database.
const KEY: i64 = 0x6368_6f69_7264;

/// Pause between two tries for a claim that is still held by a connection on its way out.
const RETRY: Duration = Duration::from_millis(20);

/// How to make a connection that holds the claim.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    options: PgConnectOptions,
    key: i64,
}

impl Claim {
    pub(crate) const fn new(options: PgConnectOptions) -> Self {
        Self::with_key(options, KEY)
    }

    /// A claim of another writer of the same database.
    pub(crate) const fn with_key(options: PgConnectOptions, key: i64) -> Self {
        Self { options, key }
    }

    pub(crate) const fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// One try; [`StoreError::InUse`] when somebody holds the claim.
    pub(crate) async fn connect(&self) -> Result<PgConnection, StoreError> {
        let mut connection = connect(&self.options).await?;
        let (held,): (bool,) = sqlx::query_as("SELECT pg_try_advisory_lock($1)")
            .bind(self.key)
            .fetch_one(&mut connection)
            .await?;
        if held {
            return Ok(connection);
        }
        // Best effort: the server drops it in any case.
        let _ = connection.close().await;
        Err(StoreError::InUse)
    }

    /// The connection anew, after it was lost. That the claim is still held then is most likely this process's own
    /// earlier connection, which the server has yet to give up: a reason to try again, not to give up.
    pub(crate) async fn reconnect(&self) -> Result<PgConnection, StoreError> {
        self.connect_patiently().await.map_err(|error| match error {
            StoreError::InUse => StoreError::Unavailable("the claim on the database is still held".into()),
            other => other,
        })
    }

    /// Tries until the claim is free or [`limits::CLAIM_WITHIN`] has passed: the connection of a choird that was just
    /// killed lives until the server has noticed.
    pub(crate) async fn connect_patiently(&self) -> Result<PgConnection, StoreError> {
        let give_up = tokio::time::Instant::now() + limits::CLAIM_WITHIN;
        loop {
            match self.connect().await {
                Err(StoreError::InUse) if tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(RETRY).await;
                }
                other => return other,
            }
        }
    }
}

/// A plain connection, within its deadline.
pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    match tokio::time::timeout(limits::CONNECT_WITHIN, options.connect()).await {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(StoreError::Unavailable("the server did not answer in time".into())),
    }
}
