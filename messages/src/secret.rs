//! Secret values: wiped when dropped, never printed. Serialisation is deliberate (the link's `GET_SECRETS` answer is
//! the one place that carries them), so it is a method, not a trait.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// A secret text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the text into custody.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, for the one place that needs it (an `Authorization` header).
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Serde for the link only: use with `#[serde(with = "choir_messages::secret::on_the_link")]`.
pub mod on_the_link {
    use super::{Deserialize, Deserializer, Secret, Serialize, Serializer};
    use std::collections::BTreeMap;

    /// Writes the values in the clear.
    pub fn serialize<S: Serializer>(map: &BTreeMap<String, Secret>, s: S) -> Result<S::Ok, S::Error> {
        map.iter().map(|(k, v)| (k.as_str(), v.expose())).collect::<BTreeMap<_, _>>().serialize(s)
    }

    /// Reads them back.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, Secret>, D::Error> {
        Ok(BTreeMap::<String, String>::deserialize(d)?
            .into_iter()
            .map(|(k, v)| (k, Secret::new(v)))
            .collect())
    }
}
