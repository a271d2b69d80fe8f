//! Points of Edwards25519, −x² + y² = 1 + d·x²·y², and the one operation that tables need: adding a point in affine form,
//! seven multiplications. (The general addition of the curve library takes nine, and it does not offer this one.) The
//! formulas are those of RFC 8032, section 5.1.4, which hold for any two points, with the halves and d already
//! multiplied into the affine point.

use super::field::{Element, Sum, divide_by_each};
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};

/// d = −121665 / 121666.
const D: Element = Element::from_bytes([
    0xa3, 0x78, 0x59, 0x13, 0xca, 0x4d, 0xeb, 0x75, 0xab, 0xd8, 0x41, 0x41, 0x4d, 0x0a, 0x70, 0x00, 0x98,
    0xe8, 0x79, 0x77, 0x79, 0x40, 0xc7, 0x8c, 0x73, 0xfe, 0x6f, 0x2b, 0xee, 0x6c, 0x03, 0x52,
]);

/// 4·d.
const FOUR_D: Element = Element::from_bytes([
    0xb2, 0xe2, 0x65, 0x4d, 0x28, 0x37, 0xad, 0xd7, 0xad, 0x62, 0x07, 0x05, 0x35, 0x29, 0xc0, 0x01, 0x60,
    0xa2, 0xe7, 0xdd, 0xe5, 0x01, 0x1d, 0x33, 0xce, 0xf9, 0xbf, 0xad, 0xb8, 0xb3, 0x0d, 0x48,
]);

/// 1 / 2.
const HALF: Element = Element::from_bytes([
    0xf7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f,
]);

/// A square root of −1.
const ROOT_OF_MINUS_ONE: Element = Element::from_bytes([
    0xb0, 0xa0, 0x0e, 0x4a, 0x27, 0x1b, 0xee, 0xc4, 0x78, 0xe4, 0x2f, 0xad, 0x06, 0x18, 0x43, 0x2f, 0xa7,
    0xd7, 0xfb, 0x3d, 0x99, 0x00, 0x4d, 0x2b, 0x0b, 0xdf, 0xc1, 0x4f, 0x80, 0x24, 0x83, 0x2b,
]);

/// A point in extended coordinates: x = X/Z, y = Y/Z, X·Y = Z·T, and Z is never zero.
#[derive(Clone, Copy)]
pub(super) struct Point {
    x: Element,
    y: Element,
    z: Element,
    t: Element,
}

/// A point in affine form, as it is added: (y + x)/2, (y − x)/2 and d·x·y.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    half_sum: Sum,
    half_difference: Sum,
    product: Element,
}

impl Point {
    /// The neutral element.
    pub(super) const NEUTRAL: Self =
        Self { x: Element::ZERO, y: Element::ONE, z: Element::ONE, t: Element::ZERO };

    /// The same point as the library's.
    pub(super) fn of(point: &EdwardsPoint) -> Self {
        let CompressedEdwardsY(encoded) = point.compress();
        let y = Element::from_bytes(encoded);
        let square = y.times(&y);
        // x² = u/v, and a root of that is u·v³·(u·v⁷)^((p−5)/8), or that times the root of −1 (RFC 8032, section 5.1.3).
        let u = square.minus(&Element::ONE).carried();
        let v = square.times(&D).plus(&Element::ONE).carried();
        let v3 = v.times(&v).times(&v);
        let candidate = u.times(&v3).times(&u.times(&v3).times(&v3).times(&v).towards_root());
        let good = candidate.times(&candidate).times(&v) == u;
        let root = if good { candidate } else { candidate.times(&ROOT_OF_MINUS_ONE) };
        let negative = encoded.last().is_some_and(|byte| byte >> 7 == 1);
        let x = if root.is_odd() == negative { root } else { Element::ZERO.minus(&root).carried() };
        Self { x, y, z: Element::ONE, t: x.times(&y) }
    }

    /// The point in affine form.
    pub(super) fn affine(&self) -> Affine {
        self.affine_by(&self.z.inverse().times(&HALF))
    }

