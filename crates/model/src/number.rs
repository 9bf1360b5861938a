//! Conversions between whole numbers of different sizes, each with one stated meaning.

/// A whole number with a lowest and a highest value.
pub trait WholeNumber: Sized {
    /// The lowest one.
    const LOWEST: Self;
    /// The highest one.
    const HIGHEST: Self;
}

macro_rules! whole_numbers {
    ($($number:ty),*) => {
        $(impl WholeNumber for $number {
            const LOWEST: Self = Self::MIN;
            const HIGHEST: Self = Self::MAX;
        })*
    };
}
whole_numbers!(u8, u16, u32, u64, usize, i16, i32, i64);

/// Returns the number, or the nearest one that the other type has. This is for figures of which only the size
/// matters: where a number out of range would be an error, use `TryFrom`.
pub fn clamped<T: WholeNumber>(value: impl TryInto<T> + PartialOrd + Default) -> T {
    let is_negative = value < Default::default();
    value.try_into().unwrap_or(if is_negative { T::LOWEST } else { T::HIGHEST })
}

/// Returns a number as an index. Nothing is lost: programs are built for 64 bits only.
#[expect(clippy::cast_possible_truncation, reason = "checked at compile time: both have 64 bits")]
pub const fn index(number: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS, "Tessera is built for 64 bits only") };
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_fits_stays_and_another_becomes_the_nearest_one() {
        assert_eq!(clamped::<u32>(7_u64), 7);
        assert_eq!(clamped::<u32>(u64::MAX), u32::MAX);
        assert_eq!(clamped::<u64>(-1_i128), 0);
        assert_eq!(clamped::<u64>(u128::MAX), u64::MAX);
        assert_eq!(clamped::<i16>(-70_000_i64), i16::MIN);
        assert_eq!(index(u64::MAX), usize::MAX);
    }
}
