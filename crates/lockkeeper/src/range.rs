//! Byte ranges, from every form of `struct flock` and back.
//!
//! A [`Range`] is never empty and never reaches past [`OFFSET_MAX`], so nothing
//! behind this module checks for either. Offsets are kept as `u64` although the
//! kernel's `loff_t` is signed: every valid offset fits, and `end + 1` cannot
//! overflow, which is what the tests for touching neighbours rely on.

use core::fmt;

use crate::error::RangeError;

/// The last offset of a file, `i64::MAX`: a range that ends here reaches "to
/// the end", however far the file grows (fcntl(2), `l_len` = 0).
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// A range of bytes with both ends inclusive; never empty, never past
/// [`OFFSET_MAX`].
///
/// ```
/// use lockkeeper::{Range, Whence};
///
/// let first_ten = Range::new(0, 9)?;
/// assert_eq!(first_ten, Range::from_flock(Whence::Start, 0, 10)?);
/// assert_eq!(first_ten.to_flock(), (0, 10));
/// assert_eq!(Range::from_offset(100)?.to_flock(), (100, 0)); // to the end
/// # Ok::<(), lockkeeper::RangeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    start: u64,
    end: u64,
}

/// What `l_start` of a `struct flock` counts from (fcntl(2), `l_whence`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// `SEEK_SET`: the start of the file.
    Start,
    /// `SEEK_CUR`: the descriptor's offset, given here in bytes.
    Current(i64),
    /// `SEEK_END`: the size of the file, given here in bytes.
    End(i64),
}

impl Whence {
    /// Reads an `l_whence` value: 0, 1 or 2.
    ///
    /// # Errors
    /// [`RangeError::UnknownWhence`] (EINVAL) for any other value.
    pub fn from_raw(whence: i32, offset: i64, size: i64) -> Result<Whence, RangeError> {
        match whence {
            0 => Ok(Whence::Start),
            1 => Ok(Whence::Current(offset)),
            2 => Ok(Whence::End(size)),
            _ => Err(RangeError::UnknownWhence(whence)),
        }
    }
}

impl Range {
    /// The whole file: byte 0 to [`OFFSET_MAX`].
    pub const WHOLE: Range = Range {
        start: 0,
        end: OFFSET_MAX,
    };

    /// Bytes `start` to `end`, both inclusive.
    ///
    /// # Errors
    /// [`RangeError::Empty`] (EINVAL) if `end` lies before `start`,
    /// [`RangeError::PastEnd`] (EOVERFLOW) if `end` lies past [`OFFSET_MAX`].
    pub const fn new(start: u64, end: u64) -> Result<Range, RangeError> {
        if end < start {
            Err(RangeError::Empty)
        } else if end > OFFSET_MAX {
            Err(RangeError::PastEnd)
        } else {
            Ok(Range { start, end })
        }
    }

    /// Bytes `start` to the end of the offset space.
    ///
    /// # Errors
    /// [`RangeError::PastEnd`] (EOVERFLOW) if `start` lies past [`OFFSET_MAX`].
    pub const fn from_offset(start: u64) -> Result<Range, RangeError> {
        if start > OFFSET_MAX {
            Err(RangeError::PastEnd)
        } else {
            Ok(Range {
                start,
                end: OFFSET_MAX,
            })
        }
    }

    /// The one byte at `offset`.
    ///
    /// # Errors
    /// [`RangeError::PastEnd`] (EOVERFLOW) if it lies past [`OFFSET_MAX`].
    pub const fn byte(offset: u64) -> Result<Range, RangeError> {
        Range::new(offset, offset)
    }

