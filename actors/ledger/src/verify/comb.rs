//! Fast Ed25519 verification for keys that signed many events. For each key a table of its multiples is made once (a comb of
//! 32 windows of 8 bits), after which a verification is 64 additions of points instead of 256 doublings. It computes the very
//! equation of strict verification, one signature at a time: R = S·B − k·A, compared by its encoding. Unlike batch
//! verification it accepts nothing that strict verification refuses. Everything here is public, so time may depend on data.

mod field;
mod point;

use choir_messages::sign::PublicKey;
use curve25519_dalek::constants::{ED25519_BASEPOINT_POINT, EIGHT_TORSION};
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use point::{Affine, Point};
use sha2::{Digest as _, Sha512};
use std::sync::LazyLock;

/// Bits of a window. One more would save six additions a signature and double the tables, which then outgrow the caches:
/// measured, 9 and 10 are no faster.
const WIDTH: usize = 8;

/// Windows of a scalar, which has 253 bits, and of the last carry.
const WINDOWS: usize = 254usize.div_ceil(WIDTH);

/// Multiples kept for a window; the other digits are their negatives.
const MULTIPLES: usize = 1 << (WIDTH - 1);

/// The encodings of the points of small order, which a strict verification refuses as R.
static SMALL_ORDER: LazyLock<[[u8; 32]; 8]> =
    LazyLock::new(|| EIGHT_TORSION.map(|point| point.compress().to_bytes()));

/// The multiples of one point: 480 KiB, made in about a millisecond.
pub(super) struct Comb(Vec<Affine>);

/// A signature whose equation is computed and waits to be compared; see [`settle`].
pub(super) struct Pending {
    recomputed: Point,
    stated: [u8; 32],
}

impl Comb {
    fn new(point: &EdwardsPoint) -> Self {
        let mut table = Vec::with_capacity(WINDOWS * MULTIPLES);
        let mut base = Point::of(point);
        for _ in 0..WINDOWS {
            let step = base.affine();
            let mut multiples = vec![base];
            for _ in 1..MULTIPLES {
                base.add(&step, false);
                multiples.push(base);
            }
            table.extend(point::affine(&multiples));
            // The last multiple, doubled, is the base of the next window.
            if let Some(last) = table.last() {
                base.add(last, false);
            }
        }
        Self(table)
    }

    /// The table of the generator.
    pub(super) fn generator() -> Self {
        Self::new(&ED25519_BASEPOINT_POINT)
    }

    /// The table of a key, or nothing if the key is no point or one of small order.
    pub(super) fn key(key: &PublicKey) -> Option<Self> {
        let point = CompressedEdwardsY(*key.bytes()).decompress()?;
        (!point.is_small_order()).then(|| Self::new(&point))
    }

    /// Adds (or subtracts) the scalar's multiple of the point.
    fn add_to(&self, sum: &mut Point, scalar: &Scalar, subtract: bool) {
        // All are fetched before the first is added, so that the waits for memory overlap.
        let mut chosen = [None; WINDOWS];
        let mut carry = 0;
        for (index, (window, place)) in self.0.chunks_exact(MULTIPLES).zip(&mut chosen).enumerate() {
            // Digits from -128 to 127. A reduced scalar ends in the last window, and nothing is carried out of it.
            let mut digit = bits(scalar.as_bytes(), index * WIDTH) + carry;
            carry = i32::from(digit >= MULTIPLES as i32);
            digit -= carry << WIDTH;
            let multiple = (digit.unsigned_abs() as usize).checked_sub(1).and_then(|place| window.get(place));
            *place = multiple.map(|multiple| (*multiple, digit < 0));
        }
        for (multiple, negative) in chosen.iter().flatten() {
            sum.add(multiple, *negative != subtract);
        }
    }
}

/// The [`WIDTH`] bits from this one on.
fn bits(scalar: &[u8; 32], from: usize) -> i32 {
    let byte = |index: usize| scalar.get(index).map_or(0, |byte| i32::from(*byte));
    let first = from / 8;
    let word = byte(first) | byte(first + 1) << 8 | byte(first + 2) << 16;
    word >> (from % 8) & ((1 << WIDTH) - 1)
}

