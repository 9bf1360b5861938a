//! Conversions between numbers that saturate on purpose, and casts that can't lose anything.

use tessera_model::Millis;
use tessera_model::number::clamped;

/// Returns a count for the API, whose counts have 32 bits. No cluster reaches that limit.
pub(crate) fn saturating_u32(count: usize) -> u32 {
    clamped(count)
}

/// Returns a time that was computed in 128 bits; a time that is too long becomes the longest one.
pub(crate) fn saturating_millis(ms: u128) -> Millis {
    Millis::new(clamped(ms))
}

/// Returns a number of GPUs as an index: programs are built for 64 bits only.
pub(crate) const fn index(number: u32) -> usize {
    number as usize
}

/// Returns how many compute slices are held after `more` were taken, or returned if negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number was clamped to what fits"
)]
pub(crate) fn slices_after(held: u32, more: i64) -> u32 {
    i64::from(held).saturating_add(more).clamp(0, i64::from(u32::MAX)) as u32
}