    /// The range that a `struct flock` means (fcntl(2), and the kernel's order
    /// of checks): `len` > 0 covers `[base+start, base+start+len-1]`, `len` < 0
    /// covers the `-len` bytes before `base+start`, `len` = 0 reaches to
    /// [`OFFSET_MAX`].
    ///
    /// # Errors
    /// [`RangeError::NegativeStart`] (EINVAL) if the range begins before byte 0,
    /// [`RangeError::PastEnd`] (EOVERFLOW) if it ends past [`OFFSET_MAX`].
    pub fn from_flock(whence: Whence, start: i64, len: i64) -> Result<Range, RangeError> {
        let base = match whence {
            Whence::Start => 0,
            Whence::Current(offset) => offset,
            Whence::End(size) => size,
        };
        let start = match base.checked_add(start) {
            Some(start) => start,
            None if start > 0 => return Err(RangeError::PastEnd),
            None => return Err(RangeError::NegativeStart),
        };
        if start < 0 {
            return Err(RangeError::NegativeStart);
        }
        let (first, last) = match len {
            0 => (start, i64::MAX),
            1.. => match start.checked_add(len - 1) {
                Some(last) => (start, last),
                None => return Err(RangeError::PastEnd),
            },
            // start >= 0 and len < 0: the sum cannot overflow.
            _ => (start + len, start - 1),
        };
        if first < 0 {
            return Err(RangeError::NegativeStart);
        }
        Ok(Range {
            start: first as u64,
            end: last as u64,
        })
    }

    /// The range that a protocol's inclusive pair means, where "to the end" may
    /// be written as `u64::MAX` or `i64::MAX` (FUSE, NLM, 9P, NFSv4).
    ///
    /// # Errors
    /// [`RangeError::Empty`] (EINVAL) if `end` lies before `start`,
    /// [`RangeError::PastEnd`] (EOVERFLOW) if `start` lies past [`OFFSET_MAX`],
    /// or `end` does and is not `u64::MAX`.
    pub const fn from_wire(start: u64, end: u64) -> Result<Range, RangeError> {
        if start > OFFSET_MAX {
            return Err(RangeError::PastEnd);
        }
        Range::new(start, if end == u64::MAX { OFFSET_MAX } else { end })
    }

    /// `l_start` and `l_len` of the range, with `l_whence` = `SEEK_SET`;
    /// `l_len` is 0 where the range reaches [`OFFSET_MAX`], as the kernel
    /// reports it.
    pub const fn to_flock(self) -> (i64, i64) {
        let len = if self.end == OFFSET_MAX {
            0
        } else {
            (self.end - self.start + 1) as i64
        };
        (self.start as i64, len)
    }

    /// The first byte.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The last byte, inclusive.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Whether the range reaches [`OFFSET_MAX`].
    pub const fn reaches_end(self) -> bool {
        self.end == OFFSET_MAX
    }

