//! The CHAP Coordinator assembled: over Postgres or memory, with its HTTP front; as a part of choird's tree, and by
//! itself (`choird coordinator`).

mod alone;
mod house;
mod identity;
mod log_key;
mod tokens;

pub use alone::{Alone, AloneError, StoreChoice, run};
pub(crate) use house::House;
pub use identity::{IdentityError, IdentityFile, read_identity};
pub(crate) use identity::{Verifier, may_fetch};
pub use log_key::LogKeyError;
pub(crate) use log_key::kept as kept_log;
pub use tokens::{TokensError, read_tokens};
