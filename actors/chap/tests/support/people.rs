//! The people of a furnished house, and calls as they make them.

use choir_chap::Settings;
use serde_json::{Value, json};

use super::House;
use super::random::{PEOPLE, furnish};

pub(crate) const ANN: &str = PEOPLE[0];
pub(crate) const BOB: &str = PEOPLE[1];
pub(crate) const CY: &str = PEOPLE[2];
pub(crate) const AGENT: &str = PEOPLE[3];
pub(crate) const STRANGER: &str = "human:eve@e.org";

pub(crate) fn house() -> House {
    let mut house = House::new(Settings::default());
    furnish(&mut house);
    house
}

/// A call's params, in the workspace and from that participant.
pub(crate) fn by(from: &str, mut params: Value) -> Value {
    params["workspace"] = json!("wsp_a");
    params["from"] = json!(from);
    params
}