    /// Whether the two have a byte in common.
    pub const fn overlaps(self, other: Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether every byte of `other` is in this range.
    pub const fn contains(self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the two overlap or lie side by side without a gap.
    pub const fn touches(self, other: Range) -> bool {
        self.start <= other.end + 1 && other.start <= self.end + 1
    }

    /// The smallest range that holds both.
    pub(crate) fn join(self, other: Range) -> Range {
        Range {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// What of this range lies in `other`, which it overlaps.
    pub(crate) fn within(self, other: Range) -> Range {
        Range {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }

    /// What of this range lies before `other`.
    pub(crate) fn before(self, other: Range) -> Option<Range> {
        (self.start < other.start).then(|| Range {
            start: self.start,
            end: self.end.min(other.start - 1),
        })
    }

    /// What of this range lies after `other`.
    pub(crate) fn after(self, other: Range) -> Option<Range> {
        (self.end > other.end).then(|| Range {
            start: self.start.max(other.end + 1),
            end: self.end,
        })
    }
}

impl fmt::Display for Range {
    /// As /proc/locks prints it: `0 9`, `100 EOF`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reaches_end() {
            write!(f, "{} EOF", self.start)
        } else {
            write!(f, "{} {}", self.start, self.end)
        }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reaches_end() {
            write!(f, "[{}, EOF]", self.start)
        } else {
            write!(f, "[{}, {}]", self.start, self.end)
        }
    }
}

impl TryFrom<core::ops::RangeInclusive<u64>> for Range {
    type Error = RangeError;

    fn try_from(range: core::ops::RangeInclusive<u64>) -> Result<Range, RangeError> {
        Range::new(*range.start(), *range.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: i64 = i64::MAX;

    fn flock(whence: Whence, start: i64, len: i64) -> Result<(u64, u64), RangeError> {
        Range::from_flock(whence, start, len).map(|r| (r.start(), r.end()))
    }

    #[test]
    fn every_form_of_struct_flock_gives_the_range_the_kernel_gives() {
        use RangeError::{NegativeStart, PastEnd};
        let end = OFFSET_MAX;
        type Case = (Whence, i64, i64, Result<(u64, u64), RangeError>);
        let cases: &[Case] = &[
            (Whence::Start, 0, 0, Ok((0, end))),
            (Whence::Start, 0, 1, Ok((0, 0))),
            (Whence::Start, 10, -5, Ok((5, 9))),
            (Whence::Start, 3, -5, Err(NegativeStart)),
            (Whence::Start, 0, -1, Err(NegativeStart)),
            (Whence::Start, 10, i64::MIN, Err(NegativeStart)),
            (Whence::End(100), -10, 0, Ok((90, end))),
            (Whence::End(100), -10, -5, Ok((85, 89))),
            (Whence::Start, MAX, 1, Ok((end, end))),
            (Whence::Start, MAX, 2, Err(PastEnd)),
            (Whence::Start, MAX, 0, Ok((end, end))),
            (Whence::Start, 0, MAX, Ok((0, end - 1))),
            (Whence::Start, 1, MAX, Ok((1, end))),
            (Whence::Start, 2, MAX, Err(PastEnd)),
            (Whence::End(100), MAX, 1, Err(PastEnd)),
            (Whence::Start, -1, 5, Err(NegativeStart)),
            (Whence::Current(50), -10, 20, Ok((40, 59))),
            (Whence::Current(50), -60, 20, Err(NegativeStart)),
            (Whence::Current(MAX), MAX, MAX, Err(PastEnd)),
            (Whence::Current(i64::MIN), -1, 1, Err(NegativeStart)),
        ];
        for &(whence, start, len, want) in cases {
            assert_eq!(flock(whence, start, len), want, "{whence:?} {start},{len}");
        }
        assert_eq!(Whence::from_raw(9, 0, 0), Err(RangeError::UnknownWhence(9)));
    }

    #[test]
    fn a_range_goes_back_into_struct_flock() {
        for (start, len) in [(0, 0), (0, 1), (5, 7), (MAX, 0), (1, 0), (0, MAX)] {
            let range = Range::from_flock(Whence::Start, start, len).unwrap();
            assert_eq!(range.to_flock(), (start, len));
        }
        // What ends at OFFSET_MAX reads back as "to the end".
        assert_eq!(Range::byte(OFFSET_MAX).unwrap().to_flock(), (MAX, 0));
    }

    #[test]
    fn a_protocol_may_write_the_end_in_two_ways() {
        assert_eq!(Range::from_wire(3, u64::MAX), Range::from_offset(3));
        assert_eq!(Range::from_wire(3, OFFSET_MAX), Range::from_offset(3));
        assert_eq!(
            Range::from_wire(3, OFFSET_MAX + 1),
            Err(RangeError::PastEnd)
        );
        assert_eq!(
            Range::from_wire(u64::MAX, u64::MAX),
            Err(RangeError::PastEnd)
        );
        assert_eq!(Range::from_wire(4, 3), Err(RangeError::Empty));
    }

    #[test]
    fn touching_does_not_overflow_at_the_end() {
        let last = Range::byte(OFFSET_MAX).unwrap();
        let before = Range::byte(OFFSET_MAX - 1).unwrap();
        assert!(last.touches(before) && before.touches(last) && last.touches(last));
        assert!(!last.overlaps(before));
        assert!(!last.touches(Range::byte(OFFSET_MAX - 2).unwrap()));
    }
}
