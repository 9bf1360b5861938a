//! Bytes to frames and back, under a hard limit.
//!
//! bincode is named in this file only. It is feature-complete and unmaintained (RUSTSEC-2025-0141), so
//! golden tests pin its bytes. They are fixed-width integers, which other crates write identically. So it
//! can be replaced without a change on the wire.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest frame, in bytes, without its length prefix. Decoding also claims no more memory than
/// this: without the limit, ten hostile bytes could make the decoder reserve a terabyte.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<FRAME_BYTES_MAX>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<FRAME_BYTES_MAX>();

/// A message that doesn't fit into a frame.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// Its encoding is longer than [`FRAME_BYTES_MAX`].
    #[error("a frame of {bytes} bytes: the limit is {FRAME_BYTES_MAX}")]
    TooLarge {
        /// How long it is.
        bytes: usize,
    },
    /// It holds something that has no encoding.
    #[error("a frame that can't be encoded")]
    Unencodable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Bytes that are no frame of this protocol. The connection they came on can't be trusted.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than [`FRAME_BYTES_MAX`].
    #[error("a frame of {bytes} bytes: the limit is {FRAME_BYTES_MAX}")]
    TooLarge {
        /// How long it claims to be.
        bytes: usize,
    },
    /// Not an encoding of the expected type.
    #[error("bytes that are no frame")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A frame with something behind it.
    #[error("{left} bytes too many behind a frame")]
    Trailing {
        /// How many bytes are left.
        left: usize,
    },
}

/// A kind of frame of which newer peers may know more variants.
pub trait FrameKinds {
    /// How many variants this build knows.
    const KNOWN: u32;
}

/// Appends the encoding of `frame` to `buffer`, which is left as it was on an error.
///
/// # Errors
///
/// [`EncodeError`]: the frame must be made smaller; it is a bug of the sender.
pub fn encode<T: Serialize>(frame: &T, buffer: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = buffer.len();
    let written = bincode::serde::encode_into_std_write(frame, buffer, CONFIG);
    let bytes = buffer.len() - start;
    let result = match written {
        Err(cause) => Err(EncodeError::Unencodable(Box::new(cause))),
        Ok(_) if bytes > FRAME_BYTES_MAX => Err(EncodeError::TooLarge { bytes }),
        Ok(_) => Ok(()),
    };
    if result.is_err() {
        buffer.truncate(start);
    }
    result
}

/// Reads one frame that fills `bytes` exactly.
///
/// # Errors
///
/// [`DecodeError`]: close the connection, the peer speaks something else.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(DecodeError::TooLarge { bytes: bytes.len() });
    }
    let (frame, used) = bincode::serde::decode_from_slice(bytes, CONFIG)
        .map_err(|cause| DecodeError::Malformed(Box::new(cause)))?;
    match bytes.len() - used {
        0 => Ok(frame),
        left => Err(DecodeError::Trailing { left }),
    }
}

/// Reads one frame that fills `bytes` exactly; `None` if it is of a kind that is younger than this
/// build.
///
/// # Errors
///
/// [`DecodeError`]: close the connection, the peer speaks something else.
pub fn decode_known<T: DeserializeOwned + FrameKinds>(
    bytes: &[u8],
) -> Result<Option<T>, DecodeError> {
    // The variant's number comes first, see the golden tests.
    match bytes.first_chunk::<4>() {
        Some(kind) if u32::from_le_bytes(*kind) >= T::KNOWN => Ok(None),
        Some(_) | None => decode(bytes).map(Some),
    }
}
