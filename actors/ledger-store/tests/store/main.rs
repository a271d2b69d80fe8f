//! The store on real disks: a run from its beginning to its proof, crashes, full disks, keys, and traces that travel.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod crash;
mod disk;
mod exchange;
mod hostile;
mod keys;
mod kit;
mod life;
mod transparency;
