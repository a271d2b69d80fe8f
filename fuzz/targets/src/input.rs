//! Taking an input apart: a byte here, a piece with a length there.

/// What is left of an input.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole input.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next two bytes as a number, big-endian.
    pub fn number(&mut self) -> Option<u16> {
        let (&first, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(first))
    }

    /// The next piece: two bytes of length, then as many bytes, or what there is.
    pub fn piece(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.number()?).min(self.0.len());
        let (piece, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(piece)
    }

    /// Everything that was not taken.
    #[must_use]
    pub const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Appends a piece as [`Input::piece`] reads it; what does not fit its length is left out.
    pub fn put_piece(out: &mut Vec<u8>, piece: &[u8]) {
        let length = u16::try_from(piece.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(piece.get(..usize::from(length)).unwrap_or_default());
    }
}