/// Computes the equation of a signature; nothing if the signature is malformed.
pub(super) fn compute(
    generator: &Comb,
    table: &Comb,
    key: &PublicKey,
    message: &[u8],
    signature: &[u8; 64],
) -> Option<Pending> {
    let (stated, s) = signature.split_first_chunk::<32>()?;
    let s = Option::<Scalar>::from(Scalar::from_canonical_bytes(s.try_into().ok()?))?;
    let hash = Sha512::new().chain_update(stated).chain_update(key.bytes()).chain_update(message).finalize();
    let k = Scalar::from_bytes_mod_order_wide(&hash.into());
    let mut recomputed = Point::NEUTRAL;
    generator.add_to(&mut recomputed, &s, false);
    table.add_to(&mut recomputed, &k, true);
    Some(Pending { recomputed, stated: *stated })
}

/// Which of the signatures hold. Together, because one inversion then serves them all.
pub(super) fn settle(pending: &[Pending]) -> Vec<bool> {
    let encoded = point::encode(pending.iter().map(|item| item.recomputed));
    let holds =
        |(item, encoded): (&Pending, [u8; 32])| encoded == item.stated && !SMALL_ORDER.contains(&item.stated);
    pending.iter().zip(encoded).map(holds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::sign::{Signature, SigningKey};
    use proptest::prelude::*;

    static GENERATOR: LazyLock<Comb> = LazyLock::new(Comb::generator);

    fn fast_by(table: &Comb, key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> bool {
        let pending = compute(&GENERATOR, table, key, message, signature);
        pending.is_some_and(|pending| settle(&[pending]) == [true])
    }

    fn fast(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> bool {
        Comb::key(key).is_some_and(|table| fast_by(&table, key, message, signature))
    }

    fn strict(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> bool {
        key.verify(message, &Signature::from_bytes(*signature)).is_ok()
    }

    #[test]
    fn points_of_small_order_are_refused_in_every_place() {
        let key = SigningKey::from_seed(&[7; 32]).public();
        let table = Comb::key(&key).unwrap();
        for point in *SMALL_ORDER {
            let weak = PublicKey::from_bytes(point);
            let mut signature = [0; 64];
            signature[..32].copy_from_slice(&point);
            // With S = 0 and a small-order key and R the equation itself may hold.
            for message in 0..16u8 {
                assert!(!fast(&weak, &[message], &signature));
                assert!(!fast_by(&table, &key, &[message], &signature));
                assert!(!strict(&weak, &[message], &signature));
            }
        }
    }

    #[test]
    fn a_signature_with_a_point_of_small_order_added_to_r_is_refused_as_strict_verification_refuses_it() {
        let key = SigningKey::from_seed(&[7; 32]);
        let signature = *key.sign(b"message").bytes();
        let (r, _) = signature.split_first_chunk::<32>().unwrap();
        let r = CompressedEdwardsY(*r).decompress().unwrap();
        for torsion in &EIGHT_TORSION[1..] {
            let mut moved = signature;
            moved[..32].copy_from_slice(&(r + torsion).compress().to_bytes());
            assert!(!fast(&key.public(), b"message", &moved));
            assert!(!strict(&key.public(), b"message", &moved));
        }
    }

    #[test]
    fn an_unreduced_s_is_refused() {
        let key = SigningKey::from_seed(&[7; 32]);
        let mut signature = *key.sign(b"message").bytes();
        // Adds the group's order to S.
        let order = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10u8,
        ];
        let mut carry = 0u16;
        for (byte, add) in signature[32..].iter_mut().zip(order) {
            carry += u16::from(*byte) + u16::from(add);
            *byte = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        assert!(!fast(&key.public(), b"message", &signature));
        assert!(!strict(&key.public(), b"message", &signature));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn fast_and_strict_verification_agree(
            seed: [u8; 32], message: Vec<u8>, flip in 0usize..64, bit in 0u8..8, key_flip in 0usize..32,
        ) {
            let key = SigningKey::from_seed(&seed);
            let public = key.public();
            let mut signature = *key.sign(&message).bytes();
            prop_assert!(fast(&public, &message, &signature) && strict(&public, &message, &signature));
            let mut other = *public.bytes();
            other[key_flip] ^= 1 << bit;
            let other = PublicKey::from_bytes(other);
            prop_assert_eq!(fast(&other, &message, &signature), strict(&other, &message, &signature));
            signature[flip] ^= 1 << bit;
            prop_assert_eq!(fast(&public, &message, &signature), strict(&public, &message, &signature));
        }
    }
}
