//! Migrations: numbered, forward only, run under the database's migration lock.

use sqlx::Connection;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::claim;
use crate::error::StoreError;

/// Where the numbers of applied migrations are kept.
const TABLE: &str = "choir_control.schema_migrations";

/// Brings the schema to this version. A schema of a newer version is refused, untouched.
pub(crate) async fn migrate(options: &PgConnectOptions) -> Result<(), StoreError> {
    // Its own connection, closed in any case: after an error the migration lock must not linger in a pool.
    let mut connection = claim::connect(options).await?;
    let result = run(&mut connection).await;
    let _ = connection.close().await;
    result
}

fn migrator() -> Migrator {
    sqlx::migrate!("./migrations")
}

/// The numbers of the migrations of this version, rising.
pub(super) fn known() -> Vec<i64> {
    let mut known: Vec<i64> = migrator().iter().map(|m| m.version).collect();
    known.sort_unstable();
    known
}

async fn run(connection: &mut PgConnection) -> Result<(), StoreError> {
    extension(connection).await?;
    let mut migrator = migrator();
    migrator.create_schema("choir_control");
    migrator.dangerous_set_table_name(TABLE);
    // A migration may rewrite a large table; the server's deadline for ordinary statements is not for it.
    sqlx::query("SET statement_timeout = 0").execute(&mut *connection).await?;
    let newest = migrator.iter().map(|m| m.version).max().unwrap_or(0);
    migrator.run(connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(version) => StoreError::NewerDatabase { version, newest },
        MigrateError::VersionMismatch(version) => {
            StoreError::Schema(format!("migration {version} differs").into())
        }
        MigrateError::Dirty(version) => {
            StoreError::Schema(format!("migration {version} was not finished").into())
        }
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
        other => StoreError::Schema(other.to_string().into()),
    })
}

/// pgvector, for the memory tables to come; made sure of now, so that a server without it is refused at the start and
/// not in the middle of a conversation.
async fn extension(connection: &mut PgConnection) -> Result<(), StoreError> {
    let (installed, available): (bool, bool) = sqlx::query_as(
        "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector'),
                EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector')",
    )
    .fetch_one(&mut *connection)
    .await?;
    if installed {
        return Ok(());
    }
    if !available {
        return Err(StoreError::NoPgvector);
    }
    sqlx::query("CREATE EXTENSION IF NOT EXISTS vector").execute(connection).await?;
    Ok(())
}
