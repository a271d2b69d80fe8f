//! The store and the cluster against a real Postgres.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod chap;
mod chap_erasure;
mod chap_folder;
mod chap_postgres;
mod cluster;
mod committer;
mod full_disk;
mod journal;
mod log;
mod messages;
mod schema;
mod sessions;
mod supervised;
mod verify;
