//! Integers as short text, for the status.
//!
//! As the mappings of source maps have it: five bits a character, the lowest first, the
//! sixth bit says that more follow, and the lowest bit of a number is its sign. Most
//! numbers of a judge are small, and neighbours on its grid are nearly on a line, so
//! such rows are written as second differences.

use super::fixed::Fixed;
use crate::analysis::measurement::Counts;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const BITS: u32 = 5;
const MORE: u8 = 1 << BITS;

#[derive(Default)]
pub(super) struct Writer(String);

impl Writer {
    pub fn number(&mut self, number: i64) {
        let mut rest = i128::from(number).unsigned_abs() << 1 | u128::from(number < 0);
        loop {
            let digit = (rest as u8) & (MORE - 1);
            rest >>= BITS;
            let more = if rest > 0 { MORE } else { 0 };
            self.0.push(char::from(DIGITS[usize::from(digit | more)]));
            if rest == 0 {
                return;
            }
        }
    }

    pub fn count(&mut self, count: u64) {
        self.number(count.cast_signed());
    }

    pub fn counts(&mut self, counts: Counts) {
        self.count(counts.bad());
        self.count(counts.total());
    }

    pub fn fixed(&mut self, number: Fixed) {
        self.number(number.units());
    }

    pub fn row(&mut self, row: &[Fixed]) {
        let (mut last, mut step) = (0_i64, 0_i64);
        for number in row {
            let now = number.units().wrapping_sub(last);
            self.number(now.wrapping_sub(step));
            (last, step) = (number.units(), now);
        }
    }

    pub fn text(self) -> String {
        self.0
    }
}

/// Each method is none at the end of the text, or if it is not a number.
pub(super) struct Reader<'t>(&'t [u8]);

impl<'t> Reader<'t> {
    pub fn new(text: &'t str) -> Self {
        Reader(text.as_bytes())
    }

    pub fn number(&mut self) -> Option<i64> {
        let (mut number, mut shift) = (0_u128, 0);
        loop {
            let (first, rest) = self.0.split_first()?;
            let digit = DIGITS.iter().position(|digit| digit == first)? as u8;
            self.0 = rest;
            number |= u128::from(digit & (MORE - 1)) << shift;
            shift += BITS;
            if digit & MORE == 0 {
                break;
            }
            if shift > 64 {
                return None;
            }
        }
        let size = i128::try_from(number >> 1).ok()?;
        i64::try_from(if number & 1 == 1 { -size } else { size }).ok()
    }

    pub fn count(&mut self) -> Option<u64> {
        self.number().map(i64::cast_unsigned)
    }

    pub fn counts(&mut self) -> Option<Counts> {
        let (bad, total) = (self.count()?, self.count()?);
        (bad <= total).then(|| Counts::of_bad(bad, total))
    }

    pub fn fixed(&mut self) -> Option<Fixed> {
        self.number().map(Fixed::from_units)
    }

    pub fn row<const N: usize>(&mut self) -> Option<[Fixed; N]> {
        let mut row = [Fixed::default(); N];
        let (mut last, mut step) = (0_i64, 0_i64);
        for number in &mut row {
            step = step.wrapping_add(self.number()?);
            last = last.wrapping_add(step);
            *number = Fixed::from_units(last);
        }
        Some(row)
    }

    pub fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_numbers_are_one_character() {
        let mut writer = Writer::default();
        [0, 1, -1, 15, -15].into_iter().for_each(|number| writer.number(number));
        assert_eq!(writer.text(), "ACDef");
    }

    #[test]
    fn other_text_is_no_number() {
        for text in ["", "!", "g", "ggggggggggggggggggggggA"] {
            assert_eq!(Reader::new(text).number(), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn numbers_survive(numbers: Vec<i64>, row: [i64; 16]) {
            let row = row.map(Fixed::from_units);
            let mut writer = Writer::default();
            numbers.iter().for_each(|number| writer.number(*number));
            writer.row(&row);
            let text = writer.text();
            let mut reader = Reader::new(&text);
            for number in numbers {
                prop_assert_eq!(reader.number(), Some(number));
            }
            prop_assert_eq!(reader.row(), Some(row));
            prop_assert_eq!(reader.end(), Some(()));
        }
    }
}
