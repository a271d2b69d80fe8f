//! Arithmetic modulo 2^255 − 19, over functions that were generated from a proof of their correctness (fiat-crypto). Those
//! are right for limbs within bounds, and the two types keep the bounds: an [`Element`] is what a multiplication yields, a
//! [`Sum`] is one addition or subtraction of such elements and can only be multiplied.

use fiat::{fiat_25519_loose_field_element as Loose, fiat_25519_tight_field_element as Tight};
use fiat_crypto::curve25519_64 as fiat;

/// An element of the field.
#[derive(Clone, Copy)]
pub(super) struct Element(Tight);

/// A sum or difference of two elements.
#[derive(Clone, Copy)]
pub(super) struct Sum(Loose);

/// A factor of a product.
pub(super) trait Factor {
    fn loose(&self) -> Loose;
}

impl Factor for Sum {
    #[inline]
    fn loose(&self) -> Loose {
        self.0
    }
}

impl Factor for Element {
    #[inline]
    fn loose(&self) -> Loose {
        let mut out = Loose([0; 5]);
        fiat::fiat_25519_relax(&mut out, &self.0);
        out
    }
}

impl Element {
    pub(super) const ZERO: Self = Self(Tight([0; 5]));
    pub(super) const ONE: Self = Self(Tight([1, 0, 0, 0, 0]));

    /// The number with these little-endian bytes, of which the highest bit is ignored.
    pub(super) const fn from_bytes(mut bytes: [u8; 32]) -> Self {
        bytes[31] &= 0x7f;
        let mut out = Tight([0; 5]);
        fiat::fiat_25519_from_bytes(&mut out, &bytes);
        Self(out)
    }

    /// The number below 2^255 − 19, little endian.
    pub(super) fn to_bytes(self) -> [u8; 32] {
        let mut out = [0; 32];
        fiat::fiat_25519_to_bytes(&mut out, &self.0);
        out
    }

    /// Whether the number is odd, which is how an encoded point tells x from −x.
    pub(super) fn is_odd(self) -> bool {
        self.to_bytes().first().is_some_and(|byte| byte & 1 == 1)
    }

    #[inline]
    pub(super) fn plus(&self, other: &Self) -> Sum {
        let mut out = Loose([0; 5]);
        fiat::fiat_25519_add(&mut out, &self.0, &other.0);
        Sum(out)
    }

    #[inline]
    pub(super) fn minus(&self, other: &Self) -> Sum {
        let mut out = Loose([0; 5]);
        fiat::fiat_25519_sub(&mut out, &self.0, &other.0);
        Sum(out)
    }

    #[inline]
    pub(super) fn times(&self, other: &impl Factor) -> Self {
        product(self, other)
    }

    /// The element squared this many times.
    fn squared(self, times: u32) -> Self {
        (0..times).fold(self, |element, _| {
            let mut out = Tight([0; 5]);
            fiat::fiat_25519_carry_square(&mut out, &element.loose());
            Self(out)
        })
    }

    /// The powers 2^250 − 1 and 11, from which the two exponents below are made.
    fn powers(self) -> (Self, Self) {
        let nine = self.squared(3).times(&self);
        let eleven = nine.times(&self.squared(1));
        // Each is twice as many ones in binary, or a sum of such.
        let ones5 = eleven.squared(1).times(&nine);
        let ones10 = ones5.squared(5).times(&ones5);
        let ones20 = ones10.squared(10).times(&ones10);
        let ones40 = ones20.squared(20).times(&ones20);
        let ones50 = ones40.squared(10).times(&ones10);
        let ones100 = ones50.squared(50).times(&ones50);
        let ones200 = ones100.squared(100).times(&ones100);
        (ones200.squared(50).times(&ones50), eleven)
    }

    /// One divided by the element; zero for zero. To the power p − 2.
    pub(super) fn inverse(self) -> Self {
        let (ones250, eleven) = self.powers();
        ones250.squared(5).times(&eleven)
    }

    /// To the power (p − 5) / 8, from which a square root is made.
    pub(super) fn towards_root(self) -> Self {
        self.powers().0.squared(2).times(&self)
    }
}

impl Sum {
    #[inline]
    pub(super) fn times(&self, other: &impl Factor) -> Element {
        product(self, other)
    }

    /// The same number as an element.
    pub(super) fn carried(&self) -> Element {
        let mut out = Tight([0; 5]);
        fiat::fiat_25519_carry(&mut out, &self.0);
        Element(out)
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

#[inline]
fn product(a: &impl Factor, b: &impl Factor) -> Element {
    let mut out = Tight([0; 5]);
    fiat::fiat_25519_carry_mul(&mut out, &a.loose(), &b.loose());
    Element(out)
}

/// `scale` divided by each of the elements, none of which may be zero: one inversion serves them all.
pub(super) fn divide_by_each(
    scale: &Element,
    elements: impl DoubleEndedIterator<Item = Element> + Clone,
) -> Vec<Element> {
    let mut product = Element::ONE;
    let mut before = Vec::new();
    for element in elements.clone() {
        before.push(product);
        product = product.times(&element);
    }
    let mut rest = product.inverse().times(scale);
    // From the end: `before` becomes the quotients in place.
    for (place, element) in before.iter_mut().rev().zip(elements.rev()) {
        *place = place.times(&rest);
        rest = rest.times(&element);
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quotients_times_divisors_are_the_dividend(bytes: Vec<[u8; 32]>, scale: [u8; 32]) {
            let elements: Vec<Element> =
                bytes.into_iter().map(Element::from_bytes).filter(|element| *element != Element::ZERO).collect();
            let scale = Element::from_bytes(scale);
            let quotients = divide_by_each(&scale, elements.iter().copied());
            prop_assert_eq!(quotients.len(), elements.len());
            for (quotient, element) in quotients.iter().zip(&elements) {
                prop_assert!(quotient.times(element) == scale);
            }
        }

        #[test]
        fn sums_and_products_keep_to_the_laws(a: [u8; 32], b: [u8; 32], c: [u8; 32]) {
            let [a, b, c] = [a, b, c].map(Element::from_bytes);
            prop_assert!(a.plus(&b).times(&c) == a.times(&c).plus(&b.times(&c)).carried());
            prop_assert!(a.minus(&b).times(&c) == a.times(&c).minus(&b.times(&c)).carried());
            prop_assert!(a.plus(&b).carried().minus(&b).carried() == a);
        }
    }
}