    /// [`Point::affine`], given 1/(2·Z).
    fn affine_by(&self, half_of_z: &Element) -> Affine {
        let (x, y) = (self.x.times(half_of_z), self.y.times(half_of_z));
        Affine { half_sum: y.plus(&x), half_difference: y.minus(&x), product: x.times(&y).times(&FOUR_D) }
    }

    /// Adds the other point, or subtracts it, which is to add it with −x for x.
    #[inline]
    pub(super) fn add(&mut self, other: &Affine, subtract: bool) {
        let (sum, difference) = (&other.half_sum, &other.half_difference);
        let (sum, difference) = if subtract { (difference, sum) } else { (sum, difference) };
        let a = self.y.minus(&self.x).times(difference);
        let b = self.y.plus(&self.x).times(sum);
        let c = self.t.times(&other.product);
        let (e, h) = (b.minus(&a), b.plus(&a));
        let (less, more) = (self.z.minus(&c), self.z.plus(&c));
        let (f, g) = if subtract { (more, less) } else { (less, more) };
        *self = Self { x: e.times(&f), y: g.times(&h), z: f.times(&g), t: e.times(&h) };
    }
}

/// The points in affine form.
pub(super) fn affine(points: &[Point]) -> Vec<Affine> {
    let halves = divide_by_each(&HALF, points.iter().map(|point| point.z));
    points.iter().zip(halves).map(|(point, half_of_z)| point.affine_by(&half_of_z)).collect()
}

/// The points' encodings: y, and in the highest bit whether x is odd.
pub(super) fn encode(points: impl DoubleEndedIterator<Item = Point> + Clone) -> Vec<[u8; 32]> {
    let inverses = divide_by_each(&Element::ONE, points.clone().map(|point| point.z));
    let encoded = points.zip(inverses).map(|(point, inverse)| {
        let mut bytes = point.y.times(&inverse).to_bytes();
        if let Some(last) = bytes.last_mut() {
            *last |= u8::from(point.x.times(&inverse).is_odd()) << 7;
        }
        bytes
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use curve25519_dalek::constants::{ED25519_BASEPOINT_POINT, EIGHT_TORSION};
    use curve25519_dalek::scalar::Scalar;
    use curve25519_dalek::traits::Identity as _;
    use proptest::prelude::*;

    fn number(n: u32) -> Element {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        Element::from_bytes(bytes)
    }

    /// Any point, those of small order and their sums with others included.
    fn any_point() -> impl Strategy<Value = EdwardsPoint> {
        (any::<[u8; 32]>(), 0usize..8, any::<bool>()).prop_map(|(scalar, torsion, only_torsion)| {
            let scalar = Scalar::from_bytes_mod_order(scalar);
            let point =
                if only_torsion { EdwardsPoint::identity() } else { ED25519_BASEPOINT_POINT * scalar };
            point + EIGHT_TORSION[torsion]
        })
    }

    #[test]
    fn the_constants_are_what_they_are_said_to_be() {
        assert!(D.times(&number(121_666)).plus(&number(121_665)).carried() == Element::ZERO);
        let four = number(4).times(&D);
        assert!(FOUR_D == four && HALF.times(&number(2)) == Element::ONE);
        let minus_one = Element::ZERO.minus(&Element::ONE).carried();
        assert!(ROOT_OF_MINUS_ONE.times(&ROOT_OF_MINUS_ONE) == minus_one);
        assert_eq!(encode([Point::NEUTRAL].into_iter()), [EdwardsPoint::identity().compress().to_bytes()]);
    }

    proptest! {
        #[test]
        fn sums_and_differences_are_those_of_the_curve_library(a in any_point(), b in any_point()) {
            let other = Point::of(&b).affine();
            let [mut sum, mut difference, doubled] = [Point::of(&a), Point::of(&a), Point::of(&b)];
            sum.add(&other, false);
            difference.add(&other, true);
            let mut twice = doubled;
            twice.add(&other, false);
            // A second addition finds coordinates whose Z is no longer one.
            let mut more = sum;
            more.add(&other, false);
            let expected = [a, a + b, a - b, b + b, a + b + b].map(|point| point.compress().to_bytes());
            prop_assert_eq!(encode([Point::of(&a), sum, difference, twice, more].into_iter()), expected);
        }
    }
}
