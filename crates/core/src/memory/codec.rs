//! Numbers and texts as bytes, for records and headers. Reading is total: it answers `None` for bytes that are not what
//! they should be, allocates nothing and never panics.

/// Appends an unsigned number, seven bits per byte, the lowest first.
pub(super) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends the distance from `last` to a number, which is mostly a small one.
pub(super) fn put_distance(bytes: &mut Vec<u8>, last: u64, number: u64) {
    let distance = number.wrapping_sub(last) as i64;
    put_number(bytes, ((distance << 1) ^ (distance >> 63)) as u64);
}

/// Appends bytes with their length.
pub(super) fn put_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    put_number(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

/// What is left to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A number in the only form in which it is written: without needless bytes.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn distance(&mut self, last: u64) -> Option<u64> {
        let coded = self.number()?;
        let distance = (coded >> 1) as i64 ^ -((coded & 1) as i64);
        Some(last.wrapping_add(distance as u64))
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_back(number in any::<u64>(), shift in 0..64_u32, last in any::<u64>(), text in "\\PC{0,300}") {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number >> shift);
            put_distance(&mut bytes, last, number);
            put_bytes(&mut bytes, text.as_bytes());
            let mut reader = Reader(&bytes);
            prop_assert_eq!(reader.number(), Some(number >> shift));
            prop_assert_eq!(reader.distance(last), Some(number));
            prop_assert_eq!(reader.text(), Some(text.as_str()));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut reader = Reader(&bytes);
            while reader.number().is_some() {}
            let mut reader = Reader(&bytes);
            let _ = (reader.text(), reader.u16(), reader.u32(), reader.u64(), reader.i64(), reader.distance(1));
        }
    }

    #[test]
    fn a_number_has_one_form() {
        for bytes in [
            &[0x80_u8, 0][..],
            &[0xff, 0x80, 0],
            &[0xff; 11],
            &[0x80],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ] {
            assert_eq!(Reader(bytes).number(), None, "{bytes:?}");
        }
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).number(), Some(u64::MAX));
        assert_eq!(Reader(&[0]).number(), Some(0));
    }
}
