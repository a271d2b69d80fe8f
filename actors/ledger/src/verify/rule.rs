//! The strict reading's rules. They are numbered as the protocol's description numbers them, and every finding that goes
//! beyond the original's checks names its rule.

use serde::{Serialize, Serializer};
use std::fmt;

macro_rules! rules {
    ($($name:ident = $number:literal, $demand:literal;)+) => {
        /// A rule of the strict reading.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule { $(#[doc = $demand] $name = $number,)+ }

        impl Rule {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What the rule demands, as a sentence.
            #[must_use]
            pub const fn demand(self) -> &'static str {
                match self { $(Self::$name => $demand,)+ }
            }
        }
    };
}

rules! {
    PayloadBound = 1, "payload_hash equals the hash of the payload.";
    EverySignature = 2, "Every signature verifies, and is standard base64.";
    SoundJson = 3, "Every line is UTF-8 and one JSON object that every reader reads alike.";
    AlwaysAReport = 4, "Whatever a line holds there is a report, and every other line is still checked.";
    ActorBound = 5, "The role is one of the key's, and the actor one of the trace's participants.";
    KeyGoodThen = 6, "The key was good at the event's time.";
    MetaFits = 7, "The meta file fits the ledger.";
    IdUsedOnce = 8, "An event id is used once in the whole home.";
    TimeRunsOn = 9, "Times are real and never go back.";
    Order = 10, "Events come in the order of the protocol.";
    PayloadForm = 11, "The schema version is 1.x.y, and a payload has the members of its type.";
    ExecutionLeaves = 12, "An execution leaves artefacts, and carries those it names.";
    EvidenceCarried = 13, "Evidence was carried before it is used; a descriptor tells size and place truly.";
    ChallengeSettled = 14, "A challenge is settled only by a later, resolved claim; no claim contradicts itself.";
    ClaimsKnown = 15, "The final statement names only claims issued before.";
    StatusHonest = 16, "The meta file claims no success that the verification denied.";
    OneOrder = 17, "The members of every object have one order in all languages.";
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{:02}", *self as u8)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
