//! Every bound of the identity verifiers, each with its reason.

use std::time::Duration;

/// How far two honest clocks may differ.
pub const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Largest JWS. An ID token with a key and a few groups has 2 KiB; servers cut headers off at 8 to 16 KiB.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Deepest JSON of a token, key set or presentation. CHAP itself allows 64 levels for a whole envelope.
pub const MAX_JSON_DEPTH: usize = 32;

/// Longest `sub` (OpenID Connect Core §2), and of the other short texts of a token.
pub const MAX_CLAIM_BYTES: usize = 255;

/// Longest participant URI in a token, and longest key id.
pub const MAX_NAME_BYTES: usize = 1024;

/// Most audiences in one token. A token for more is meant for nobody in particular.
pub const MAX_AUDIENCES: usize = 16;

/// Largest key set document. The largest public ones have about 50 KiB.
pub const MAX_JWKS_BYTES: usize = 256 << 10;

/// Most keys in one set.
pub const MAX_JWKS_KEYS: usize = 128;

/// Longest RSA modulus, as the crypto library takes it: 8192 bits.
pub const MAX_RSA_BYTES: usize = 1024;

/// How long a DPoP proof is good after it was made, skew not counted. It is made for one request.
pub const DPOP_LIFETIME: Duration = Duration::from_secs(60);

/// Most proofs remembered against replay: over 300 requests a second for the three minutes a proof can be good.
pub const REPLAY_CAPACITY: usize = 65_536;

/// Most of them for one key, so that one client cannot lock the others out.
pub const REPLAY_PER_KEY: usize = 4_096;

/// Shortest and longest time a key set counts as fresh, whatever the provider's cache headers say.
pub const JWKS_MAX_AGE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));

/// How long a key set is fresh if the provider does not say.
pub const JWKS_DEFAULT_AGE: Duration = Duration::from_secs(600);

/// How long past its freshness a key set is used while the provider cannot be reached.
pub const JWKS_STALE_IF_ERROR: Duration = Duration::from_secs(6 * 3600);

/// Unknown key ids cause at most one fetch in this time: anyone can invent key ids.
pub const JWKS_UNKNOWN_KID_PAUSE: Duration = Duration::from_secs(60);

/// First and longest pause after a failed fetch; it doubles in between.
pub const JWKS_RETRY_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// A fetch without an answer in this time is given up.
pub const JWKS_FETCH_DEADLINE: Duration = Duration::from_secs(10);

/// Largest presentation or status list credential, in canonical form.
pub const MAX_PRESENTATION_BYTES: usize = 256 << 10;

/// Most credentials in one presentation, and most status entries of one credential.
pub const MAX_CREDENTIALS: usize = 8;

/// Longest text of a status list credential: what a list of [`MAX_STATUS_LIST_BYTES`] needs if it does not compress.
pub const MAX_STATUS_DOCUMENT_BYTES: usize = 2 << 20;

/// Largest status list once unpacked: eight million credentials.
pub const MAX_STATUS_LIST_BYTES: usize = 1 << 20;

/// Smallest status list (Bitstring Status List §2.2): 131,072 entries, so that an index hides in the crowd.
pub const MIN_STATUS_LIST_BYTES: usize = 16 << 10;
